"""`nvidia-smi --query-gpu` and `--query-compute-apps` as CSV: each cell by the header above it."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from typing import Final, Literal

from quintal_agent.probes import captured, values
from quintal_agent.probes.probe import Device, Health, Observation, Process, Trouble, Value

_READINGS: Final[dict[str, tuple[str, ...]]] = {
    "utilization_percent": ("utilization.gpu",),
    "memory_utilization_percent": ("utilization.memory",),
    "memory_used_bytes": ("memory.used",),
    "memory_reserved_bytes": ("memory.reserved",),
    "power_watts": ("power.draw", "power.draw.average", "power.draw.instant"),
    "power_limit_watts": ("enforced.power.limit", "power.limit"),
    "temperature_celsius": ("temperature.gpu",),
    "memory_temperature_celsius": ("temperature.memory",),
    "sm_clock_hertz": ("clocks.current.sm", "clocks.sm"),
    "memory_clock_hertz": ("clocks.current.memory", "clocks.mem"),
    "fan_percent": ("fan.speed",),
    "ecc_uncorrected_count": ("ecc.errors.uncorrected.volatile.total",),
    "ecc_corrected_count": ("ecc.errors.corrected.volatile.total",),
}
_HEAD: Final = re.compile(r"^(\S+)(?: \[(.*)\])?$")
_FIELDS: Final = ("uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "memory.total", "utilization.gpu")

Row = dict[str, tuple[str, str]]
"""Field -> its cell, and the unit that the header gives."""


def recognises(data: bytes) -> bool:
    """Whether some line is such a header."""
    return _header(captured.head(data)) is not None


def _header(said: str) -> int | None:
    for number, line in enumerate(said.splitlines()[:20]):
        names = {cell.strip().partition(" ")[0] for cell in line.split(",")}
        if len(names) > 1 and names & set(_FIELDS):
            return number
    return None


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where there is no header."""
    said = captured.text(data)
    start = _header(said)
    if start is None:
        raise ValueError("no header of nvidia-smi's CSV")
    lines = said.splitlines()
    heads = [_HEAD.match(cell.strip()) for cell in lines[start].split(",")]
    names = [(head[1], head[2] or "") if head else ("", "") for head in heads]
    troubles = [Trouble("tool_said", line.strip()) for line in lines[:start] if line.strip()]
    rows: list[Row] = []
    for cells in csv.reader(lines[start + 1 :], skipinitialspace=True):
        if len(cells) < 2:  # noqa: PLR2004 - a sentence, not a row
            troubles.extend(Trouble("tool_said", cell) for cell in cells if cell.strip())
            continue
        rows.append(
            {name: (cell.strip(), unit) for (name, unit), cell in zip(names, cells, strict=False)}
        )
    if any(name == "pid" for name, _ in names):
        return _processes(rows, troubles)
    devices = [_device(row, number) for number, row in enumerate(rows)]
    troubles.extend(
        Trouble("lost", f"device {device.index} ({device.name}) is lost", device.uuid)
        for device in devices
        if device.health_reason == "lost"
    )
    said_of = [captured.known(_of(row, "kmd_version", "driver_version")[0]) for row in rows]
    driver = next((word for word in said_of if word), None)
    drivers = {"nvidia": driver} if driver else {}
    return captured.observed(
        "nvidia", "nvidia-smi --query-gpu", devices, troubles=troubles, drivers=drivers
    )


def _of(row: Row, *fields: str) -> tuple[str | None, str]:
    for field in fields:
        if field in row:
            return row[field]
    return None, ""


def _device(row: Row, number: int) -> Device:
    index = captured.whole(_of(row, "index")[0])
    index = number if index is None else index
    at = captured.address(_of(row, "pci.bus_id", "gpu_bus_id")[0])
    total, unit = _of(row, "memory.total")
    health, reason = _health(row)
    return Device(
        uuid=captured.identity(uuid=_of(row, "uuid", "gpu_uuid")[0], at=at, index=index),
        index=index,
        vendor="nvidia",
        name=captured.known(_of(row, "name", "gpu_name")[0]) or "",
        memory_bytes=values.size(total, unit),
        memory_kind=_kind(total),
        pci_address=at,
        pci_id=_pci_id(_of(row, "pci.device_id")[0]),
        pci_subsystem=_pci_id(_of(row, "pci.sub_device_id")[0]),
        serial=captured.known(_of(row, "serial", "gpu_serial")[0]),
        health=health,
        health_reason=reason,
        readings=_readings(row),
    )


def _kind(total: str | None) -> Literal["device", "unified"]:
    unified = total is not None and values.quality_of(total) == "unsupported"
    return "unified" if unified else "device"


def _readings(row: Row) -> dict[str, Value]:
    readings = {}
    for name, fields in _READINGS.items():
        tried = [values.read(name, *row[field]) for field in fields if field in row]
        if tried:
            readings[name] = next((value for value in tried if value.quality == "ok"), tried[0])
    return readings


def _health(row: Row) -> tuple[Health, str]:
    if any(values.is_lost(cell) for cell, _ in row.values()):
        return "failed", "lost"
    if any("requires reset" in cell.casefold() for cell, _ in row.values()):
        return "failed", "reset required"
    action = captured.known(_of(row, "gpu_recovery_action")[0])
    if action is not None:
        return ("degraded" if "drain" in action.casefold() else "failed"), f"recovery: {action}"
    if any(cell == "ERR!" for cell, _ in row.values()):
        return "failed", "needs reset"
    return "ok", ""


def _pci_id(said: str | None) -> str | None:
    if said is None or not re.fullmatch(r"(0x)?[0-9A-Fa-f]{8}", said):
        return None
    digits = said[-8:].lower()
    return f"{digits[4:]}:{digits[:4]}"


def _processes(rows: list[Row], troubles: list[Trouble]) -> Observation:
    """A row per process; the devices are those that some process names."""
    devices: dict[str, Device] = {}
    held: dict[str, tuple[Process, ...]] = {}
    for row in rows:
        at = captured.address(_of(row, "gpu_bus_id", "pci.bus_id")[0])
        uuid = captured.identity(uuid=_of(row, "gpu_uuid")[0], at=at, index=len(devices))
        pid = captured.whole(_of(row, "pid")[0])
        if uuid not in devices:
            name = captured.known(_of(row, "gpu_name")[0]) or ""
            devices[uuid] = Device(uuid, len(devices), "nvidia", name, pci_address=at)
        if pid is not None:
            used, unit = _of(row, "used_gpu_memory", "used_memory")
            name = captured.known(_of(row, "process_name", "name")[0]) or ""
            process = Process(pid, name, values.size(used, unit))
            held[uuid] = (*held.get(uuid, ()), process)
    told = [replace(device, processes=held.get(uuid, ())) for uuid, device in devices.items()]
    return captured.observed("nvidia", "nvidia-smi --query-compute-apps", told, troubles=troubles)
