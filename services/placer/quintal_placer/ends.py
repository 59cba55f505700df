"""How leases end: at their deadline, and when their agents have said so.

A device whose lease ended is given again only after its agent acknowledged the end, or its node
came back with a new boot id, or an operator retired it: exclusion rests on acknowledgement, not on
time.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Iterator
from typing import Final

from quintal.contracts import ledger
from quintal_placer import health
from quintal_placer.agents import Agents
from quintal_placer.desk import Desk
from quintal_placer.engine.leases import State
from quintal_placer.state import Lease
from quintal_placer.tasks import report

END_RETRY_MAX_S: Final = 10.0


class Deadlines:
    """Which lease ends when, nearest first; a renewed one is filed anew at its old time."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._heap: list[tuple[int, str]] = []

    def watch(self, lease: Lease) -> None:
        """From here on."""
        heapq.heappush(self._heap, (lease.deadline_ms, lease.lease))

    def watch_all(self) -> None:
        """After a takeover: every live lease."""
        self._heap = [(le.deadline_ms, le.lease) for le in self._desk.state.live.values()]
        heapq.heapify(self._heap)

    def expired(self) -> Iterator[Lease]:
        """Live leases whose deadline is past."""
        now_ms = self._desk.writer.now_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            _, name = heapq.heappop(self._heap)
            lease = self._desk.state.live.get(name)
            if lease is None:
                continue
            if lease.deadline_ms > now_ms:
                self.watch(lease)
            else:
                yield lease


class Ends:
    """Ends of leases, and the agents' acknowledgements of them."""

    def __init__(self, desk: Desk, hands: Agents, deadlines: Deadlines) -> None:
        self._desk = desk
        self._state = desk.state
        self._writer = desk.writer
        self._agents = hands
        self._deadlines = deadlines
        self._asked: dict[tuple[str, str], tuple[float, float]] = {}
        """(lease, node) -> (when to ask again, wait after that): monotonic seconds."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._awaited: dict[str, asyncio.Event] = {}

    async def over(self, lease: Lease, within_s: float) -> bool:
        """Ask its agents at once to let go of a lease that ends; whether they did in time."""
        if lease.state is not State.ENDING:
            return lease.state is State.ENDED
        event = self._awaited.setdefault(lease.lease, asyncio.Event())
        for node in sorted(lease.waiting):
            if (lease.lease, node) not in self._asked:
                self._asked[lease.lease, node] = (asyncio.get_running_loop().time() + 2.5, 0.5)
                self._ask(lease, node)
        try:
            await asyncio.wait_for(event.wait(), within_s)
        except TimeoutError:
            return False
        finally:
            self._awaited.pop(lease.lease, None)
        return True

    def end(self, lease: Lease, reason: str, effective_ms: int) -> asyncio.Future[int]:
        """Begin a live lease's end; `bind: none` releases are themselves the acknowledgement."""
        at_ms = self._writer.now_ms()
        records: list[ledger.AnyRecord] = [
            ledger.LeaseEnding(
                at_ms=at_ms, lease=lease.lease, reason=reason, effective_ms=effective_ms
            )
        ]
        if lease.unbound and reason in {"released", "ended_outside"}:
            records += acknowledged_records(lease, at_ms, "operator")
        return self._desk.commit(records)

    def expire(self) -> None:
        """End what met its deadline, as of the deadline and not of this moment."""
        for lease in self._deadlines.expired():
            self._expire(lease)

    def _expire(self, lease: Lease) -> None:
        begin_ms = lease.bound_ms if lease.bound_ms is not None else lease.granted_ms
        lost = [n for n in lease.nodes if self.lost(n)]
        heard = [node.heard_ms for n in lost if (node := self._state.fleet.nodes.get(n))]
        if lost:
            effective_ms = max(begin_ms, min([lease.deadline_ms, *heard]))
            self.end(lease, "node_lost", effective_ms)
        else:
            self.end(lease, "expired", max(begin_ms, lease.deadline_ms))

    def drain(self) -> None:
        """Revoke what is still held where a drain's deadline is past."""
        now_ms = self._writer.now_ms()
        for node in self._state.fleet.draining(now_ms):
            for name in sorted(self._state.on_node.get(node, ())):
                lease = self._state.live.get(name)
                if lease is not None:
                    self.end(lease, "revoked", now_ms)

    def judge(self, nodes: Iterable[str]) -> None:
        """Their profiles' word to leases on nodes where a device failed, or recovered."""
        records = list(health.policy_records(self._state, nodes, self._writer.now_ms()))
        if records:
            self._desk.commit(records)

    def judge_all(self) -> None:
        """After a takeover: whoever led before may not have come to it."""
        noticed = (lease for lease in self._state.live.values() if lease.notice)
        nodes = {node for lease in noticed for node in lease.nodes}
        self.judge(nodes | {node for node, _ in self._state.failed})

    def grace(self) -> None:
        """The placer was away (no bus, no append): nothing expires before one full ttl from now."""
        now_ms = self._writer.now_ms()
        for lease in self._state.live.values():
            lease.deadline_ms = max(lease.deadline_ms, now_ms + lease.ttl_ms)

    def send_ends(self, now_s: float) -> None:
        """Ask agents, again and again, to acknowledge the leases that ended on their nodes."""
        for lease in self._state.ending.values():
            if lease.unbound:
                continue
            for name in lease.waiting:
                node = self._state.fleet.nodes.get(name)
                due_s, _ = self._asked.get((lease.lease, name), (0.0, 0.0))
                if node is not None and node.liveness == "ready" and due_s <= now_s:
                    _, wait_s = self._asked.get((lease.lease, name), (0.0, 0.5))
                    wait_s = min(END_RETRY_MAX_S, wait_s * 2)
                    self._asked[lease.lease, name] = (now_s + 2.5 + wait_s, wait_s)
                    self._ask(lease, name)

    def _ask(self, lease: Lease, node: str) -> None:
        task = asyncio.create_task(self._end_on(lease, node))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(report)

    async def _end_on(self, lease: Lease, node: str) -> None:
        await self._writer.barrier()
        told = await self._agents.end(node, lease.lease, lease.token, lease.reason)
        if told is not None:
            self.acknowledged(lease.lease, node, told.uncleaned.get(lease.lease, ""))

    def acknowledged(self, name: str, node: str, uncleaned: str = "") -> None:
        """An agent holds the lease no more; what it could not clean up goes to nobody."""
        lease = self._state.leases.get(name)
        if lease is None or lease.state is not State.ENDING or node not in lease.waiting:
            return
        at_ms = self._writer.now_ms()
        records: list[ledger.AnyRecord] = [
            ledger.DisputeChanged(
                at_ms=at_ms,
                node=node,
                uuid=uuid,
                disputed=True,
                reason=f"cleanup after {name}: {uncleaned}"[:200],
            )
            for uuid in self._devices(lease, node)
            if uncleaned
        ]
        message = f"the cleanup on {node} failed" if uncleaned else ""
        records.append(
            ledger.NodeReleased(at_ms=at_ms, lease=name, node=node, by="agent", message=message)
        )
        if lease.waiting == {node}:
            records.append(ledger.LeaseEnded(at_ms=at_ms, lease=name))
        self._asked.pop((name, node), None)
        self._desk.commit(records)
        if not lease.waiting and name in self._awaited:
            self._awaited[name].set()

    def _devices(self, lease: Lease, name: str) -> list[str]:
        node = self._state.fleet.nodes.get(name)
        its = {device.uuid for device in lease.devices if device.node == name}
        return sorted(its & set(node.devices)) if node is not None else []

    def lost(self, node: str) -> bool:
        """Whether nothing is known of the node any more."""
        known = self._state.fleet.nodes.get(node)
        return known is None or known.liveness == "lost"

    async def close(self) -> None:
        """Stop asking."""
        for task in self._tasks:
            task.cancel()


def acknowledged_records(lease: Lease, at_ms: int, by: str) -> Iterable[ledger.AnyRecord]:
    """Every node released, and the lease ended, by one word."""
    for node in lease.nodes:
        yield ledger.NodeReleased(at_ms=at_ms, lease=lease.lease, node=node, by=by)
    yield ledger.LeaseEnded(at_ms=at_ms, lease=lease.lease)
