"""What a tenant may see of an answer. Pure, and the only place that decides it (law 13).

Answers are made whole, as an operator sees them, and pass through `for_tenant` on their way to a
tenant: what others hold is counted under `held_by_others`, nodes are named only in pools that are
open to the asker, and what is another's is not there at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from quintal.contracts import placement
from quintal.contracts.documents import Catalog
from quintal.contracts.message import Message, Reason, Refusal
from quintal.errors import Code
from quintal_placer.asking import closed_pools

A = TypeVar("A", bound=Message)

HELD_BY: Final = "held_by"
"""The detail that counts, by tenant, what would do and is held."""

YOU: Final = "you"
OTHERS: Final = "held_by_others"

AN_AGENT_REFUSED: Final = "the agents of its nodes refused it, and nothing else fits"
"""In place of the agent's own words, which are for operators."""

NOT_YOURS: Final = Refusal(code=Code.NOT_FOUND, message="there is no such lease")


@dataclass(frozen=True, slots=True)
class Eyes:
    """Who looks, and which pools are closed to it."""

    tenant: str
    closed_pools: frozenset[str]


def eyes(catalog: Catalog, tenant: str) -> Eyes:
    """What the catalog lets this tenant see."""
    return Eyes(tenant, frozenset(closed_pools(catalog, tenant)))


def for_tenant(catalog: Catalog, tenant: str, answer: A) -> A | Refusal:
    """The answer as this tenant may see it; a lease of another's is none."""
    if isinstance(answer, placement.Lease):  # a tenant's own, and by far the most of all answers
        lease: A | Refusal = _lease(tenant, answer)
        return lease
    cut = _CUTS.get(type(answer))
    if cut is None:
        return answer
    redacted: A = cut(eyes(catalog, tenant), answer)
    return redacted


def _lease(tenant: str, lease: Any) -> Any:
    """An agent's own words may name whoever holds the device."""
    if lease.tenant != tenant:
        return NOT_YOURS
    if lease.state == "failed":
        return lease.model_copy(update={"reason": AN_AGENT_REFUSED})
    return lease


def _refusal(its: Eyes, refusal: Refusal) -> Refusal:
    return refusal.model_copy(
        update={
            "reasons": _reasons(its, refusal.reasons),
            "details": _details(its, refusal.details),
        }
    )


def _pending(its: Eyes, pending: placement.Pending) -> placement.Pending:
    return pending.model_copy(update={"reasons": _reasons(its, pending.reasons)})


def _verdict(its: Eyes, verdict: placement.Verdict) -> placement.Verdict:
    if verdict.refusal is None:
        return verdict
    return verdict.model_copy(update={"refusal": _refusal(its, verdict.refusal)})


def _explanation(its: Eyes, told: placement.Explanation) -> placement.Explanation:
    return told.model_copy(
        update={"reasons": _reasons(its, told.reasons), "details": _details(its, told.details)}
    )


def _leases(its: Eyes, found: placement.Leases) -> placement.Leases:
    told = (_lease(its.tenant, lease) for lease in found.leases)
    own = tuple(lease for lease in told if lease is not NOT_YOURS)
    return found.model_copy(update={"leases": own})


def _rows(its: Eyes, found: placement.QuotaView | placement.QueueView) -> Any:
    own = tuple(row for row in found.rows if row.tenant == its.tenant)
    return found.model_copy(update={"rows": own})


def _queue(its: Eyes, found: placement.QueueView) -> placement.QueueView:
    own = tuple(row for row in found.rows if row.tenant == its.tenant)
    return found.model_copy(update={"rows": own})


def _events(its: Eyes, found: placement.Events) -> placement.Events:
    own = tuple(it for it in found.events if it.lease and it.tenant == its.tenant)
    return found.model_copy(update={"events": own})


def _reasons(its: Eyes, reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    return tuple(_reason(its, reason) for reason in reasons)


def _reason(its: Eyes, reason: Reason) -> Reason:
    """Counts stay; a pool that is closed has no name here, and nobody's nodes have one.

    A node that is in no pool yet (its inventory is not known) is in none that is open.
    """
    if reason.pool and reason.pool not in its.closed_pools:
        return reason
    if not reason.pool and not reason.names:
        return reason
    return reason.model_copy(update={"pool": "", "names": ()})


def _details(its: Eyes, details: Mapping[str, Any]) -> dict[str, Any]:
    held = details.get(HELD_BY)
    if held is None:
        return dict(details)
    own = held.get(its.tenant, 0)
    others = sum(held.values()) - own
    counts = {name: count for name, count in ((YOU, own), (OTHERS, others)) if count}
    return {**details, HELD_BY: counts}


_CUTS: Final[dict[type[Message], Callable[[Eyes, Any], Any]]] = {
    Refusal: _refusal,
    placement.Pending: _pending,
    placement.Verdict: _verdict,
    placement.Explanation: _explanation,
    placement.Leases: _leases,
    placement.QuotaView: _rows,
    placement.QueueView: _rows,
    placement.Events: _events,
    placement.QueueView: _queue,
}
