"""Bills, quotes and corrections: to the last digit, with evidence; nothing is rewritten."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from quintal.contracts.bills import BillAsk, DeadLettersAsk, QuoteAsk, RerateAsk, minor_step
from quintal.errors import Code, Refused
from quintal.pricing import Terms, charge
from quintal_metering.invoicing import month_span, rounded
from quintal_metering.meter import Meter
from quintal_metering.quoting import offers, wanted
from quintal_metering.store import Store
from tests.metering.shelves import (
    Shelf,
    caller,
    charges,
    counter,
    document,
    model,
    prices_of,
    profile,
    rating,
)  # fmt: skip
from tests.metering.story import HOUR, MODEL, POOL, T0, Story, card
from tests.metering.test_store import begun, checked, messages, stored

engine = pytest.mark.engine
OpenStore = Callable[[], Store]
MONTH = "2023-11"
assert month_span(MONTH)[0] < T0 < month_span(MONTH)[1]

FIRST = (model(rating("1"), rating("3", precision="fp4")), charges("2.00"), profile())
SECOND = (model(rating("1.25", "2"), rating("3", precision="fp4")), charges("3.00"), profile())


def a_month(shelf: Shelf) -> Story:
    """Two tenants for a third of an hour and more; the second revision is adopted at the end."""
    story = Story().node().appear("g1").appear("g2")
    story.adopt(1, *(spec for _, spec in prices_of(shelf.revisions[1])))
    story.grant("l1", card("g1"), bound=True, tenant="a", project="p", profile="train")
    story.grant("l2", card("g2"), bound=True, tenant="b", profile="train")
    story.at(HOUR // 3).end("l1").ended("l1")
    story.at(HOUR + 5_000).end("l2").ended("l2")
    return story.adopt(2, *(spec for _, spec in prices_of(shelf.revisions[2]))).tick()


def metered(store: Store, shelf: Shelf) -> Meter:
    story = a_month(shelf)
    meter = begun(store, story)
    meter.take(messages(story), 0)
    return meter


@engine
async def test_a_bill_rounds_each_line_once_and_shows_what_the_rounding_left(
    open_store: OpenStore, tmp_path: Path
) -> None:
    shelf = Shelf(r1=FIRST, r2=SECOND)
    meter = metered(open_store(), shelf)
    told = await counter(meter, shelf, tmp_path).bill(caller("a"), BillAsk(month=MONTH))
    [line] = told.lines
    assert (line.cost, line.amount, line.residue) == (
        Decimal("0.666666667"), Decimal("0.67"), Decimal("-0.003333333"),
    )  # fmt: skip
    assert line.amount + line.residue == line.cost
    assert (line.project, line.profile, line.price, line.currency) == ("p", "train", "2", "EUR")
    assert (line.ratings, line.revisions, line.leases) == (("@1",), (1,), 1)
    grant, end = 5, 7
    assert grant <= line.first_sequence <= line.last_sequence == end
    assert told.totals[0].amount == Decimal("0.67")
    assert (told.tenant, told.closed, told.restated) == ("a", False, False)


@engine
async def test_a_tenant_gets_its_own_bill_and_finance_gets_anybodys(
    open_store: OpenStore, tmp_path: Path
) -> None:
    shelf = Shelf(r1=FIRST, r2=SECOND)
    desk = counter(metered(open_store(), shelf), shelf, tmp_path)
    with pytest.raises(Refused) as refused:
        await desk.bill(caller("a"), BillAsk(month=MONTH, tenant="b"))
    assert refused.value.code == Code.NOT_YOURS
    assert (await desk.bill(caller("finance"), BillAsk(month=MONTH, tenant="b"))).lines
    assert not (await desk.bill(caller("a"), BillAsk(month="2023-10"))).lines
    for verb, ask in (
        (desk.rerate, RerateAsk(from_ms=0)),
        (desk.dead_letters, DeadLettersAsk()),
    ):
        with pytest.raises(Refused) as refused:
            await verb(caller("a"), ask)
        assert refused.value.code == Code.NOT_YOURS


@engine
async def test_an_empty_bill_of_a_name_that_nobody_has_is_refused_with_the_nearest_name(
    open_store: OpenStore, tmp_path: Path
) -> None:
    idle = document("Tenant", "idle")
    shelf = Shelf(r1=(*FIRST, idle), r2=SECOND)
    story = Story().adopt(1, *(s for _, s in prices_of(shelf.revisions[1]))).tick()
    meter = begun(open_store(), story)
    meter.take(messages(story), 0)
    desk = counter(meter, shelf, tmp_path)
    with pytest.raises(Refused, match="there is no tenant 'idel'; did you mean 'idle'") as refused:
        await desk.bill(caller("finance"), BillAsk(month=MONTH, tenant="idel"))
    assert refused.value.code == Code.NOT_FOUND
    assert not (await desk.bill(caller("finance"), BillAsk(month=MONTH, tenant="idle"))).lines


@engine
async def test_an_open_lease_is_on_the_bill_up_to_the_watermark(
    open_store: OpenStore, tmp_path: Path
) -> None:
    shelf = Shelf(r1=FIRST)
    story = Story().node().appear("g1").adopt(1, *(s for _, s in prices_of(shelf.revisions[1])))
    story.grant("l1", card("g1"), bound=True).at(HOUR + HOUR // 2).tick()
    meter = begun(open_store(), story)
    meter.take(messages(story), 0)
    told = await counter(meter, shelf, tmp_path).bill(caller("a"), BillAsk(month=MONTH))
    [line] = told.lines
    assert (line.cost, line.leases, line.slices) == (Decimal(3), 1, 2)


@engine
async def test_a_dry_rerate_says_who_changes_by_how_much_and_keeps_nothing(
    open_store: OpenStore, tmp_path: Path
) -> None:
    shelf = Shelf(r1=FIRST, r2=SECOND)
    meter = metered(open_store(), shelf)
    before = stored(meter.store)
    desk = counter(meter, shelf, tmp_path)
    told = await desk.rerate(caller("finance"), RerateAsk(from_ms=T0, dry_run=True))
    rows = {row.tenant: row for row in told.rows}
    assert rows["a"].cost_after == Decimal("1.25")  # 1/3 h x 1.25 STU x 3.00
    assert rows["a"].difference == Decimal("1.25") - Decimal("0.666666667")
    assert (rows["b"].unit_hours_before, rows["b"].unit_hours_after) == ("1.001389", "1.251736")
    assert (told.changed, told.unmatched, told.correction) == (3, 0, "")
    assert stored(meter.store) == before
    prices = await desk.rerate(
        caller("finance"), RerateAsk(from_ms=T0, dry_run=True, what="prices", tenant="a")
    )
    assert [row.cost_after for row in prices.rows] == [Decimal("1.000000000")]
    ratings = await desk.rerate(
        caller("finance"), RerateAsk(from_ms=T0, dry_run=True, what="ratings", tenant="a")
    )
    assert [row.cost_after for row in ratings.rows] == [Decimal("0.833333333")]


@engine
async def test_case_k06_a_reversal_nets_to_zero_and_both_stay_visible(
    open_store: OpenStore, tmp_path: Path
) -> None:
    shelf = Shelf(r1=FIRST, r2=SECOND)
    meter = metered(open_store(), shelf)
    before = {row["id"]: row for row in stored(meter.store)}
    desk = counter(meter, shelf, tmp_path)
    told = await desk.rerate(caller("finance"), RerateAsk(from_ms=T0, why="rating was wrong"))
    after = {row["id"]: row for row in stored(meter.store)}
    assert {name: after[name] for name in before} == before, "a row was rewritten"
    reversals = [row for row in after.values() if row["reverses"]]
    assert len(reversals) == told.changed == 3
    for row in reversals:
        of = before[row["reverses"]]
        assert [row[n] + of[n] for n in ("cost", "quantity", "part_ms", "nominal_quantity")] == [
            0, 0, 0, 0,
        ]  # fmt: skip
    bill = await desk.bill(caller("a"), BillAsk(month=MONTH))
    assert bill.restated
    assert {line.price: line.cost for line in bill.lines} == {
        "2": Decimal(0), "3": Decimal("1.25"),
    }  # fmt: skip
    assert checked(meter).ok, checked(meter).differences
    [kept] = meter.store.rows("SELECT author, why, revision FROM corrections")
    assert (kept["author"], kept["why"], kept["revision"]) == ("finance", "rating was wrong", 2)


@engine
async def test_a_rerate_that_is_run_again_changes_nothing_more_and_back_is_back(
    open_store: OpenStore, tmp_path: Path
) -> None:
    shelf = Shelf(r1=FIRST, r2=SECOND)
    meter = metered(open_store(), shelf)
    desk = counter(meter, shelf, tmp_path)
    cost = sum(row["cost"] for row in stored(meter.store))
    await desk.rerate(caller("operator"), RerateAsk(from_ms=T0))
    again = await desk.rerate(caller("operator"), RerateAsk(from_ms=T0))
    assert (again.changed, again.looked_at) == (0, 3)
    back = await desk.rerate(caller("operator"), RerateAsk(from_ms=T0, revision=1))
    assert back.changed == 3
    assert sum(row["cost"] for row in stored(meter.store)) == cost
    assert checked(meter).ok


@engine
async def test_a_rerate_cut_short_by_a_crash_ends_the_same_when_it_is_run_again(
    open_store: OpenStore, tmp_path: Path
) -> None:
    shelf = Shelf(r1=FIRST, r2=SECOND)
    meter = metered(open_store(), shelf)
    desk = counter(meter, shelf, tmp_path)
    await desk.rerate(caller("operator"), RerateAsk(from_ms=T0, tenant="b"))  # as far as it came
    await desk.rerate(caller("operator"), RerateAsk(from_ms=T0))
    whole = metered(open_store(), shelf)
    assert sum(row["cost"] for row in stored(meter.store)) == sum(
        row["cost"] for row in stored(whole.store)
    )
    assert checked(meter).ok


@engine
async def test_a_reversal_that_does_not_balance_is_found_by_verify(
    open_store: OpenStore, tmp_path: Path
) -> None:
    shelf = Shelf(r1=FIRST, r2=SECOND)
    meter = metered(open_store(), shelf)
    await counter(meter, shelf, tmp_path).rerate(caller("operator"), RerateAsk(from_ms=T0))
    meter.store.command(
        "ALTER TABLE slices UPDATE cost = cost + toDecimal64('0.000000001', 9) "
        "WHERE reverses != '' AND tenant = 'a' SETTINGS mutations_sync = 2"
    )
    [difference] = checked(meter).differences
    assert "reversed by correction" in difference.subject


@engine
async def test_a_rating_that_cannot_be_found_again_leaves_its_slice_as_it_is(
    open_store: OpenStore, tmp_path: Path
) -> None:
    gone = (model(rating("9", "7")), charges("2.00"), profile())
    shelf = Shelf(r1=FIRST, r2=SECOND, r3=gone)
    meter = metered(open_store(), shelf)
    shelf.revisions[1] = shelf.revisions[3]
    told = await counter(meter, shelf, tmp_path).rerate(caller("finance"), RerateAsk(from_ms=T0))
    assert (told.changed, told.unmatched) == (0, 3)


@engine
async def test_a_quote_names_each_model_of_the_fleet_the_cheapest_first(
    open_store: OpenStore, tmp_path: Path
) -> None:
    other = model(rating("0.5"), name="amd-mi210", vendor="amd", family="amd-mi200")
    shelf = Shelf(r1=FIRST, r2=(*SECOND, other, profile("hidden", public=False)))
    story = a_month(shelf).appear("g3", model="amd-mi210").tick()
    meter = begun(open_store(), story)
    meter.take(messages(story), 0)
    desk = counter(meter, shelf, tmp_path)
    told = await desk.quote(caller("a"), QuoteAsk(profile="train", cards=8, duration_ms=HOUR))
    assert [(o.model, o.cost, o.unit_hours) for o in told.offers] == [
        ("amd-mi210", Decimal("12.000000000"), "4.000000"),
        (MODEL, Decimal("30.000000000"), "10.000000"),
    ]
    for ask in (QuoteAsk(profile="hidden"), QuoteAsk(profile="no-such")):
        with pytest.raises(Refused) as refused:
            await desk.quote(caller("a"), ask)
        assert refused.value.code == Code.NOT_FOUND
    with pytest.raises(Refused):
        await desk.quote(caller("a"), QuoteAsk(workload_class="vision"))


def test_a_pool_of_others_is_not_in_a_quote() -> None:
    room = document("Pool", POOL, selector={}, tenants=["b"])
    catalog = Shelf(r1=(*FIRST, room)).revisions[1]
    ask = QuoteAsk(profile="train")
    with pytest.raises(Refused):
        offers(ask, wanted(ask, catalog, "a", T0), catalog, [(POOL, MODEL)])
    assert offers(ask, wanted(ask, catalog, "b", T0), catalog, [(POOL, MODEL)])


@settings(max_examples=150, deadline=None)
@given(
    cards=st.integers(1, 64),
    parts=st.integers(1, 1_000_000),
    start=st.integers(-2 * HOUR, 2 * HOUR),
    duration=st.integers(1, 5 * HOUR),
    amounts=st.lists(st.integers(0, 10**9), min_size=1, max_size=4),
    edges=st.lists(st.integers(-2 * HOUR, 6 * HOUR), min_size=4, max_size=4),
    per=st.sampled_from(("unit_hour", "card_hour")),
    value=st.integers(1, 5_000_000),
    nominal=st.one_of(st.none(), st.integers(1, 5_000_000)),
)
def test_an_estimate_is_what_is_charged(  # noqa: PLR0917
    cards: int, parts: int, start: int, duration: int, amounts: list[int], edges: list[int],
    per: str, value: int, nominal: int | None,
) -> None:  # fmt: skip
    """A quote for a stretch that lies in one hour equals the slices that the fold gives it."""
    lists = [
        charges(f"{amount / 10**6:.6f}", f"list-{n}", per, valid_from_ms=T0 + edge if n else 0)
        for n, (amount, edge) in enumerate(zip(amounts, edges, strict=False))
    ]
    more = {} if nominal is None else {"billing": "nominal", "nominal_units": nominal / 10**6}
    rated = model(rating(f"{value / 10**6:.6f}"))
    catalog = Shelf(r1=(rated, *lists, profile(**more))).revisions[1]
    ask = QuoteAsk(
        profile="train", cards=cards, parts=parts, duration_ms=duration, from_ms=T0 + start
    )
    [offer] = offers(ask, wanted(ask, catalog, "a", T0), catalog, [(POOL, MODEL)])
    micro = catalog.models[MODEL].ratings[0].micro
    devices = [card(f"g{n}", parts=parts, rating_micro=micro) for n in range(cards)]
    story = Story().at(start).node()
    for device in devices:
        story.appear(device.uuid)
    story.adopt(1, *(spec for _, spec in catalog.prices.items()))
    facts = {} if nominal is None else {"billing": "nominal", "nominal_micro": nominal}
    story.at(start).grant("l", *devices, bound=True, profile="train", **facts)
    story.at(start + duration).end("l").ended("l")
    slices = story.told().slices
    assert sum(row.quantity for row in slices) == cards * parts * micro * duration
    # One half-even rounding to 1e-9 a slice; a quote is one stretch where slices are cut by hour.
    assert abs(sum(row.cost for row in slices) - offer.cost) <= Decimal("1e-9") * len(slices)
    terms = Terms(
        "a", "train", POOL, MODEL, "train_llm", devices=cards, parts=parts,
        charged_micro=micro if nominal is None else nominal,
    )  # fmt: skip
    for row in slices:
        [one] = charge(terms, row.from_ms, row.to_ms, catalog.prices.items())
        assert row.cost == one.cost


def test_a_currency_without_cents_rounds_to_the_whole() -> None:
    assert rounded(Decimal("1234.5"), "JPY") == Decimal(1234)
    assert rounded(Decimal("0.005"), "EUR") == Decimal("0.00")
    assert minor_step("KWD") == Decimal("0.001")


def test_a_month_is_a_calendar_month_of_utc() -> None:
    assert month_span("2026-12") == (1_796_083_200_000, 1_798_761_600_000)
    assert month_span("2024-02")[1] - month_span("2024-02")[0] == 29 * 24 * HOUR


@engine
async def test_case_k10_a_dead_letter_is_tried_again_and_taken_where_it_can_be(
    open_store: OpenStore, tmp_path: Path
) -> None:
    meter = begun(open_store(), Story().tick())
    good = '{"node": "n1", "boot_id": "b", "sequence": 1, "at_ms": 1700000000000}'
    letters = {
        "id": ["1", "2", "3"], "stream": ["TELEMETRY", "TELEMETRY", "LEDGER"],
        "sequence": [4, 5, 6], "place": [-1, -1, 0], "at_ms": [3, 2, 1],
        "code": ["poison", "poison", "unmatched"], "message": ["newer", "torn", "no such lease"],
        "body": [good, "{", ""],
    }  # fmt: skip
    meter.store.insert("dead_letters", letters)
    desk = counter(meter, Shelf(r1=FIRST), tmp_path)
    shown = await desk.dead_letters(caller("finance"), DeadLettersAsk())
    assert (shown.waiting, [row.outcome for row in shown.rows]) == (3, ["", "", ""])
    tried = await desk.dead_letters(caller("operator"), DeadLettersAsk(retry=True))
    assert (tried.waiting, tried.taken) == (2, 1)
    assert [row.outcome.partition(":")[0] for row in tried.rows] == ["taken", "left", "left"]
    assert (await desk.dead_letters(caller("operator"), DeadLettersAsk())).waiting == 2
