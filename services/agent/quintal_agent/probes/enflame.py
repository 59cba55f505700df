"""`efsmi`: Enflame's table and `dmon`. Labels change in every generation; `Mem` is the total.

The table shows no memory in use; dmon shows it as a share. Bus ids have no domain.
"""

from __future__ import annotations

import re
from typing import Final

from quintal_agent.probes import boxes, captured, tool, values
from quintal_agent.probes.boxes import Group, Sheet
from quintal_agent.probes.probe import Device, Observation, Value

_DMON: Final = {
    "Pwr": "power_watts",
    "DTemp": "temperature_celsius",
    "DUsed": "utilization_percent",
    "MUsed": "memory_used_percent",
    "Mclk": "memory_clock_hertz",
}


def recognises(data: bytes) -> bool:
    """Whether efsmi's banner or dmon's header is there."""
    said = captured.head(data)
    return "Enflame System Management" in said or "EFSMI" in said or "*Dev Pwr" in said


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where there is neither form."""
    said = captured.text(data)
    if re.search(r"^\*Dev\s", said, re.MULTILINE):
        return _dmon(said)
    sheet = boxes.sheet(said, "BUS-ID")
    if sheet is None:
        raise ValueError("no table")
    devices = [
        _device(sheet, group, index)
        for group in sheet.groups
        if (index := boxes.first_number(group[0])) is not None
    ]
    driver = re.search(r"Driver Ver:\s*(\S+)", said)
    return captured.observed(
        "enflame", "efsmi", devices, drivers={"enflame": driver[1]} if driver else {}
    )


def _device(sheet: Sheet, group: Group, index: int) -> Device:
    where = sheet.cell(group, "BUS-ID") or ""
    at = captured.address(where.partition(" ")[0])
    told = (sheet.cell(group, "Pwr(") or "").replace("℃", "C").split()
    hot = told[0] if told else None
    if len(told) > 1 and told[1] == "C":
        hot = f"{told.pop(0)}C"
    powers = [word for word in told[1:] if re.fullmatch(r"\d+(\.\d+)?W", word)]
    memory = (sheet.cell(group, "Mem ") or "").split()
    last = (sheet.cell(group, "DUsed") or "").split()
    name = " ".join(group[0][0].split()[1:])
    serial = captured.known(last[1]) if len(last) > 1 else None
    return Device(
        uuid=captured.identity(at=at, serial=serial, index=index),
        index=index,
        vendor="enflame",
        name=name,
        memory_bytes=values.size(memory[0] if memory else None),
        pci_address=at,
        serial=serial,
        readings={
            "temperature_celsius": values.read("temperature_celsius", hot),
            "power_watts": values.read("power_watts", powers[0] if powers else "N/A"),
            "power_limit_watts": values.read(
                "power_limit_watts", powers[1] if len(powers) > 1 else "N/A"
            ),
            "utilization_percent": values.read("utilization_percent", last[0] if last else None),
            "memory_used_bytes": Value(quality="unsupported"),
        },
    )


def _dmon(said: str) -> Observation:
    names: list[str] = []
    units: dict[str, str] = {}
    devices: dict[int, Device] = {}
    for line in said.splitlines():
        cells = line.split()
        if line.startswith("*Dev"):
            names = cells
        elif line.startswith("*Idx"):
            units = dict(zip(names, cells, strict=False))
        elif names and len(cells) == len(names) and captured.whole(cells[0]) is not None:
            row = dict(zip(names, cells, strict=True))
            index = int(cells[0][:9])
            readings = {
                name: values.read(name, row[head], units.get(head, ""))
                for head, name in _DMON.items()
                if head in row
            }
            devices[index] = Device(
                captured.identity(index=index),
                index,
                "enflame",
                "",
                values.size(row.get("Mem"), units.get("Mem", "")),
                readings=readings,
            )
    return captured.observed("enflame", "efsmi dmon", list(devices.values()))


live = tool.probe("enflame", parse, ("efsmi",))
