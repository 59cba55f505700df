"""One node's agent, wired: looks through its sources, says what it sees, serves its leases.

The observer's side (inventory, telemetry, health, heartbeat) never waits for the lease side, nor
the other way round; and neither ends anything on its own when the bus is away (`fence: keep`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from quintal import __version__
from quintal.bus import Bus
from quintal.clock import Clock, SystemClock
from quintal.contracts.message import Message
from quintal.contracts.nodes import Heartbeat, Problem, RawDevice
from quintal.contracts.subjects import (
    BIND,
    END,
    HEALTH,
    HEARTBEAT,
    INVENTORY,
    SET,
    TELEMETRY,
    Publication,
    Request,
)
from quintal.errors import BusUnavailable
from quintal.process import chain, notify
from quintal.settings import Access, environment
from quintal_agent import readings, report
from quintal_agent.handlers import LeaseKeeper
from quintal_agent.probes.probe import Observation
from quintal_agent.rounds import backoff_s, spread
from quintal_agent.settings import Settings
from quintal_agent.sources import ChildSettings, ChildSource, Source
from quintal_agent.state import LeaseFiles, Store, boot_age_ms, boot_id

log = logging.getLogger(__name__)

UNSENT_MAX: Final = 1_000
"""Health events kept over an outage. Readings are not: an old one helps nobody decide."""

_CONNECT_MOST_S: Final = 15.0


class Agent:
    """One node. `run` returns when `stop` is set, or the bus is closed for good."""

    def __init__(
        self,
        settings: Settings,
        sources: Sequence[Source],
        *,
        boot: str,
        clock: Clock | None = None,
        sequence: int = 0,
    ) -> None:
        self._settings = settings
        self._sources = tuple(sources)
        self._clock = clock or SystemClock()
        self._sequence = sequence
        self._identity = report.Identity(
            node=settings.node,
            boot_id=boot,
            cluster=settings.cluster,
            location=settings.location,
            labels=settings.labels,
            version=__version__,
        )
        self.keeper = LeaseKeeper(
            Store(settings.state, settings.node),
            LeaseFiles(settings.lease_dir, settings.node),
            boot,
            self._known_devices,
        )
        self._observations: tuple[Observation, ...] = ()
        self._devices: Mapping[str, RawDevice] | None = None
        self._health: dict[str, report.Settled] = {}
        self._epochs: dict[str, readings.Epoch] = {}
        self._said = ""
        self._said_at_s = 0.0
        self._inventory_sequence = 0
        self._unsent: deque[Any] = deque(maxlen=UNSENT_MAX)
        self._inventory_wanted = asyncio.Event()
        self.telemetry_dropped = 0
        self.ready = asyncio.Event()
        """Set when the first inventory has left."""

    async def run(self, stop: asyncio.Event) -> None:
        """Look once, connect, serve, and keep saying what is seen until `stop`."""
        await self.keeper.start()
        try:
            await self._look()
            bus = await connect_patiently(self._settings.access, stop)
            if bus is None:
                return
            async with bus:
                await self._serve(bus, stop)
        finally:
            self.keeper.close()
            await asyncio.gather(*(source.close() for source in self._sources))

    async def _serve(self, bus: Bus, stop: asyncio.Event) -> None:
        bus.on_connection(self._on_connection)
        self.keeper.wants_inventory = self._inventory_wanted.set
        table: tuple[tuple[Request[Any, Any], Callable[..., Awaitable[Any]]], ...] = (
            (BIND, self.keeper.bind),
            (END, self.keeper.end),
            (SET, self.keeper.set),
        )
        for request, handler in table:
            await bus.serve(request, handler)
        await self._say_inventory(bus)
        await self._beat(bus)
        self.ready.set()
        rounds = [
            asyncio.create_task(self._beats(bus, stop)),
            asyncio.create_task(self._looks(bus, stop)),
            asyncio.create_task(self._inventories(bus, stop)),
        ]
        ends = [asyncio.create_task(stop.wait()), asyncio.create_task(bus.closed.wait())]
        try:
            done, _ = await asyncio.wait([*rounds, *ends], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if bus.closed.is_set() and not stop.is_set():
                raise BusUnavailable("the connection is closed for good")
        finally:
            for task in (*rounds, *ends):
                task.cancel()
            await asyncio.gather(*rounds, *ends, return_exceptions=True)

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001 - the bus calls it so
        if connected:
            self._inventory_wanted.set()

    # --- the rounds ---------------------------------------------------------------------------

    async def _beats(self, bus: Bus, stop: asyncio.Event) -> None:
        beats = self._settings.beats
        period_s = spread(beats.heartbeat_s, self._settings.node, beats.jitter)
        while not stop.is_set():
            await _pause(stop, period_s)
            await self._beat(bus)

    async def _looks(self, bus: Bus, stop: asyncio.Event) -> None:
        period_s = self._settings.beats.telemetry_s
        while not stop.is_set():
            began_s = self._clock.monotonic_s()
            await self._say_telemetry(bus)
            await _pause(stop, max(0.05, period_s - (self._clock.monotonic_s() - began_s)))
            if not stop.is_set():
                await self._look()

    async def _inventories(self, bus: Bus, stop: asyncio.Event) -> None:
        """At once when wanted or changed, else on the slow beat."""
        while not stop.is_set():
            rest_s = self._settings.beats.inventory_s - (
                self._clock.monotonic_s() - self._said_at_s
            )
            await _either(self._inventory_wanted, max(0.05, rest_s))
            self._inventory_wanted.clear()
            await self._say_inventory(bus)

    # --- looking ------------------------------------------------------------------------------

    async def _look(self) -> None:
        bounds, at_ms = self._settings.bounds, self._clock.now_ms()
        sightings = await asyncio.gather(*(source.look() for source in self._sources))
        self._observations = tuple(report.aged(sighting, bounds) for sighting in sightings)
        devices = report.devices_of(self._observations, self._settings.node)
        before, self._health = self._health, report.settle_health(self._health, devices)
        self._epochs = readings.settle_epochs(self._epochs, devices, at_ms=at_ms)
        self._unsent.extend(
            report.transitions(before, self._health, identity=self._identity, at_ms=at_ms)
        )
        now = self._inventory()
        self._devices = {device.uuid: device for device in now.devices}
        self.keeper.libraries = {**now.stack.drivers, **now.stack.runtimes}
        if self._said and report.fingerprint(now) != self._said:
            self._inventory_wanted.set()

    def _known_devices(self) -> Mapping[str, RawDevice] | None:
        return self._devices

    def _inventory(self) -> Any:
        troubles = []
        if self.keeper.lost is not None:
            troubles.append(Problem(code="state_lost", message=self.keeper.lost))
        if self.telemetry_dropped:
            text = f"{self.telemetry_dropped} messages of readings fell into outages of the bus"
            troubles.append(Problem(code="telemetry_dropped", message=text))
        return report.inventory(
            self._identity,
            self._observations,
            health=self._health,
            held=self.keeper.state.held,
            bounds=self._settings.bounds,
            troubles=tuple(troubles),
            sequence=self._sequence,
            at_ms=self._clock.now_ms(),
        )

    # --- saying -------------------------------------------------------------------------------

    async def _say_inventory(self, bus: Bus) -> None:
        self._sequence += 1
        self._said_at_s = self._clock.monotonic_s()
        message = self._inventory()
        if not await self._say(bus, INVENTORY, message):
            return
        with contextlib.suppress(BusUnavailable):
            await bus.flush()
        self._inventory_sequence = message.sequence
        self._said = report.fingerprint(message)

    async def _say_telemetry(self, bus: Bus) -> None:
        self._sequence += 1
        message = readings.telemetry(
            report.devices_of(self._observations, self._settings.node),
            self._epochs,
            node=self._settings.node,
            boot_id=self._identity.boot_id,
            sequence=self._sequence,
            at_ms=self._clock.now_ms(),
            period_ms=int(self._settings.beats.telemetry_s * 1000),
        )
        if not await self._say(bus, TELEMETRY, message):
            self.telemetry_dropped += 1
        while self._unsent and await self._say(bus, HEALTH, self._unsent[0]):
            self._unsent.popleft()

    async def _beat(self, bus: Bus) -> None:
        self._sequence += 1
        message = Heartbeat(
            node=self._settings.node,
            boot_id=self._identity.boot_id,
            sequence=self._sequence,
            at_ms=self._clock.now_ms(),
            lease_version=self.keeper.state.version,
            inventory_sequence=self._inventory_sequence,
        )
        await self._say(bus, HEARTBEAT, message)

    async def _say(self, bus: Bus, publication: Publication[Any], message: Message) -> bool:
        try:
            await bus.publish(publication, message, node=self._settings.node)
        except BusUnavailable as exc:
            log.debug("not said: %s", chain(exc))
            return False
        return True


async def connect_patiently(access: Access, stop: asyncio.Event) -> Bus | None:
    """Try until the bus answers; none where `stop` came first. A node may start before its bus."""
    attempt = 0
    while not stop.is_set():
        try:
            return await Bus.connect(access)
        except BusUnavailable as exc:
            attempt += 1
            if attempt == 1:
                log.warning("%s; trying on", chain(exc))
            await _pause(stop, backoff_s(attempt, first_s=0.5, most_s=_CONNECT_MOST_S))
    return None


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    await _either(stop, seconds)


async def _either(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def run(settings: Settings, stop: asyncio.Event) -> int:
    """This host's agent, until `stop`."""
    clock = SystemClock()
    child = ChildSettings(
        node=settings.node,
        deadline_s=settings.beats.probe_deadline_s,
        environment=environment(),
    )
    sources = [ChildSource(name, child, clock) for name in settings.probes]
    agent = Agent(settings, sources, boot=boot_id(), clock=clock, sequence=boot_age_ms())
    waiting = asyncio.create_task(_tell_ready([agent], settings.node))
    try:
        await agent.run(stop)
    finally:
        waiting.cancel()
    return 0


async def _tell_ready(agents: Sequence[Agent], who: str) -> None:
    for agent in agents:
        await agent.ready.wait()
    notify("READY=1")
    log.info("%s is up", who)
