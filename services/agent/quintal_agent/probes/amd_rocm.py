"""`rocm-smi` (JSON of 4.3 to 6.2, table) and `rocminfo`; Hygon's tools, which grew out of them.

Every value of the JSON is a text; `"system"` stands beside the cards; `"0"`, `"1"` inside a card
are a list of clocks. Hygon's JSON lacks commas and has its units in other keys. `GFX Activity` and
`Memory Activity` are accumulators that wrap: they are no utilization, and not read as one.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from quintal_agent.probes import captured, tool, values
from quintal_agent.probes.captured import refused
from quintal_agent.probes.probe import Device, Observation, Part

_READINGS: Final[dict[str, tuple[str, ...]]] = {
    "utilization_percent": ("GPU use (%)", "HCU use (%)", "DCU use (%)"),
    "memory_utilization_percent": ("GPU Memory Read/Write Activity (%)",),
    "power_watts": (
        "Average Graphics Package Power (W)",
        "Current Socket Graphics Package Power (W)",
        "Average Socket Graphics Package Power (W)",
    ),
    "power_limit_watts": ("Max Graphics Package Power (W)",),
    "temperature_celsius": ("Temperature (Sensor edge) (C)",),
    "hotspot_temperature_celsius": ("Temperature (Sensor junction) (C)",),
    "memory_temperature_celsius": (
        "Temperature (Sensor memory) (C)",
        "Temperature (Sensor mem) (C)",
    ),
    "fan_percent": ("Fan speed (%)",),
    "pcie_replay_count": ("PCIe Replay Count",),
}
_CLOCKS: Final = {"sm_clock_hertz": "sclk clock speed", "memory_clock_hertz": "mclk clock speed"}
_MEMORY: Final = re.compile(r"^vram total (used )?memory \((B|MiB|MB|KiB)\)$", re.IGNORECASE)
_TABLE: Final = re.compile(r"^(?:GPU|DCU|HCU|Device)\s+.*(?:VRAM%|Temp)", re.MULTILINE)
_BDF_BITS: Final = 16


def recognises(data: bytes) -> bool:
    """Whether AMD's or Hygon's tool printed it."""
    said = captured.head(data)
    return (
        re.search(r'"card\d+"\s*:\s*\{', said) is not None
        or ("System Management Interface" in said and _TABLE.search(said) is not None)
        or ("BDFID:" in said and "Compute Unit:" in said)
    )


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where it is none of the forms."""
    said = captured.text(data)
    if "BDFID:" in said:
        return _rocminfo(said)
    if re.search(r'"card\d+"', said):
        return _json(said)
    return _table(said)


def _json(said: str) -> Observation:
    root = captured.json_in(said)
    if not isinstance(root, dict):
        raise ValueError("no cards")  # noqa: TRY004 - what is wrong is the text
    vendor = "hygon" if re.search(r"HCU|DCU|C-3000|Hygon", said) else "amd"
    devices = []
    for key, card in root.items():
        number = re.fullmatch(r"card(\d{1,6})", str(key))
        if number and isinstance(card, dict):
            devices.append(_card(card, int(number[1]), vendor))
    system = root.get("system")
    driver = captured.known(system.get("Driver version")) if isinstance(system, dict) else None
    tool = "hy-smi --json" if vendor == "hygon" else "rocm-smi --json"
    return captured.observed(vendor, tool, devices, drivers={vendor: driver} if driver else {})


def _card(card: dict[str, Any], index: int, vendor: str) -> Device:
    at = captured.address(card.get("PCI Bus"))
    serial = captured.known(card.get("Serial Number"))
    serial = None if serial == "0" else serial
    readings = {
        name: values.read_json(name, card[key])
        for name, keys in _READINGS.items()
        for key in keys
        if key in card
    }
    for name, key in _CLOCKS.items():
        told = card.get(key, card.get(f"{key}:"))
        if told is not None:
            readings[name] = values.read(name, str(told).strip("()"))
    total: int | None = None
    for key, said in card.items():
        memory = _MEMORY.match(str(key))
        if memory and memory[1]:
            readings["memory_used_bytes"] = values.read("memory_used_bytes", str(said), memory[2])
        elif memory:
            total = values.size(str(said), memory[2])
    uuid = captured.known(card.get("Unique ID"))
    return Device(
        uuid=captured.identity(uuid=uuid, at=at, serial=serial, index=index),
        index=index,
        vendor=vendor,
        name=_name(card),
        memory_bytes=total,
        pci_address=at,
        pci_id=_pci_id(card.get("GPU ID") or card.get("Device ID"), vendor),
        serial=serial,
        numa_node=captured.whole(card.get("(Topology) Numa Node")),
        architecture=captured.known(card.get("GFX Version")),
        readings=readings,
    )


def _name(card: dict[str, Any]) -> str:
    """The first key that holds a name: in some versions they hold hexadecimal ids."""
    lower = {str(key).casefold(): value for key, value in card.items()}
    for key in ("card series", "card model", "device name"):
        name = captured.known(lower.get(key))
        if name is not None and not re.fullmatch(r"0x[0-9a-fA-F]+", name):
            return name
    return ""


def _pci_id(said: Any, vendor: str) -> str | None:
    digits = re.fullmatch(r"0x([0-9a-fA-F]{1,4})", str(said))
    return f"{'1d94' if vendor == 'hygon' else '1002'}:{digits[1].lower():0>4}" if digits else None


def _table(said: str) -> Observation:
    """A row per device below the header; a second row has its name in later versions."""
    vendor = "hygon" if re.search(r"^\s*(DCU|HCU)\s", said, re.MULTILINE) else "amd"
    head: list[str] = []
    devices: list[Device] = []
    for line in said.splitlines():
        if _TABLE.match(line):
            head = re.sub(r"\[[^\]]*\]|\([^)]*\)", " ", line).split()
            continue
        joined = re.sub(r"\[[^\]]*\]", " ", line).replace(", ", ",")
        cells = joined.split()
        index = captured.whole(cells[0]) if cells else None
        if head and index is not None and len(cells) == len(head):
            row = dict(zip(head, cells, strict=True))
            devices.append(_row(vendor, index, row, re.search(r"\[(0x\w+)", line)))
        elif devices and re.match(r"\s+\S", line) and not devices[-1].name:
            devices[-1] = replace(devices[-1], name=line.strip())
    if not devices:
        return refused(vendor, "rocm-smi", "rocm-smi: a table without a device", said)
    return captured.observed(vendor, "rocm-smi", devices)


def _row(vendor: str, index: int, row: dict[str, str], model: re.Match[str] | None) -> Device:
    junction = vendor == "amd" and "Device" in row
    heads = {
        "power_watts": ("AvgPwr", "Power"),
        "power_limit_watts": ("PwrCap",),
        "hotspot_temperature_celsius" if junction else "temperature_celsius": ("Temp",),
        "utilization_percent": ("GPU%", "DCU%", "HCU%"),
        "fan_percent": ("Fan",),
        "sm_clock_hertz": ("SCLK",),
        "memory_clock_hertz": ("MCLK",),
    }
    readings = {
        name: values.read(name, row[head])
        for name, names in heads.items()
        for head in names
        if head in row
    }
    mode = row.get("Partitions", "").rpartition(",")[2]
    return Device(
        captured.identity(index=index),
        index,
        vendor,
        "",
        pci_id=_pci_id(model[1], vendor) if model else None,
        partitions=(Part(f"{captured.identity(index=index)}/{mode}", mode),)
        if mode and mode != "SPX"
        else (),
        readings=readings,
    )


def _rocminfo(said: str) -> Observation:
    """Agents that are GPUs. A partition comes after the whole cards, on another function."""
    devices: list[Device] = []
    for block in re.split(r"^\*{0,7}\s*Agent \d+\s*\*{0,7}$", said, flags=re.MULTILINE)[1:]:
        told = {key: value for _, key, value in reversed(list(captured.pairs(block)))}
        if told.get("Device Type") != "GPU":
            continue
        at = _bdf(captured.whole(told.get("BDFID")), captured.whole(told.get("Domain")) or 0)
        index = len(devices)
        devices.append(
            Device(
                captured.identity(uuid=told.get("Uuid"), at=at, index=index),
                index,
                "amd",
                captured.known(told.get("Marketing Name")) or "",
                pci_address=at,
                cores=captured.whole(told.get("Compute Unit")),
                architecture=captured.known(told.get("Name")),
            )
        )
    return captured.observed("amd", "rocminfo", devices)


def _bdf(number: int | None, domain: int) -> str | None:
    """Bus, device and function as rocminfo packs them."""
    if number is None or number >> _BDF_BITS:
        return None
    return f"{domain & 0xFFFF:04x}:{number >> 8:02x}:{number >> 3 & 0x1F:02x}.{number & 7}"


hygon = tool.probe("hygon", parse, ("hy-smi", "-a", "--json"))
