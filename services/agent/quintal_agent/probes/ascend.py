"""`npu-smi info`: Huawei's table in its four layouts, told apart by their headers.

A device is a chip, not a card: a card has one or two. Its memory is HBM where there is any, else
the DDR. Power that a second die does not repeat, and `NA`, is no 0. Their MB are counted in 2^20.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from quintal_agent.probes import boxes, captured, matrix, tool, values
from quintal_agent.probes.boxes import Group, Sheet
from quintal_agent.probes.probe import Device, Health, Link, Observation, Process, Value

_HEALTH: Final[dict[str, Health]] = {
    "ok": "ok",
    "warning": "degraded",
    "alarm": "failed",
    "critical": "failed",
}
_PROCESS: Final = re.compile(
    r"^\|\s*(\d{1,9})\s+(\d{1,9})\s*\|\s*(\d{1,10})\s*\|\s*(\S*)\s*\|\s*(\d+)\s*\|", re.MULTILINE
)


_LINKS_EVERY: Final = 60


def recognises(data: bytes) -> bool:
    """Whether the table's banner or header is there."""
    said = captured.head(data)
    return "npu-smi" in said and re.search(r"\| *NPU +(ID +\|)? *Name", said) is not None


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where there is no table."""
    said = captured.text(data)
    sheet = boxes.sheet(said, "Memory-Usage")
    if sheet is None:
        raise ValueError("no table")
    devices: list[Device] = []
    places: dict[tuple[int, int], int] = {}
    for group in sheet.groups:
        for rows in (group[place : place + 2] for place in range(0, len(group) - 1, 2)):
            device, key = _device(sheet, rows, len(devices))
            if device is not None:
                places[key] = len(devices)
                devices.append(device)
    for found in _PROCESS.finditer(said):
        place = places.get((int(found[1]), int(found[2])))
        if place is not None:
            process = Process(int(found[3]), found[4], values.size(found[5], "MiB"))
            held = (*devices[place].processes, process)
            devices[place] = replace(devices[place], processes=held)
    version = re.search(r"\| npu-smi (?:v\S+ +)?(\S+)\s+Version: (\S+)", said)
    drivers = {"huawei": version[2]} if version else {}
    return captured.observed("huawei", "npu-smi info", devices, drivers=drivers)


def health_of(said: str | None) -> tuple[Health, str]:
    """What npu-smi's word for it means."""
    word = (said or "").strip()
    if not word:
        return "unknown", "npu-smi shows no health"
    health = _HEALTH.get(word.casefold(), "unknown")
    return health, "" if health == "ok" else f"npu-smi says {word}"


def _device(sheet: Sheet, rows: Group, place: int) -> tuple[Device | None, tuple[int, int]]:
    card = boxes.first_number(rows[0])
    if card is None:
        return None, (0, 0)
    second = _words(sheet.heads[1][0], rows[1][0])
    chip = captured.whole(second.get("Chip")) or 0
    logical = captured.whole(second.get("Phy-ID") or second.get("Device"))
    at = captured.address(sheet.cell(rows, "Bus-Id"))
    health, reason = health_of(sheet.cell(rows, "Health"))
    memory, readings = _readings(sheet, rows)
    return Device(
        uuid=captured.identity(at=at, die=str(chip) if chip else None, index=place)
        if at
        else captured.identity(serial=f"npu-{card}-{chip}"),
        index=place if logical is None else logical,
        vendor="huawei",
        name=_name(sheet, rows),
        memory_bytes=memory,
        pci_address=at,
        health=health,
        health_reason=reason,
        readings=readings,
    ), (card, chip)


def _name(sheet: Sheet, rows: Group) -> str:
    cell = sheet.cell(rows, "Name") or ""
    if "NPU" in sheet.head("Name"):
        cell = cell.partition(" ")[2]
    return cell.strip()


def _words(head: str, cell: str) -> dict[str, str]:
    return dict(zip(head.split(), cell.split(), strict=False))


def _readings(sheet: Sheet, rows: Group) -> tuple[int | None, dict[str, Value]]:
    """The wide cells: their words by the header's, a pair being two words or three."""
    first = _wide(sheet.head("Power"), sheet.cell(rows, "Power"))
    second = _wide(sheet.head("Memory-Usage"), sheet.cell(rows, "Memory-Usage"))
    busy = second.get("AICore(%)", second.get("NPU Util(%)"))
    used, memory = boxes.usage(second.get("HBM-Usage(MB)"), "MiB")
    if memory is None:
        used, memory = boxes.usage(second.get("Memory-Usage(MB)"), "MiB")
    return memory, {
        "power_watts": values.read("power_watts", first.get("Power(W)")),
        "temperature_celsius": values.read("temperature_celsius", first.get("Temp(C)")),
        "utilization_percent": values.read("utilization_percent", busy),
        "memory_used_bytes": used if memory is not None else Value(quality="unsupported"),
    }


def _wide(head: str, cell: str | None) -> dict[str, str]:
    names = [name.strip() for name in re.findall(r"(?:NPU )?[^\s(]+\([^)]*\)", head)]
    told = re.findall(r"\d+\s*/\s*\d+|\S+", cell or "")
    return dict(zip(names, told, strict=False))


class AscendProbe:
    """npu-smi at every look; its page of links now and then, since they change with the machine."""

    def __init__(self, *, node: str = "", sys_root: str = "/sys") -> None:
        del node, sys_root
        self._table = tool.ToolProbe("huawei", parse, (("npu-smi", "info"),))
        self._matrix = tool.ToolProbe("huawei", matrix.parse, (("npu-smi", "info", "-t", "topo"),))
        self._looks = 0
        self._links: tuple[Link, ...] | None = None

    def observe(self) -> Observation:
        """Look once."""
        seen = self._table.observe()
        if seen.devices and self._looks % _LINKS_EVERY == 0:
            told = self._matrix.observe()
            # A machine of which npu-smi shows no such page: nobody knows.
            self._links = told.links if told.devices else None
        self._looks += 1
        return replace(seen, links=self._links or (), links_told=self._links is not None)
