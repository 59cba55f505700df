"""A device's health over its looks: pure.

Worse is believed at once where the device itself says so (lost, reset required, an event of an
unhealthy class); a doubt, such as one failed call, must be seen twice. Better takes several looks
without a fault, after a restart of the agent too: what was unhealthy stays so until looks pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from quintal.contracts.nodes import DeviceHealth, HealthEvent
from quintal_agent.probes.probe import Device

CLEAN_LOOKS: Final = 3
"""So many looks without a fault make an unhealthy device healthy again."""

DOUBTFUL_LOOKS: Final = 2
"""So many doubts in a row are a fault."""

TAINTS_MAX: Final = 256
"""Unhealthy devices that are remembered although they are not there."""

_DOUBTS: Final = ("unreadable",)
"""Reasons that say more about the call than about the device."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A device's health after hysteresis."""

    health: DeviceHealth
    reason: str = ""
    clean: int = 0
    doubts: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """What an event makes of its device."""

    health: DeviceHealth
    reason: str


def settle_health(
    known: Mapping[str, Settled],
    devices: tuple[Device, ...],
    faults: Mapping[str, Fault] | None = None,
) -> dict[str, Settled]:
    """Each device's health after this look; `faults` are what events say of it."""
    found = faults or {}
    return {
        device.uuid: _settled(known.get(device.uuid), device, found.get(device.uuid))
        for device in devices
    }


def taints(known: Mapping[str, Settled], devices: tuple[Device, ...]) -> dict[str, Settled]:
    """What stays known of unhealthy devices that are not there now."""
    there = {device.uuid for device in devices}
    kept = [
        (uuid, settled)
        for uuid, settled in known.items()
        if uuid not in there and settled.health is not DeviceHealth.OK
    ]
    return dict(kept[-TAINTS_MAX:])


def _settled(before: Settled | None, device: Device, fault: Fault | None) -> Settled:
    now = DeviceHealth(device.health)
    if fault is not None and now is not DeviceHealth.FAILED:
        return Settled(fault.health, fault.reason)
    if now is DeviceHealth.OK:
        return _better(before, device)
    doubtful = device.health_reason.startswith(_DOUBTS)
    was_well = before is not None and before.health is DeviceHealth.OK
    if doubtful and was_well and before is not None and before.doubts + 1 < DOUBTFUL_LOOKS:
        return replace(before, doubts=before.doubts + 1)
    return Settled(now, device.health_reason)


def _better(before: Settled | None, device: Device) -> Settled:
    if before is None or before.health is DeviceHealth.OK:
        return Settled(DeviceHealth.OK, device.health_reason)
    if before.clean + 1 >= CLEAN_LOOKS:
        return Settled(DeviceHealth.OK, device.health_reason)
    return replace(before, clean=before.clean + 1)


def transitions(
    before: Mapping[str, Settled],
    now: Mapping[str, Settled],
    *,
    node: str,
    boot_id: str,
    at_ms: int,
) -> tuple[HealthEvent, ...]:
    """What changed between two looks. The first sight of a healthy device is no event."""

    def event(uuid: str, old: Settled | None, new: Settled) -> HealthEvent:
        return HealthEvent(
            node=node,
            boot_id=boot_id,
            at_ms=at_ms,
            device=uuid,
            before=old.health if old else None,
            after=new.health,
            code=new.reason.partition(": ")[0],
            message=new.reason,
        )

    events = []
    for uuid, state in now.items():
        old = before.get(uuid)
        if (old.health if old else DeviceHealth.OK) is not state.health:
            events.append(event(uuid, old, state))
    gone = Settled(DeviceHealth.UNKNOWN, "no longer there")
    events.extend(event(uuid, old, gone) for uuid, old in before.items() if uuid not in now)
    return tuple(events)
