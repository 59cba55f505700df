"""Faults put into a copied ledger, and a fold that cheats: each is flagged, by name."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from quintal.contracts import ledger
from quintal.contracts.ledger import Group
from quintal_metering import capacity
from quintal_metering.columns import inserts
from quintal_metering.facts import State
from quintal_metering.fold import fold_group
from quintal_metering.queries import Span, Sums
from quintal_metering.rows import SliceRow, checked as refused_if_too_large, row_id
from quintal_metering.store import Store
from tests.metering.story import HOUR, MODEL, POOL, STU, T0, Story, card, price_list
from tests.metering.test_store import begun, checked, messages

pytestmark = pytest.mark.engine
OpenStore = Callable[[], Store]
PARTS = 1_000_000


def fleet(leases: int = 3) -> Story:
    """One lease a card, half an hour each from the hour on; a census at the full hour."""
    story = Story().node()
    for n in range(leases):
        story.appear(f"g{n}")
    story.adopt(1, price_list("2.0"))
    for n in range(leases):
        story.at(1_000 * n).grant(f"l{n}", card(f"g{n}"), bound=True, tenant="a")
    row = ledger.CensusRow(
        pool=POOL, model=MODEL, total=leases * PARTS, leased=leases * PARTS, free=0
    )
    story.at(HOUR // 4).census(row)
    for n in range(leases):
        story.at(HOUR // 2 + n).end(f"l{n}").ended(f"l{n}")
    free = ledger.CensusRow(pool=POOL, model=MODEL, total=leases * PARTS, free=leases * PARTS)
    return story.at(HOUR).census(free, cause="hour").tick()


def renamed(story: Story, groups: list[Group]) -> Story:
    """A copied ledger: the groups, numbered anew."""
    copied = [
        group.model_copy(update={"group": at, "expected": at}) for at, group in enumerate(groups)
    ]
    return Story(prices=story.prices, groups=copied, now=story.now)


def of_lease(group: Group, name: str) -> bool:
    return any(getattr(record, "lease", None) == name for record in group.transitions)


def a_lease_dropped(story: Story) -> Story:
    return renamed(story, [group for group in story.groups if not of_lease(group, "l1")])


def a_lease_doubled(story: Story) -> Story:
    groups = []
    for group in story.groups:
        groups.append(group)
        if of_lease(group, "l1"):
            twin = tuple(
                record.model_copy(update={"lease": "l1-again"}) for record in group.transitions
            )
            groups.append(group.model_copy(update={"transitions": twin}))
    return renamed(story, groups)


def an_end_shifted(story: Story) -> Story:
    """The stored rows are those of the true ledger; in the copy one lease ends a second later."""
    groups = []
    for group in story.groups:
        records = tuple(
            record.model_copy(update={"effective_ms": record.effective_ms + 1_000,
                                      "at_ms": record.at_ms + 1_000})
            if isinstance(record, ledger.LeaseEnding) and record.lease == "l2" else record
            for record in group.transitions
        )  # fmt: skip
        groups.append(group.model_copy(update={"transitions": records}))
    return renamed(story, groups)


@pytest.mark.parametrize(
    ("fault", "check"),
    [(a_lease_dropped, "census"), (a_lease_doubled, "census"), (an_end_shifted, "recompute")],
)
def test_a_fault_in_a_copied_ledger_is_flagged(
    open_store: OpenStore, fault: Callable[[Story], Story], check: str
) -> None:
    """A copy that metering reads disagrees with the placer's own count, or with what is stored."""
    story = fleet()
    meter = begun(open_store(), story)
    if check == "census":
        meter.take(messages(fault(story)), 0)
    else:
        meter.take(messages(story), 0)
        for sequence, group in enumerate(fault(story).groups, 1):
            body = group.model_dump_json(by_alias=True)
            if body != story.groups[sequence - 1].model_dump_json(by_alias=True):
                _replace(meter.store, sequence, body)
    found = checked(meter)
    assert not found.ok
    assert check in {one.check for one in found.differences}


def _replace(store: Store, sequence: int, body: str) -> None:
    store.command(
        "ALTER TABLE transitions UPDATE body = {body:String} WHERE sequence = {sequence:UInt64} "
        "SETTINGS mutations_sync = 2",
        {"body": body, "sequence": sequence},
    )


def test_the_true_ledger_is_flagged_by_nothing(open_store: OpenStore) -> None:
    story = fleet()
    meter = begun(open_store(), story)
    meter.take(messages(story), 0)
    assert checked(meter).ok


def test_idle_as_the_rest_is_caught(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold that calls free whatever is not leased, and so loses a cordon, is found out."""

    def cheat(base: str, holds: tuple[Any, ...], cut: object = None) -> dict[str, int]:
        held = sum(hold.parts for hold in holds if hold.state == "bound")
        return {"leased": held, "free": PARTS - held} if held else {"free": PARTS}

    story = fleet()
    cordon = ledger.CordonChanged(at_ms=story.now, node="n1", by="op", cordoned=True)
    story.tell(cordon)
    row = ledger.CensusRow(
        pool=POOL, model=MODEL, total=3 * PARTS, free=0, unavailable={"cordoned": 3 * PARTS}
    )
    story.at(2 * HOUR).census(row, cause="hour").tick()
    honest = begun(open_store(), story)
    honest.take(messages(story), 0)
    assert checked(honest).ok
    monkeypatch.setattr(capacity, "composed", cheat)
    for table in ("transitions", "slices", "capacity", "censuses", "positions"):
        honest.store.command(f"TRUNCATE TABLE {table}")
    cheating = begun(open_store(), story)
    cheating.take(messages(story), 0)
    found = checked(cheating)
    assert {"census"} <= {one.check for one in found.differences}
    assert {one.subject for one in found.differences} >= {"free", "cordoned"}


def test_case_k04_negative_idle_is_kept_negative_and_is_an_alarm(open_store: OpenStore) -> None:
    story = Story().node().appear("g1").grant("l1", card("g1"), bound=True)
    story.grant("l2", card("g1"), bound=True).at(HOUR).tick()
    meter = begun(open_store(), story)
    meter.take(messages(story), 0)
    rows = meter.store.rows("SELECT part_ms FROM capacity WHERE reason = 'stranded'")
    assert [int(row["part_ms"]) for row in rows] == [-PARTS * HOUR]
    assert not checked(meter, to_ms=T0 + HOUR).ok
    codes = {row["code"] for row in meter.store.rows("SELECT code FROM dead_letters")}
    assert "over_held" in codes


def test_two_hundred_years_of_a_great_fleet_do_not_wrap(open_store: OpenStore) -> None:
    """10,000 nodes of 8 cards rated at 10 units, an hour a row: 2**63 is passed within a day."""
    store = open_store()
    cards, hours, micro = 80_000, 24 * 365 * 200, 10 * STU
    template = fleet(1).told().slices[0]
    hour = cards * PARTS * HOUR
    year = 24 * 365
    rows = []
    for n in range(200):
        part_ms = refused_if_too_large(hour * year)
        facts = {name: getattr(template, name) for name in SliceRow._fields}
        facts |= {
            "id": row_id("long", n), "part_ms": part_ms, "quantity": part_ms * micro,
            "nominal_quantity": part_ms * micro, "cost": Decimal(cards * year * 10) * 2,
            "tenant": "ever",
        }  # fmt: skip
        rows.append(SliceRow(**facts))
    store.write(inserts((1, 1), rows, []))
    [total] = store.ask(Sums(Span(tenant="ever"), ("tenant",)))
    assert int(total["part_ms_sum"]) == hour * hours
    assert int(total["quantity_sum"]) == hour * hours * micro > 2**63 * 10**6
    assert total["cost_sum"] == Decimal(cards * hours * 20)
    with pytest.raises(OverflowError):
        refused_if_too_large(10**38)


def test_case_k09_an_identical_replay_changes_nothing_and_another_content_is_a_conflict(
    open_store: OpenStore,
) -> None:
    story = Story().node().appear("g1").appear("g2").grant("l1", card("g1"), bound=True)
    state = State()
    for sequence, group in enumerate(story.groups, 1):
        state, _ = fold_group(state, sequence, group, story.prices)
    again = story.groups[-1]
    assert fold_group(state, len(story.groups), again, story.prices)[1] == []
    story.grant("l1", card("g1"), bound=True).grant("l1", card("g2"), bound=True, tenant="b")
    told = story.told()
    assert told.faults == ["conflict"]


def test_case_k08_the_same_lease_name_of_two_tenants_would_count_for_both() -> None:
    """Rows are named by tenant and lease: one tenant's row never hides another's."""
    first = Story().node().appear("g1").grant("l1", card("g1"), bound=True, tenant="a")
    second = Story().node().appear("g1").grant("l1", card("g1"), bound=True, tenant="b")
    ids = {
        story.at(HOUR).tick().told().slices[0].id for story in (first, second)
    }  # fmt: skip
    assert len(ids) == 2


def test_case_k01_four_quarters_of_a_card_are_one_card_hour() -> None:
    story = Story().node().appear("g1").adopt(1, price_list("1.0"))
    for n in range(4):
        story.grant(f"l{n}", card("g1", parts=PARTS // 4), bound=True, tenant=f"t{n}")
    told = story.at(HOUR).tick().told()
    assert sum(row.part_ms for row in told.slices) == PARTS * HOUR
    assert sum(row.cost for row in told.slices) == 1
    assert told.capacity() == {"total": PARTS * HOUR, "leased": PARTS * HOUR}


def test_case_k11_a_price_change_in_the_middle_of_a_lease_makes_two_rows() -> None:
    story = Story().node().appear("g1")
    change = T0 + HOUR // 3
    story.adopt(1, price_list("1.0"), price_list("4.0", from_ms=change))
    told = story.grant("l1", card("g1"), bound=True).at(HOUR).tick().told()
    assert [(row.from_ms, row.to_ms, row.price) for row in told.slices] == [
        (T0, change, Decimal("1.0")), (change, T0 + HOUR, Decimal("4.0")),
    ]  # fmt: skip


def test_case_k03_a_node_without_devices_costs_nothing() -> None:
    told = Story().node().adopt(1, price_list("9.0")).at(HOUR).tick().told()
    assert told.rows == []
