"""A reckoning that imports nothing of quintal comes to the same: every slice, every idle part."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import tempfile
from collections import Counter
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from quintal.contracts import ledger
from quintal.contracts.documents import Price, PriceListSpec
from quintal_metering.billing import cut
from quintal_metering.rows import CapacityRow, SliceRow
from tests.metering.histories import steps, written
from tests.metering.story import HOUR, STU, Story, Told, card, price_list

INDEPENDENT = Path(__file__).parents[1] / "independent"
LINES_MAX = 120


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"independent_{name}", INDEPENDENT / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sys.path.insert(0, str(INDEPENDENT))
reckoning = script("reckoning")
slices = script("slices")
sys.path.remove(str(INDEPENDENT))


def on_the_wire(story: Story) -> tuple[list[Any], dict[int, Any]]:
    """Ledger and prices as plain JSON: all that the two sides share."""
    groups = [json.loads(group.model_dump_json(by_alias=True)) for group in story.groups]
    prices = {
        revision: {name: json.loads(spec.model_dump_json(by_alias=True)) for name, spec in lists}
        for revision, lists in story.prices.items()
    }
    return groups, prices


def slice_sums(rows: list[SliceRow]) -> dict[tuple[Any, ...], list[Any]]:
    """Stored and open slices, adjustments taken away, by what makes a slice one."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    starts: dict[tuple[Any, ...], list[tuple[int, int]]] = {}

    def names(row: SliceRow) -> tuple[Any, ...]:
        group = (row.vendor, row.model, row.pool, row.parts, row.rating_micro)
        return (row.lease, row.tenant, *group, row.home_pool, row.home_model, row.revision)

    for row in rows:
        if row.kind == "usage":
            starts.setdefault(names(row), []).append((row.from_ms, row.to_ms))
    for row in rows:
        start = next(a for a, b in starts[names(row)] if a <= row.from_ms < b)
        key = (*names(row)[:-1], start, row.revision, row.price_list, row.currency)
        sums = found.setdefault(key, [0, 0, Decimal(0)])
        for place, value in enumerate((row.quantity, row.part_ms, row.cost)):
            sums[place] += value
    return {key: sums for key, sums in found.items() if any(sums)}


def told_slices(story: Story, told: Told) -> dict[tuple[Any, ...], list[Any]]:
    rows = list(told.slices)
    for lease in told.state.leases.values():
        if lease.state == "bound":
            rows += cut(lease, (lease.billed_ms, told.state.at_ms), story.prices, 0)
    return slice_sums(rows)


def closed(capacity: dict[Any, int], until: int) -> dict[Any, int]:
    return {key: n for key, n in capacity.items() if key[2] + HOUR <= until}


def told_capacity(told: Told) -> dict[Any, int]:
    found: Counter[Any] = Counter()
    for row in told.rows:
        if isinstance(row, CapacityRow) and row.reason != "total":
            found[row.pool, row.model, row.hour_ms, row.reason] += row.part_ms
    return {key: n for key, n in found.items() if n}


def assert_equal(story: Story) -> int:
    told = story.told()
    reckoned, capacity = reckoning.reckon(*on_the_wire(story))
    assert reckoned == told_slices(story, told)
    assert closed(capacity, story.now) == told_capacity(told)
    return len(reckoned)


def assert_the_store_is_equal(url: str, database: str, story: Story) -> None:
    """The script itself reads the store, over ClickHouse's own interface."""
    with tempfile.NamedTemporaryFile() as token:
        place = {"url": url, "database": database, "token_file": token.name}
        off, compared = slices.differing(*on_the_wire(story), place, len(story.groups))
        assert off == [], compared
        assert not compared.startswith("0 ")


@given(steps, st.lists(st.integers(0, 3_000_000), min_size=3, max_size=3))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.laws
def test_generated_ledgers_come_to_the_same_to_the_last_residue(
    drawn: list[tuple[int, str, int]], amounts: list[int]
) -> None:
    story = written(drawn)
    for revision in story.prices:
        if revision:
            amount = Decimal(amounts[revision % 3]).scaleb(-6)
            edge = story.groups[0].transitions[0].at_ms + 1_234_567 * revision
            price = Price(amount=amount + 1, per="card_hour")
            later = PriceListSpec(currency="EUR", valid_from_ms=edge, prices=(price,))
            story.prices[revision] = (("base", price_list(str(amount))), ("later", later))
    assert_equal(story)


def an_hour_that_holds_everything() -> Story:
    """A change of price, rating, quota, partition, and a lost node, all within one hour."""
    story = Story().node().node("n2").appear("g1").appear("g2").appear("h1", "n2")
    story.adopt(1, price_list("2.000001"), price_list("2.5", from_ms=story.now + 600_007))
    story.grant("l1", card("g1"), card("g2"), bound=True, tenant="a").at(300_001)
    story.grant("l2", card("h1", "n2"), bound=True, tenant="b")
    # A new rating, and a quota that is another document of the same revision.
    story.at(1_200_011).adopt(2, price_list("1.999999", "card_hour"))
    story.at(1_800_017).end("l1").ended("l1")
    # The first card is cut in two: the whole one goes, two parts with models of their own come.
    story.tell(ledger.DeviceGone(at_ms=story.now, node="n1", uuid="g1"))
    story.appear("g1a", model="nvidia-h100-3g").appear("g1b", model="nvidia-h100-4g")
    part = card("g1a", model="nvidia-h100-3g", rating_micro=STU * 3 // 7)
    story.at(2_000_003).grant("l4", part, bound=True, tenant="a", profile="train")
    story.at(2_400_000).tell(
        ledger.LivenessChanged(
            at_ms=story.now, node="n2", liveness="lost", heard_ms=story.now - 60_000
        )
    )
    story.end("l2", 2_339_999, "node_lost").at(2_500_000).ended("l2")
    return story.at(HOUR + 1).tick()


def test_one_hour_with_all_changes_in_it_comes_to_the_same() -> None:
    story = an_hour_that_holds_everything()
    assert assert_equal(story) >= 5
    reckoned, _ = reckoning.reckon(*on_the_wire(story))
    assert {key[11] for key in reckoned} == {"list-0", "list-1"}


@pytest.mark.parametrize("name", ["inventory", "reckoning", "recompute", "slices", "tariff"])
def test_the_scripts_are_short_and_import_nothing_of_quintal(name: str) -> None:
    text = (INDEPENDENT / f"{name}.py").read_text()
    assert len(text.splitlines()) <= LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            assert all(not one.name.startswith("quintal") for one in node.names)
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("quintal")
