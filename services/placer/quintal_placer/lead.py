"""One placer: a standby that follows the ledger until it leads.

Leader is who wrote the last `epoch` record. It beats five times a second; a standby that hears
none for a second appends the next epoch under the fence, and whoever is late there stays standby.
A leader is *sure* to lead while its own beats come back through the server without a hole: a
standby then hears them as well and cannot have taken over (`assurance`). Who is not sure proves it
with an append before it answers anything that is not itself appended (renewals, reads, refusals).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from pydantic import ValidationError

from quintal.bus import Bus, Stored
from quintal.catalog_reader import CatalogReader
from quintal.clock import Clock, SteadyClock
from quintal.contracts import ledger, placement, subjects
from quintal.contracts.documents import Catalog
from quintal.contracts.message import Message, Refusal
from quintal.errors import BusUnavailable, QuintalError
from quintal_placer import facts, keeping, replay, sharing, snapshots
from quintal_placer.agents import Agents
from quintal_placer.announcer import Announcer
from quintal_placer.asking import Market
from quintal_placer.assurance import Assurance
from quintal_placer.counting import Tally
from quintal_placer.decided import DecidedBefore
from quintal_placer.explaining import Explanations
from quintal_placer.instant import Instant
from quintal_placer.ledger import STALL_S, STREAM, Deposed, LedgerWriter, claim
from quintal_placer.promises import Promises
from quintal_placer.room import Rooms
from quintal_placer.settings import Settings
from quintal_placer.state import PlacerState
from quintal_placer.tasks import report
from quintal_placer.watch import RECORDS_AT_ONCE, Watch

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)

HEARD_S: Final = 0.5
"""A placer that was not heard for so long is left no read."""

HOUSEKEEPING_S: Final = 0.2
SLOW_BEATS: Final = 25
"""Every so many rounds of housekeeping the slow things are done."""
CONFIRM_S: Final = 2.0
"""How long a request waits for its placer to be sure again, before it stays unanswered."""
SNAPSHOT_TRIES: Final = 50
STANDBY_HEARD_S: Final = 60.0
"""A leader that heard no standby for so long writes snapshots itself."""


class Placer:
    """Follows, then leads. `run` returns when it is told to stop, and raises Deposed."""

    def __init__(self, settings: Settings, back: Bus, clock: Clock) -> None:
        self.settings = settings
        self.state = PlacerState()
        self.position = 0
        self.foreign = 0
        """Messages on the ledger that are no group: passed over, and an alarm."""
        self._unread = False
        """Whether the last message was one of them: it may have begun an epoch."""
        self._back = back
        self._clock = clock
        self._reader = CatalogReader(back)
        self._agents = Agents(back, settings.bind_s)
        self.announcer = Announcer(back)
        self.watch = Watch(settings, back, self.state, self._agents)
        self.watch.sure = lambda: self.sure
        self._heard_beat_s = clock.monotonic_s()
        self._assurance = Assurance(settings.sure_s)
        self._beat = 0
        self._proof: asyncio.Future[int] | None = None
        self._records_since_snapshot = 0
        self._snapshot_at_s = clock.monotonic_s()
        self._outage = False
        self._outages = 0
        self._readers = keeping.Readers()
        self._purge_at_s = clock.monotonic_s()
        self._keeping: asyncio.Task[None] | None = None
        self.explanations = Explanations()
        self.tally = Tally()
        self.rooms = Rooms()
        self.decided = DecidedBefore(back, self.explanations)
        self._market = Market.at(self.state.catalog, 0)
        self._heard_leader = ""
        self._following = asyncio.Lock()
        """Held while the ledger is read, and while the lead is taken."""
        self._looks = 0
        self.promises: Promises | None = None
        self.writer: LedgerWriter | None = None
        self.ready = asyncio.Event()

    # --- following ----------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`: follow, take the lead when nobody has it, lead."""
        await self.watch.listen()
        await self._back.hear(subjects.PLACER_BEAT, self._on_beat)
        await self._back.hear(subjects.POSITION, self._on_position)
        self._back.on_connection(self._on_connection)
        await self._restore()
        self.ready.set()
        while not stop.is_set():
            if await self._follow(stop):
                await self._lead(stop)
                return

    async def _restore(self) -> None:
        """The newest snapshot, then what follows it in the stream."""
        _, last = await self._back.last(STREAM)
        data = await snapshots.newest(self._back, at_most=last)
        if data is not None:
            header = snapshots.header_of(data)
            await self._load_catalog(int(header["adopted"][0]))
            snapshots.fill(self.state, data)
            self.position = int(header["sequence"])
            log.info("snapshot %d: %d leases", self.position, len(self.state.leases))
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Apply what the stream has beyond our position. Raises BusUnavailable."""
        while batch := await self._back.read(STREAM, self.position + 1):
            with self.state.fleet.reading():
                for stored in batch:
                    await self._read(stored)
            self.state.forget(self.state.at_ms)

    async def _read(self, stored: Stored) -> None:
        """Apply one message of the stream."""
        if stored.sequence != self.position + 1:
            # Purged before it was read: only a newer snapshot leads on from here.
            raise Deposed(f"the ledger goes on at {stored.sequence}, not {self.position}")
        group = self._group_of(stored)
        self.position = stored.sequence
        if group is None:
            self.foreign += 1
            return
        for record in group.transitions:
            if isinstance(record, ledger.CatalogAdopted):
                await self._load_catalog(record.revision)
            self.state.apply(record)
            self._records_since_snapshot += 1

    def _group_of(self, stored: Stored) -> ledger.Group | None:
        """The group that a message is; none, and an alarm, where no placer decided it."""
        try:
            group = ledger.GROUP.validate_json(stored.data)
        except ValidationError:
            log.error("ALARM: message %d of the ledger is no group", stored.sequence)  # noqa: TRY400
            self._unread = True
            return None
        holder, unread, self._unread = (self.state.epoch, self.state.writer), self._unread, False
        if not ledger.follows(group, stored.sequence, holder, unread=unread):
            log.error("ALARM: message %d of the ledger is no leader's", stored.sequence)
            return None
        self.state.epoch, self.state.writer = max(holder, (group.epoch, group.writer))
        return group

    async def _load_catalog(self, revision: int) -> None:
        if revision in {0, self.state.catalog.revision}:
            return
        while True:
            try:
                catalog = await self._reader.load(revision)
            except BusUnavailable as exc:
                log.warning("loading catalog revision %d: %s", revision, exc)
                await asyncio.sleep(HOUSEKEEPING_S)
            else:
                self.state.adopt_catalog(catalog)
                return

    async def _follow(self, stop: asyncio.Event) -> bool:
        """Stay current; true once this placer has begun the next epoch."""
        try:
            if not self._back.connected:
                self._heard_beat_s = self._clock.monotonic_s()
            elif self._nobody_leads():
                async with self._following:
                    await self._catch_up()
                    if self._nobody_leads() and await self._take_over():
                        return True
            else:
                async with self._following:
                    await self._catch_up()
                    await self._maybe_snapshot()
                await self._say_position()
                await self._ahead()
        except BusUnavailable as exc:
            log.warning("following the ledger: %s", exc)
            self._heard_beat_s = self._clock.monotonic_s()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), HOUSEKEEPING_S)
        return False

    async def _ahead(self) -> None:
        """Do of a takeover what can be done before it: nobody is answered until it is over."""
        await self.watch.ahead()
        _ = self.state.fleet.structure

    def _nobody_leads(self) -> bool:
        """No beat for a while. Looked at again after a read, which may have waited for long."""
        return self._clock.monotonic_s() - self._heard_beat_s > self.settings.silence_s

    async def _take_over(self) -> bool:
        clock = SteadyClock(self._clock, self.state.at_ms)
        name = self.settings.writer
        sequence = await claim(self._back, self.state, clock, writer=name, sequence=self.position)
        if sequence is None:
            self._heard_beat_s = self._clock.monotonic_s()
            return False
        self.position = sequence
        log.info("%s leads epoch %d from sequence %d", name, self.state.epoch, sequence)
        self._readers.expect(self.state.writers - {name}, self._clock.monotonic_s())
        self.writer = LedgerWriter(self._back, self.state, clock, writer=name, sequence=sequence)
        self.writer.on_append = self.tally.appended
        return True

    async def _say_position(self) -> None:
        message = placement.Position(reader=self.settings.writer, sequence=self.position)
        await self._back.publish(subjects.POSITION, message, reader=self.settings.writer)

    # --- reads --------------------------------------------------------------------------------

    def answers(self, reply: str, *, leader: bool = False) -> bool:
        """Whether a read that is to be answered there is ours, of all placers that live.

        With `leader` it is the leader's, as long as one is heard.
        """
        if not self.ready.is_set():
            return False
        now_s = self._clock.monotonic_s()
        others = self._readers.standbys_within(HEARD_S, now_s)
        if self.writer is not None:
            return leader or sharing.mine(self.settings.writer, others, reply)
        if now_s - self._heard_beat_s <= HEARD_S and self._heard_leader:
            if leader:
                return False
            others.append(self._heard_leader)
        return sharing.mine(self.settings.writer, others, reply)

    async def read(
        self, make: Callable[[Instant], R | Refusal], at_least: int = 0
    ) -> R | Refusal | None:
        """What `make` gives of the ledger as it is now; none (silence) where we cannot know."""
        if self.writer is None:
            return await self._read_standing_by(make, at_least)
        promises = await self.confirm()
        if promises is None:
            return None
        answer = make(self._instant(promises.desk.market, leads=True))
        return answer if isinstance(answer, Refusal) else await promises.desk.told(answer)

    async def _read_standing_by(
        self, make: Callable[[Instant], R | Refusal], at_least: int
    ) -> R | Refusal | None:
        """After a look that began when the question was there: many questions share one."""
        wanted = self._looks + 1
        try:
            async with self._following:
                if self._looks < wanted and self.writer is None:
                    self._looks += 1
                    await self._catch_up()
        except (BusUnavailable, Deposed) as exc:
            log.warning("reading as a standby: %s", exc)
            return None
        if self.writer is not None or self.position < at_least:
            return None
        now_ms = max(self._clock.now_ms(), self.state.at_ms)
        if not self._market.serves(self.state.catalog, now_ms):
            self._market = Market.at(self.state.catalog, now_ms)
        return make(self._instant(self._market, leads=False))

    async def bundle(self) -> tuple[int, bytes] | None:
        """A snapshot with its catalog, and its sequence; by a standby where there is one.

        To write it down takes as long as it takes: where a standby lives the leader leaves it to
        that one, and goes on deciding.
        """
        now_s = self._clock.monotonic_s()
        if self.writer is None:
            async with self._following:
                await self._catch_up()
                return self.position, replay.pack(self.state, self.position)
        if self._readers.standbys_within(HEARD_S, now_s) or await self.confirm() is None:
            return None
        for _ in range(SNAPSHOT_TRIES):
            if self.writer.idle:
                return self.writer.sequence, replay.pack(self.state, self.writer.sequence)
            await self.writer.barrier()
        return None

    def _instant(self, market: Market, *, leads: bool) -> Instant:
        writer = self.writer
        return Instant(
            state=self.state,
            market=market,
            explanations=self.explanations,
            now_ms=writer.now_ms() if writer else max(self._clock.now_ms(), self.state.at_ms),
            sequence=writer.sequence if writer else self.position,
            leads=leads,
            skew_ms=self.watch.skew_ms,
        )

    # --- leading ------------------------------------------------------------------------------

    async def _lead(self, stop: asyncio.Event) -> None:
        assert self.writer is not None
        writing = asyncio.create_task(self.writer.run())
        announcing = asyncio.create_task(self.announcer.run())
        beating = asyncio.create_task(self._beats_out())
        promises = Promises(
            self.settings, self.state, self.writer, self._agents, self.announcer, self.explanations
        )
        try:
            housekeeping = asyncio.create_task(self._housekeeping(promises))
            stopping = asyncio.create_task(stop.wait())
            tasks = {writing, announcing, beating, housekeeping, stopping}
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()
            await self._hand_over(promises)
        finally:
            self.promises = None
            await promises.close()
            for task in (writing, announcing, beating):
                task.cancel()

    async def _hand_over(self, promises: Promises) -> None:
        """A clean stop: a census, and everything proposed is durable."""
        assert self.writer is not None
        if self.writer.stalled_s is None and self._back.connected:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.census("stop", promises), 5)

    async def census(self, cause: str, promises: Promises) -> int:
        """Append what is where now; gives the sequence it has."""
        assert self.writer is not None
        record = ledger.Census(at_ms=self.writer.now_ms(), cause=cause, rows=self.state.census())
        return await promises.desk.commit([record])

    async def _beats_out(self) -> None:
        assert self.writer is not None
        while True:
            self._beat += 1
            self._assurance.sent(self._beat, self._clock.monotonic_s())
            beat = placement.PlacerBeat(
                writer=self.settings.writer,
                epoch=self.state.epoch,
                sequence=self.writer.sequence,
                beat=self._beat,
            )
            with contextlib.suppress(BusUnavailable):
                await self._back.publish(subjects.PLACER_BEAT, beat)
            await asyncio.sleep(self.settings.beat_s)

    def _on_beat(self, beat: placement.PlacerBeat, _: tuple[str, ...]) -> None:
        """A leader's: a standby stays quiet. Our own, come back; or, after ours, another's."""
        if self.writer is None:
            self._heard_beat_s, self._heard_leader = self._clock.monotonic_s(), beat.writer
        elif beat.epoch > self.state.epoch:
            self._assurance.doubt()
        elif beat.writer == self.settings.writer and beat.epoch == self.state.epoch:
            self._assurance.came_back(beat.beat, self._clock.monotonic_s())

    def _on_position(self, position: placement.Position, tokens: tuple[str, ...]) -> None:
        """A reader's own word, under its own name."""
        if position.reader == tokens[-1] and position.reader != self.settings.writer:
            self._readers.say(position, self._clock.monotonic_s())

    @property
    def sure(self) -> bool:
        """Whether nobody can have taken over unseen."""
        if self.writer is None:
            return False
        return self._assurance.is_sure(self._clock.monotonic_s(), self.writer.proved_s)

    async def confirm(self) -> Promises | None:
        """The leader's acts, if this placer is sure to lead or proves it; none: stay silent.

        An acknowledgement that was long under way proves that we led then, not that we do: so
        after each proof the question is asked again.
        """
        give_up_s = self._clock.monotonic_s() + CONFIRM_S
        while not self.sure:
            now_s = self._clock.monotonic_s()
            if self.promises is None or now_s > give_up_s:
                return None
            if self._assurance.is_fresh(now_s):
                await self._prove(self.promises)
            else:
                await asyncio.sleep(self.settings.beat_s / 4)
        return self.promises

    async def _prove(self, promises: Promises) -> None:
        """Append something: one tick for all who ask at the same time."""
        assert self.writer is not None
        if self._proof is None or self._proof.done():
            self._proof = promises.desk.commit([ledger.Tick(at_ms=self.writer.now_ms())])
        await asyncio.shield(self._proof)

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001 - the driver's own word
        if not connected:
            self._outage = True

    # --- housekeeping -------------------------------------------------------------------------

    async def _housekeeping(self, promises: Promises) -> None:
        """What the leader does by itself, one round after the other."""
        assert self.writer is not None
        while not await self._first_round(promises):  # noqa: ASYNC110 - the bus gives no event
            await asyncio.sleep(HOUSEKEEPING_S)
        self.promises = promises
        slow = 0
        while True:
            await self._nap()
            if self._away():
                continue
            if self._outage:
                self._outage = False
                promises.ends.grace()
                await self.watch.after_outage()
            promises.ends.expire()
            promises.work_queue()
            promises.ends.send_ends(self._clock.monotonic_s())
            self._tick(promises)
            self.rooms.step(self.state)
            slow += 1
            if slow % 5 == 0:
                self.watch.count_silence()
                promises.ends.drain()
            if slow % SLOW_BEATS == 0:
                await self._slow_round(promises)
            elif slow % 10 == 0:
                await self._adopt(promises)

    async def _nap(self) -> None:
        """Until the next round.

        A process that was stopped meanwhile (or a loop that stood still) heard nobody: that was
        no silence of theirs.
        """
        before_s = self._clock.monotonic_s()
        await asyncio.sleep(HOUSEKEEPING_S)
        if self._clock.monotonic_s() - before_s > HOUSEKEEPING_S + STALL_S:
            self._outage = True

    def _away(self) -> bool:
        """No connection, or an append that does not come back: time does not count."""
        assert self.writer is not None
        if self.writer.outages != self._outages:
            self._outages, self._outage = self.writer.outages, True
        return not self._back.connected or self.writer.stalled_s is not None

    async def _first_round(self, promises: Promises) -> bool:
        """What must be so before anybody is answered; false where the bus let us down."""
        assert self.writer is not None
        await self._adopt(promises)
        try:
            await self.watch.lead(promises, self.writer)
        except BusUnavailable as exc:
            log.warning("beginning to lead: %s", exc)
            return False
        promises.resume()
        _ = self.state.fleet.structure  # so that the first refusal does not pay for it
        _settle()
        return True

    def _tick(self, promises: Promises) -> None:
        """Nothing for a while: move the watermark."""
        assert self.writer is not None
        silent_s = self._clock.monotonic_s() - self.writer.last_append_s
        if self.writer.idle and silent_s >= self.settings.tick_s:
            promises.desk.commit([ledger.Tick(at_ms=self.writer.now_ms())])

    async def _adopt(self, promises: Promises) -> None:
        """A newer head of the catalog becomes what decisions use; one that is down is no news."""
        assert self.writer is not None
        try:
            head = await self._reader.head()
            if head is None or head.revision <= self.state.adopted[0]:
                return
            catalog: Catalog = await self._reader.load(head.revision)
        except QuintalError as exc:
            log.warning("looking at the catalog: %s", exc)
            return
        records = facts.adoption_records(self.state, catalog, self.writer.now_ms())
        self.state.adopt_catalog(catalog)
        for start in range(0, len(records), RECORDS_AT_ONCE):
            promises.desk.commit(records[start : start + RECORDS_AT_ONCE])
        log.info("catalog revision %d adopted", catalog.revision)

    async def _slow_round(self, promises: Promises) -> None:
        _settle()
        self.state.forget(self.writer.now_ms() if self.writer else 0)
        try:
            info = await self._back.stream_info(STREAM)
        except BusUnavailable:
            return
        share = keeping.fill_percent(info)
        full = share >= self.settings.ledger_full_percent
        if full != promises.desk.ledger_full:
            log.warning("the ledger is %d %% full: grants %s", share, "stop" if full else "go on")
        promises.desk.ledger_full = full
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep(urgent=full))
            self._keeping.add_done_callback(report)

    async def _keep(self, *, urgent: bool) -> None:
        """A snapshot where no standby writes them, and a purge where nobody needs what is old."""
        now_s = self._clock.monotonic_s()
        try:
            alone = not self._readers.standby_within(STANDBY_HEARD_S, now_s)
            if alone and now_s - self._snapshot_at_s >= self.settings.snapshot_s:
                await self._snapshot_by_child()
            if urgent or now_s - self._purge_at_s >= self.settings.purge_s:
                self._purge_at_s = now_s
                assert self.writer is not None
                await keeping.purge(
                    self._back, self._readers, now_s=now_s, now_ms=self.writer.now_ms()
                )
        except BusUnavailable as exc:
            log.warning("keeping the ledger: %s", exc)

    # --- snapshots ----------------------------------------------------------------------------

    async def _maybe_snapshot(self) -> None:
        """By the standby, when enough has come since the last one."""
        now_s = self._clock.monotonic_s()
        due = now_s - self._snapshot_at_s >= self.settings.snapshot_s
        many = self._records_since_snapshot >= self.settings.snapshot_records
        if self._records_since_snapshot and (due or many):
            await self.snapshot()

    async def _snapshot_by_child(self) -> None:
        """A leader alone: a forked child writes down the state as it is now, we go on deciding."""
        assert self.writer is not None
        for _ in range(SNAPSHOT_TRIES):
            if self.writer.idle:
                break
            await self.writer.barrier()
        else:
            return
        sequence = self.writer.sequence
        self._snapshot_at_s = self._clock.monotonic_s()
        path = self.settings.state_dir / "snapshot.new"
        path.parent.mkdir(parents=True, exist_ok=True)
        child = os.fork()
        if child == 0:  # no loop, no bus, no lock of another thread is touched from here
            _write_and_exit(self.state, sequence, path)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        if status != 0:
            log.error("the child that writes the snapshot ended with status %d", status)
            return
        data = await asyncio.to_thread(path.read_bytes)
        await snapshots.save(self._back, data, sequence)
        log.info("snapshot %d: %d bytes, by a child", sequence, len(data))

    async def snapshot(self) -> int | None:
        """Write one now; gives the sequence it reflects.

        A leader can only while nothing is in flight: a snapshot must not hold what its sequence
        does not. None if that does not come about; the standby will write one.
        """
        for _ in range(SNAPSHOT_TRIES):
            if self.writer is None or self.writer.idle:
                break
            await self.writer.barrier()
        else:
            return None
        sequence = self.position if self.writer is None else self.writer.sequence
        data = snapshots.dump(self.state, sequence)
        await snapshots.save(self._back, data, sequence)
        self._records_since_snapshot = 0
        self._snapshot_at_s = self._clock.monotonic_s()
        log.info("snapshot %d: %d bytes", sequence, len(data))
        return sequence


def _write_and_exit(state: PlacerState, sequence: int, path: Path) -> NoReturn:
    try:
        path.write_bytes(snapshots.dump(state, sequence))
        os._exit(0)
    except BaseException:
        os._exit(1)


def _settle() -> None:
    """Take what has grown old out of the collector's rounds.

    A fleet and its leases are millions of objects that stay. A full round over them would halt
    every decision for as long as a node takes to become suspect in the worst case; only the young
    are looked through from here on.
    """
    gc.collect(1)
    gc.freeze()


__all__ = ["Deposed", "Placer"]
