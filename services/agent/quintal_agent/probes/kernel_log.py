"""NVIDIA's lines in the kernel's log: Xid records become events, all else is passed over.

An event has happened once; it is no state of the device, which may be healthy again.
"""

from __future__ import annotations

import re
from typing import Final

from quintal_agent.probes import captured
from quintal_agent.probes.captured import refused
from quintal_agent.probes.probe import Event, Observation

_XID: Final = re.compile(
    r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d{1,6})"
    r"(?:, pid=('<unknown>'|<unknown>|\d+))?(?:, name=(<unknown>|[^,\n]*))?"
)
_LINE: Final = re.compile(
    r"NVRM: |^\d+,\d+,\d+,[-c];|^\[ *\d+\.\d+\] |"
    r"^\w{1,16} *:\w{1,16} *: \d{4}-\d\d-\d\dT|\[tid \d+\]",
    re.MULTILINE,
)


def recognises(data: bytes) -> bool:
    """Whether it is a log of the kernel or of NVIDIA's fabric manager."""
    return _LINE.search(captured.head(data)) is not None


def parse(data: bytes) -> Observation:
    """The Xid records, in order; a log without any is refused by name."""
    said = captured.text(data)
    events = xids(said)
    if not events:
        fabric = "[tid " in said
        tool = "nvidia-fabricmanager log" if fabric else "kernel log"
        return refused("nvidia", tool, f"{tool}: no Xid record in it", said)
    return captured.observed("nvidia", "kernel log", events=events)


def xids(said: str) -> tuple[Event, ...]:
    """Every Xid record of the text; the bus id has no function, so it gets the first."""
    return tuple(
        Event(f"xid:{found[2]}", _device(found[1]), _line(said, found.start()))
        for found in _XID.finditer(said)
    )


def _device(bus: str) -> str:
    return captured.address(bus if "." in bus else f"{bus.rstrip(':')}.0") or bus


def _line(said: str, at: int) -> str:
    begin = said.rfind("\n", 0, at) + 1
    end = said.find("\n", at)
    return said[begin : len(said) if end < 0 else end].strip()[:1000]
