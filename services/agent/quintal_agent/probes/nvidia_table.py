"""The table of `nvidia-smi` without arguments, and that of `ixsmi`, which looks alike."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from quintal_agent.probes import boxes, captured, tool, values
from quintal_agent.probes.boxes import Group, Sheet
from quintal_agent.probes.probe import Device, Health, Observation, Part, Trouble, Value

_HANDLE: Final = re.compile(
    r"Unable to determine the device handle for (?:GPU|gpu)\s*\d*\s*:?\s*([0-9A-Fa-f:.]+)[^\n]*"
)
_HEADS: Final[Group] = [
    ["GPU  Name", "Bus-Id", "Clock-SM  Clock-Mem"],
    ["Fan  Temp  Perf  Pwr:Usage/Cap", "Memory-Usage", "GPU-Util  Compute M."],
]
"""ixsmi's, for a table that was cut out without its head."""


def recognises(data: bytes) -> bool:
    """Whether NVIDIA's or Iluvatar's table is there."""
    said = captured.head(data)
    return ("NVIDIA-SMI" in said and "Memory-Usage" in said) or is_iluvatar(said)


def is_iluvatar(said: str) -> bool:
    """Whether it is ixsmi's: by its banner, or by a device's name where that was cut off."""
    return "IX-ML" in said or re.search(r"\|\s*\d+\s+Iluvatar ", said) is not None


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where there is no table."""
    said = captured.text(data)
    other = is_iluvatar(said)
    sheet = boxes.sheet(said, "Memory-Usage", _HEADS if other else None)
    if sheet is None:
        raise ValueError("no table")
    vendor = "iluvatar" if other else "nvidia"
    processes = boxes.processes(said)
    parts = _parts(said)
    devices = []
    for group in sheet.groups:
        index = boxes.first_number(group[0])
        if index is not None:
            device = _device(sheet, group, index, vendor)
            shown, held = parts.get(index, ()), processes.get(index, ())
            devices.append(replace(device, partitions=shown, processes=held))
    troubles = []
    for handle in _HANDLE.finditer(said):
        at = captured.address(handle[1].strip(".:")) or handle[1]
        troubles.append(Trouble("lost", handle[0].strip(), at))
    driver = re.search(r"(?:KMD|Driver) Version: (\S+)", said)
    cuda = re.search(r"CUDA (?:UMD )?Version: (\S+)", said)
    return captured.observed(
        vendor,
        "ixsmi" if other else "nvidia-smi",
        devices,
        troubles=troubles,
        drivers={vendor: driver[1]} if driver else {},
        runtimes={"cuda": cuda[1]} if cuda and captured.known(cuda[1]) else {},
    )


def _device(sheet: Sheet, group: Group, index: int, vendor: str) -> Device:
    at = captured.address((sheet.cell(group, "Bus-Id") or "").partition(" ")[0])
    used, total = boxes.usage(sheet.cell(group, "Memory-Usage"))
    readings = {"memory_used_bytes": used, **_cooling(sheet, group), **_clocks(sheet, group)}
    busy = (sheet.cell(group, "Util") or "").split()
    readings["utilization_percent"] = values.read("utilization_percent", busy[0] if busy else None)
    health, reason = _health(group)
    if vendor == "iluvatar" and readings["power_watts"].quality == "out_of_range":
        # 65535 W, 0 C, 100 % busy: a card that no longer answers, not one that works hard.
        health, reason = "failed", "power and temperature are no numbers of a device that runs"
        readings = {name: _dead(value) for name, value in readings.items()}
    return Device(
        uuid=captured.identity(at=at, index=index),
        index=index,
        vendor=vendor,
        name=_name(sheet, group),
        memory_bytes=total,
        pci_address=at,
        health=health,
        health_reason=reason,
        readings=readings,
    )


def _dead(value: Value) -> Value:
    if value.quality != "ok":
        return value
    return Value(quality="implausible", raw=value.raw or str(value.value))


def _name(sheet: Sheet, group: Group) -> str:
    words = group[0][0].split()[1:]
    if "Persistence" in sheet.head("Name") and words:
        words.pop()
    return " ".join(words)


def _cooling(sheet: Sheet, group: Group) -> dict[str, Value]:
    told = boxes.words(sheet.cell(group, "Pwr:Usage"), sheet.head("Pwr:Usage"))
    draw, limit = boxes.pair(told.get("Pwr:Usage/Cap"))
    return {
        "fan_percent": values.read("fan_percent", told.get("Fan")),
        "temperature_celsius": values.read("temperature_celsius", told.get("Temp")),
        "power_watts": values.read("power_watts", draw),
        "power_limit_watts": values.read("power_limit_watts", limit),
    }


def _clocks(sheet: Sheet, group: Group) -> dict[str, Value]:
    """Only ixsmi's table has them."""
    told = boxes.words(sheet.cell(group, "Clock-SM"), sheet.head("Clock-SM"))
    names = {"Clock-SM": "sm_clock_hertz", "Clock-Mem": "memory_clock_hertz"}
    return {name: values.read(name, told[head]) for head, name in names.items() if head in told}


def _health(group: Group) -> tuple[Health, str]:
    words = " ".join(cell for row in group for cell in row)
    if "GPU is lost" in words:
        return "failed", "lost"
    if "ERR!" in words:
        return "failed", "needs reset"
    return "ok", ""


def _parts(said: str) -> dict[int, tuple[Part, ...]]:
    """MIG devices by their GPU. Those of one GPU instance share its memory: it counts once."""
    sheet = boxes.sheet(said, "Shared BAR1")
    found: dict[int, tuple[Part, ...]] = {}
    counted: set[tuple[int, str]] = set()
    for group in sheet.groups if sheet else ():
        told = re.match(r"(\d{1,6})\s+(\d{1,6})\s+(\d{1,6})\s+(\d{1,6})", group[0][0])
        if told is None or len(group[0]) < 2:  # noqa: PLR2004 - a sentence, not a row
            continue
        gpu, instance = int(told[1]), told[2]
        _, total = boxes.usage(group[0][1])
        memory = None if (gpu, instance) in counted else total
        counted.add((gpu, instance))
        uuid = f"MIG-GPU{gpu}/{instance}/{told[3]}"
        part = Part(uuid, "", memory, int(told[4]))
        found[gpu] = (*found.get(gpu, ()), part)
    return found


iluvatar = tool.probe("iluvatar", parse, ("ixsmi",))
