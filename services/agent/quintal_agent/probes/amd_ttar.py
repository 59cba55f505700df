"""A tree of /sys packed as text (`ttar`): AMD's cards as their driver shows them.

The pack has what the driver's files held and mostly not its links, so a card is AMD's here by the
vendor's id or by files that only amdgpu has.
"""

from __future__ import annotations

import re
from typing import Final

from quintal_agent.probes import captured, values
from quintal_agent.probes.captured import refused
from quintal_agent.probes.probe import Device, Observation, Value

_FILE: Final = re.compile(r"^Path: (\S+)\nLines: (\d{1,6})\n", re.MULTILINE)
_CARD: Final = re.compile(r"(?:^|/)drm/card(\d{1,6})/device/(.+)$")
_READINGS: Final = {
    "utilization_percent": "gpu_busy_percent",
    "memory_utilization_percent": "mem_busy_percent",
    "memory_used_bytes": "mem_info_vram_used",
    "pcie_replay_count": "pcie_replay_count",
}


def recognises(data: bytes) -> bool:
    """Whether it is such a pack."""
    said = captured.head(data)
    return _FILE.search(said) is not None and ("ttar" in said or "/drm/card" in said)


def parse(data: bytes) -> Observation:
    """The observation; a pack without a card of AMD's is refused by name."""
    said = captured.text(data)
    cards: dict[int, dict[str, str]] = {}
    for found in _FILE.finditer(said):
        place = _CARD.search(found[1])
        if place is not None:
            lines = said[found.end() : found.end() + 65_536].split("\n")[: int(found[2])]
            body = "\n".join(lines).replace("NULLBYTE", "").replace("EOF", "").strip()
            cards.setdefault(int(place[1]), {})[place[2]] = body
    devices = [
        _device(files, index)
        for index, (_, files) in enumerate(sorted(cards.items()))
        if files.get("vendor", "0x1002") == "0x1002" and "mem_info_vram_total" in files
    ]
    if not devices:
        return refused("amd", "sysfs (ttar)", "a packed /sys without a card of amdgpu's", said)
    return captured.observed("amd", "sysfs (ttar)", devices)


def _device(files: dict[str, str], index: int) -> Device:
    ids = [files.get(name, "").removeprefix("0x") for name in ("vendor", "device")]
    readings: dict[str, Value] = {
        name: values.read(name, files[file]) for name, file in _READINGS.items() if file in files
    }
    return Device(
        captured.identity(uuid=files.get("unique_id"), index=index),
        index,
        "amd",
        captured.known(files.get("product_name")) or "",
        values.size(files.get("mem_info_vram_total")),
        pci_id=":".join(ids) if all(ids) else None,
        numa_node=captured.whole(files.get("numa_node")),
        readings=readings,
    )
