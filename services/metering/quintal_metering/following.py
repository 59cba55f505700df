"""Following the streams: read by sequence, hand over, wait, again; whatever fails is tried again.

The ledger is read when the placer beats, at most every half second, and once a second anyhow.
What is read beside it has a position of its own in the store, written after its rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from quintal.bus import Bus, Stored
from quintal.catalog_reader import CatalogReader
from quintal.clock import Clock
from quintal.contracts.placement import Position
from quintal.contracts.subjects import PLACER_BEAT, POSITION
from quintal.errors import BusUnavailable, ProtocolError
from quintal.process import chain
from quintal.units import MS_PER_HOUR
from quintal_metering.columns import DeadLetter, dead_columns
from quintal_metering.engine import Engine
from quintal_metering.meter import Meter
from quintal_metering.observations import SOURCES, Observed, Source
from quintal_metering.positions import set_stream_position, stream_position
from quintal_metering.queries import TouchedMinutes
from quintal_metering.rollups import (
    BACK_MS,
    READINGS_AT_ONCE,
    FleetAgain,
    HeldHourAgain,
    HourAgain,
    LeaseHourAgain,
    MinutesAgain,
    NodesSeen,
    RawReadings,
    ReadingsOf,
    portions,
)
from quintal_metering.samples import MINUTE_MS
from quintal_metering.settings import (
    BATCH_MESSAGES,
    FLUSH_S,
    HOURS_S,
    MINUTES_AT_ONCE,
    OBSERVE_S,
    POSITION_S,
    RETRY_S,
    ROLLUP_PAUSES,
    ROLLUP_S,
)
from quintal_metering.store import Store, StoreUnavailable

log = logging.getLogger(__name__)

AGAIN: Final = (BusUnavailable, StoreUnavailable, ProtocolError)
"""What another try may mend."""


class LedgerFollower:
    """Keeps the meter at the end of the ledger."""

    def __init__(self, bus: Bus, engine: Engine, meter: Meter, clock: Clock) -> None:
        self._bus = bus
        self._engine = engine
        self._meter = meter
        self._clock = clock
        self._catalog = CatalogReader(bus)
        self._woken = asyncio.Event()
        self._buffer: list[Stored] = []
        self.failures = 0
        """Tries that failed since the start."""
        self.waiting_since_s: float | None = None
        """When what is read began to wait for the store; none while nothing waits."""

    async def run(self) -> None:
        """Until cancelled."""
        await self._bus.hear(PLACER_BEAT, lambda *_: self._woken.set())
        while True:
            begun_s = self._clock.monotonic_s()
            try:
                more = await self.once()
                self.waiting_since_s = None
            except (BusUnavailable, StoreUnavailable) as exc:
                self._failed(begun_s)
                log.warning("the ledger waits: %s", chain(exc))
                await asyncio.sleep(RETRY_S)
                continue
            except ProtocolError as exc:
                self._failed(begun_s)
                log.error("ALARM: the ledger waits: %s", chain(exc))  # noqa: TRY400 - no trace
                await asyncio.sleep(RETRY_S)
                continue
            if not more:
                await self._rest(begun_s)

    def _failed(self, begun_s: float) -> None:
        self.failures += 1
        if self.waiting_since_s is None:
            self.waiting_since_s = begun_s

    async def _rest(self, begun_s: float) -> None:
        """At least the flush interval between two reads, then until somebody speaks."""
        self._woken.clear()
        passed = self._clock.monotonic_s() - begun_s
        await asyncio.sleep(max(0.0, FLUSH_S / 2 - passed))
        try:
            await asyncio.wait_for(self._woken.wait(), FLUSH_S / 2)
        except TimeoutError:
            return

    async def once(self) -> bool:
        """Read and store what there is, at most one batch; whether there may be more."""
        now_s = self._clock.monotonic_s()
        await self._engine.call(self._meter.flush, now_s)
        following = self._meter.position + len(self._buffer) + 1
        if self._buffer:
            following = self._buffer[-1].sequence + 1
        found = await self._bus.read("LEDGER", following)
        if not found:
            await self._check_not_behind(following)
        self._buffer.extend(found)
        batch = self._buffer[:BATCH_MESSAGES]
        if not batch:
            return bool(found)
        for revision in await self._engine.call(self._meter.wanted, batch):
            catalog = await self._catalog.load(revision)
            lists = tuple(sorted(catalog.prices.items()))
            await self._engine.call(self._meter.describe, catalog)
            await self._engine.call(self._meter.learn, revision, lists)
        del self._buffer[: len(batch)]
        await self._engine.call(self._meter.take, batch, now_s)
        return bool(found)

    async def _check_not_behind(self, following: int) -> None:
        _, last = await self._bus.last("LEDGER")
        if last + 1 < following:
            raise ProtocolError(
                f"the ledger ends at {last}, but {following - 1} was stored from it: "
                "it is another stream, or one that lost messages"
            )


async def tell_position(bus: Bus, meter: Meter) -> None:
    """Tell the placer up to where the ledger is stored, until cancelled."""
    while True:
        try:
            position = Position(reader=bus.principal, sequence=meter.position)
            await bus.publish(POSITION, position, reader=bus.principal)
        except BusUnavailable as exc:
            log.warning("the position is not told: %s", exc)
        await asyncio.sleep(POSITION_S)


class Observer:
    """Carries one of the other streams into its table."""

    def __init__(self, bus: Bus, engine: Engine, store: Store, source: Source) -> None:
        self._bus = bus
        self.engine = engine
        self.store = store
        self._source = source
        self._created = ""
        self._position = 0
        self.failures = 0
        self.stream = source.stream
        self.minutes: set[int] = set()
        """Touched since the last rollup."""
        self.told: deque[frozenset[int]] = deque()
        """Touched by others, from other threads."""
        self.hours: set[int] = set()
        """Hours whose rollup is not final yet."""

    @property
    def position(self) -> int:
        """The last message that is stored."""
        return self._position

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                more = await self.once()
            except AGAIN as exc:
                self.failures += 1
                log.warning("%s waits: %s", self._source.stream, chain(exc))
                self._created = ""
                more = False
            if not more:
                await asyncio.sleep(OBSERVE_S)

    async def once(self) -> bool:
        """One batch; whether there may be more."""
        if not self._created:
            await self._find_place()
        found = await self._bus.read(self._source.stream, self._position + 1)
        if found:
            await self.engine.call(self._store_messages, found)
        else:
            await self._look_for_another_stream()
        return bool(found)

    async def _find_place(self) -> None:
        created = str((await self._bus.stream_info(self._source.stream))["created"])
        self._position = await self.engine.call(
            stream_position, self.store, self._source.stream, created
        )
        self._created = created

    async def _look_for_another_stream(self) -> None:
        """A stream that was made anew counts from 1 again."""
        _, last = await self._bus.last(self._source.stream)
        if last < self._position:
            self._created = ""

    def _store_messages(self, found: list[Stored]) -> None:
        observed = self._read(found)
        last = found[-1].sequence
        token = f"{self._created}:{found[0].sequence}-{last}"
        if observed.dead:
            log.error("ALARM: %d messages of %s are none", len(observed.dead), self._source.stream)
            self.store.insert("dead_letters", dead_columns(observed.dead), token)
        if observed.columns:
            self.store.insert(self._source.table, observed.columns, token)
        set_stream_position(self.store, self._source.stream, self._created, last)
        self._position = last
        self.minutes |= observed.minutes

    def _read(self, found: list[Stored]) -> Observed:
        """What the messages say; one that breaks its reader is a dead letter, not the end of us."""
        try:
            return self._source.read(found)
        except Exception:
            log.exception("reading %s from %d on", self._source.stream, found[0].sequence)
        good, broken = [], []
        for message in found:
            try:
                self._source.read([message])
            except Exception as exc:
                why = f"{type(exc).__name__}: {exc}"[:200]
                letter = DeadLetter(self._source.stream, message.sequence, -1, 0, "unreadable", why)
                broken.append(letter)
            else:
                good.append(message)
        observed = self._source.read(good)
        return replace(observed, dead=(*observed.dead, *broken))


def observers(bus: Bus, engine: Engine, store: Store) -> list[Observer]:
    """One for each of the other streams; the first is telemetry's."""
    return [Observer(bus, engine, store, source) for source in SOURCES]


async def sum_up(engine: Engine, meter: Meter) -> None:
    """Keep usage by the hour up with the slices, until cancelled."""
    more = False
    while True:
        await asyncio.sleep(0 if more else ROLLUP_S)
        try:
            more = await engine.call(meter.hours.again, meter.position)
        except StoreUnavailable as exc:
            log.warning("usage by the hour waits: %s", chain(exc))
            more = False


async def roll_up(engine: Engine, meter: Meter, telemetry: Observer, clock: Clock) -> None:
    """Recompute touched minutes and hours whole, again and again, until cancelled.

    `engine` is telemetry's own thread: what is recomputed there delays nothing of the ledger.
    """
    store = telemetry.store
    for done, touched in ((ROLLED, telemetry.minutes), (ROLLED_HOURS, telemetry.hours)):
        known = await engine.call(stream_position, store, done, "")
        rows: list[dict[str, Any]] = await engine.call(store.ask, TouchedMinutes(known))
        step = 1 if done == ROLLED else MS_PER_HOUR
        touched |= {int(row["minute_ms"]) // step * step for row in rows}
    hours_s, pause_s = clock.monotonic_s(), ROLLUP_S
    while True:
        await asyncio.sleep(pause_s)
        began_s = clock.monotonic_s()
        try:
            await _step_by_step(engine, minutes_again(store, telemetry))
            if began_s - hours_s >= HOURS_S:
                hours_s = began_s
                for hour in sorted(telemetry.hours):
                    await _step_by_step(engine, hour_again(meter, telemetry, hour))
        except StoreUnavailable as exc:
            log.warning("rollups wait: %s", chain(exc))
        pause_s = max(ROLLUP_S, (clock.monotonic_s() - began_s) * ROLLUP_PAUSES)


async def _step_by_step(engine: Engine, steps: Iterator[None]) -> None:
    """Each step a call of its own, so that what arrives meanwhile is stored between two."""
    while await engine.call(_next, steps):
        pass


def _next(steps: Iterator[None]) -> bool:
    return next(steps, steps) is None


ROLLED: Final = "TELEMETRY rolled up"
ROLLED_HOURS: Final = "TELEMETRY rolled up by hours"

LATE_MS: Final = 120_000
"""What is further behind than that came from a spool: minutes after it may count on from it."""


def roll_up_once(store: Store, telemetry: Observer) -> None:
    """All steps of `minutes_again`."""
    for _ in minutes_again(store, telemetry):
        pass


def roll_up_hour(meter: Meter, telemetry: Observer, hour: int) -> None:
    """All steps of `hour_again`."""
    for _ in hour_again(meter, telemetry, hour):
        pass


def minutes_again(store: Store, telemetry: Observer) -> Iterator[None]:
    """Recompute what was touched, in steps; what a failure leaves is touched still."""
    while telemetry.told:
        telemetry.minutes |= telemetry.told.popleft()
    if not telemetry.minutes:
        return
    newest = max(telemetry.minutes)
    telemetry.minutes |= {
        late + MINUTE_MS * n
        for late in telemetry.minutes
        if late < newest - LATE_MS
        for n in range(1, BACK_MS // MINUTE_MS + 1)
        if late + MINUTE_MS * n <= newest
    }
    minutes = tuple(sorted(telemetry.minutes))
    position = telemetry.position
    # What arrives between two steps touches its minute once more.
    telemetry.minutes.difference_update(minutes)
    left = set(minutes)
    try:
        for at in range(0, len(minutes), MINUTES_AT_ONCE):
            some = minutes[at : at + MINUTES_AT_ONCE]
            rows = store.ask(RawReadings(some))
            counted = [(int(r["minute_ms"]), r["reading"], int(r["readings"])) for r in rows]
            for portion in portions(counted):
                store.command(*MinutesAgain(*portion, position).sql())
                yield
            few = sum(number for *_, number in counted) <= READINGS_AT_ONCE
            for together in (some,) if few else ((minute,) for minute in some):
                store.command(*FleetAgain(together, position).sql())
                store.command(*NodesSeen(together).sql())
                yield
            telemetry.hours |= {minute // MS_PER_HOUR * MS_PER_HOUR for minute in some}
            left.difference_update(some)
        set_stream_position(store, ROLLED, "", position)
    finally:
        telemetry.minutes |= left


def hour_again(meter: Meter, telemetry: Observer, hour: int) -> Iterator[None]:
    """Recompute an hour and its leases; it is final once the ledger is well past its end."""
    version, store = telemetry.position, telemetry.store
    for row in store.ask(ReadingsOf(hour)):
        store.command(*HourAgain(hour, row["reading"], version).sql())
        yield
    store.command(*FleetAgain((hour,), version, hours=True).sql())
    yield
    store.command(*LeaseHourAgain(hour, version).sql())
    store.command(*HeldHourAgain(hour, version).sql())
    if meter.state.at_ms >= hour + MS_PER_HOUR + LATE_MS:
        telemetry.hours.discard(hour)
    if not telemetry.hours:
        set_stream_position(store, ROLLED_HOURS, "", version)
