"""What a tenant's budget leaves for a grant or a renewal, and how a refusal says it. Pure.

A budget is unit-hours of one class in a calendar month: what was used, and what live leases come
to by their deadlines. A month's end ends the count: what lies beyond is the next month's.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from quintal.contracts import placement
from quintal.contracts.documents import Budget
from quintal.contracts.message import Refusal
from quintal.errors import Code, Owner
from quintal.months import month_of
from quintal.units import to_micro, unit_name
from quintal_placer.engine.budget import QUANTITY_PER_MICRO_HOUR, Stretch, within
from quintal_placer.state import Lease, PlacerState, micro_of


def budget_of(state: PlacerState, tenant: str, workload_class: str) -> Budget | None:
    """The tenant's budget in a class; none if it has none."""
    quota = state.catalog.quotas.get(tenant)
    budgets = quota.budgets if quota else ()
    return next((b for b in budgets if b.workload_class == workload_class), None)


def rate_max(
    state: PlacerState, tenant: str, workload_class: str, *, ttl_ms: int, at_ms: int, apart: str
) -> int | None:
    """Micro-units that may be granted for `ttl_ms` from now; none where no budget refuses."""
    budget = budget_of(state, tenant, workload_class)
    if budget is None or budget.on_exceed != "refuse":
        return None
    left = _limit(budget) - state.this_month(tenant, workload_class, at_ms, apart)
    _, end_ms = month_of(at_ms)
    return max(0, left) // max(1, min(ttl_ms, end_ms - at_ms))


def over(
    state: PlacerState, tenant: str, workload_class: str, micro: int, *, ttl_ms: int, at_ms: int
) -> dict[str, str]:
    """By how much a grant passes a budget that only warns; empty where it does not."""
    budget = budget_of(state, tenant, workload_class)
    if budget is None:
        return {}
    wanted = Stretch(micro, at_ms, at_ms + ttl_ms)
    return _over(state, tenant, budget, wanted, at_ms)


def renewal_over(
    state: PlacerState, lease: Lease, deadline_ms: int, at_ms: int
) -> tuple[Budget, dict[str, str]] | None:
    """The budget that a renewal to `deadline_ms` would pass, and by how much; none if it holds."""
    assert lease.granted is not None
    budget = budget_of(state, lease.tenant, lease.granted.workload_class)
    if budget is None or deadline_ms <= lease.deadline_ms:
        return None
    wanted = Stretch(micro_of(lease), lease.deadline_ms, deadline_ms)
    excess = _over(state, lease.tenant, budget, wanted, at_ms)
    return (budget, excess) if excess else None


def refusal(
    state: PlacerState, tenant: str, workload_class: str, *, micro: int, ttl_ms: int, at_ms: int
) -> Refusal:
    """`budget_exceeded`, in unit-hours."""
    budget = budget_of(state, tenant, workload_class)
    assert budget is not None
    _, end_ms = month_of(at_ms)
    used = state.this_month(tenant, workload_class, at_ms)
    wanted = within(Stretch(micro, at_ms, at_ms + ttl_ms), at_ms, end_ms)
    return told(budget, used, wanted)


def told(budget: Budget, used: int, wanted: int) -> Refusal:
    """What the month holds, what is asked, and by how much that is too much."""
    excess = used + wanted - _limit(budget)
    name = budget_name(budget)
    return Refusal(
        code=Code.BUDGET_EXCEEDED,
        message=(
            f"{name}: {hours(used)} used or promised, {hours(wanted)} asked, the budget is "
            f"{budget.unit_hours.normalize():f}: over by {hours(excess)}"
        ),
        owner=Owner.SUBMITTER,
        verdict="not_now",
        details={
            "cap": name,
            "limit": f"{budget.unit_hours.normalize():f}",
            "used": hours(used),
            "wanted": hours(wanted),
            "over_by": hours(excess),
        },
    )


def rows(
    state: PlacerState, tenant: str, at_ms: int, *, renewed: bool = False
) -> Iterator[placement.QuotaRow]:
    """A tenant's budgets, and what the month holds of them.

    `renewed`: as if every live lease had just been renewed, for who hears no renewals.
    """
    quota = state.catalog.quotas.get(tenant)
    for budget in quota.budgets if quota else ():
        used = state.this_month(tenant, budget.workload_class, at_ms, renewed=renewed)
        excess = used - _limit(budget)
        yield placement.QuotaRow(
            tenant=tenant,
            cap=budget_name(budget),
            limit=f"{budget.unit_hours.normalize():f}",
            used=hours(used),
            over_by=hours(excess) if excess > 0 else None,
        )


def budget_name(budget: Budget) -> str:
    """A budget as a person names it: `STU-hours this month`."""
    return f"{unit_name(budget.workload_class)}-hours this month"


def hours(amount: int) -> str:
    """Micro-units x ms as unit-hours, to six places."""
    exact = Decimal(amount) / (QUANTITY_PER_MICRO_HOUR * 1_000_000)
    return f"{exact.quantize(Decimal('0.000001')).normalize():f}"


def _over(
    state: PlacerState, tenant: str, budget: Budget, wanted: Stretch, at_ms: int
) -> dict[str, str]:
    begin_ms, end_ms = month_of(at_ms)
    used = state.this_month(tenant, budget.workload_class, at_ms)
    excess = used + within(wanted, begin_ms, end_ms) - _limit(budget)
    return {budget_name(budget): hours(excess)} if excess > 0 else {}


def _limit(budget: Budget) -> int:
    return to_micro(budget.unit_hours) * QUANTITY_PER_MICRO_HOUR
