"""The queue at work: who enters it, who is granted out of it, who meets its deadline in it.

Whoever waits goes before whoever comes: before each new decision the line is looked through, as far
as anything changed that could help somebody in it, so that no grant is made past one who fits. A
look is bounded; what is left of it is done in the next rounds, and what waits meanwhile keeps its
claim (`engine.turns`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import zip_longest
from typing import Final

from quintal.contracts import ledger
from quintal.contracts.message import Refusal
from quintal.contracts.placement import PlaceAsk
from quintal.errors import Code
from quintal.months import month_of
from quintal_placer import repairing
from quintal_placer.asking import Market
from quintal_placer.binding import Binding
from quintal_placer.desk import Desk
from quintal_placer.engine.line import Waiter
from quintal_placer.state import Lease
from quintal_placer.tasks import report

TRIES_MAX: Final = 256
"""Decisions of one look in a round of housekeeping."""
TRIES_BESIDE: Final = 32
"""Decisions of one look before a new request's own."""
LOOK_S: Final = 0.05
"""Of one look in a round of housekeeping: a decision on a large gang may take much longer than
most, and beats, agents and whoever asks now wait meanwhile. Of this thread's own time."""
LOOK_BESIDE_S: Final = 0.01
"""Of one look before a new request's own."""
ESTIMATES_SHARE: Final = 20
"""Estimates rest for so many times as long as they took."""
ANYWAY_MS: Final = 10_000
"""Every so often all groups are tried, whatever has changed or not."""


class Queue:
    """The leader's part of the line. Made when this placer takes the lead."""

    def __init__(self, desk: Desk, binding: Binding, unserved: Callable[[Lease], bool]) -> None:
        self._desk = desk
        self._state = desk.state
        self._binding = binding
        self._unserved = unserved
        """Whether a lease came to its end before anybody was given anything."""
        self._all_at_ms = 0
        self._resume_at = ""
        """The tenant at whose turn the last look had to stop."""
        self._seen: tuple[object, ...] = ()
        self._market: Market | None = None
        self._estimates: dict[str, int] = {}
        self._look_again_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def enter(self, tenant: str, ask: PlaceAsk) -> Lease | Refusal:
        """Wait from now on; the lease, once it is durable (and perhaps granted meanwhile)."""
        waiting = self._state.line.waiting(tenant)
        if waiting >= self._desk.settings.queued_max:
            return Refusal(
                code=Code.OVERLOADED,
                message=f"{waiting} requests of {tenant} wait already",
                details={"retry_after_ms": 5_000},
            )
        at_ms = self._desk.writer.now_ms()
        name = self._desk.next()[0]
        broken = repairing.repaired(self._state, tenant, ask) if ask.repairs else None
        since_ms = broken.granted_ms if broken is not None else None
        deadline_ms = at_ms + ask.wait.deadline_ms
        await self._desk.commit([_queued(name, tenant, ask, at_ms, deadline_ms, since_ms)])
        return await self._binding.settled(self._state.leases[name])

    def work(self, tries: int = TRIES_MAX, within_s: float = LOOK_S) -> None:
        """Grant whom what has changed helps, in order; so many decisions, for so long."""
        if not len(self._state.line):
            return  # who enters it was refused a moment before, and is stirred by what follows
        if self._desk.ledger_full or self._desk.writer.full:
            return
        self._notice_the_time()
        until_s = time.thread_time() + within_s
        stirred = self._desk.waiting.stirred(self._desk.market)
        for waiter in self._by_turns(stirred):
            head: Waiter | None = waiter
            while head is not None:
                if tries <= 0 or time.thread_time() >= until_s:
                    self._resume_at = waiter.group[0]
                    return
                tries -= 1
                if not self._grant(head):
                    self._desk.waiting.tried(head.group)
                    break
                head = self._state.line.head(head.group)
        self._resume_at = ""

    def _by_turns(self, stirred: list[Waiter]) -> list[Waiter]:
        """One of each tenant after the other, from where the last look had to stop.

        Were each look begun at the front, the many wishes of one tenant there would keep those
        behind them from ever being looked at. Between tenants it is no matter who is looked at
        first: none is given what somebody before it waits for. Of one tenant, whose own caps they
        share, the foremost is looked at first.
        """
        its: dict[str, list[Waiter]] = {}
        for waiter in stirred:
            its.setdefault(waiter.group[0], []).append(waiter)
        tenants = list(its)
        if self._resume_at in its:
            at = tenants.index(self._resume_at)
            tenants = tenants[at:] + tenants[:at]
        rows = zip_longest(*(its[tenant] for tenant in tenants))
        return [waiter for row in rows for waiter in row if waiter is not None]

    def _grant(self, waiter: Waiter) -> bool:
        queued = self._state.queue[waiter.lease].queued
        assert queued is not None
        tenant = waiter.group[0]
        decided = self._desk.fits(tenant, queued.request, waiter.turn)
        if decided is None:
            return False
        lease, _ = self._binding.grant(tenant, queued.request, decided, queued=waiter.lease)
        self._see_through(lease)
        return True

    def _notice_the_time(self) -> None:
        """Other prices, another month: what no record says, and could help."""
        now_ms = self._desk.writer.now_ms()
        kept = len(repairing.held(self._state, now_ms))
        seen = (month_of(now_ms), self._desk.backoff.count(now_ms), kept)
        other = seen != self._seen or self._desk.market is not self._market
        if other or now_ms - self._all_at_ms >= ANYWAY_MS:
            self._seen, self._market, self._all_at_ms = seen, self._desk.market, now_ms
            self._state.stir.everything = True

    def estimates(self) -> dict[str, int]:
        """Lease -> milliseconds until it would be placed.

        On a great fleet that is work: it may take a twentieth of the time, and between two looks
        the last one stands (so that one who came just now may have none).
        """
        begin_s = asyncio.get_running_loop().time()
        if begin_s >= self._look_again_s:
            now_ms = self._desk.writer.now_ms()
            self._estimates = self._desk.waiting.estimates(self._desk.market, now_ms)
            end_s = asyncio.get_running_loop().time()
            self._look_again_s = end_s + ESTIMATES_SHARE * (end_s - begin_s)
        return self._estimates

    def refuse_late(self) -> None:
        """Refuse those that met their deadline."""
        now_ms = self._desk.writer.now_ms()
        for lease in [le for le in self._state.queue.values() if le.deadline_ms <= now_ms]:
            told = self._desk.explanation(lease.tenant, lease.request_id)
            code = told.reasons[0].code if told and told.reasons else Code.NO_CAPACITY
            self.leave(
                lease,
                ledger.LeaseRefused(
                    at_ms=now_ms,
                    lease=lease.lease,
                    code=code,
                    message="it met its deadline in the queue",
                ),
            )

    def leave(self, lease: Lease, record: ledger.LeaseRefused | ledger.LeaseCancelled) -> None:
        """Out of the line, unserved: whoever stood behind it may go on."""
        turn = self._state.line.waiter(lease.lease)
        if turn is not None:
            self._desk.waiting.left(turn, self._desk.market)
        self._desk.commit([record])

    # --- what was granted out of it -----------------------------------------------------------

    def _see_through(self, lease: Lease) -> None:
        """Nobody waits for the bind of what was queued: somebody must, to try again elsewhere."""
        task = asyncio.create_task(self._bound(lease))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(report)

    async def _bound(self, lease: Lease) -> None:
        """Where no agent takes it, it waits on, with its turn and until its deadline."""
        queued = lease.queued
        assert queued is not None
        found = await self._binding.settled(lease)
        now_ms = self._desk.writer.now_ms()
        newest = self._desk.by_request(lease.tenant, lease.request_id)
        if newest is not found or not self._unserved(found) or queued.deadline_ms <= now_ms:
            return
        since_ms = queued.at_ms if queued.since_ms is None else queued.since_ms
        name = self._desk.next()[0]
        again = _queued(name, lease.tenant, queued.request, now_ms, queued.deadline_ms, since_ms)
        self._desk.commit([again])

    async def close(self) -> None:
        """Stop what is under way."""
        for task in self._tasks:
            task.cancel()


def _queued(
    name: str, tenant: str, ask: PlaceAsk, at_ms: int, deadline_ms: int, since_ms: int | None = None
) -> ledger.LeaseQueued:
    return ledger.LeaseQueued(
        at_ms=at_ms,
        lease=name,
        tenant=tenant,
        request=ask,
        deadline_ms=deadline_ms,
        since_ms=since_ms,
    )
