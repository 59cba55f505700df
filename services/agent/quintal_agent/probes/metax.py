"""`mx-smi`: MetaX' table. One unit stands behind a pair; the state column is in newer ones only."""

from __future__ import annotations

import re
from dataclasses import replace

from quintal_agent.probes import boxes, captured, tool, values
from quintal_agent.probes.boxes import Group, Sheet
from quintal_agent.probes.probe import Device, Health, Observation, Trouble


def recognises(data: bytes) -> bool:
    """Whether mx-smi's banner is there."""
    said = captured.head(data)
    return "MX-SMI" in said or "MetaX System Management" in said


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
    driver = re.search(r"Kernel Mode Driver Version:\s*(\S+)", said)
    maca = re.search(r"MACA Version:\s*(\S+)", said)
    bios = re.search(r"BIOS Version:\s*(\S+)", said)
    attached = re.search(r"Attached GPUs\s*:\s*(\d{1,6})", said)
    troubles = []
    if attached and int(attached[1]) > len(devices):
        words = f"mx-smi counts {attached[1]} devices and shows {len(devices)}"
        troubles.append(Trouble("not_reported", words))
    return captured.observed(
        "metax",
        "mx-smi",
        devices,
        troubles=troubles,
        drivers={"metax": driver[1]} if driver else {},
        runtimes={"maca": maca[1]} if maca and captured.known(maca[1]) else {},
        firmware={"metax": bios[1]} if bios and captured.known(bios[1]) else {},
    )


def _device(sheet: Sheet, group: Group, index: int) -> Device:
    at = captured.address(sheet.cell(group, "Bus-id"))
    used, total = boxes.usage(sheet.cell(group, "Memory-Usage"))
    hot = re.match(r"(\S+)\s+(.*)", sheet.cell(group, "Pwr:Usage") or "")
    draw, limit = boxes.pair(hot[2] if hot else None)
    busy = (sheet.cell(group, "GPU-Util") or "").split()
    words = group[0][0].split()[1:]
    if "Persistence" in sheet.head("NAME") and words:
        words.pop()
    state = sheet.cell(group, "GPU-State")
    health: tuple[Health, str] = ("ok", "")
    if state and state.casefold() != "available":
        health = ("failed", f"state: {state}")
    return Device(
        uuid=captured.identity(at=at, index=index),
        index=index,
        vendor="metax",
        name=" ".join(words),
        memory_bytes=total,
        pci_address=at,
        health=health[0],
        health_reason=health[1],
        readings={
            "temperature_celsius": values.read("temperature_celsius", hot[1] if hot else None),
            "power_watts": values.read("power_watts", draw),
            "power_limit_watts": values.read("power_limit_watts", limit),
            "memory_used_bytes": used,
            "utilization_percent": values.read("utilization_percent", busy[0] if busy else None),
        },
    )


live = tool.probe("metax", parse, ("mx-smi",))
