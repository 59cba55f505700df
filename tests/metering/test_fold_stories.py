"""Ledgers written by hand, and what they must come to."""

from __future__ import annotations

from decimal import Decimal
from typing import get_args

from quintal.contracts import ledger
from quintal_metering import fold as fold_module
from quintal_metering.billing import cut
from quintal_metering.facts import State
from quintal_metering.fold import fold_group, pass_over
from quintal_metering.rows import Fault
from tests.metering.story import HOUR, MODEL, POOL, STU, T0, Story, card, price_list

PARTS = 1_000_000
MINUTE = 60_000


def a_card() -> Story:
    return Story().node().appear("g1")


def test_usage_runs_from_bound_to_the_effective_end() -> None:
    story = a_card().at(1_000).grant("l1", card("g1")).at(3_000).bind("l1")
    told = story.at(10_000).end("l1").at(11_000).released("l1").ended("l1").told()
    (row,) = told.slices
    assert (row.from_ms - T0, row.to_ms - T0) == (3_000, 10_000)
    assert row.quantity == 7_000 * PARTS * STU
    assert not told.state.leases
    assert not told.faults


def test_a_lease_granted_and_bound_at_once_is_used_from_its_grant() -> None:
    told = a_card().at(5_000).grant("l1", card("g1"), bound=True).at(6_000).end("l1").told()
    assert told.quantity() == 1_000 * PARTS * STU


def test_a_lease_that_ends_before_it_is_bound_bills_nothing() -> None:
    story = a_card().grant("l1", card("g1")).at(9_000).end("l1", reason="bind_unknown")
    told = story.at(HOUR).ended("l1").tick().told()
    assert told.slices == []
    assert told.capacity() == {
        "total": HOUR * PARTS, "binding": 9_000 * PARTS, "releasing": (HOUR - 9_000) * PARTS,
    }  # fmt: skip


def test_an_hour_closes_with_the_first_message_at_its_end_and_splits_the_slice() -> None:
    story = a_card().at(HOUR - 1_000).grant("l1", card("g1"), bound=True)
    before = story.at(HOUR - 1).tick().told()
    assert before.slices == []
    told = story.at(HOUR).tick().at(HOUR + 2_000).end("l1").told()
    assert [(row.from_ms - T0, row.to_ms - T0) for row in told.slices] == [
        (HOUR - 1_000, HOUR), (HOUR, HOUR + 2_000),
    ]  # fmt: skip
    assert told.capacity() == {
        "total": HOUR * PARTS, "free": (HOUR - 1_000) * PARTS, "leased": 1_000 * PARTS,
    }  # fmt: skip


def test_hours_of_silence_are_closed_one_by_one() -> None:
    told = a_card().grant("l1", card("g1"), bound=True).at(3 * HOUR + 5).tick().told()
    assert len(told.slices) == 3
    assert [told.capacity(hour).get("leased") for hour in range(4)] == [HOUR * PARTS] * 3 + [None]


def test_case_k06_an_end_that_comes_late_takes_back_what_was_billed_beyond_it() -> None:
    story = a_card().adopt(1, price_list("2.5")).grant("l1", card("g1"), bound=True)
    story.at(2 * HOUR + MINUTE).tick()
    before = story.told()
    effective = HOUR // 2
    told = story.end("l1", effective, "node_lost").at(3 * HOUR).ended("l1").tick().told()
    assert told.rows[: len(before.rows)] == before.rows, "rows that were given out stand"
    taken = [row for row in told.slices if row.kind == "adjustment"]
    assert [(row.from_ms - T0, row.to_ms - T0) for row in taken] == [
        (effective, HOUR), (HOUR, 2 * HOUR),
    ]  # fmt: skip
    assert told.quantity() == effective * PARTS * STU
    assert sum(row.cost for row in told.slices) == Decimal("1.25")
    assert taken[1].cost == -Decimal("2.5"), "a whole slice is undone by its stored cost"
    assert told.capacity(0) == {
        "total": HOUR * PARTS, "leased": effective * PARTS, "releasing": effective * PARTS,
    }  # fmt: skip
    assert told.capacity(1) == {"total": HOUR * PARTS, "releasing": HOUR * PARTS}
    assert told.capacity(2) == {"total": HOUR * PARTS, "releasing": HOUR * PARTS}


def test_an_end_before_the_bind_takes_everything_back() -> None:
    story = a_card().at(1_000).grant("l1", card("g1"), bound=True).at(HOUR + 5).tick()
    told = story.end("l1", 500, "node_lost").at(2 * HOUR).tick().told()
    assert told.quantity() == 0
    assert told.capacity(0)["releasing"] == (HOUR - 1_000) * PARTS


def test_devices_are_releasing_until_their_node_acknowledges() -> None:
    story = a_card().appear("g2", "n2").grant("l1", card("g1"), card("g2", "n2"), bound=True)
    story.at(10).end("l1").at(20).released("l1", "n1").at(50).released("l1", "n2").ended("l1")
    told = story.at(HOUR).tick().told()
    assert told.capacity()["releasing"] == (10 + 40) * PARTS
    assert told.capacity()["leased"] == 20 * PARTS


def test_a_moved_lease_is_used_where_it_is_bound() -> None:
    story = a_card().appear("g2", "n2", pool="other").grant("l1", card("g1")).at(5)
    story.tell(
        ledger.LeaseMoved(
            at_ms=story.now, lease="l1", token=2, devices=(card("g2", "n2", pool="other"),)
        )
    )
    told = story.at(10).bind("l1").at(30).end("l1").at(HOUR).tick().told()
    assert [(row.pool, row.part_ms) for row in told.slices] == [("other", 20 * PARTS)]
    assert told.capacity()["binding"] == 5 * PARTS
    assert told.capacity(pool="other")["binding"] == 5 * PARTS


def test_equal_cards_of_a_lease_are_one_slice_and_unequal_ones_are_not() -> None:
    story = a_card().appear("g2").appear("g3")
    cards = (card("g1"), card("g2"), card("g3", rating_micro=2 * STU))
    told = story.grant("l1", *cards, bound=True).at(10).end("l1").told()
    assert sorted((row.devices, row.rating_micro) for row in told.slices) == [
        (1, 2 * STU), (2, STU),
    ]  # fmt: skip


def test_the_state_of_a_device_is_the_first_that_holds() -> None:
    story = a_card()
    at = story.now
    node = {"at_ms": at, "node": "n1"}
    story.tell(ledger.DeviceHealthChanged(**node, uuid="g1", health="failed"))
    story.tell(ledger.DisputeChanged(**node, uuid="g1", disputed=True))
    story.tell(ledger.TaintChanged(**node, taint="t", present=True, by="op"))
    story.tell(ledger.CordonChanged(**node, cordoned=True, by="op"))
    story.tell(ledger.LivenessChanged(**node, liveness="suspect", heard_ms=0))
    story.at(10)
    node["at_ms"] = story.now
    story.tell(ledger.LivenessChanged(**node, liveness="ready", heard_ms=0))
    story.at(20)
    node["at_ms"] = story.now
    story.tell(ledger.CordonChanged(**node, cordoned=False, by="op"))
    story.at(30)
    node["at_ms"] = story.now
    story.tell(ledger.TaintChanged(**node, taint="t", present=False, by="op"))
    story.at(40)
    node["at_ms"] = story.now
    story.tell(ledger.DisputeChanged(**node, uuid="g1", disputed=False))
    story.at(50)
    node["at_ms"] = story.now
    story.tell(ledger.DeviceHealthChanged(**node, uuid="g1", health="degraded"))
    told = story.at(HOUR).tick().told()
    states = ("suspect", "cordoned", "tainted", "disputed", "unhealthy")
    assert told.capacity() == {
        "total": HOUR * PARTS, "free": (HOUR - 50) * PARTS, **dict.fromkeys(states, 10 * PARTS),
    }  # fmt: skip


def test_a_node_is_cordoned_until_nobody_cordons_it() -> None:
    story = a_card()
    for ms, by, on in ((0, "a", True), (10, "b", True), (20, "a", False), (30, "b", False)):
        story.at(ms).tell(ledger.CordonChanged(at_ms=story.now, node="n1", cordoned=on, by=by))
    assert story.at(HOUR).tick().told().capacity()["cordoned"] == 30 * PARTS


def test_an_unknown_device_is_counted_under_no_model() -> None:
    told = Story().node().appear("g1", model=None).at(HOUR).tick().told()
    assert told.capacity(model="") == {"total": HOUR * PARTS, "unresolved": HOUR * PARTS}


def test_a_device_that_leaves_while_leased_is_billed_but_no_longer_inventory() -> None:
    story = a_card().grant("l1", card("g1"), bound=True).at(10)
    story.tell(ledger.DeviceGone(at_ms=story.now, node="n1", uuid="g1"))
    story.at(15).end("l1", 15, "device_gone").ended("l1").at(HOUR).tick()
    told = story.told()
    assert told.quantity() == 15 * PARTS * STU
    assert [row.home_pool for row in told.slices] == [POOL, ""]
    assert told.capacity() == {"total": 10 * PARTS, "leased": 10 * PARTS}
    assert not told.state.devices


def test_a_retired_node_takes_its_devices_out_of_the_inventory() -> None:
    story = a_card().appear("g2").grant("l1", card("g1"), bound=True).at(100)
    story.tell(
        ledger.LeaseEnding(at_ms=story.now, lease="l1", reason="retired", effective_ms=story.now),
        ledger.NodeReleased(at_ms=story.now, lease="l1", node="n1", by="retire"),
        ledger.LeaseEnded(at_ms=story.now, lease="l1"),
        ledger.NodeRetired(at_ms=story.now, node="n1", by="op"),
    )
    told = story.at(HOUR).tick().told()
    assert told.capacity() == {"total": 200 * PARTS, "leased": 100 * PARTS, "free": 100 * PARTS}
    assert not told.state.cells


def test_another_pool_for_a_leased_device_moves_its_parts_and_not_its_bill() -> None:
    story = a_card().grant("l1", card("g1"), bound=True).at(10)
    story.tell(
        ledger.DeviceResolved(at_ms=story.now, node="n1", uuid="g1", model=MODEL, pool="new")
    )
    told = story.at(HOUR).tick().told()
    assert told.capacity()["leased"] == 10 * PARTS
    assert told.capacity(pool="new")["leased"] == (HOUR - 10) * PARTS
    assert {row.pool for row in told.slices} == {POOL}
    assert [row.home_pool for row in told.slices] == [POOL, "new"]


def test_a_census_that_agrees_has_no_difference_and_one_that_does_not_names_it() -> None:
    row = ledger.CensusRow(pool=POOL, model=MODEL, total=2 * PARTS, leased=PARTS, free=PARTS)
    story = a_card().appear("g2").grant("l1", card("g1"), bound=True).census(row)
    wrong = row.model_copy(update={"free": 0, "unavailable": {"lost": PARTS}})
    told = story.census(wrong).told()
    good, bad = told.censuses
    assert good.differences == ()
    assert [(d.subject, d.expected, d.found) for d in bad.differences] == [
        ("free", 0, PARTS), ("lost", PARTS, 0),
    ]  # fmt: skip


def test_an_open_lease_is_cut_at_the_watermark_by_the_same_charge() -> None:
    story = a_card().adopt(1, price_list("3.6")).grant("l1", card("g1"), bound=True)
    told = story.at(1_000).tick().told()
    lease = told.state.leases["l1"]
    (row,) = cut(lease, (lease.billed_ms, told.state.at_ms), story.prices, 9)
    assert row.cost == Decimal("0.001")


def test_case_k01_four_quarters_of_a_card_are_one_card_hour() -> None:
    story = a_card()
    for name in ("a", "b", "c", "d"):
        story.grant(name, card("g1", parts=PARTS // 4), bound=True)
    told = story.at(HOUR).tick().told()
    assert told.quantity() == HOUR * PARTS * STU
    assert told.capacity() == {"total": HOUR * PARTS, "leased": HOUR * PARTS}


def test_the_rest_of_a_shared_card_is_stranded_and_an_end_that_comes_late_moves_it() -> None:
    story = a_card().grant("a", card("g1", parts=250_000), bound=True)
    story.grant("b", card("g1", parts=250_000), bound=True).at(HOUR + 10).tick()
    told = story.end("a", 1_000, "node_lost").at(2 * HOUR).tick().told()
    assert told.capacity(0) == {
        "total": HOUR * PARTS,
        "leased": 250_000 * (HOUR + 1_000),
        "releasing": 250_000 * (HOUR - 1_000),
        "stranded": 500_000 * HOUR,
    }


def test_case_k04_nothing_is_clamped_when_leases_hold_more_than_there_is() -> None:
    story = a_card().grant("a", card("g1"), bound=True).grant("b", card("g1"), bound=True)
    told = story.at(HOUR).tick().told()
    assert "over_held" in told.faults
    assert told.capacity()["stranded"] == -HOUR * PARTS


def test_case_k03_a_node_without_devices_has_no_capacity_and_a_custom_price_is_used_as_it_is() -> (
    None
):
    story = Story().node("bare").node().appear("g1").adopt(1, price_list("0.123457", "card_hour"))
    told = story.grant("l1", card("g1"), bound=True).at(HOUR).tick().told()
    assert told.capacity()["total"] == HOUR * PARTS
    assert [str(row.cost) for row in told.slices] == ["0.123457000"]


def test_case_k08_the_same_request_id_of_two_tenants_is_two_leases() -> None:
    story = a_card().appear("g2").grant("l1", card("g1"), bound=True, tenant="a")
    story.grant("l2", card("g2"), bound=True, tenant="b").at(10).end("l1").end("l2")
    told = story.told()
    assert {row.tenant: row.quantity for row in told.slices} == {
        "a": 10 * PARTS * STU, "b": 10 * PARTS * STU,
    }  # fmt: skip
    assert len({row.id for row in told.slices}) == 2


def test_case_k09_a_grant_told_again_changes_nothing_and_another_under_its_name_is_a_conflict() -> (
    None
):
    story = a_card().appear("g2").grant("l1", card("g1"), bound=True)
    assert story.grant("l1", card("g1"), bound=True).told().faults == []
    told = story.grant("l1", card("g2"), bound=True).at(10).end("l1").told()
    assert told.faults == ["conflict"]
    assert told.quantity() == 10 * PARTS * STU


def test_case_k10_a_transition_that_nothing_matches_is_kept_as_a_fault() -> None:
    assert a_card().bind("ghost").told().faults == ["unmatched"]


def test_case_k11_a_price_change_within_a_lease_makes_two_slices_split_at_the_instant() -> None:
    lists = (price_list("1"), price_list("2", from_ms=T0 + HOUR // 4))
    story = a_card().adopt(1, *lists).grant("l1", card("g1"), bound=True)
    told = story.at(HOUR).tick().told()
    assert [(row.to_ms - row.from_ms, row.price, row.cost) for row in told.slices] == [
        (HOUR // 4, Decimal(1), Decimal("0.25")), (3 * HOUR // 4, Decimal(2), Decimal("1.5")),
    ]  # fmt: skip


def test_another_catalog_splits_the_slice_and_each_names_its_own() -> None:
    story = a_card().adopt(1, price_list("1")).grant("l1", card("g1"), bound=True)
    story.at(HOUR // 2).adopt(2, price_list("4"))
    told = story.at(HOUR).tick().told()
    assert [(row.revision, row.cost) for row in told.slices] == [
        (1, Decimal("0.5")), (2, Decimal(2)),
    ]  # fmt: skip


def test_where_no_price_was_in_force_the_slice_says_so() -> None:
    told = a_card().grant("l1", card("g1"), bound=True).at(HOUR).tick().told()
    (row,) = told.slices
    assert (row.price, row.cost, row.currency) == (None, 0, "")


def test_a_nominal_price_touches_money_and_not_the_delivered_quantity() -> None:
    story = (
        a_card()
        .adopt(1, price_list("1"))
        .grant("l1", card("g1"), bound=True, billing="nominal", nominal_micro=3 * STU)
    )
    (row,) = story.at(HOUR).tick().told().slices
    assert (row.quantity, row.nominal_quantity) == (HOUR * PARTS * STU, 3 * HOUR * PARTS * STU)
    assert row.cost == 3


def test_time_that_goes_back_is_a_fault_and_moves_nothing() -> None:
    told = a_card().at(5_000).tick().at(4_000).tick().told()
    assert told.faults == ["time_went_back"]
    assert told.state.at_ms == T0 + 5_000


def test_a_group_of_nobody_is_passed_over_as_the_placer_passes_it_over() -> None:
    """Whoever wrote past the fence has decided nothing; what follows is folded on."""
    state = State()
    told = Story().tick().groups[0]
    state, _ = fold_group(state, 1, told, {})
    forged = told.model_copy(update={"epoch": 9, "writer": "nobody", "group": 3, "expected": 1})
    state, rows = fold_group(state, 2, forged, {})
    assert [row.code for row in rows if isinstance(row, Fault)] == ["foreign_group"]
    assert (state.epoch, state.writer) == (1, "p1")
    after = told.model_copy(update={"group": 1, "expected": 2})
    _, rows = fold_group(state, 3, after, {})
    assert not [row for row in rows if isinstance(row, Fault)]


def test_what_could_not_be_read_may_have_begun_an_epoch() -> None:
    """After a poison message a later epoch is taken for its writer's; an older one is not."""
    first = Story().tick().groups[0]
    for epoch, wanted in ((2, []), (0, ["foreign_group"])):
        state, _ = fold_group(State(), 1, first, {})
        state = pass_over(state, 2)
        heir = first.model_copy(update={"epoch": epoch, "writer": "p2", "group": 7, "expected": 2})
        state, rows = fold_group(state, 3, heir, {})
        assert [row.code for row in rows if isinstance(row, Fault)] == wanted
        assert state.writer == ("p1" if wanted else "p2")


def test_every_sort_of_record_is_folded_and_none_that_is_none() -> None:
    assert set(fold_module._HOW) == set(get_args(ledger.AnyRecord))
