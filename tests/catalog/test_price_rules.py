"""Prices against the calendar: no gap, no overlap, and what was in force stays as it was."""

from __future__ import annotations

import pytest

from quintal.contracts.documents import Catalog
from tests.catalog.given import NOW_MS, SMALL, SMALL_CATALOG, catalog, document, judged

DAY = 86_400_000
T = NOW_MS + DAY

STANDARD = SMALL.split("metadata: {name: standard}\n")[1].split("---")[0]


def prices(
    name: str, start: int, end: int | None = None, *, more: str = "", amount: str = "3"
) -> str:
    until = f", valid_to_ms: {end}" if end is not None else ""
    return document(
        "PriceList", name,
        f"{{currency: EUR, valid_from_ms: {start}{until}{more}, prices: "
        f"[{{amount: {amount}, per: unit_hour, class: train_llm}}]}}",
    )  # fmt: skip


def errors(*texts: str, over: Catalog = SMALL_CATALOG) -> list[tuple[str, str]]:
    return [
        (f.document, f.message) for f in judged(*texts, over=over).faults if f.severity == "error"
    ]


ENDED = catalog(SMALL.replace("  currency: EUR", f"  currency: EUR\n  valid_to_ms: {T}"))


def test_a_list_that_follows_the_other_to_the_instant_is_applied() -> None:
    assert errors(prices("next", T), over=ENDED) == []


def test_a_list_with_an_end_and_its_successor_can_come_in_one_apply() -> None:
    ended = document("PriceList", "standard", "{}").replace(
        "spec: {}", "spec:\n" + STANDARD.removeprefix("spec:\n").rstrip() + f"\n  valid_to_ms: {T}"
    )
    assert errors(ended, prices("next", T)) == []


def test_an_overlap_is_refused_and_the_way_out_is_named() -> None:
    ((name, message),) = errors(prices("next", T))
    assert name == "PriceList/next"
    assert message == (
        "overlaps PriceList 'standard', which has no end and has a price for class train_llm too: "
        f"end it with valid_to_ms: {T}"
    )


def test_a_gap_is_refused_and_told_to_the_instant() -> None:
    ((name, message),) = errors(prices("next", T + 1), over=ENDED)
    assert name == "PriceList/next"
    assert message == (
        f"leaves a gap: PriceList 'standard' has the price for class train_llm until {T}, "
        f"and this one begins at {T + 1}"
    )


def test_lists_of_another_type_or_for_other_use_stand_beside() -> None:
    cost = prices("own", 0).replace("{currency", "{type: cost, currency")
    assert errors(cost) == []
    other = prices("vision", T).replace("class: train_llm", "class: vision")
    assert errors(other) == []


def test_an_entry_that_never_applies_is_refused() -> None:
    twice = prices("vision", T).replace(
        "[{amount: 3, per: unit_hour, class: train_llm}]",
        "[{amount: 3, per: unit_hour, class: vision}, {amount: 4, per: card_hour, class: vision}]",
    )
    ((_, message),) = errors(twice)
    assert message == "never applies: prices.0 holds for the same and stands before it"


@pytest.mark.parametrize("start", [0, NOW_MS - 1, NOW_MS])
def test_a_new_list_begins_after_the_apply(start: int) -> None:
    vision = prices("vision", start + 1 if start == 0 else start)
    vision = vision.replace("class: train_llm", "class: vision")
    ((name, message),) = errors(vision)
    assert name == "PriceList/vision"
    assert "before this apply" in message


def test_the_very_first_list_of_a_type_may_have_begun_whenever_it_likes() -> None:
    assert errors(SMALL, over=Catalog()) == []


def test_a_price_in_force_is_not_changed_but_ended() -> None:
    changed = SMALL.replace("amount: 2,", "amount: 2.5,")
    ((_, message),) = errors(changed)
    assert message.startswith("is in force: end it with valid_to_ms and begin a new list there")
    ended = SMALL.replace("  currency: EUR", f"  currency: EUR\n  valid_to_ms: {T}")
    assert errors(ended) == []


def test_an_end_that_is_past_is_not_moved() -> None:
    past = SMALL.replace("  currency: EUR", f"  currency: EUR\n  valid_to_ms: {NOW_MS - 1}")
    ((_, message),) = errors(past)
    assert message == f"moves an end that lies before this apply ({NOW_MS})"
    over = catalog(past)
    assert [m for _, m in errors(SMALL, over=over)] == [message]


def test_a_price_still_to_come_may_be_changed_at_will() -> None:
    over = catalog(
        SMALL.replace("  currency: EUR", f"  currency: EUR\n  valid_to_ms: {T}"), prices("next", T)
    )
    assert errors(prices("next", T, amount="4"), over=over) == []


def test_a_correction_of_the_past_calls_itself_one_and_is_a_warning() -> None:
    corrected = SMALL.replace("amount: 2,", "amount: 2.5,").replace(
        "  currency: EUR", "  currency: EUR\n  retroactive: true"
    )
    judgement = judged(corrected, over=SMALL_CATALOG)
    assert judgement.ok
    (warning,) = judgement.warnings
    assert warning.message == (
        "is retroactive: metered rows keep their price until they are rerated"
    )
