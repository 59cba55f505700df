"""Cards into units: exact, with a band, and never from one class into another."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from quintal.conversion import Term, Total, cards_in, other_class, terms, two_digits


def test_terms_are_read_as_people_write_them() -> None:
    assert terms("16 nvidia-a100-sxm4-80gb + 8 x nvidia-l4-24gb + 2.5 STU") == (
        Term(Decimal(16), "nvidia-a100-sxm4-80gb"),
        Term(Decimal(8), "nvidia-l4-24gb"),
        Term(Decimal("2.5"), "STU"),
    )
    assert terms("2 x xeon") == (Term(Decimal(2), "xeon"),)
    assert terms("2 xeon") == (Term(Decimal(2), "xeon"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no term"),
        ("nvidia-l4-24gb", "is no term"),
        ("3 a + ", "is no term"),
        ("-3 a", "is no term"),
        ("1.5 nvidia-l4-24gb", "cards are counted whole"),
    ],
)
def test_what_is_no_term_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        terms(text)


def test_units_of_one_class_are_worth_nothing_in_another() -> None:
    why = other_class(Term(Decimal(3), "STU"), "llm_large")
    assert why is not None
    assert "STU does not convert to SIU" in why
    assert other_class(Term(Decimal(3), "stu"), "train_llm") is None
    assert other_class(Term(Decimal(3), "nvidia-l4-24gb"), "llm_large") is None


counted = st.tuples(st.integers(1, 10**6), st.integers(1, 10**7), st.booleans())


@given(st.lists(counted, max_size=20))
def test_a_sum_is_exact_whatever_its_order(items: list[tuple[int, int, bool]]) -> None:
    def total(some: list[tuple[int, int, bool]]) -> Total:
        made = Total("train_llm")
        for count, micro, estimated in some:
            made = made.plus(count * micro, count * micro, count * micro, estimated=estimated)
        return made

    one, other = total(items), total(items[::-1])
    assert one == other
    assert one.micro == sum(count * micro for count, micro, _ in items)
    assert one.estimated <= one.micro
    assert 0 <= one.estimated_percent <= 100


def test_a_total_says_its_band_and_how_much_of_it_is_estimated() -> None:
    total = Total("train_llm").plus(5_040_000, 4_700_000, 5_400_000, estimated=False)
    assert total.words() == "5.04 STU (4.7 - 5.4)"
    more = total.plus(100_000, 50_000, 200_000, estimated=True)
    assert more.words() == "5.14 STU (4.75 - 5.6, 2 % estimated)"


def test_how_many_whole_cards_a_quota_admits() -> None:
    assert cards_in(10_000_000, 459_600) == 21
    assert cards_in(10_000_000, 10_000_001) == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [("0.4596", "0.46"), ("0.0086", "0.0086"), ("1.194", "1.2"), ("12.34", "12"), ("0", "0")],
)
def test_an_estimate_is_read_with_two_digits(value: str, text: str) -> None:
    assert two_digits(Decimal(value)) == text
