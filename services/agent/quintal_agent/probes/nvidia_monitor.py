"""`nvidia-smi dmon` and `pmon`: a header of names, one of units, then a row per sample.

The last sample of each device is read: earlier ones are older.
"""

from __future__ import annotations

from typing import Final

from quintal_agent.probes import captured, values
from quintal_agent.probes.probe import Device, Observation, Process

_READINGS: Final = {
    "pwr": "power_watts",
    "gtemp": "temperature_celsius",
    "mtemp": "memory_temperature_celsius",
    "sm": "utilization_percent",
    "mem": "memory_utilization_percent",
    "mclk": "memory_clock_hertz",
    "pclk": "sm_clock_hertz",
}
_UNITS: Final = {"%", "W", "C", "MHz"}


def recognises(data: bytes) -> bool:
    """Whether the commented header is there."""
    return _header(captured.head(data)) is not None


def _header(said: str) -> tuple[list[str], list[str], list[str]] | None:
    lines = said.splitlines()
    for number, line in enumerate(lines[:20]):
        names = line.lstrip("# ").split()
        if line.startswith("#") and names[:1] == ["gpu"] and number + 1 < len(lines):
            return names, lines[number + 1].lstrip("# ").split(), lines[number + 2 :]
    return None


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where there is no header."""
    found = _header(captured.text(data))
    if found is None:
        raise ValueError("no header")
    names, units, lines = found
    rows: dict[int, list[dict[str, str]]] = {}
    for line in lines:
        cells = line.split(maxsplit=len(names) - 1)
        index = captured.whole(cells[0]) if cells else None
        if index is not None and len(cells) == len(names):
            rows.setdefault(index, []).append(dict(zip(names, cells, strict=True)))
    unit = dict(zip(names, units, strict=False))
    if "pid" in names:
        devices = [_with_processes(index, told) for index, told in rows.items()]
        return captured.observed("nvidia", "nvidia-smi pmon", devices)
    devices = [
        Device(
            captured.identity(index=index),
            index,
            "nvidia",
            "",
            readings={
                name: values.read(
                    name, told[-1][head], unit[head] if unit.get(head) in _UNITS else ""
                )
                for head, name in _READINGS.items()
                if head in told[-1]
            },
        )
        for index, told in rows.items()
    ]
    return captured.observed("nvidia", "nvidia-smi dmon", devices)


def _with_processes(index: int, rows: list[dict[str, str]]) -> Device:
    """Each process once, however often it was sampled."""
    seen = {
        pid: Process(pid, row.get("command") or row.get("name") or "")
        for row in rows
        if (pid := captured.whole(row["pid"])) is not None
    }
    processes = tuple(seen.values())
    return Device(captured.identity(index=index), index, "nvidia", "", processes=processes)
