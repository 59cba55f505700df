"""Who holds a device and whether anyone works there: leases held against processes. Pure.

A device without a lease on which processes hold memory is in foreign use. A device with a lease
and no process is held idle, and since when is told. Where the tool shows no processes, neither is
claimed. What a device does is its own reading: it is never copied to those who share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from quintal.contracts.nodes import BoundLease, Problem
from quintal_agent.probes.probe import Device, Value

FOREIGN_BYTES: Final = 128 * 2**20
"""Less memory than this, held without a lease, is a driver's own."""


def foreign_bytes(device: Device, *, held: frozenset[str], least: int) -> int:
    """Memory that processes of no lease hold: of a leased device, whatever runs is the lease's."""
    if device.uuid in held or device.busy_bytes is None:
        return 0
    return device.busy_bytes if device.busy_bytes >= least else 0


def in_use(device: Device, least: int = FOREIGN_BYTES) -> bool | None:
    """Whether somebody works there; none where the tool does not tell."""
    count = len(device.processes) or device.process_count
    if count:
        return True
    if device.busy_bytes is not None:
        return device.busy_bytes >= least
    return False if count == 0 else None


def settle_idle(
    known: Mapping[str, int], devices: Iterable[Device], *, held: frozenset[str], at_ms: int
) -> dict[str, int]:
    """Device -> since when a lease holds it and nobody works there."""
    return {
        device.uuid: known.get(device.uuid, at_ms)
        for device in devices
        if device.uuid in held and in_use(device) is False
    }


def idle_reading(
    device: Device, since: Mapping[str, int], *, held: frozenset[str], at_ms: int
) -> Value:
    """How long the device has been held for nothing; 0 while somebody works there."""
    if device.uuid not in held or in_use(device) is None:
        return Value(quality="unsupported")
    began_ms = since.get(device.uuid)
    return Value(0 if began_ms is None else max(0, at_ms - began_ms) // 1000, derived=True)


def idle_problems(since: Mapping[str, int], *, at_ms: int, after_s: float) -> tuple[Problem, ...]:
    """Devices that have been held idle for too long."""
    return tuple(
        Problem(
            code="held_idle",
            message="a lease holds it, and no process has used it for a while",
            device=uuid,
        )
        for uuid, began_ms in sorted(since.items())
        if at_ms - began_ms >= after_s * 1000
    )


def missing(
    leases: Iterable[BoundLease], devices: Mapping[str, frozenset[str]]
) -> tuple[Problem, ...]:
    """What leases hold and the node has no more; `devices` maps each to its partitions."""
    found = []
    for lease in leases:
        for device in lease.devices:
            parts = devices.get(device.uuid)
            if parts is None:
                text = f"lease {lease.lease} holds a device that is not there"
                found.append(Problem(code="held_missing", message=text, device=device.uuid))
            elif device.partition is not None and device.partition not in parts:
                text = f"lease {lease.lease} holds {device.partition}, which is not there"
                found.append(Problem(code="held_missing", message=text, device=device.uuid))
    return tuple(found)
