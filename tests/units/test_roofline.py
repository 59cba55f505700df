"""The formula by hand on small cases, and what it says of itself."""

from __future__ import annotations

from decimal import Decimal

import pytest

from quintal.roofline import CLASSES, ERRORS, Figures, estimate
from quintal.units import CLASSES as ALL_CLASSES

H100 = Figures(
    tflops={"bf16": Decimal("989.4"), "fp8": Decimal("1978.9"), "fp64": Decimal("33.5")},
    bandwidth_gbs=Decimal(3350),
    interconnect_gbs=Decimal(900),
    watts=Decimal(700),
    confidence="A",
)


def half(**more: object) -> Figures:
    """A card with half of everything, as given."""
    given: dict[str, object] = {
        "tflops": {"bf16": Decimal("494.7"), "fp8": Decimal("989.45")},
        "bandwidth_gbs": Decimal(1675),
        "interconnect_gbs": Decimal(450),
        "watts": Decimal(350),
        "confidence": "A",
    }
    return Figures(**{**given, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("workload_class", CLASSES)
def test_the_reference_card_is_one_by_the_formula_too(workload_class: str) -> None:
    found = estimate(H100, workload_class)
    assert found is not None
    assert found.value == 1
    assert found.low80 < 1 < found.high80


def test_every_class_has_a_formula() -> None:
    assert set(CLASSES) == set(ALL_CLASSES)


@pytest.mark.parametrize(
    ("workload_class", "value"),
    [
        ("llm_small", "0.5"),
        ("llm_decode", "0.5"),
        ("train_other", "0.5"),  # 0.5^0.45 x 0.5^0.55
        ("vision", "0.5"),
        ("train_llm", "0.406126"),  # 0.5 x 0.5^0.3 = 0.5 x 0.812252
        ("llm_large", "0.341510"),  # 0.5^(0.7 + 0.1 + 0.75)
    ],
)
def test_half_a_card_by_hand(workload_class: str, value: str) -> None:
    found = estimate(half(), workload_class)
    assert found is not None
    assert found.value == Decimal(value)


def test_a_card_with_few_watts_does_not_hold_its_peak() -> None:
    starved = half(
        tflops={"bf16": Decimal("989.4")}, watts=Decimal(175), bandwidth_gbs=Decimal(3350)
    )
    found = estimate(starved, "llm_small")
    assert found is not None
    assert found.value == Decimal("0.5")  # 1 x (0.25 / 1)^0.5
    whole = {"bf16": Decimal("989.4")}
    unknown = estimate(half(tflops=whole, watts=None, bandwidth_gbs=Decimal(3350)), "llm_small")
    assert unknown is not None
    assert unknown.value == Decimal(1), "what is not known is not held against it"


def test_another_ecosystem_is_rated_lower_in_the_llm_classes_and_less_surely_in_all() -> None:
    for workload_class, factor in (("train_llm", "0.8"), ("llm_large", "0.8"), ("vision", "1")):
        own, other = estimate(half(), workload_class), estimate(half(cuda=False), workload_class)
        assert own is not None
        assert other is not None
        assert abs(other.value - own.value * Decimal(factor)) <= Decimal("0.000001")
        assert other.high80 / other.value > own.high80 / own.value


def test_outside_of_the_fitted_cards_the_band_covers_formula_and_bandwidth() -> None:
    """Like H20: little compute, much bandwidth."""
    lopsided = half(tflops={"bf16": Decimal(148)}, bandwidth_gbs=Decimal(4000), watts=Decimal(400))
    found = estimate(lopsided, "llm_large")
    assert found is not None
    assert found.outside
    assert found.low80 < found.value < Decimal(4000) / 3350 < found.high80
    assert "measure before you bill" in found.evidence
    trained = estimate(lopsided, "train_llm")
    assert trained is not None
    assert trained.outside
    assert abs(trained.high80 / trained.value - Decimal("1.26") * Decimal("1.3")) < Decimal("0.001")


def test_where_the_formula_is_no_better_than_tflops_it_says_so() -> None:
    assert ERRORS["llm_small"].no_better_than_tflops
    small, train = estimate(half(), "llm_small"), estimate(half(), "train_llm")
    assert small is not None
    assert train is not None
    assert "no better than the ratio of TFLOPS" in small.evidence
    assert "no better" not in train.evidence
    foreign = estimate(half(cuda=False), "llm_large")
    assert foreign is not None
    assert "no better than the ratio of TFLOPS" in foreign.evidence


def test_a_figure_that_is_missing_gives_no_estimate_and_not_a_low_one() -> None:
    bare = Figures(tflops={}, confidence="A")
    assert [estimate(bare, name) for name in CLASSES] == [None] * len(CLASSES)
    assert estimate(half(bandwidth_gbs=None), "train_other") is None
    assert estimate(half(), "scientific") is None
