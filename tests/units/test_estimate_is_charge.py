"""A quote of a stretch is what its slices cost, however it is cut: one function says both."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

from hypothesis import given, strategies as st

from quintal.contracts.documents import PriceListSpec
from quintal.pricing import Terms, charge

HALF_STEP = Decimal("0.0000000005")
HOUR = 3_600_000

prices = st.fixed_dictionaries(
    {
        "amount": st.decimals(0, 10_000, places=6),
        "per": st.sampled_from(["unit_hour", "card_hour"]),
    }
)
edges = st.lists(st.integers(1, 100 * HOUR), max_size=3, unique=True).map(sorted)
cuts = st.lists(st.integers(1, 100 * HOUR - 1), max_size=12, unique=True).map(sorted)
terms = st.builds(
    Terms,
    tenant=st.just("t"),
    profile=st.just("p"),
    pool=st.just("q"),
    model=st.just("m"),
    workload_class=st.just("train_llm"),
    devices=st.integers(1, 4_000),
    parts=st.integers(1, 1_000_000),
    charged_micro=st.integers(1, 5_000_000),
    charged_parts=st.none() | st.integers(1, 1_000_000),
)


def lists(begins: list[int], amounts: list[dict[str, Any]]) -> list[tuple[str, PriceListSpec]]:
    """One list after the other: at each instant at most one is in force."""
    ends: list[int | None] = [*begins[1:], None]
    return [
        (
            f"l{index}",
            PriceListSpec.model_validate(
                {"currency": "EUR", "valid_from_ms": start, "valid_to_ms": end, "prices": [price]}
            ),
        )
        for index, (start, end, price) in enumerate(zip(begins, ends, amounts, strict=False))
    ]


@given(terms, edges, st.lists(prices, min_size=3, max_size=3), cuts)
def test_the_quote_of_a_stretch_is_the_sum_of_its_slices_to_half_a_step_each(
    what: Terms, begins: list[int], amounts: list[dict[str, Any]], at: list[int]
) -> None:
    shelf = lists(begins, amounts)
    quoted = charge(what, 0, 100 * HOUR, shelf)
    slices = [
        one
        for start, end in itertools.pairwise([0, *at, 100 * HOUR])
        for one in charge(what, start, end, shelf)
    ]
    assert sum(one.to_ms - one.from_ms for one in slices) == 100 * HOUR
    difference = sum((one.cost for one in quoted), Decimal(0)) - sum(
        (one.cost for one in slices), Decimal(0)
    )
    assert abs(difference) <= HALF_STEP * (len(quoted) + len(slices))


@given(terms, prices, cuts)
def test_a_stretch_that_is_not_cut_is_quoted_and_charged_to_the_last_digit(
    what: Terms, price: dict[str, Any], at: list[int]
) -> None:
    shelf = lists([0], [price])
    for start, end in itertools.pairwise([0, *at, 100 * HOUR]):
        assert charge(what, start, end, shelf) == charge(what, start, end, list(reversed(shelf)))
        (one,) = charge(what, start, end, shelf)
        assert one.cost == one.cost.quantize(Decimal("0.000000001"))
        assert one.cost >= 0
