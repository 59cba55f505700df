"""`xpu_smi` (Kunlunxin; Intel has a tool of nearly the same name). `L3` is a cache, not memory.

Its MB are counted in 2^20.
"""

from __future__ import annotations

import re
from dataclasses import replace

from quintal_agent.probes import boxes, captured, tool, values
from quintal_agent.probes.probe import Device, Observation, Process


def recognises(data: bytes) -> bool:
    """Whether the header of its table is there."""
    said = captured.head(data)
    return re.search(r"\|\s*DevID\s*\|.*\bL3\b", said) is not None


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where there is no header."""
    said = captured.text(data)
    heads: list[str] = []
    devices: list[Device] = []
    processes: list[tuple[int, Process]] = []
    for cells in captured.rows(said):
        if "DevID" in cells:
            heads = cells
            continue
        row = dict(zip(heads, cells, strict=False))
        index = captured.whole(row.get("DevID"))
        if index is None:
            continue
        if "PCI Addr" in row:
            devices.append(_device(row, index))
        elif (pid := captured.whole(row.get("PID"))) is not None:
            used = values.size((row.get("Memory") or "").replace("MB", "MiB"))
            processes.append((index, Process(pid, row.get("Command", ""), used)))
    if not heads:
        raise ValueError("no table")
    held = captured.by_index(processes)
    told = [replace(device, processes=held.get(device.index, ())) for device in devices]
    return captured.observed("kunlunxin", "xpu_smi", told)


def _device(row: dict[str, str], index: int) -> Device:
    at = captured.address(row.get("PCI Addr"))
    used, total = boxes.usage(re.sub(r"\bMB\b", "MiB", row.get("Memory", "")))
    serial = captured.known(row.get("SN"))
    return Device(
        uuid=captured.identity(at=at, serial=serial, index=index),
        index=index,
        vendor="kunlunxin",
        name=row.get("Model", ""),
        memory_bytes=total,
        pci_address=at,
        serial=serial,
        readings={
            "utilization_percent": values.read("utilization_percent", row.get("UseRate")),
            "memory_used_bytes": used,
        },
    )


live = tool.probe("kunlunxin", parse, ("xpu_smi",))
