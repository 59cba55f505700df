"""`mthreads-gmi`: Moore Threads' table, three lines per device. It shows no power at all."""

from __future__ import annotations

import re
from typing import Final

from quintal_agent.probes import captured, tool, values
from quintal_agent.probes.probe import Device, Health, Observation

_MEMORY: Final = re.compile(r"(\d+\s*[KMG]?i?B)\((\d+\s*[KMG]?i?B)\)")
_LANES: Final = re.compile(r"(\d{1,2})x\((\d{1,2})x\)")


def recognises(data: bytes) -> bool:
    """Whether the tool's banner is there."""
    return "mthreads-gmi" in captured.head(data)


def parse(data: bytes) -> Observation:
    """The observation."""
    said = captured.text(data)
    blocks: list[list[list[str]]] = []
    for line in said.splitlines():
        if line.startswith("Processes"):
            break
        if captured.is_rule(line):
            blocks.append([])
        elif blocks and "|" in line:
            blocks[-1].append([cell.strip() for cell in line.split("|")])
    devices = []
    for block in blocks:
        head = re.match(r"(\d{1,6})\s+(.+)", block[0][0]) if block else None
        if head is not None:
            devices.append(_device(block, int(head[1]), head[2].strip()))
    driver = re.search(r"Driver Version:\s*(\S+)", said)
    return captured.observed(
        "mthreads", "mthreads-gmi", devices, drivers={"mthreads": driver[1]} if driver else {}
    )


def _device(block: list[list[str]], index: int, name: str) -> Device:
    at = captured.address(block[0][1] if len(block[0]) > 1 else None)
    cell = block[0][-1]
    memory = _MEMORY.search(cell)
    second = block[1] if len(block) > 1 else []
    heat = (second[-1].split() if second else []) or [""]
    lanes = _LANES.search(" ".join(second))
    health: tuple[Health, str] = ("ok", "")
    if lanes and int(lanes[1]) < int(lanes[2]):
        health = ("degraded", f"PCIe at {lanes[1]} of {lanes[2]} lanes")
    return Device(
        uuid=captured.identity(at=at, index=index),
        index=index,
        vendor="mthreads",
        name=name,
        memory_bytes=values.size(memory[2]) if memory else None,
        pci_address=at,
        health=health[0],
        health_reason=health[1],
        readings={
            "utilization_percent": values.read("utilization_percent", [*cell.split(), ""][0]),
            "memory_used_bytes": values.read(
                "memory_used_bytes", memory[1] if memory else cell or None
            ),
            "temperature_celsius": values.read("temperature_celsius", heat[0]),
            "power_watts": values.read("power_watts", None),
        },
    )


live = tool.probe("mthreads", parse, ("mthreads-gmi",))
