"""Readings of a node's devices: held against one another, counted in epochs, laid in columns.

Pure. A counter that falls begins a new epoch instead of a negative delta; a number that the
others contradict is kept aside as implausible; a device without a reading has none, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from quintal.contracts.nodes import Quality, Telemetry
from quintal_agent.probes.probe import Device, Value

BUSY_SHARE: Final = 0.5
"""Above this share of its power limit a device cannot be idle."""

IDLE_SHARE: Final = 0.12
"""Below this share of its power limit a device cannot be fully busy."""

_BUSY_PERCENT: Final = 95

STUCK_MS: Final = 120_000
"""A device that draws power for so long under a standing energy counter has a stuck one."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """Since when a counter has only grown, and how far it had come."""

    began_ms: int
    value: float
    grew_ms: int = 0
    """When it last grew."""


def plausible(readings: Mapping[str, Value]) -> dict[str, Value]:
    """The readings, the utilization marked where power says that it cannot be."""
    checked = dict(readings)
    utilization = readings.get("utilization_percent")
    power, limit = readings.get("power_watts"), readings.get("power_limit_watts")
    if utilization is None or utilization.value is None or power is None or limit is None:
        return checked
    if power.value is None or not limit.value:
        return checked
    share = power.value / limit.value
    idle_but_hot = utilization.value == 0 and share > BUSY_SHARE
    busy_but_cold = utilization.value >= _BUSY_PERCENT and share < IDLE_SHARE
    if idle_but_hot or busy_but_cold:
        raw = utilization.raw or str(utilization.value)
        checked["utilization_percent"] = replace(utilization, quality="implausible", raw=raw)
    return checked


def settle_epochs(
    known: Mapping[str, Epoch], devices: tuple[Device, ...], *, at_ms: int
) -> dict[str, Epoch]:
    """The energy counters' epochs after this look; a device that gave no value keeps its own."""
    settled = dict(known)
    for device in devices:
        energy = device.readings.get("energy_joules")
        if energy is None or energy.value is None or energy.quality != "ok":
            continue
        before = known.get(device.uuid)
        grows = before is not None and energy.value >= before.value
        if before is None or not grows:
            settled[device.uuid] = Epoch(at_ms, energy.value, at_ms)
        elif energy.value > before.value:
            settled[device.uuid] = Epoch(before.began_ms, energy.value, at_ms)
    return settled


def telemetry(  # noqa: PLR0913 - what a message of readings is made of
    devices: tuple[Device, ...],
    epochs: Mapping[str, Epoch],
    *,
    node: str,
    boot_id: str,
    sequence: int,
    at_ms: int,
    period_ms: int,
    extra: Mapping[str, Mapping[str, Value]] | None = None,
) -> Telemetry:
    """One message: a column per reading, a value per device, qualities where not all are ok.

    What a list of qualities does not reach is ok: most of a message's bytes would be that word.
    `extra` are readings that the agent itself takes of its devices, by device.
    """
    more = extra or {}
    rows = [{**_row(device, epochs, at_ms), **more.get(device.uuid, {})} for device in devices]
    names = sorted({name for row in rows for name in row})
    columns = {}
    qualities = {}
    for name in names:
        values = [row.get(name, _ABSENT) for row in rows]
        columns[name] = tuple(_usable(value) for value in values)
        column = tuple(Quality(value.quality) for value in values)
        while column and column[-1] is Quality.OK:
            column = column[:-1]
        if column:
            qualities[name] = column
    return Telemetry(
        node=node,
        boot_id=boot_id,
        sequence=sequence,
        at_ms=at_ms,
        period_ms=period_ms,
        devices=tuple(device.uuid for device in devices),
        columns=columns,
        qualities=qualities,
    )


_ABSENT: Final = Value(quality="unsupported")


def _row(device: Device, epochs: Mapping[str, Epoch], at_ms: int) -> dict[str, Value]:
    row = usable(device, epochs, at_ms=at_ms)
    epoch = epochs.get(device.uuid)
    if epoch is not None:
        row["energy_epoch_ms"] = Value(epoch.began_ms)
    return row


def usable(device: Device, epochs: Mapping[str, Epoch], *, at_ms: int) -> dict[str, Value]:
    """The device's readings, those that the others contradict marked."""
    row = plausible(device.readings)
    epoch, energy, power = epochs.get(device.uuid), row.get("energy_joules"), row.get("power_watts")
    if epoch is None or energy is None or power is None or energy.quality != "ok":
        return row
    if power.value and at_ms - epoch.grew_ms >= STUCK_MS:
        row["energy_joules"] = replace(energy, quality="stale", raw="stuck")
    return row


def _usable(value: Value) -> float | int | None:
    """A stale or implausible number still travels, under its quality."""
    return value.value
