"""`cnmon`: Cambricon's table. v4's second memory pair is virtual memory: it is not read."""

from __future__ import annotations

import re
from dataclasses import replace

from quintal_agent.probes import boxes, captured, tool, values
from quintal_agent.probes.boxes import Group, Sheet
from quintal_agent.probes.probe import Device, Observation


def recognises(data: bytes) -> bool:
    """Whether cnmon's banner is there."""
    return "CNMON" in captured.head(data)


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where there is no table."""
    said = captured.text(data)
    sheet = boxes.sheet(said, "Memory-Usage")
    if sheet is None:
        raise ValueError("no table")
    devices = [
        _device(sheet, group, index)
        for group in sheet.groups
        if (index := boxes.first_number(group[0])) is not None
    ]
    held = boxes.processes(said)
    devices = [replace(device, processes=held.get(device.index, ())) for device in devices]
    driver = re.search(r"Driver v?(\S+)", said)
    return captured.observed(
        "cambricon", "cnmon", devices, drivers={"cambricon": driver[1]} if driver else {}
    )


def _device(sheet: Sheet, group: Group, index: int) -> Device:
    at = captured.address((sheet.cell(group, "Bus-Id") or "").partition(" ")[0])
    used, total = boxes.usage(sheet.cell(group, "Memory-Usage"))
    told = boxes.words(sheet.cell(group, "Pwr:Usage"), sheet.head("Pwr:Usage"))
    draw, limit = boxes.pair(told.get("Pwr:Usage/Cap"))
    busy = (sheet.cell(group, "Util") or "").split()
    named = dict(zip(sheet.head("Name").split(), group[0][0].split(), strict=False))
    faults = busy[1] if len(busy) > 1 else None
    return Device(
        uuid=captured.identity(at=at, index=index),
        index=index,
        vendor="cambricon",
        name=named.get("Name", ""),
        memory_bytes=total,
        pci_address=at,
        readings={
            "fan_percent": values.read("fan_percent", told.get("Fan")),
            "temperature_celsius": values.read("temperature_celsius", told.get("Temp")),
            "power_watts": values.read("power_watts", draw),
            "power_limit_watts": values.read("power_limit_watts", limit),
            "memory_used_bytes": used,
            "utilization_percent": values.read("utilization_percent", busy[0] if busy else None),
            "ecc_uncorrected_count": values.read("ecc_uncorrected_count", faults),
        },
    )


live = tool.probe("cambricon", parse, ("cnmon",))
