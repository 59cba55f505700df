"""Budgets: unit-hours of a month, used and promised, counted from the ledger alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from quintal.contracts import ledger, placement
from quintal.contracts.documents import Catalog
from quintal.contracts.placement import LeaseDevice
from quintal.months import month_of
from quintal_placer import budgets, snapshots
from quintal_placer.engine.budget import Stretch, by_month
from quintal_placer.state import PlacerState
from tests.placer.world import doc, request, small_catalog

HOUR_MS = 3_600_000
NOW_MS = int(datetime(2027, 3, 10, tzinfo=UTC).timestamp() * 1000)
MONTH_END_MS = int(datetime(2027, 4, 1, tzinfo=UTC).timestamp() * 1000)


def house(unit_hours: str, on_exceed: str = "refuse") -> PlacerState:
    """A state under a catalog in which `ml` has this budget of STU-hours."""
    kept = [d for d in small_catalog() if d.key != ("Quota", "ml")]
    budget = {"class": "train_llm", "unit_hours": unit_hours, "on_exceed": on_exceed}
    caps = [{"class": "train_llm", "units": "1000"}]
    kept.append(doc("Quota", "ml", tenant="ml", caps=caps, budgets=[budget]))
    state = PlacerState()
    state.adopt_catalog(Catalog(tuple(kept), revision=1))
    return state


def granted(name: str, at_ms: int, ttl_ms: int, micro: int = 1_000_000) -> ledger.LeaseGranted:
    device = LeaseDevice(
        node="n", uuid=f"GPU-{name}", index=0, vendor="nvidia", model="big-80", pool="green",
        rating_micro=micro,
    )  # fmt: skip
    fields: dict[str, Any] = {"class": "train_llm"}
    return ledger.LeaseGranted(
        at_ms=at_ms, lease=name, token=1, tenant="ml", request=request(name, bind="none"),
        devices=(device,), ttl_ms=ttl_ms, deadline_ms=at_ms + ttl_ms, bound=True, **fields,
    )  # fmt: skip


def end(state: PlacerState, name: str, at_ms: int) -> None:
    state.apply(ledger.LeaseEnding(at_ms=at_ms, lease=name, reason="released", effective_ms=at_ms))
    state.apply(ledger.NodeReleased(at_ms=at_ms, lease=name, node="n", by="operator"))
    state.apply(ledger.LeaseEnded(at_ms=at_ms, lease=name))


def left(state: PlacerState, ttl_ms: int, at_ms: int) -> int | None:
    return budgets.rate_max(state, "ml", "train_llm", ttl_ms=ttl_ms, at_ms=at_ms, apart="")


def test_without_a_budget_or_with_one_that_warns_nothing_is_held_back() -> None:
    assert left(house("1", "warn"), HOUR_MS, NOW_MS) is None
    assert budgets.rate_max(
        house("1"), "bio", "train_llm", ttl_ms=1, at_ms=NOW_MS, apart=""
    ) is None  # fmt: skip


def test_a_live_lease_counts_to_its_deadline_and_an_ended_one_for_what_it_used() -> None:
    state = house("10")
    state.apply(granted("a", NOW_MS, 4 * HOUR_MS))
    assert left(state, HOUR_MS, NOW_MS) == 6_000_000
    end(state, "a", NOW_MS + HOUR_MS)
    assert left(state, HOUR_MS, NOW_MS + HOUR_MS) == 9_000_000


def test_a_lease_that_ends_before_it_was_bound_uses_nothing() -> None:
    state = house("10")
    state.apply(granted("a", NOW_MS, HOUR_MS).model_copy(update={"bound": False}))
    end(state, "a", NOW_MS + HOUR_MS)
    assert state.this_month("ml", "train_llm", NOW_MS) == 0


def test_what_lies_beyond_the_months_end_is_the_next_months() -> None:
    state = house("10")
    at_ms = MONTH_END_MS - HOUR_MS
    state.apply(granted("a", at_ms, 4 * HOUR_MS))
    assert state.this_month("ml", "train_llm", at_ms) == 1_000_000 * HOUR_MS
    assert state.this_month("ml", "train_llm", MONTH_END_MS) == 3_000_000 * HOUR_MS
    end(state, "a", MONTH_END_MS + HOUR_MS)
    assert state.this_month("ml", "train_llm", MONTH_END_MS + HOUR_MS) == 1_000_000 * HOUR_MS


def test_a_renewal_beyond_the_budget_is_told_by_how_much() -> None:
    state = house("5")
    state.apply(granted("a", NOW_MS, 4 * HOUR_MS))
    lease = state.leases["a"]
    assert budgets.renewal_over(state, lease, NOW_MS + 5 * HOUR_MS, NOW_MS) is None
    beyond = budgets.renewal_over(state, lease, NOW_MS + 6 * HOUR_MS, NOW_MS)
    assert beyond is not None
    assert beyond[1] == {"STU-hours this month": "1"}


def test_a_refusal_says_what_was_used_what_is_asked_and_the_rest() -> None:
    state = house("5")
    state.apply(granted("a", NOW_MS, 4 * HOUR_MS))
    refusal = budgets.refusal(
        state, "ml", "train_llm", micro=2_000_000, ttl_ms=HOUR_MS, at_ms=NOW_MS
    )
    assert refusal.code == "budget_exceeded"
    assert refusal.details["over_by"] == "1"
    row = next(iter(budgets.rows(state, "ml", NOW_MS)))
    assert (row.limit, row.used, row.over_by) == ("5", "4", None)


def test_a_snapshot_keeps_what_forgotten_leases_used() -> None:
    state = house("10")
    state.apply(granted("a", NOW_MS, HOUR_MS))
    end(state, "a", NOW_MS + HOUR_MS)
    later_ms = NOW_MS + 48 * HOUR_MS
    state.apply(ledger.Tick(at_ms=later_ms))
    state.forget(later_ms)
    assert "a" not in state.leases
    other = house("10")
    snapshots.fill(other, snapshots.dump(state, 7))
    assert other.spent.used == state.spent.used
    assert other.this_month("ml", "train_llm", later_ms) == 1_000_000 * HOUR_MS


def test_months_that_no_budget_asks_for_are_forgotten() -> None:
    state = house("10")
    state.apply(granted("a", NOW_MS, HOUR_MS))
    end(state, "a", NOW_MS + HOUR_MS)
    state.spent.forget(MONTH_END_MS)
    assert state.this_month("ml", "train_llm", NOW_MS) > 0
    state.spent.forget(MONTH_END_MS + 32 * 24 * HOUR_MS)
    assert state.this_month("ml", "train_llm", NOW_MS) == 0


@given(
    st.integers(0, 4 * 10**12), st.integers(0, 10**11), st.integers(1, 10**9)
)  # fmt: skip
def test_months_share_a_stretch_without_rest(begin_ms: int, length_ms: int, micro: int) -> None:
    shares = list(by_month(Stretch(micro, begin_ms, begin_ms + length_ms)))
    assert sum(amount for _, amount in shares) == micro * length_ms
    assert all(month_of(month)[0] == month for month, _ in shares)


@pytest.mark.parametrize("on_exceed", ["refuse", "warn"])
def test_a_grant_within_the_budget_is_over_by_nothing(on_exceed: str) -> None:
    state = house("2", on_exceed)
    ask: placement.PlaceAsk = request("r")
    assert ask.request_id == "r"
    within = {"ttl_ms": HOUR_MS, "at_ms": NOW_MS}
    assert budgets.over(state, "ml", "train_llm", 2_000_000, **within) == {}
    over = budgets.over(state, "ml", "train_llm", 3_000_000, **within)
    assert over == {"STU-hours this month": "1"}
