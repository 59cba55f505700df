"""The ledger's writer: group commit under a fence. One group in flight.

Decisions that arrive while an append is in flight form the next group: one message, one fsync,
one acknowledgement, then all their replies. What was proposed is applied to the state at once, so
that the next decision sees it; nobody is told before the append. If the append turns out to be
somebody else's place, this placer is deposed: it drops its memory and starts again as a standby,
so that there is no code that undoes.

Three outcomes of an append: *acked*; *conflict* (then the message at `expected + 1` says whose it
is); *unknown* (then the same group goes again, with the same expected sequence, until it is one of
the other two: a read that does not show it proves nothing).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from quintal.bus import Appended, Bus, Conflict, Full, Stored, Unknown
from quintal.clock import SteadyClock
from quintal.contracts import ledger
from quintal.contracts.subjects import LEDGER
from quintal.errors import BusUnavailable, QuintalError
from quintal.units import MS_PER_HOUR
from quintal_placer.state import PlacerState

log = logging.getLogger(__name__)

GROUP_DECISIONS_MAX: Final = 256
GROUP_BYTES_MAX: Final = 256 * 1024
RETRY_S: Final = 0.05
FULL_RETRY_S: Final = 1.0
STALL_S: Final = 2.0
"""An append that takes longer was an outage: leases and nodes get their time back."""
CENSUSES_AT_ONCE_MAX: Final = 48
"""Full hours that one gap is given a census for; a longer one keeps its last ones."""

STREAM: Final = "LEDGER"


class Deposed(QuintalError):  # noqa: N818 - the trade says it so
    """Another writer has the stream."""


@dataclass(slots=True)
class _Proposal:
    data: list[bytes]
    size: int
    done: asyncio.Future[int]


class LedgerWriter:
    """Applies, appends, tells. Made when this placer takes the lead at `sequence`."""

    def __init__(
        self, bus: Bus, state: PlacerState, clock: SteadyClock, *, writer: str, sequence: int
    ) -> None:
        self._bus = bus
        self._state = state
        self._clock = clock
        self._writer = writer
        self._epoch = state.epoch
        self._group = 1
        self._pending: deque[_Proposal] = deque()
        self._wake = asyncio.Event()
        self.sequence = sequence
        """Last sequence that is known to be stored."""
        self.full = False
        self.stalled_s: float | None = None
        """Monotonic time since which no append has come back; none while all goes well."""
        self.outages = 0
        """Appends that came back only after `STALL_S`: time in which nothing could be promised."""
        self.last_append_s = clock.monotonic_s()
        self.proved_s = -math.inf
        """Monotonic time at which the last append that was acknowledged had been sent: nobody
        else led then."""
        self.on_append: Callable[[int, float], None] | None = None
        """Called with (decisions, seconds) after each."""

    def now_ms(self) -> int:
        """Ledger time, now: never less than any record's."""
        return max(self._clock.now_ms(), self._state.at_ms)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is in flight."""
        return not self._pending

    @property
    def waiting(self) -> int:
        """Proposals that are not durable yet."""
        return len(self._pending)

    def propose(self, records: Sequence[ledger.AnyRecord]) -> asyncio.Future[int]:
        """Apply these now, append them as one; the future gives the sequence once it is durable.

        Runs to the end without a pause: no decision can come between. At a full hour the census
        goes first, as of that instant.
        """
        data: list[bytes] = []
        if records:
            for census in full_hours(self._state, records[0].at_ms):
                self._apply(census, data)
        for record in records:
            self._apply(record, data)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pending.append(_Proposal(data, sum(map(len, data)), done))
        self._wake.set()
        return done

    def barrier(self) -> asyncio.Future[int]:
        """Resolves when all that is applied now is durable."""
        if self._pending:
            return self.propose(())
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(self.sequence)
        return done

    def _apply(self, record: ledger.AnyRecord, data: list[bytes]) -> None:
        self._state.apply(record)
        data.append(record.model_dump_json(exclude_defaults=False).encode())

    async def run(self) -> None:
        """Append what is proposed, for as long as this placer leads. Raises Deposed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                batch = self._take()
                parts = [part for proposal in batch for part in proposal.data]
                if parts:
                    began_s = self._clock.monotonic_s()
                    await self._append(self._message(parts))
                    self._group += 1
                    if self.on_append is not None:
                        self.on_append(len(batch), self._clock.monotonic_s() - began_s)
                for _ in batch:
                    proposal = self._pending.popleft()
                    if not proposal.done.done():
                        proposal.done.set_result(self.sequence)

    def _take(self) -> list[_Proposal]:
        """The next group: as many decisions as have gathered, within the bounds, at least one."""
        batch: list[_Proposal] = []
        size = 0
        for proposal in self._pending:
            size += proposal.size
            if batch and (size > GROUP_BYTES_MAX or len(batch) >= GROUP_DECISIONS_MAX):
                break
            batch.append(proposal)
        return batch

    def _message(self, parts: list[bytes]) -> bytes:
        head = (
            f'{{"epoch":{self._epoch},"writer":"{self._writer}","group":{self._group},'
            f'"expected":{self.sequence},"transitions":['
        )
        return head.encode() + b",".join(parts) + b"]}"

    async def _append(self, data: bytes) -> None:
        sent_s = self._clock.monotonic_s()
        while True:
            match await self._bus.append(LEDGER.subject(), data, self.sequence):
                case Appended(sequence):
                    self.sequence = sequence
                    break
                case Conflict():
                    self.sequence = await self._ours()
                    break
                case Full():
                    self.full = True
                    log.error("the ledger is full: only a purge lets it go on")
                    await asyncio.sleep(FULL_RETRY_S)
                case Unknown(why):
                    self.stalled_s = self.stalled_s or sent_s
                    log.warning("an append has no answer (%s): the same group goes again", why)
                    await asyncio.sleep(RETRY_S)
        self.full = False
        self.stalled_s = None
        self.proved_s = sent_s
        self.last_append_s = self._clock.monotonic_s()
        if self.last_append_s - sent_s > STALL_S:
            self.outages += 1

    async def _ours(self) -> int:
        """The sequence of our own group, stored by an earlier try. Raises Deposed if it is not."""
        found = await self._stored()
        if found is None:
            raise Deposed("the ledger is shorter than what it acknowledged: it was tampered with")
        try:
            group = ledger.GROUP.validate_json(found.data)
        except ValidationError as exc:
            raise Deposed(f"message {found.sequence} of the ledger is nobody's") from exc
        mine = (self._epoch, self._writer, self._group)
        if (group.epoch, group.writer, group.group) != mine:
            raise Deposed(f"epoch {group.epoch} of {group.writer} has the ledger")
        return found.sequence

    async def _stored(self) -> Stored | None:
        while True:
            try:
                return await self._bus.stored(STREAM, self.sequence + 1)
            except BusUnavailable:
                await asyncio.sleep(RETRY_S)


def full_hours(state: PlacerState, at_ms: int) -> list[ledger.Census]:
    """A census for each full hour between the newest record and `at_ms`."""
    before_ms = state.at_ms
    if before_ms == 0 or at_ms // MS_PER_HOUR == before_ms // MS_PER_HOUR:
        return []
    first, last = before_ms // MS_PER_HOUR + 1, at_ms // MS_PER_HOUR
    rows = state.census()
    hours = range(max(first, last - CENSUSES_AT_ONCE_MAX + 1), last + 1)
    return [ledger.Census(at_ms=h * MS_PER_HOUR, cause="hour", rows=rows) for h in hours]


async def claim(
    bus: Bus, state: PlacerState, clock: SteadyClock, *, writer: str, sequence: int
) -> int | None:
    """Begin the next epoch at `sequence`; none if the stream has moved on meanwhile."""
    at_ms = max(clock.now_ms(), state.at_ms)
    record = ledger.EpochBegan(at_ms=at_ms, epoch=state.epoch + 1, writer=writer)
    transitions = (*full_hours(state, at_ms), record)
    group = ledger.Group(
        epoch=record.epoch, writer=writer, group=0, expected=sequence, transitions=transitions
    )
    data = ledger.GROUP.dump_json(group)
    while True:
        match await bus.append(LEDGER.subject(), data, sequence):
            case Appended(stored):
                state.apply(record)
                return stored
            case Conflict():
                found = await bus.stored(STREAM, sequence + 1)
                if found is None or found.data != data:
                    return None
                state.apply(record)
                return found.sequence
            case Full():
                return None
            case Unknown():
                await asyncio.sleep(RETRY_S)
