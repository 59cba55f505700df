"""One node's agent, wired: looks through its sources, says what it sees, serves its leases.

The observer's side (inventory, telemetry, health, heartbeat) never waits for the lease side, nor
the other way round; and neither ends anything on its own when the bus is away, but for the work of
leases that were asked for as `fence: strict`, through the task runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from quintal import __version__
from quintal.bus import Bus
from quintal.clock import Clock, SystemClock
from quintal.contracts.nodes import Heard, Heartbeat, Inventory, Problem, RawDevice
from quintal.contracts.subjects import (
    BIND,
    END,
    HEARD,
    HEARTBEAT,
    INVENTORY,
    SET,
    TASK,
    Request,
)
from quintal.errors import BusUnavailable
from quintal.process import chain, notify
from quintal.settings import Access, environment
from quintal_agent import report
from quintal_agent.acting import FENCE, Acting
from quintal_agent.fencing import Fencing, is_strict
from quintal_agent.handlers import LeaseKeeper, TaskRunner
from quintal_agent.kmsg import KernelLog
from quintal_agent.lookout import Lookout, OnBus
from quintal_agent.metrics import Endpoint, snapshot
from quintal_agent.outbox import Outbox
from quintal_agent.probes.probe import Event
from quintal_agent.rounds import backoff_s, makes_progress, share, spread
from quintal_agent.settings import Settings
from quintal_agent.sources import PATIENCE_S, ChildSettings, ChildSource, GatedSource, Source
from quintal_agent.spool import Spool
from quintal_agent.state import AckedFile, LeaseFiles, Store, boot_age_ms, boot_id

log = logging.getLogger(__name__)

_CONNECT_MOST_S: Final = 15.0
_GUARD_S: Final = 1.0

READY_WITHOUT_BUS_S: Final = 45.0
"""An agent that samples and spools does its work: a bus that is away is no failed start."""


class Agent:
    """One node. `run` returns when `stop` is set, or the bus is closed for good."""

    def __init__(  # noqa: PLR0913 - what an agent is made of
        self,
        settings: Settings,
        sources: Sequence[Source],
        *,
        boot: str,
        clock: Clock | None = None,
        sequence: int = 0,
        on_bus: OnBus | None = None,
        kernel: Callable[[], tuple[Event, ...]] = tuple,
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._sequence = sequence
        self._boot = boot
        identity = report.Identity(
            node=settings.node,
            boot_id=boot,
            cluster=settings.cluster,
            location=settings.location,
            labels=settings.labels,
            version=__version__,
        )
        self.lookout = Lookout(settings, sources, identity, self._clock, on_bus, kernel)
        self.spool = Spool(settings.state / "spool.db", bytes_max=settings.spool_bytes)
        self.outbox = Outbox(settings.node, self.spool, spread_s=settings.beats.drain_spread_s)
        files = LeaseFiles(settings.lease_dir, settings.node)
        self.keeper = LeaseKeeper(
            Store(settings.state, settings.node), files, boot, self._known_devices
        )
        self.tasks = TaskRunner(settings.task_socket)
        self._tasks: tuple[str, ...] | None = None
        self.acting = Acting(
            self.tasks, files, lambda: self._tasks, timeout_s=settings.act_within_s
        )
        self._acked = AckedFile(settings.state, boot)
        self.fencing = Fencing(self._clock.monotonic_s())
        self.keeper.cleaned = self.acting.cleaned
        self.keeper.fences = lambda: self.acting.can(FENCE)
        self.keeper.taken = lambda lease: self.fencing.taken(lease, self._clock.monotonic_s())
        self.unfenced = ""
        """Why work that must end could not be ended."""
        self._devices: Mapping[str, RawDevice] | None = None
        self._said = ""
        self._said_at_s = 0.0
        self._inventory_sequence = 0
        self._inventory_wanted = asyncio.Event()
        self._restoring: set[asyncio.Task[None]] = set()
        self._looked = asyncio.Event()
        self.progress = dict.fromkeys(("looks", "bus"), self._clock.monotonic_s())
        """When each of the two loops last came round: what the watchdog is fed by."""
        self.ready = asyncio.Event()
        """Set when the first inventory has left."""

    async def run(self, stop: asyncio.Event) -> None:
        """Look once; then look on, and serve the bus whenever it is there, until `stop`."""
        await self.keeper.start()
        self.fencing.acked_s = self._acked.load(self.fencing.acked_s)
        try:
            await self.lookout.start()
            await self.outbox.start()
            await until_one_ends(
                stop,
                self._looks(stop),
                self._reach(stop),
                self._guard(stop),
                self.outbox.drain(stop),
            )
        finally:
            await self.acting.close()
            await self.outbox.close()
            self.keeper.close()
            await self.lookout.close()

    async def _reach(self, stop: asyncio.Event) -> None:
        bus = await connect_patiently(self._settings.access, stop, lambda: self._came_round("bus"))
        if bus is None:
            return
        async with bus:
            self.outbox.bus = bus
            await self._serve(bus, stop)

    async def _serve(self, bus: Bus, stop: asyncio.Event) -> None:
        bus.on_connection(self._on_connection)
        self.keeper.wants_inventory = self._inventory_wanted.set
        table: tuple[tuple[Request[Any, Any], Callable[..., Awaitable[Any]]], ...] = (
            (BIND, self.keeper.bind),
            (END, self.keeper.end),
            (SET, self.keeper.set),
            (TASK, self.tasks.run),
        )
        for request, handler in table:
            await bus.serve(request, handler)
        await bus.hear(HEARD, self._heard, node=self._settings.node)
        await self._looked.wait()
        await self._say_inventory(bus)
        await self._beat()
        self.ready.set()
        self.outbox.connected()
        await until_one_ends(stop, self._beats(stop), self._inventories(bus, stop), _closed(bus))

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001 - the bus calls it so
        if connected:
            self._inventory_wanted.set()
            self.outbox.connected()

    def _came_round(self, loop: str) -> None:
        self.progress[loop] = self._clock.monotonic_s()

    # --- the rounds ---------------------------------------------------------------------------

    async def _beats(self, stop: asyncio.Event) -> None:
        beats = self._settings.beats
        period_s = spread(beats.heartbeat_s, self._settings.node, beats.jitter)
        while not stop.is_set():
            await _pause(stop, period_s)
            await self._beat()
            self._came_round("bus")

    async def _looks(self, stop: asyncio.Event) -> None:
        """The first sample follows the first inventory; then each node in its own phase."""
        period_s = self._settings.beats.telemetry_s
        await self._look()
        self._looked.set()
        await _either(self.ready, period_s)
        rest_s = period_s * share(self._settings.node)
        while not stop.is_set():
            began_s = self._clock.monotonic_s()
            self._sequence += 1
            message = self.lookout.telemetry(self.keeper.state, sequence=self._sequence)
            await self.outbox.readings(message)
            news, self.lookout.news = self.lookout.news, []
            if news:
                await self.outbox.health(news)
            await _pause(stop, max(0.05, rest_s - (self._clock.monotonic_s() - began_s)))
            if not stop.is_set():
                began_s = self._clock.monotonic_s()
                await self._look()
                rest_s = period_s - (self._clock.monotonic_s() - began_s)
            self._came_round("looks")

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
        await self.lookout.look(self.keeper.state)
        self._tasks = await self.tasks.names()
        now = self._inventory()
        self._devices = {device.uuid: device for device in now.devices}
        self.keeper.libraries = {**now.stack.drivers, **now.stack.runtimes}
        if self._said and report.fingerprint(now) != self._said:
            self._inventory_wanted.set()

    def _known_devices(self) -> Mapping[str, RawDevice] | None:
        return self._devices

    def _inventory(self) -> Inventory:
        troubles = list(self.outbox.problems())
        if self.keeper.lost is not None:
            troubles.append(Problem(code="state_lost", message=self.keeper.lost))
        if self.unfenced:
            troubles.append(Problem(code="not_fenced", message=self.unfenced))
        if self.fencing.stopped:
            names = ", ".join(sorted(self.fencing.stopped))
            troubles.append(Problem(code="fenced", message=f"the work of {names} was ended"))
        return self.lookout.inventory(
            self.keeper.state, sequence=self._sequence, troubles=troubles, tasks=self._tasks
        )

    # --- saying -------------------------------------------------------------------------------

    async def _say_inventory(self, bus: Bus) -> None:
        self._sequence += 1
        self._said_at_s = self._clock.monotonic_s()
        message = self._inventory()
        if not await self.outbox.say(INVENTORY, message):
            return
        with contextlib.suppress(BusUnavailable):
            await bus.flush()
        self._inventory_sequence = message.sequence
        self._said = report.fingerprint(message)

    # --- the fence ----------------------------------------------------------------------------

    async def _guard(self, stop: asyncio.Event) -> None:
        """End the work of strict leases where nobody has heard us for too long."""
        while not stop.is_set():
            now_s = self._clock.monotonic_s()
            held = self.keeper.state.leases
            self.fencing.forget(held)
            overdue = self.fencing.overdue(held.values(), now_s)
            if overdue:
                log.error("nobody hears this node: the work of %s ends", ", ".join(overdue))
                self.unfenced = await self.acting.end_work(overdue)
                if self.unfenced:
                    log.error("ending it: %s", self.unfenced)
                else:
                    self.fencing.stopped.update(overdue)
                self._inventory_wanted.set()
            due_s = self.fencing.next_s(self.keeper.state.leases.values())
            rest_s = _GUARD_S if due_s is None else due_s - self._clock.monotonic_s()
            await _pause(stop, min(_GUARD_S, max(0.05, rest_s)))

    def _heard(self, word: Heard, _: tuple[str, ...]) -> None:
        """The placer heard a beat of ours: what was ended may begin again."""
        if not self.fencing.acknowledged(word.sequence):
            return
        self._acked.save(self.fencing.acked_s)
        stopped, self.fencing.stopped = self.fencing.stopped, set()
        if stopped:
            task = asyncio.create_task(self.keeper.restore(stopped))
            self._restoring.add(task)
            task.add_done_callback(self._restoring.discard)

    async def _beat(self) -> None:
        self._sequence += 1
        strict = any(is_strict(lease) for lease in self.keeper.state.leases.values())
        if strict:
            self.fencing.sent(self._sequence, self._clock.monotonic_s())
        message = Heartbeat(
            node=self._settings.node,
            boot_id=self._boot,
            sequence=self._sequence,
            at_ms=self._clock.now_ms(),
            lease_version=self.keeper.state.version,
            outside_version=self.keeper.state.outside_version,
            inventory_sequence=self._inventory_sequence,
            wants_word=strict,
        )
        await self.outbox.say(HEARTBEAT, message)


async def until_one_ends(stop: asyncio.Event, *rounds: Coroutine[Any, Any, None]) -> None:
    """Run all until `stop` or the first end; an error of any is raised."""
    tasks = [asyncio.create_task(one) for one in rounds]
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (*tasks, stopping):
            task.cancel()
        await asyncio.gather(*tasks, stopping, return_exceptions=True)


async def _closed(bus: Bus) -> None:
    await bus.closed.wait()
    raise BusUnavailable("the connection is closed for good")


async def connect_patiently(
    access: Access, stop: asyncio.Event, tried: Callable[[], None] = lambda: None
) -> Bus | None:
    """Try until the bus answers; none where `stop` came first. A node may start before its bus."""
    attempt = 0
    while not stop.is_set():
        try:
            return await Bus.connect(access)
        except BusUnavailable as exc:
            attempt += 1
            if attempt == 1:
                log.warning("%s; trying on", chain(exc))
            tried()
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
    beats, env = settings.beats, environment()
    child = ChildSettings(
        node=settings.node,
        deadline_s=beats.probe_deadline_s,
        patience_s=min(beats.probe_deadline_s, PATIENCE_S),
        sys_root=settings.sys_root,
        environment=env,
    )
    on_bus = OnBus(settings.sys_root)
    sources = [
        GatedSource(ChildSource(name, child, clock), on_bus.accelerators)
        for name in settings.probes
    ]
    kernel = KernelLog(settings.kernel_log)
    kernel.open(asyncio.get_running_loop())
    agent = Agent(
        settings, sources, boot=boot_id(), clock=clock, sequence=boot_age_ms(), on_bus=on_bus,
        kernel=kernel.take,
    )  # fmt: skip
    metrics = Endpoint(settings.metrics, lambda: snapshot(agent, settings.node))
    metrics.start()
    beside = [
        asyncio.create_task(_tell_ready([agent], settings.node)),
        asyncio.create_task(_feed_watchdog(agent, clock, env.get("WATCHDOG_USEC", ""))),
    ]
    try:
        await agent.run(stop)
    finally:
        for task in beside:
            task.cancel()
        metrics.close()
        kernel.close()
    return 0


async def _tell_ready(agents: Sequence[Agent], who: str) -> None:
    for agent in agents:
        await _either(agent.ready, READY_WITHOUT_BUS_S)
        if not agent.ready.is_set():
            notify("READY=1")
            notify("STATUS=samples and keeps; the bus is away")
            await agent.ready.wait()
    notify("READY=1")
    notify("STATUS=samples and serves")
    log.info("%s is up", who)


async def _feed_watchdog(agent: Agent, clock: Clock, wanted_us: str) -> None:
    """Only while both loops come round: an event loop that merely turns proves nothing."""
    if not wanted_us.isdigit() or not int(wanted_us):
        return
    within_s = int(wanted_us) / 1_000_000
    while True:
        await asyncio.sleep(within_s / 4)
        if makes_progress(agent.progress, now_s=clock.monotonic_s(), within_s=within_s):
            notify("WATCHDOG=1")
