"""Hints: every one of them places; few tries; nothing is kept."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from quintal.contracts import ledger
from quintal.contracts.message import Refusal
from quintal.contracts.placement import Hint, PlaceAsk
from quintal_placer import hints, snapshots
from quintal_placer.explaining import Decided
from tests.placer.site import AT_MS, Site, asked, inventory, models, only, quota
from tests.placer.states import random_site, refused_at
from tests.placer.world import cards, doc

STATES = 10_000 if os.environ.get("QUINTAL_PROOF") else 150


def hinted(site: Site, ask: PlaceAsk, tenant: str = "ml") -> list[Hint]:
    tries = 0

    def evaluate(changed: PlaceAsk) -> Decided | Refusal:
        nonlocal tries
        tries += 1
        return site.desk.evaluate(tenant, changed)

    found = list(hints.search(site.state, site.desk.market, tenant, ask, evaluate))
    assert tries <= hints.TRIES_MAX
    return [hint for hint in found if hint is not None]


def words(site: Site, **more: object) -> list[str]:
    ask = asked(9, **more)
    assert isinstance(site.desk.decide("ml", ask), Refusal)
    return [hint.message for hint in hinted(site, ask)]


def a_site(*documents: object) -> Site:
    return Site(
        [*models(), *(documents or quota("ml"))],  # type: ignore[list-item]
        inventory("n1", *cards("n1", "A-80", 3)),
        inventory("n2", *cards("n2", "A-80", 4)),
    )


@pytest.mark.laws
@pytest.mark.timeout(max(120, STATES // 10))
def test_every_hint_places_on_states_that_chance_made() -> None:
    seed = int(os.environ.get("QUINTAL_LAW_SEED") or random.SystemRandom().getrandbits(32))
    print(f"QUINTAL_LAW_SEED={seed}")
    seen: Counter[str] = Counter()
    for number in range(STATES):
        chance = random.Random(f"{seed}-{number}")
        site = random_site(chance)
        found = refused_at(site, chance)
        if found is None:
            continue
        ask = asked(number, **found[0])
        before = snapshots.dump(site.state, 0)
        told = hinted(site, ask)
        assert snapshots.dump(site.state, 0) == before, "a hint keeps nothing"
        for place, hint in enumerate(told):
            changed = hints.merged(ask, hint.change)
            assert changed is not None
            changed = changed.model_copy(update={"request_id": f"hinted-{place}"})
            decided = site.desk.decide("ml", changed)
            assert not isinstance(decided, Refusal), f"{hint} of {ask}: {decided}"
            record = site.desk.record(*site.desk.next(), "ml", changed, decided)
            site.apply(record)
            seen[hint.message.split()[0]] += 1
            site.over(record)
    print(dict(seen))
    assert seen.total() > STATES // 8


def test_fewer_cards_or_the_same_over_more_nodes() -> None:
    assert words(a_site(), cards=6, accelerator=only("a-80")) == [
        "3 cards on each of 2 nodes",
        "4 cards on each node instead of 6",
    ]


def test_a_taint_to_put_up_with_a_constraint_to_leave_out_another_model() -> None:
    site = a_site()
    for node in ("n1", "n2"):
        site.apply(ledger.TaintChanged(at_ms=AT_MS, node=node, taint="lab", present=True, by="op"))
    assert words(site) == ["tolerate the taint lab"]
    site = a_site()
    assert "model a-80" in words(site, accelerator=only("b-24"))
    assert "without the constraint on nodes" in words(site, cards=4, constraints={"nodes": ["n1"]})


def test_a_node_that_is_none_has_the_one_that_was_meant_for_a_hint() -> None:
    site = a_site()
    told = words(site, constraints={"nodes": ["n-1"]})
    assert told == ["node n1", "without the constraint on nodes"]
    ask = asked(9, constraints={"nodes": ["n-1"], "tolerations": ["t"]})
    site.desk.decide("ml", ask)
    assert hinted(site, ask)[0].change == {"constraints": {"nodes": ["n1"], "tolerations": ["t"]}}


def test_a_shorter_ttl_where_the_budget_is_short() -> None:
    cap = {"class": "train_llm", "units": "100"}
    budgets = [{"class": "train_llm", "unit_hours": "0.5"}]
    site = a_site(*quota("ml", cap, budgets=budgets))
    assert words(site, accelerator=only("a-80"), ttl_ms=3_600_000)[0] == "a ttl of 1800 s"


def test_a_taint_of_a_closed_pool_is_no_hint_and_what_nothing_mends_has_none() -> None:
    closed = doc(
        "Pool", "secret", order=1, selector={"nodes": ["n1", "n2"]}, tenants=["bio"],
        taints=["theirs"],
    )  # fmt: skip
    assert words(a_site(*quota("ml"), *quota("bio"), closed)) == []


def test_what_fits_by_now_needs_no_change() -> None:
    site = a_site()
    held = [site.granted(cards=4), site.granted(cards=3)]
    ask = asked(9, cards=4)
    assert isinstance(site.desk.decide("ml", ask), Refusal)
    for record in held:
        site.over(record)
    assert [hint.message for hint in hinted(site, ask)] == ["as it is: it fits by now"]
