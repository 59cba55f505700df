"""Leases that an outside scheduler opens: what passes a cap or a budget is recorded, or refused."""

from __future__ import annotations

from typing import Any

from quintal.contracts import ledger, placement
from quintal.contracts.message import Refusal
from quintal_placer import views
from quintal_placer.adoption import adoption_record
from tests.placer.site import AT_MS, Site, inventory, models, quota
from tests.placer.world import cards

CAP = {"class": "train_llm", "units": "2"}
BUDGET = {"class": "train_llm", "unit_hours": "10", "on_exceed": "refuse"}


def a_site(**more: Any) -> Site:
    caps = more.pop("caps", (CAP,))
    documents = [*models(), *quota("ml", *caps, **more)]
    return Site(documents, inventory("n1", *cards("n1", "A-80", 8)))


def adopt(site: Site, name: str, *devices: int, ttl_ms: int = 3_600_000) -> Any:
    """The record that adopts these, applied where it is one."""
    ask = placement.AdoptAsk(
        request_id=name,
        tenant="ml",
        node="n1",
        devices=tuple(map(str, devices)),
        workload_class="train_llm",
        ttl_ms=ttl_ms,
    )
    record = adoption_record(site.desk, ask)
    if isinstance(record, ledger.LeaseGranted):
        site.apply(record)
    return record


def test_law_4_what_is_adopted_beyond_a_budget_is_recorded() -> None:
    """Nine card-hours of ten are taken up to their deadline, then three more."""
    site = a_site(caps=({"class": "train_llm", "units": "100"},), budgets=[BUDGET])
    assert adopt(site, "one", 0, 1, 2, ttl_ms=3 * 3_600_000).over_by == {}
    found = adopt(site, "two", 3, 4, 5)
    assert found.over_by == {"STU-hours this month": "2"}
    rows = views.quota_view(site.state, "ml", AT_MS).rows
    assert [row.over_by for row in rows if row.cap == "STU-hours this month"] == ["2"]


def test_law_4_what_is_adopted_beyond_a_budget_is_refused_where_the_quota_says_so() -> None:
    site = a_site(caps=({"class": "train_llm", "units": "100"},), budgets=[BUDGET], adopt="refuse")
    adopt(site, "one", 0, 1, 2, ttl_ms=3 * 3_600_000)
    found = adopt(site, "two", 3, 4, 5)
    assert isinstance(found, Refusal)
    assert (found.code, found.details["over_by"]) == ("budget_exceeded", "2")
    assert len(site.state.live) == 1


def test_a_budget_that_warns_refuses_no_adoption() -> None:
    budgets = [{**BUDGET, "on_exceed": "warn"}]
    caps = ({"class": "train_llm", "units": "100"},)
    site = a_site(caps=caps, budgets=budgets, adopt="refuse")
    assert adopt(site, "one", *range(8), ttl_ms=2 * 3_600_000).over_by == {
        "STU-hours this month": "6"
    }


def test_every_cap_that_is_passed_is_recorded_and_not_the_first_alone() -> None:
    site = a_site(caps=(CAP, {"model": "a-80", "cards": 1}), budgets=[BUDGET])
    found = adopt(site, "one", *range(4), ttl_ms=3 * 3_600_000)
    assert found.over_by == {
        "STU": "2", "cards of model a-80": "3", "STU-hours this month": "2",
    }  # fmt: skip


def test_a_cap_that_is_lowered_below_what_is_held_shows_by_how_much() -> None:
    """Nothing is taken back; nothing more is granted; the excess is there to be seen."""
    site = a_site(caps=({"class": "train_llm", "units": "8"},))
    site.granted(cards=6)
    site.adopt([*models(), *quota("ml", CAP)], 2)
    rows = views.quota_view(site.state, "ml", AT_MS).rows
    assert [(row.cap, row.used, row.limit, row.over_by) for row in rows] == [("STU", "6", "2", "4")]
    assert site.refused(cards=1).code == "quota_exceeded"
