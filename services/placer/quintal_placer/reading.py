"""The read verbs: get, list, explain, quota, fleet, capacity; by the leader or by a standby.

Every placer hears every read, and one of those that live answers it. Where the leader alone knows a
part of the answer it is the leader, while one is heard. Else, or where the asker says that any will
do, it is whom `sharing.mine` names: a rule that all compute alike from the reply's own name and
from whom they heard within half a second. Where they differ for a moment there are two answers, of
which the first counts, or none, and the client asks again. Who is cut off, behind, or not sure to
lead stays silent, and is soon heard no more, so that the others answer in its place.

A leader answers what is durable. A standby reads the ledger to its end first, then answers what is
there: an acknowledged write is seen by the next read, whoever answers. Every answer says the
sequence that it reflects; `at_least_sequence` holds it to that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import islice
from typing import Final, TypeVar

from quintal.bus import Caller
from quintal.contracts import placement
from quintal.contracts.message import Message, Refusal
from quintal.contracts.placement import ReadAsk
from quintal.errors import Code
from quintal_placer import explaining, hints, redaction, views
from quintal_placer.desk import Desk
from quintal_placer.instant import Instant
from quintal_placer.lead import Placer
from quintal_placer.limits import TenantLimits
from quintal_placer.state import Lease, PlacerState

HINT_REST: Final = 3.0
"""Times as long as a try took of a core, others are served before the next."""

A = TypeVar("A", bound=ReadAsk)
R = TypeVar("R", bound=Message)


class ReadHandlers:
    """One method per verb."""

    def __init__(self, placer: Placer, limits: TenantLimits) -> None:
        self._placer = placer
        self._limits = limits
        self._hinting: set[str] = set()
        """Tenants for whom hints are being sought."""

    # --- a tenant's -----------------------------------------------------------------------------

    async def get(self, caller: Caller, ask: placement.GetAsk) -> placement.Lease | Refusal | None:
        """One lease of the caller's."""

        def answer(its: Instant) -> placement.Lease | Refusal:
            lease = _named(its.state, caller.principal, ask)
            if lease is None:
                return not_found(ask.lease or ask.request_id or "nothing named")
            return its.lease(lease)

        return await self._for_tenant(caller, ask, answer)

    async def leases(
        self, caller: Caller, ask: placement.ListAsk
    ) -> placement.Leases | Refusal | None:
        """The caller's leases."""
        return await self._for_tenant(caller, ask, lambda its: _leases(its, ask, caller.principal))

    async def explain(
        self, caller: Caller, ask: placement.ExplainAsk
    ) -> placement.Explanation | Refusal | None:
        """Why the caller's request got what it got."""
        tenant = caller.principal
        await self._remember(caller, [tenant], ask)
        told = await self._for_tenant(caller, ask, lambda its: _explained(its, tenant, ask))
        return await self._with_hints(tenant, ask, told)

    async def quota(
        self, caller: Caller, ask: placement.QuotaAsk
    ) -> placement.QuotaView | Refusal | None:
        """The caller's caps."""
        tenant = caller.principal
        return await self._for_tenant(caller, _anybodys(ask), lambda its: _quotas(its, tenant))

    async def queue(
        self, caller: Caller, ask: placement.QueueAsk
    ) -> placement.QueueView | Refusal | None:
        """The caller's requests that wait."""
        return await self._for_tenant(
            caller, ask, lambda its: self._queue(its, ask, caller.principal)
        )

    # --- an operator's --------------------------------------------------------------------------

    async def fleet(
        self, caller: Caller, ask: placement.FleetAsk
    ) -> placement.Fleet | Refusal | None:
        """Nodes and devices."""
        return await self._whole(caller, ask, lambda its: _fleet(its, ask))

    async def capacity(
        self, caller: Caller, ask: placement.FleetAsk
    ) -> placement.Capacity | Refusal | None:
        """The fleet in standard units."""
        return await self._whole(
            caller, _anybodys(ask), lambda its: views.capacity_view(its.state, ask, its.sequence)
        )

    async def all_leases(
        self, caller: Caller, ask: placement.ListAsk
    ) -> placement.Leases | Refusal | None:
        """Leases of all tenants, or of one."""
        return await self._whole(caller, ask, lambda its: _leases(its, ask, ask.tenant))

    async def explain_any(
        self, caller: Caller, ask: placement.ExplainAsk
    ) -> placement.Explanation | Refusal | None:
        """Why any tenant's request got what it got: the newest of this id, or the named one's."""
        await self._remember(caller, _whose(self._placer, ask), ask)
        whose = ""

        def answer(its: Instant) -> placement.Explanation | Refusal:
            nonlocal whose
            for tenant in _whose(self._placer, ask):
                told = _explained(its, tenant, ask)
                if not isinstance(told, Refusal):
                    whose = tenant
                    return told
            return not_found(f"request {ask.request_id}")

        told = await self._whole(caller, ask, answer)
        return await self._with_hints(whose, ask, told)

    async def all_quotas(
        self, caller: Caller, ask: placement.QuotaAsk
    ) -> placement.QuotaView | Refusal | None:
        """Caps of all tenants, or of one."""
        return await self._whole(caller, _anybodys(ask), lambda its: _quotas(its, ask.tenant))

    async def all_queues(
        self, caller: Caller, ask: placement.QueueAsk
    ) -> placement.QueueView | Refusal | None:
        """Everybody who waits, or one tenant's."""
        return await self._whole(caller, ask, lambda its: self._queue(its, ask, ask.tenant))

    # --- what they share ------------------------------------------------------------------------

    def _queue(
        self, its: Instant, ask: placement.QueueAsk, tenant: str | None
    ) -> placement.QueueView:
        """Estimates rest on deadlines, and of these only a leader knows the renewed ones."""
        promises = self._placer.promises if its.leads else None
        known = promises.queue.estimates() if promises is not None else {}
        found = views.queue_view(its.state, tenant, known, ask, its.now_ms)
        return found.model_copy(update={"sequence": its.sequence})

    def _answers(self, caller: Caller, ask: ReadAsk) -> bool:
        """Whether this read is ours: hints are the leader's alone, who could also grant them."""
        if isinstance(ask, placement.ExplainAsk) and ask.hints:
            return self._placer.promises is not None
        return self._placer.answers(caller.reply, leader=ask.by != "any")

    async def _with_hints(
        self,
        tenant: str,
        ask: placement.ExplainAsk,
        told: placement.Explanation | Refusal | None,
    ) -> placement.Explanation | Refusal | None:
        """With small changes that would help now; others are answered between two tries."""
        promises = self._placer.promises
        if not ask.hints or not isinstance(told, placement.Explanation) or promises is None:
            return told
        kept = self._placer.explanations.newest(tenant, ask.request_id)
        asked = kept.asked if kept is not None else None
        if asked is None:
            return told.model_copy(update={"hints": ()})
        if tenant in self._hinting:
            return Refusal(
                code=Code.OVERLOADED,
                message="hints are sought for this tenant already: one search at a time",
                details={"retry_after_ms": 250},
            )
        self._hinting.add(tenant)
        try:
            found = await self._hints(promises.desk, tenant, asked)
        finally:
            self._hinting.discard(tenant)
        return told.model_copy(update={"hints": found})

    async def _hints(
        self, desk: Desk, tenant: str, asked: placement.PlaceAsk
    ) -> tuple[placement.Hint, ...]:
        found = []
        tries = hints.search(
            desk.state, desk.market, tenant, asked, lambda changed: desk.evaluate(tenant, changed)
        )
        begun_s = time.thread_time()
        for hint in tries:
            if hint is not None:
                found.append(hint)
            # A try may cost what many requests cost: the loop is others' for most of the time.
            await asyncio.sleep(HINT_REST * (time.thread_time() - begun_s))
            begun_s = time.thread_time()
        return tuple(found)

    async def _for_tenant(
        self, caller: Caller, ask: ReadAsk, make: Callable[[Instant], R | Refusal]
    ) -> R | Refusal | None:
        """Within the tenant's limits, and nothing of another's in it (law 13)."""
        if not self._answers(caller, ask):
            return None
        tenant = caller.principal
        refused = self._limits.refusal(tenant, asyncio.get_running_loop().time())
        if refused is not None:
            return refused
        try:
            told = await self._placer.read(make, ask.at_least_sequence or 0)
        finally:
            self._limits.leave(tenant)
        if told is None:
            return None
        return redaction.for_tenant(self._placer.state.catalog, tenant, told)

    async def _whole(
        self, caller: Caller, ask: ReadAsk, make: Callable[[Instant], R | Refusal]
    ) -> R | Refusal | None:
        if not self._answers(caller, ask):
            return None
        return await self._placer.read(make, ask.at_least_sequence or 0)

    async def _remember(
        self, caller: Caller, tenants: list[str], ask: placement.ExplainAsk
    ) -> None:
        """What no lease and no memory explains may stand in the stream of decisions."""
        placer = self._placer
        if not self._answers(caller, ask):
            return
        known = any(
            explaining.found(placer.state, placer.explanations, tenant, ask.request_id)
            for tenant in tenants
        )
        if not known:
            await placer.decided.look()


def _anybodys(ask: A) -> A:
    """Of such an answer a leader knows no more than a standby: they share the questions."""
    return ask if ask.by is not None else ask.model_copy(update={"by": "any"})


def _named(state: PlacerState, tenant: str, ask: placement.GetAsk) -> Lease | None:
    """By lease or by request id, of this tenant alone."""
    if ask.lease is None:
        return explaining.lease_of(state, tenant, ask.request_id or "")
    lease = state.leases.get(ask.lease)
    return lease if lease is not None and lease.tenant == tenant else None


def _leases(its: Instant, ask: placement.ListAsk, tenant: str | None) -> placement.Leases:
    states = frozenset(ask.states)
    wanted = (
        lease
        for lease in reversed(its.state.leases.values())
        if (tenant is None or lease.tenant == tenant) and lease.state in states
    )
    found = islice(wanted, ask.limit)
    leases = tuple(its.lease(lease) for lease in found)
    return placement.Leases(leases=leases, sequence=its.sequence)


def _whose(placer: Placer, ask: placement.ExplainAsk) -> list[str]:
    """Whose request it may have been, the newest first."""
    if ask.tenant is not None:
        return [ask.tenant]
    known = [*placer.explanations.tenants_of(ask.request_id)][::-1]
    return [*known, *(t for t in sorted(placer.state.catalog.tenants) if t not in known)]


def _explained(
    its: Instant, tenant: str, ask: placement.ExplainAsk
) -> placement.Explanation | Refusal:
    state, kept = its.state, its.explanations.newest(tenant, ask.request_id)
    told = explaining.found(state, its.explanations, tenant, ask.request_id)
    if told is None:
        return not_found(f"request {ask.request_id}")
    told = explaining.with_holders(state, its.market, tenant, kept, told)
    return told.model_copy(update={"sequence": its.sequence})


def _quotas(its: Instant, tenant: str | None) -> placement.QuotaView:
    found = views.quota_view(its.state, tenant, its.now_ms, leads=its.leads)
    return found.model_copy(update={"sequence": its.sequence})


def _fleet(its: Instant, ask: placement.FleetAsk) -> placement.Fleet:
    now_ms = its.now_ms if its.leads else None
    fleet = views.fleet_view(its.state, ask, now_ms=now_ms, sequence=its.sequence)
    skew = its.skew_ms
    nodes = tuple(
        node.model_copy(update={"clock_skew_ms": skew.get(node.node)}) for node in fleet.nodes
    )
    return fleet.model_copy(update={"nodes": nodes})


def not_found(what: str) -> Refusal:
    """There is none, or it is none of the asker's."""
    return Refusal(code=Code.NOT_FOUND, message=f"there is no {what}")
