"""What vendors report once: read from the kernel's log or a probe, classed by a table. Pure.

An event has a time and a boot, and is told as it came. Whether it makes its device unhealthy is a
matter of its class, and only until looks without a fault pass: an event says what happened, the
present state says what is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from quintal.contracts.nodes import DeviceHealth, HealthEvent
from quintal_agent.health import Fault
from quintal_agent.probes.kernel_log import xids
from quintal_agent.probes.probe import Device, Event

Class = Literal["note", "degraded", "failed"]

CLASSES: Final[Mapping[str, Class]] = {
    "xid:48": "failed",  # an error in memory that could not be corrected
    "xid:63": "degraded",  # a row or page waits to be remapped
    "xid:64": "degraded",
    "xid:74": "failed",  # a link to another device
    "xid:79": "failed",  # fallen off the bus
    "xid:94": "failed",
    "xid:95": "failed",
    "xid:119": "failed",  # the device's own processor does not answer
    "xid:120": "failed",
    "ras:uncorrectable": "failed",
}
"""What is not named here is a note: most events are an application's doing (13, 31, 43, ...)."""

_RAS: Final = re.compile(
    r"amdgpu ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): .*?"
    r"(\d+) (correctable|uncorrectable) hardware errors? detected"
)


def in_kernel_line(line: str) -> tuple[Event, ...]:
    """The events that a line of the kernel's log tells, in any of its spellings."""
    found = _RAS.search(line)
    if found is not None and int(found[2]):
        text = line.partition(";")[2] or line
        return (Event(f"ras:{found[3]}", found[1], text.strip()[:500]),)
    return xids(line)


def placed(events: Iterable[Event], devices: tuple[Device, ...]) -> tuple[Event, ...]:
    """Each event once, with its device's uuid where the device is known; a burst is one event."""
    merged: dict[tuple[str, str], tuple[Event, int]] = {}
    for event in events:
        key = (event.code, _uuid(event.device, devices))
        first, times = merged.get(key, (event, 0))
        merged[key] = (first, times + 1)
    return tuple(
        Event(code, uuid, first.message + (f" ({times} times)" if times > 1 else ""))
        for (code, uuid), (first, times) in merged.items()
    )


def faults(events: Iterable[Event], classes: Mapping[str, Class]) -> dict[str, Fault]:
    """What the events of an unhealthy class make of their devices."""
    found: dict[str, Fault] = {}
    for event in events:
        kind = classes.get(event.code, "note")
        if kind != "note" and not (event.device in found and kind == "degraded"):
            found[event.device] = Fault(DeviceHealth(kind), event.code)
    return found


def told(event: Event, *, node: str, boot_id: str, at_ms: int) -> HealthEvent:
    """The event as the wire has it."""
    return HealthEvent(
        node=node, boot_id=boot_id, at_ms=at_ms, device=event.device, kind="vendor_event",
        code=event.code, message=event.message,
    )  # fmt: skip


def _uuid(device: str, devices: tuple[Device, ...]) -> str:
    return next((d.uuid for d in devices if device in {d.uuid, d.pci_address}), device)
