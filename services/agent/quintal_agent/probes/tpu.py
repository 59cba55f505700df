"""Google: `tpu-info`'s tables, and what a TPU machine's environment says of its topology.

Without a program on the chips, memory and duty cycle are `N/A`; in a program's first seconds they
are zeros while the cores are busy: those zeros are no values. Ids are the slice's, not the host's.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from quintal_agent.probes import boxes, captured, tool, values
from quintal_agent.probes.captured import refused
from quintal_agent.probes.probe import Device, Observation, Process, Trouble, Value

_CHIP: Final = re.compile(r"^/dev/(?:accel|vfio/)(\d{1,6})$")
_ENVIRONMENT: Final = re.compile(r"^\s*(?:export )?(TPU_\w+|ACCELERATOR_TYPE)\s*[=:]", re.MULTILINE)


def recognises(data: bytes) -> bool:
    """Whether tpu-info or a TPU machine's metadata is there."""
    said = captured.head(data)
    return (
        "TPU Chips" in said
        or "Libtpu version" in said
        or _ENVIRONMENT.search(said) is not None
        or re.search(r"^/dev/(accel\d+|vfio/\d+)\s*$", said, re.MULTILINE) is not None
    )


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where it is none of the forms."""
    said = captured.text(data)
    if "TPU Chips" in said:
        return _tables(said)
    if _ENVIRONMENT.search(said):
        return _environment(said)
    nodes = re.findall(r"^/dev/(?:accel\d+|vfio/\d+)\s*$", said, re.MULTILINE)
    if nodes:
        # /dev/vfio/vfio is the container of the others, no device.
        devices = [_bare(node.strip(), place, "") for place, node in enumerate(nodes)]
        return captured.observed("google", "device nodes", devices)
    return refused("google", "tpu-info", "tpu-info: no table of chips", said)


def _bare(node: str, place: int, name: str) -> Device:
    chip = _CHIP.match(node)
    index = int(chip[1]) if chip else place
    return Device(captured.identity(serial=node.removeprefix("/dev/")), index, "google", name)


def _table(said: str, *heads: str) -> list[dict[str, str]]:
    """The rows of the table whose header has all of these words, by that header."""
    names: list[str] = []
    found: list[dict[str, str]] = []
    for row in captured.rows(said):
        if any(any(head in cell for cell in row) for head in heads) and len(row) > 1:
            wanted = all(any(head in cell for cell in row) for head in heads)
            names = row if wanted else []
        elif names and len(row) == len(names):
            found.append(dict(zip(names, row, strict=True)))
        elif len(row) != len(names):
            names = []
    return found


def _tables(said: str) -> Observation:
    chips = _table(said, "Type", "PID")
    memory = _by_number(_table(said, "HBM", "Duty"), "Chip", "Device")
    cores = _by_number(_table(said, "TensorCore Utilization", "Core ID"), "Core ID")
    devices = []
    for place, row in enumerate(chips):
        node = row.get("Chip") or row.get("Device") or ""
        name = row.get("Type", "").removesuffix(" chip")
        device = _bare(node, place, name)
        pid = captured.whole(row.get("PID"))
        told = _either(memory, device.index, place)
        core = _either(cores, device.index, place)
        total, readings = _readings(told, core)
        devices.append(
            Device(
                device.uuid,
                device.index,
                "google",
                name,
                total,
                processes=(Process(pid),) if pid is not None else (),
                readings=readings,
            )
        )
    version = re.search(r"Libtpu version:\s*(\S+)", said)
    warned = re.search(r"WARNING:\s*([^|│]+?)\s*[|│]?$", said, re.MULTILINE)
    troubles = [Trouble("tool_said", warned[1])] if warned else []
    return captured.observed(
        "google",
        "tpu-info",
        devices,
        troubles=troubles,
        runtimes={"libtpu": version[1]} if version else {},
    )


def _by_number(rows: list[dict[str, str]], *heads: str) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    for row in rows:
        number = next((captured.whole(row.get(head)) for head in heads if head in row), None)
        if number is not None:
            found[number] = row
    return found


def _either(rows: dict[int, dict[str, str]], index: int, place: int) -> dict[str, str]:
    """By the device's number; where the ids are the slice's (8, 9, 12, 13), by their order."""
    if index in rows:
        return rows[index]
    ordered = list(rows.values())
    return ordered[place] if place < len(ordered) else {}


def _readings(told: dict[str, str], core: dict[str, str]) -> tuple[int | None, dict[str, Value]]:
    cell = next((value for head, value in told.items() if "HBM" in head), None)
    used, total = boxes.usage(cell)
    if cell is not None and values.quality_of(cell) is not None:
        used = Value(quality="unavailable", raw=cell)
    duty = values.read("duty_cycle_percent", told.get("Duty cycle"))
    if duty.quality == "unsupported":
        duty = Value(quality="unavailable", raw=duty.raw)
    busy = values.read("utilization_percent", core.get("TensorCore Utilization"))
    if busy.value and used.value == 0 and duty.value == 0:
        used = Value(quality="unavailable", raw=cell)
        duty = Value(quality="unavailable", raw=told.get("Duty cycle"))
    return total, {
        "memory_used_bytes": used,
        "duty_cycle_percent": duty,
        "utilization_percent": busy,
    }


def _environment(said: str) -> Observation:
    """The topology that a TPU machine is told; how many chips, the bounds say."""
    told = {
        match[1]: match[2].strip().strip("'\"")
        for match in re.finditer(r"^\s*(?:export )?(\w+)\s*[=:]\s*(.*)$", said, re.MULTILINE)
    }
    bounds = re.findall(r"\d{1,3}", told.get("TPU_CHIPS_PER_HOST_BOUNDS", ""))
    count = 1 if bounds else 0
    for bound in bounds:
        count *= int(bound)
    kind = told.get("TPU_ACCELERATOR_TYPE") or told.get("ACCELERATOR_TYPE") or ""
    generation = kind.partition("-")[0]
    devices = [
        Device(captured.identity(index=index), index, "google", f"TPU {generation}".strip())
        for index in range(min(count, 256))
    ]
    facts = {name.casefold(): value for name, value in told.items() if name.startswith("TPU_")}
    return captured.observed("google", "TPU environment", devices, runtimes=facts)


class TpuProbe:
    """tpu-info where it is installed; else the device nodes, which say how many chips there are."""

    def __init__(
        self, *, node: str = "", sys_root: str = "/sys", devices: Path = Path("/dev")
    ) -> None:
        del node, sys_root
        self._tool = tool.ToolProbe("google", parse, (("tpu-info",),))
        self._devices = devices

    def observe(self) -> Observation:
        """Look once."""
        seen = self._tool.observe()
        if seen.devices:
            return seen
        nodes = [*self._devices.glob("accel*"), *self._devices.glob("vfio/*")]
        listing = "\n".join(f"/dev/{node.relative_to(self._devices)}" for node in sorted(nodes))
        if not recognises(listing.encode()):
            return seen
        return replace(parse(listing.encode()), troubles=seen.troubles)
