"""AMD from /sys: the amdgpu driver's own files, and the topology that its compute driver keeps.

Cheaper and truer than a tool. A file that is not there is unsupported; one that answers with an
error is unavailable (asleep, resetting). `pcie_bw` is left alone: reading it makes the driver
measure for a second. A card that sleeps is not opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from quintal_agent.probes import captured, pci, sysfs
from quintal_agent.probes.amd_smi import parse as parse_amd_smi
from quintal_agent.probes.probe import Device, Link, Observation, Value
from quintal_agent.probes.tool import ToolProbe, filled

_FILES: Final = {
    "utilization_percent": ("gpu_busy_percent", 1.0),
    "memory_utilization_percent": ("mem_busy_percent", 1.0),
    "memory_used_bytes": ("mem_info_vram_used", 1.0),
    "pcie_replay_count": ("pcie_replay_count", 1.0),
}
_HWMON: Final = {
    "power_watts": (("power1_average", "power1_input"), 1e-6),
    "power_limit_watts": (("power1_cap",), 1e-6),
    "sm_clock_hertz": (("freq1_input",), 1.0),
    "memory_clock_hertz": (("freq2_input",), 1.0),
}
_TEMPERATURES: Final = {
    "edge": "temperature_celsius",
    "junction": "hotspot_temperature_celsius",
    "mem": "memory_temperature_celsius",
}
_TOOL_EVERY: Final = 60
"""Looks between two calls of the tool, which only names what /sys leaves out."""


class AmdProbe:
    """/sys at every look; amd-smi, where it is installed, now and then for names and serials."""

    def __init__(
        self, *, node: str = "", sys_root: str = "/sys", tool: ToolProbe | None = None
    ) -> None:
        self._node = node
        self._root = Path(sys_root)
        self._tool = tool or ToolProbe(
            "amd", parse_amd_smi, (("amd-smi", "list", "--json"), ("amd-smi", "static", "--json"))
        )
        self._looks = 0
        self._named: Observation | None = None

    def observe(self) -> Observation:
        """Look once."""
        if self._looks % _TOOL_EVERY == 0:
            self._named = self._tool.observe()
        self._looks += 1
        devices = observe(self._root)
        links = hives(self._root)
        named = self._named
        if named is None:
            return _linked(captured.observed("amd", "sysfs", devices), links)
        if not devices:
            # Nothing under amdgpu: what the tool says stands, and why it says nothing.
            return named
        told = [self._with(device, named.devices) for device in devices]
        troubles = [t for t in named.troubles if t.code != "no_library"]
        seen = captured.observed(
            "amd",
            "sysfs, amd-smi" if named.devices else "sysfs",
            told,
            troubles=troubles,
            drivers=named.drivers or _driver(self._root),
        )
        return _linked(seen, links)

    def _with(self, device: Device, named: Sequence[Device]) -> Device:
        for other in named:
            if other.pci_address == device.pci_address:
                return filled(device, other, source="amd-smi")
        return device


def observe(root: Path) -> list[Device]:
    """Every card that amdgpu drives; another vendor's display is passed over."""
    devices: list[Device] = []
    nodes = _kfd(root)
    for folder in sysfs.cards(root, "amdgpu"):
        at = captured.address(folder.resolve().name)
        devices.append(_device(folder, at, len(devices), root, nodes.get(at or "", {})))
    return devices


def hives(root: Path) -> tuple[Link, ...] | None:
    """Every pair of cards of one xGMI hive; none where the driver tells no card's hive."""
    told: dict[str, list[str]] = {}
    for folder in sysfs.cards(root, "amdgpu"):
        hive = sysfs.text(folder / "xgmi_hive_info/xgmi_hive_id")
        if hive is not None:
            told.setdefault(hive, []).append(folder.resolve().name)
    links = [
        Link(a, b, "XGMI")
        for hive, those in told.items()
        for place, a in enumerate(those)
        for b in those[place + 1 :]
        if hive.strip("0x")
    ]
    return tuple(links) if told else None


def _linked(seen: Observation, links: tuple[Link, ...] | None) -> Observation:
    return replace(seen, links=links or (), links_told=links is not None)


def _device(folder: Path, at: str | None, index: int, root: Path, node: dict[str, str]) -> Device:
    unique = sysfs.text(folder / "unique_id")
    ids = [(sysfs.text(folder / name) or "").removeprefix("0x") for name in ("vendor", "device")]
    asleep = pci.asleep(at, root)
    total = sysfs.number(folder / "mem_info_vram_total")
    numa = captured.whole(sysfs.text(folder / "numa_node"))
    simds = captured.whole(node.get("simd_count"))
    per = captured.whole(node.get("simd_per_cu"))
    return Device(
        uuid=captured.identity(uuid=unique, at=at, index=index),
        index=index,
        vendor="amd",
        name=sysfs.text(folder / "product_name") or "",
        memory_bytes=int(total.value) if total.value else None,
        pci_address=at,
        pci_id=":".join(ids) if all(ids) else None,
        serial=captured.known(sysfs.text(folder / "serial_number")),
        numa_node=numa,
        cores=simds // per if simds and per else None,
        architecture=_gfx(node.get("gfx_target_version")),
        health_reason="asleep" if asleep else "",
        readings={name: Value(quality="unavailable", raw="asleep") for name in _FILES}
        if asleep
        else _readings(folder),
    )


def _readings(folder: Path) -> dict[str, Value]:
    readings = {
        name: sysfs.scaled(name, folder / file, factor) for name, (file, factor) in _FILES.items()
    }
    for monitor in sorted((folder / "hwmon").glob("hwmon*")):
        for name, (files, factor) in _HWMON.items():
            found = [file for file in files if (monitor / file).exists()]
            if found:
                readings[name] = sysfs.scaled(name, monitor / found[0], factor)
        for label in sorted(monitor.glob("temp*_label")):
            reading = _TEMPERATURES.get(sysfs.text(label) or "")
            if reading is not None:
                file = monitor / label.name.replace("_label", "_input")
                readings[reading] = sysfs.scaled(reading, file, 1e-3)
    for name in ("power_watts", "temperature_celsius"):
        readings.setdefault(name, Value(quality="unsupported"))
    return readings


def _kfd(root: Path) -> dict[str, dict[str, str]]:
    """The compute driver's nodes by PCI address; partitions are nodes of their own."""
    found: dict[str, dict[str, str]] = {}
    for folder in sorted((root / "class/kfd/kfd/topology/nodes").glob("*")):
        told = dict(
            line.split(None, 1)
            for line in (sysfs.text(folder / "properties") or "").splitlines()
            if len(line.split(None, 1)) == 2  # noqa: PLR2004 - a name and its number
        )
        where = captured.whole(told.get("location_id"))
        if where and captured.whole(told.get("simd_count")):
            domain = captured.whole(told.get("domain")) or 0
            at = f"{domain:04x}:{where >> 8 & 0xFF:02x}:{where >> 3 & 0x1F:02x}.{where & 7}"
            found[at] = told
    return found


def _gfx(version: str | None) -> str | None:
    """`90402` as `gfx942`: major, minor and stepping, the last two in hexadecimal."""
    number = captured.whole(version)
    if not number:
        return None
    return f"gfx{number // 10_000}{number // 100 % 100:x}{number % 100:x}"


def _driver(root: Path) -> dict[str, str]:
    version = sysfs.text(root / "module/amdgpu/version")
    return {"amd": version} if version else {}
