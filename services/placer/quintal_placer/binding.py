"""From granted to bound: append, ask the agents, and where they refuse, give other devices.

A refusal moves the lease before anyone was told of the old devices. Silence is not a refusal: the
agent may hold them, so that they stay held until it has said otherwise, and the request gets
another lease. So it does where of a gang some agents took it and some refused: those that took it
must say that they let go; the others hold nothing.

Only a refusal that says something of the device disputes it. One that passes (busy, behind, not
there) leaves the node alone for a while (`backoff`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from quintal.contracts import ledger
from quintal.contracts.message import Refusal
from quintal.contracts.placement import PlaceAsk
from quintal_placer import agents
from quintal_placer.agents import Agents, Bound, NotBound, Unclear
from quintal_placer.backoff import OF_THE_DEVICE
from quintal_placer.desk import Desk
from quintal_placer.ends import Deadlines, Ends
from quintal_placer.engine.leases import State
from quintal_placer.explaining import Decided
from quintal_placer.state import Lease
from quintal_placer.tasks import report

ATTEMPTS_MAX: Final = 3
"""Grants tried for one request whose binds have no answer."""

HALF_BOUND: Final = frozenset({"bind_unknown", "bind_refused"})
"""Ends of leases that some agent holds or may hold, before anybody was told of them."""


class Binding:
    """The binds that are under way."""

    def __init__(
        self,
        desk: Desk,
        hands: Agents,
        deadlines: Deadlines,
        ends: Ends,
    ) -> None:
        self._desk = desk
        self._ends = ends
        self._state = desk.state
        self._writer = desk.writer
        self._agents = hands
        self._deadlines = deadlines
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def grant(
        self,
        tenant: str,
        ask: PlaceAsk,
        decided: Decided,
        queued: str | None = None,
    ) -> tuple[Lease, asyncio.Future[int]]:
        """Append the grant (of a queued lease, or a new one) and begin to bind it."""
        name, token = self._desk.next()
        record = self._desk.record(queued or name, token, tenant, ask, decided)
        appended = self._desk.commit([record])
        lease = self._state.leases[record.lease]
        self._deadlines.watch(lease)
        if not record.bound:
            self._start(lease, appended)
        return lease, appended

    def _start(self, lease: Lease, appended: asyncio.Future[int] | None) -> None:
        task = asyncio.create_task(self._bind(lease, appended))
        self._tasks[lease.lease] = task
        task.add_done_callback(report)

    async def _bind(self, lease: Lease, appended: asyncio.Future[int] | None) -> None:
        """Append, bind, and say `bound` with the next group; move or give up where it fails."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._desk.settings.binding_s
        avoid: set[tuple[str, str]] = set()
        first_token = lease.token
        try:
            if appended is not None:
                await asyncio.shield(appended)
            while lease.state is State.GRANTED:
                token = lease.token
                results: list[Bound | NotBound | Unclear] = await asyncio.gather(
                    *(self._agents.bind(n, agents.bound_lease(lease, n)) for n in lease.nodes)
                )
                if appended is None and token == first_token:
                    results = [_after_another(result) for result in results]
                if not _still(lease, token):
                    return
                for result in results:
                    if isinstance(result, Bound):
                        self._desk.backoff.bound(result.node)
                if all(isinstance(result, Bound) for result in results):
                    self._desk.commit(
                        [ledger.LeaseBound(at_ms=self._writer.now_ms(), lease=lease.lease)]
                    )
                    if self._state.failed:  # perhaps since it was granted
                        self._ends.judge(lease.nodes)
                    return
                moved = self._rebind(lease, results, avoid, late=loop.time() > until_s)
                if moved is None:
                    return
                await asyncio.shield(moved)
        finally:
            self._tasks.pop(lease.lease, None)

    def _rebind(
        self,
        lease: Lease,
        results: Sequence[Bound | NotBound | Unclear],
        avoid: set[tuple[str, str]],
        *,
        late: bool,
    ) -> asyncio.Future[int] | None:
        """What follows a bind that failed: other devices (the future of that append), or an end."""
        at_ms = self._writer.now_ms()
        refused = [result for result in results if isinstance(result, NotBound)]
        disputes = [record for result in refused for record in self._disputes(lease, result, at_ms)]
        avoid.update((d.node, d.uuid) for r in refused for d in lease.devices if d.node == r.node)
        request = lease.granted.request if lease.granted else None
        assert request is not None
        if len(refused) < len(results):
            self._desk.commit([*disputes, *_half_bound(lease, results, at_ms)])
            return None
        if disputes:
            self._desk.commit(disputes)
        decided = None if late else self._elsewhere(lease, request, frozenset(avoid))
        if decided is None or isinstance(decided, Refusal):
            told = refused[0]
            self._desk.commit(
                [
                    ledger.LeaseFailed(
                        at_ms=at_ms, lease=lease.lease, code=told.code, message=told.message
                    )
                ]
            )
            return None
        _, token = self._desk.next()
        fresh = self._desk.record(lease.lease, token, lease.tenant, request, decided)
        return self._desk.commit(
            [
                ledger.LeaseMoved(
                    at_ms=self._writer.now_ms(),
                    lease=lease.lease,
                    token=token,
                    devices=fresh.devices,
                    cpu_milli=fresh.cpu_milli,
                    memory_bytes=fresh.memory_bytes,
                    variant=fresh.variant,
                    image=fresh.image,
                    args=fresh.args,
                    precision=fresh.precision,
                    not_met=fresh.not_met,
                )
            ]
        )

    def _elsewhere(
        self, lease: Lease, request: PlaceAsk, avoid: frozenset[tuple[str, str]]
    ) -> Decided | Refusal:
        """Another place for a lease: its own hold on quota must not stand in its way."""
        holdings = self._state.holdings(lease)
        for holding in holdings:
            self._state.quotas.drop(holding)
        try:
            return self._desk.decide(lease.tenant, request, avoid, apart=lease.lease, in_turn=True)
        finally:
            for holding in holdings:
                self._state.quotas.add(holding)

    def _disputes(self, lease: Lease, result: NotBound, at_ms: int) -> Iterable[ledger.AnyRecord]:
        """An agent that refuses a device has a reason: nobody is given it until it is cleared.

        One that only refuses now has none: it is left alone for a while.
        """
        its = [d for d in lease.devices if d.node == result.node]
        about = [d for d in its if result.device in {"", d.uuid}] or its
        if not result.reached or result.code not in OF_THE_DEVICE:
            node = self._state.fleet.nodes.get(result.node)
            whole = list(node.devices) if node is not None and not result.device else []
            keys = [(result.node, uuid) for uuid in (whole or [d.uuid for d in about])]
            self._desk.backoff.refused(result.node, keys, at_ms, result.retry_after_ms)
            return
        for device in about:
            yield ledger.DisputeChanged(
                at_ms=at_ms,
                node=device.node,
                uuid=device.uuid,
                disputed=True,
                reason=f"{result.code}: {result.message}"[:200],
            )

    async def settled(self, lease: Lease) -> Lease:
        """The lease that answers a request, once its binding is over (and perhaps not durable)."""
        for left in reversed(range(ATTEMPTS_MAX)):
            task = self._tasks.get(lease.lease)
            if task is not None:
                await asyncio.wait({task})
                if task.cancelled():  # this placer stops: whoever leads next binds, and answers
                    raise asyncio.CancelledError
            if lease.reason not in HALF_BOUND or not left:
                break
            again = self._again(lease)
            if (
                again is None
                and lease.reason == "bind_refused"
                and await self._ends.over(lease, self._desk.settings.bind_s)
            ):
                again = self._again(lease)  # what its own agents held may be just what it needs
            if again is None:
                break
            lease, appended = again
            await appended
        return lease

    def _again(self, lease: Lease) -> tuple[Lease, asyncio.Future[int]] | None:
        """Another grant for a request whose bind has no answer; its old devices stay held."""
        newest = self._desk.by_request(lease.tenant, lease.request_id)
        if newest is not None and newest is not lease:
            if newest.asked != lease.asked:
                return None
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            done.set_result(self._writer.sequence)
            return newest, done
        request = lease.granted.request if lease.granted else None
        if request is None:
            return None
        decided = self._desk.decide(lease.tenant, request, in_turn=True)
        if isinstance(decided, Refusal):
            return None
        return self.grant(lease.tenant, request, decided)

    async def close(self) -> None:
        """Stop what is under way; what was appended is found again by whoever leads next."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    def resume(self) -> None:
        """After a takeover: bind what was granted (the same token again is the same bind)."""
        for lease in list(self._state.live.values()):
            if lease.state is State.GRANTED:
                self._start(lease, None)


def _half_bound(
    lease: Lease, results: Sequence[Bound | NotBound | Unclear], at_ms: int
) -> Iterable[ledger.AnyRecord]:
    """Some agent holds it, or may: nothing of its is free before it has said so.

    Where all have answered, those that refused hold nothing, and the others are known to.
    """
    told = next((r for r in results if isinstance(r, NotBound)), None)
    unclear = told is None or any(isinstance(result, Unclear) for result in results)
    yield ledger.LeaseEnding(
        at_ms=at_ms,
        lease=lease.lease,
        reason="bind_unknown" if unclear or told is None else "bind_refused",
        effective_ms=at_ms,
        message="" if unclear or told is None else f"{told.code}: {told.message}"[:200],
    )
    for result in results:
        if isinstance(result, NotBound) and result.reached:
            yield ledger.NodeReleased(at_ms=at_ms, lease=lease.lease, node=result.node, by="agent")


def _after_another(result: Bound | NotBound | Unclear) -> Bound | NotBound | Unclear:
    """What an answer means where a leader before us may have bound the lease already.

    No refusal says then that the agent holds nothing: it may have kept the lease and be down, or
    keep it and refuse it now, since a device of it has failed meanwhile.
    """
    return Unclear(result.node) if isinstance(result, NotBound) else result


def _still(lease: Lease, token: int) -> bool:
    """Nobody released or moved it while its agents were asked."""
    return lease.state is State.GRANTED and lease.token == token
