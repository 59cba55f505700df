"""News and decision records, after the append: nobody waits for them, no truth rests on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import nats.errors

from quintal.bus import Bus
from quintal.contracts import ledger, subjects
from quintal_placer import news
from quintal_placer.state import PlacerState

log = logging.getLogger(__name__)

PENDING_MAX: Final = 10_000
"""News that waits to be sent; more is dropped and counted."""

LINGER_S: Final = 0.02
BUNDLE_MAX: Final = 1_000

_NODE_KINDS: Final = {
    "liveness", "cordon", "taint", "retired", "node", "device_health", "dispute",
}  # fmt: skip


class Announcer:
    """Sends what others may want to hear, in order, from a task of its own."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._queue: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(PENDING_MAX)
        self.dropped = 0

    def after(
        self,
        appended: asyncio.Future[int],
        state: PlacerState,
        records: Sequence[ledger.AnyRecord],
    ) -> None:
        """Send the news of these records once their append is known."""
        told = [(r, state.leases[r.lease].tenant) for r in records if hasattr(r, "lease")]
        nodes = [r for r in records if r.kind in _NODE_KINDS]
        if not told and not nodes:
            return

        def send(done: asyncio.Future[int]) -> None:
            if done.cancelled() or done.exception() is not None:
                return
            for record, tenant in told:
                self._lease(record, tenant, done.result())
            for node in nodes:
                self._node(node, done.result())

        appended.add_done_callback(send)

    def _lease(self, record: ledger.AnyRecord, tenant: str, sequence: int) -> None:
        told = news.of_lease(record, sequence)
        subject = subjects.LEASE_NEWS.subject(
            tenant=tenant, lease=told.lease, transition=record.kind
        )
        self._put(subject, subjects.LEASE_NEWS.message.dump_json(told))

    def _node(self, record: ledger.AnyRecord, sequence: int) -> None:
        told = news.of_node(record, sequence)
        if told is not None:
            subject = subjects.NODE_NEWS.subject(node=told.node, transition=record.kind)
            self._put(subject, subjects.NODE_NEWS.message.dump_json(told))

    def decision(self, record: ledger.DecisionRecord) -> None:
        """Keep a record of one answered request for a day."""
        self._put(subjects.DECISIONS.subject(), subjects.DECISIONS.message.dump_json(record))

    def _put(self, subject: str, data: bytes) -> None:
        try:
            self._queue.put_nowait((subject, data))
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Send, for as long as the process lives.

        In bundles: what is said in one breath costs one write, and no reply waits behind it.
        """
        while True:
            bundle = [await self._queue.get()]
            await asyncio.sleep(LINGER_S)
            while not self._queue.empty() and len(bundle) < BUNDLE_MAX:
                bundle.append(self._queue.get_nowait())
            if not self._bus.connected:
                self.dropped += len(bundle)
                continue
            for subject, data in bundle:
                try:
                    await self._bus.client.publish(subject, data)
                except (nats.errors.Error, OSError):
                    self.dropped += 1
