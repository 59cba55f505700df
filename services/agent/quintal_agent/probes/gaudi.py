"""`hl-smi`: Intel Gaudi's table and its CSV. Its `UUID` is a code of the board, no identity."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from typing import Final

from quintal_agent.probes import boxes, captured, tool, values
from quintal_agent.probes.boxes import Group, Sheet
from quintal_agent.probes.probe import Device, Observation


def recognises(data: bytes) -> bool:
    """Whether hl-smi printed it."""
    said = captured.head(data)
    return "HL-SMI" in said or any(
        "HL-" in line and " MiB" in line and "," in line for line in said.splitlines()
    )


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where there is no table."""
    said = captured.text(data)
    sheet = boxes.sheet(said, "Memory-Usage")
    if sheet is None:
        return _csv(said)
    devices = [
        _device(sheet, group, index)
        for group in sheet.groups
        if (index := boxes.first_number(group[0])) is not None
    ]
    held = boxes.processes(said)
    devices = [replace(device, processes=held.get(device.index, ())) for device in devices]
    driver = re.search(r"Driver Version:\s+(\S+)", said)
    firmware = re.search(r"HL-SMI Version:\s+\S*?-fw-([\w.]+)", said)
    return captured.observed(
        "intel",
        "hl-smi",
        devices,
        drivers={"gaudi": driver[1]} if driver else {},
        firmware={"gaudi": firmware[1]} if firmware else {},
    )


def _device(sheet: Sheet, group: Group, index: int) -> Device:
    at = captured.address((sheet.cell(group, "Bus-Id") or "").partition(" ")[0])
    used, total = boxes.usage(sheet.cell(group, "Memory-Usage"))
    told = boxes.words(sheet.cell(group, "Pwr:Usage"), sheet.head("Pwr:Usage"))
    draw, limit = boxes.pair(told.get("Pwr:Usage/Cap"))
    busy = (sheet.cell(group, "AIP-Util") or "").split()
    return Device(
        uuid=captured.identity(at=at, index=index),
        index=index,
        vendor="intel",
        name=[*group[0][0].split(), "", ""][1],
        memory_bytes=total,
        pci_address=at,
        readings={
            "temperature_celsius": values.read("temperature_celsius", told.get("Temp")),
            "power_watts": values.read("power_watts", draw),
            "power_limit_watts": values.read("power_limit_watts", limit),
            "memory_used_bytes": used,
            "utilization_percent": values.read("utilization_percent", busy[0] if busy else None),
            "fan_percent": values.read("fan_percent", told.get("Fan")),
            "ecc_uncorrected_count": values.read(
                "ecc_uncorrected_count", sheet.cell(group, "Uncorr. ECC")
            ),
        },
    )


def _csv(said: str) -> Observation:
    """Rows of `-Q ... -f csv`: with a header its names hold, without one each cell by its look."""
    devices: list[Device] = []
    names: list[str] = []
    for cells in csv.reader(said.splitlines(), skipinitialspace=True):
        row = [cell.strip() for cell in cells]
        if "index" in row or "uuid" in row:
            names = [cell.partition(" ")[0] for cell in row]
        elif any(cell.startswith("HL-") for cell in row):
            devices.append(_row(dict(zip(names, row, strict=False)), row, len(devices)))
    if not devices:
        raise ValueError("no row of hl-smi's")
    return captured.observed("intel", "hl-smi -Q", devices)


def _row(named: dict[str, str], row: list[str], place: int) -> Device:
    at = next((found for cell in row if (found := captured.address(cell))), None)
    sizes = [cell for cell in row if re.fullmatch(r"\d+ MiB", cell)]
    index = captured.whole(named.get("index", row[0]))
    # Without a header, the total is the largest size, and what is used cannot be told apart.
    total = named.get("memory.total") or max(sizes, key=lambda size: int(size[:-4]), default=None)
    readings = {
        reading: values.read(reading, cell)
        for reading, cell in {
            "memory_used_bytes": named.get("memory.used"),
            "utilization_percent": named.get("utilization.aip") or _like(row, r"\d+ %"),
            "temperature_celsius": named.get("temperature.aip") or _like(row, r"\d+ C"),
            "power_watts": named.get("power.draw") or _like(row, r"\d+ W"),
        }.items()
        if cell is not None
    }
    return Device(
        uuid=captured.identity(at=at, index=place if index is None else index),
        index=place if index is None else index,
        vendor="intel",
        name=next(cell for cell in row if cell.startswith("HL-")),
        memory_bytes=values.size(total),
        pci_address=at,
        readings=readings,
    )


def _like(row: list[str], pattern: str) -> str | None:
    """The one cell of that look; none where several have it."""
    found = [cell for cell in row if re.fullmatch(pattern, cell)]
    return found[0] if len(found) == 1 else None


_FIELDS: Final = (
    "index,uuid,bus_id,name,driver_version,memory.total,memory.used,"
    "utilization.aip,temperature.aip,power.draw"
)
live = tool.probe("intel", parse, ("hl-smi", "-Q", _FIELDS, "-f", "csv"), ("hl-smi",))
