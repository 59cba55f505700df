"""`events`: the newest transitions of leases and nodes, read back from the ledger's end.

As far back as the ledger goes (seven days at least, while it is under half full) and as far as one
question may read. A tenant is told of its own leases alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from quintal.bus import Bus, Caller
from quintal.contracts import ledger, placement
from quintal.contracts.message import Refusal
from quintal.errors import BusUnavailable
from quintal_placer import news, redaction
from quintal_placer.lead import Placer
from quintal_placer.ledger import STREAM
from quintal_placer.limits import TenantLimits

log = logging.getLogger(__name__)

CHUNK: Final = 250
"""Messages read at once."""

READ_MAX: Final = 5_000
"""Messages of the ledger that one question reads at most."""

AT_ONCE: Final = 2
"""Questions worked on at a time: each reads a lot, and placing goes on beside it."""

Wanted = Callable[[placement.News], bool]


class History:
    """Answers `events` of tenants and operators."""

    def __init__(self, placer: Placer, back: Bus, limits: TenantLimits) -> None:
        self._placer = placer
        self._back = back
        self._limits = limits
        self._few = asyncio.Semaphore(AT_ONCE)

    async def own(
        self, caller: Caller, ask: placement.EventsAsk
    ) -> placement.Events | Refusal | None:
        """The caller's leases."""
        if not self._placer.answers(caller.reply, leader=ask.by == "leader"):
            return None
        tenant = caller.principal
        refused = self._limits.refusal(tenant, asyncio.get_running_loop().time())
        if refused is not None:
            return refused
        try:
            told = await self._told(ask, tenant)
        finally:
            self._limits.leave(tenant)
        if told is None:
            return None
        return redaction.for_tenant(self._placer.state.catalog, tenant, told)

    async def every(
        self, caller: Caller, ask: placement.EventsAsk
    ) -> placement.Events | Refusal | None:
        """All leases and nodes, or one tenant's leases."""
        if not self._placer.answers(caller.reply, leader=ask.by == "leader"):
            return None
        return await self._told(ask, ask.tenant)

    async def _told(self, ask: placement.EventsAsk, tenant: str | None) -> placement.Events | None:
        try:
            async with self._few:
                return await self._read_back(ask, tenant)
        except BusUnavailable as exc:
            log.warning("reading the ledger back: %s", exc)
            return None

    async def _read_back(
        self, ask: placement.EventsAsk, tenant: str | None
    ) -> placement.Events | None:
        first, last = await self._back.last(STREAM)
        if last < (ask.at_least_sequence or 0):
            return None
        whose: dict[str, str] = {}
        found: list[placement.News] = []
        low = last + 1
        while low > first and len(found) < ask.limit and last - low < READ_MAX:
            high, low = low - 1, max(first, low - CHUNK)
            groups = await self._groups(low, high)
            if groups and _newest_ms(groups) < (ask.since_ms or 0):
                break
            whose |= _owners(groups)
            chunk = [it for sequence, group in groups for it in self._news(sequence, group, whose)]
            wanted = [it for it in chunk if _is_wanted(it, ask, tenant)]
            found = [*wanted, *found]
        kept = found[-ask.limit :]
        more = low > first or len(found) > len(kept)
        return placement.Events(events=tuple(kept), sequence=last, more=more)

    async def _groups(self, low: int, high: int) -> list[tuple[int, ledger.Group]]:
        found = []
        for stored in await self._back.read(STREAM, low, limit=high - low + 1):
            if stored.sequence <= high:
                try:
                    found.append((stored.sequence, ledger.GROUP.validate_json(stored.data)))
                except ValidationError:
                    log.warning("message %d of the ledger is no group", stored.sequence)
        return found

    def _news(
        self, sequence: int, group: ledger.Group, whose: dict[str, str]
    ) -> list[placement.News]:
        told = []
        for record in group.transitions:
            if news.is_lease(record):
                name: str = getattr(record, "lease", "")
                lease = self._placer.state.leases.get(name)
                tenant = lease.tenant if lease else whose.get(name, "")
                told.append(news.of_lease(record, sequence, tenant))
            elif (node := news.of_node(record, sequence)) is not None:
                told.append(node)
        return told


def _newest_ms(groups: list[tuple[int, ledger.Group]]) -> int:
    return max((record.at_ms for _, group in groups for record in group.transitions), default=0)


def _owners(groups: list[tuple[int, ledger.Group]]) -> dict[str, str]:
    """Lease -> tenant, of those that begin here: what ended long ago is in no memory."""
    return {
        record.lease: record.tenant
        for _, group in groups
        for record in group.transitions
        if isinstance(record, ledger.LeaseQueued | ledger.LeaseGranted)
    }


def _is_wanted(it: placement.News, ask: placement.EventsAsk, tenant: str | None) -> bool:
    return (
        (tenant is None or (bool(it.lease) and it.tenant == tenant))
        and ask.lease in {None, it.lease}
        and ask.node in {None, it.node}
        and it.at >= (ask.since_ms or 0)
    )
