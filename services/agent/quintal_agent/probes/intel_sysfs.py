"""Intel's cards from /sys (drivers i915 and xe), and `xpu-smi` for what /sys leaves out.

/sys has clock, power limit, temperature and energy; names, memory and utilization are the tool's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from quintal_agent.probes import captured, pci, sysfs
from quintal_agent.probes.intel import parse
from quintal_agent.probes.probe import Device, Observation, Value
from quintal_agent.probes.tool import Command, ToolProbe, merge

_CLOCKS: Final = ("tile0/gt0/freq0/act_freq", "gt_act_freq_mhz", "gt/gt0/rps_act_freq_mhz")
_HWMON: Final = {
    "energy_joules": ("energy1_input", 1e-6),
    "power_limit_watts": ("power1_max", 1e-6),
    "temperature_celsius": ("temp2_input", 1e-3),
}
_DISCOVERY_S: Final = 2.0
_STATS_S: Final = 4.0
_BDF_OF_THE_HOST: Final = ":00:02.0"
"""Where a processor's own picture sits; it is no accelerator."""


class IntelProbe:
    """/sys first; the devices' names by `discovery`, the readings of each by `stats`."""

    def __init__(self, *, node: str = "", sys_root: str = "/sys") -> None:
        del node
        self._root = Path(sys_root)
        self._named: Observation | None = None

    def observe(self) -> Observation:
        """Look once."""
        devices = observe(self._root)
        if self._named is None or not self._named.devices:
            command = ("xpu-smi", "discovery", "-j")
            self._named = ToolProbe("intel", parse, (command,), deadline_s=_DISCOVERY_S).observe()
        named = self._named
        if not named.devices:
            if not devices:
                return named
            own = [trouble for trouble in named.troubles if trouble.code != "no_library"]
            return captured.observed("intel", "sysfs", devices, troubles=own)
        each: list[Command] = [
            ("xpu-smi", "stats", "-d", str(device.index), "-j") for device in named.devices
        ]
        stats = ToolProbe("intel", parse, each, deadline_s=_STATS_S).observe()
        told = merge("intel", (named, replace(stats, idle=False)))
        return merge("intel", (told, captured.observed("intel", "sysfs", devices)))


def observe(root: Path) -> list[Device]:
    """Every card of Intel's that is no processor's own."""
    devices: list[Device] = []
    for folder in sysfs.cards(root, "i915", "xe"):
        at = captured.address(folder.resolve().name)
        if at is None or at.endswith(_BDF_OF_THE_HOST):
            continue
        index = len(devices)
        device = (sysfs.text(folder / "device") or "").removeprefix("0x")
        asleep = pci.asleep(at, root)
        devices.append(
            Device(
                captured.identity(at=at, index=index),
                index,
                "intel",
                "",
                pci_address=at,
                pci_id=f"8086:{device}" if device else None,
                numa_node=captured.whole(sysfs.text(folder / "numa_node")),
                health_reason="asleep" if asleep else "",
                readings=_asleep() if asleep else _readings(folder),
            )
        )
    return devices


def _asleep() -> dict[str, Value]:
    return {name: Value(quality="unavailable", raw="asleep") for name in _HWMON}


def _readings(folder: Path) -> dict[str, Value]:
    readings: dict[str, Value] = {}
    for path in (folder / clock for clock in _CLOCKS):
        if path.exists():
            readings["sm_clock_hertz"] = sysfs.scaled("sm_clock_hertz", path, 1e6)
            break
    for monitor in sorted((folder / "hwmon").glob("hwmon*")):
        for name, (file, factor) in _HWMON.items():
            if (monitor / file).exists():
                readings[name] = sysfs.scaled(name, monitor / file, factor)
    return readings
