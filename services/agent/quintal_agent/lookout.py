"""One node under watch: looks through its sources, and keeps what was settled from look to look.

Only this room holds the node's present state; what it means is decided in the pure rooms
(`floor`, `report`, `health`, `events`, `holding`, `readings`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from quintal.clock import Clock
from quintal.contracts.nodes import (
    DeviceHealth,
    HealthEvent,
    Inventory,
    Problem,
    RawDevice,
    Telemetry,
)
from quintal_agent import events, floor, health, holding, readings, report
from quintal_agent.leases import LeaseSet
from quintal_agent.probes import pci
from quintal_agent.probes.probe import Device, Event, Observation, Value
from quintal_agent.report import ProbeState
from quintal_agent.settings import Settings
from quintal_agent.sources import Source
from quintal_agent.state import HealthFile

log = logging.getLogger(__name__)

SCAN_WITHIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Seen:
    """The node after a look."""

    at_ms: int = 0
    observations: tuple[Observation, ...] = ()
    devices: tuple[Device, ...] = ()
    probes: tuple[ProbeState, ...] = ()
    health: Mapping[str, health.Settled] = field(default_factory=dict)
    epochs: Mapping[str, readings.Epoch] = field(default_factory=dict)
    idle_since: Mapping[str, int] = field(default_factory=dict)


class OnBus:
    """What stands on the node's PCI bus, scanned before each look; none until the first scan."""

    def __init__(self, sys_root: str) -> None:
        self._sys_root = sys_root
        self._scanning: asyncio.Task[tuple[pci.Function, ...]] | None = None
        self.functions: tuple[pci.Function, ...] | None = None

    def accelerators(self) -> Mapping[str, tuple[pci.Function, ...]] | None:
        """Vendor -> its accelerators; none while nothing is known."""
        return None if self.functions is None else floor.accelerators(self.functions)

    async def scan(self) -> None:
        """Look anew; a scan that hangs is waited for no longer, and the last one stands."""
        if self._scanning is None:
            self._scanning = asyncio.create_task(asyncio.to_thread(pci.scan, self._sys_root))
        done, _ = await asyncio.wait({self._scanning}, timeout=SCAN_WITHIN_S)
        if done:
            task, self._scanning = self._scanning, None
            with contextlib.suppress(OSError):
                self.functions = task.result()


class Lookout:
    """Looks, and says what was seen. `kernel` gives the events of the kernel's log since asked."""

    def __init__(
        self,
        settings: Settings,
        sources: Sequence[Source],
        identity: report.Identity,
        clock: Clock,
        bus: OnBus | None = None,
        kernel: Callable[[], tuple[Event, ...]] = tuple,
    ) -> None:
        self._settings = settings
        self._sources = tuple(sources)
        self._identity = identity
        self._clock = clock
        self._bus = bus
        self._kernel = kernel
        self._file = HealthFile(settings.state)
        self._taints: dict[str, health.Settled] = {}
        self._kept: Mapping[str, health.Settled] = {}
        self.seen = Seen()
        self.news: list[HealthEvent] = []
        """What changed or happened since it was last taken."""

    async def start(self) -> None:
        """Read what was unhealthy before the restart."""
        self._taints = await asyncio.to_thread(self._file.load)
        self._kept = dict(self._taints)

    async def close(self) -> None:
        """Let go of every source."""
        await asyncio.gather(*(source.close() for source in self._sources))

    async def look(self, leases: LeaseSet) -> None:
        """Once through every source; never raises for what the world does."""
        bounds, before = self._settings.bounds, self.seen
        if self._bus is not None:
            await self._bus.scan()
        sightings = await asyncio.gather(*(source.look() for source in self._sources))
        at_ms = self._clock.now_ms()
        observations = tuple(report.aged(sighting, bounds) for sighting in sightings)
        if self._bus is not None and (there := self._bus.accelerators()) is not None:
            observations = floor.laid(observations, there)
        devices = report.devices_of(observations, self._settings.node)
        said = [event for observation in observations for event in observation.events]
        happened = events.placed([*said, *self._kernel()], devices)
        found = events.faults(happened, self._settings.event_classes)
        known = {**self._taints, **before.health}
        settled = health.settle_health(known, devices, found)
        self._taints = health.taints(known, devices)
        self.seen = Seen(
            at_ms=at_ms,
            observations=observations,
            devices=devices,
            probes=tuple(s.probe for s in sightings if s.probe is not None),
            health=settled,
            epochs=readings.settle_epochs(before.epochs, devices, at_ms=at_ms),
            idle_since=holding.settle_idle(
                before.idle_since, devices, held=leases.held, at_ms=at_ms
            ),
        )
        who = {"node": self._settings.node, "boot_id": self._identity.boot_id, "at_ms": at_ms}
        self.news += [events.told(event, **who) for event in happened]  # type: ignore[arg-type]
        self.news += health.transitions(before.health, settled, **who)  # type: ignore[arg-type]
        await self._keep({**self._taints, **settled})

    async def _keep(self, now: Mapping[str, health.Settled]) -> None:
        """On disk only what a restart must know, and only when it changed."""
        bad = {u: s for u, s in now.items() if s.health is not DeviceHealth.OK}
        told = {uuid: (settled.health, settled.reason) for uuid, settled in bad.items()}
        if told == {uuid: (settled.health, settled.reason) for uuid, settled in self._kept.items()}:
            return
        try:
            await asyncio.to_thread(self._file.save, bad)
            self._kept = bad
        except OSError as exc:
            log.warning("keeping the devices' health: %s", exc)

    def inventory(
        self,
        leases: LeaseSet,
        *,
        sequence: int,
        troubles: Sequence[Problem] = (),
        tasks: tuple[str, ...] | None = None,
    ) -> Inventory:
        """The node as an inventory."""
        seen, at_ms = self.seen, self._clock.now_ms()
        there = {d.uuid: frozenset(part.uuid for part in d.partitions) for d in seen.devices}
        functions = self._bus.functions if self._bus is not None else None
        noted = [
            Problem(code=note.code, message=note.message) for note in floor.notes(functions or ())
        ]
        everyone = [*leases.leases.values(), *leases.outside.values()]
        gone = holding.missing(everyone, there) if seen.at_ms else ()
        idle = holding.idle_problems(
            seen.idle_since, at_ms=at_ms, after_s=self._settings.bounds.idle_s
        )
        return report.inventory(
            self._identity,
            seen.observations,
            health=seen.health,
            held=leases.held,
            bounds=self._settings.bounds,
            troubles=(*noted, *gone, *idle, *troubles),
            probes=seen.probes,
            tasks=tasks,
            bridges={function.address: function.bridges for function in functions or ()},
            sequence=sequence,
            at_ms=at_ms,
        )

    def telemetry(self, leases: LeaseSet, *, sequence: int) -> Telemetry:
        """The last look's readings, under the time of that look."""
        seen, held = self.seen, leases.held
        extra: dict[str, dict[str, Value]] = {}
        if held:  # an idle fleet needs no column that says so
            for device in seen.devices:
                reading = holding.idle_reading(device, seen.idle_since, held=held, at_ms=seen.at_ms)
                extra[device.uuid] = {"held_idle_seconds": reading}
        return readings.telemetry(
            seen.devices,
            seen.epochs,
            node=self._settings.node,
            boot_id=self._identity.boot_id,
            sequence=sequence,
            at_ms=seen.at_ms or self._clock.now_ms(),
            period_ms=int(self._settings.beats.telemetry_s * 1000),
            extra=extra,
        )

    def raw_devices(self) -> Mapping[str, RawDevice]:
        """The devices as a bind is checked against them."""
        seen = self.seen
        return {
            device.uuid: report.raw_device(device, settled=seen.health.get(device.uuid))
            for device in seen.devices
        }
