"""Ratings that a site adds, layouts, energy, cohorts, commitments: what is refused, what is odd."""

from __future__ import annotations

from decimal import Decimal

import pytest

from quintal.contracts.catalog import Fault
from tests.catalog.given import SMALL, catalog, document, judged

RATING = "{{class: {cls}, value: {value}, provenance: {by}, evidence: e}}"


def rating(value: str, by: str, cls: str = "train_llm") -> str:
    return RATING.format(cls=cls, value=value, by=by)


def site(name: str, *ratings: str, model: str = "big-80gb") -> str:
    return document("Rating", name, f"{{model: {model}, ratings: [{', '.join(ratings)}]}}")


def faults(*texts: str) -> list[Fault]:
    return [fault for fault in judged(SMALL, *texts).faults if fault.severity == "error"]


def test_what_was_measured_here_stands_before_the_benchmark_and_an_override_before_both() -> None:
    made = catalog(SMALL, site("here", rating("0.5", "measured")))
    found = made.rating("big-80gb", "train_llm")
    assert found is not None
    assert (found.value, found.provenance) == (Decimal("0.5"), "measured")
    over = catalog(SMALL, site("here", rating("0.5", "measured"), rating("0.1", "operator")))
    found = over.rating("big-80gb", "train_llm")
    assert found is not None
    assert (found.value, found.provenance) == (Decimal("0.1"), "operator")


def test_a_class_that_only_the_site_rates_makes_the_card_grantable_in_it() -> None:
    assert catalog(SMALL).rating("big-80gb", "vision") is None
    made = catalog(SMALL, site("here", rating("0.5", "operator", "vision")))
    assert made.rating("big-80gb", "vision") is not None


@pytest.mark.parametrize(
    ("texts", "field", "words"),
    [
        ([site("a", rating("1", "measured"), model="big-80")],
         "spec.model", "did you mean 'big-80gb'"),
        ([site("a", rating("1", "benchmark"))], "spec.ratings.0", "big-80gb has a benchmark"),
        ([site("a", rating("1", "measured")), site("b", rating("2", "measured"))],
         "spec.ratings.0", "Rating/a has a measured rating"),
        ([site("a", rating("0", "operator"))], "spec.ratings.0.value", "above 0"),
        ([document("EnergyProfile", "w", "{model: big-80gb, watts: 300, idle_watts: 400}")],
         "spec.idle_watts", "more than under load"),
        ([document("EnergyProfile", "v", "{model: big-80gb, watts: 300}"),
          document("EnergyProfile", "w", "{model: big-80gb, watts: 310}")],
         "spec.model", "EnergyProfile 'v' says it"),
        ([document("Cohort", "c", "{class: train_llm, members: [{tenant: blue}, {tenant: blue}]}")],
         "spec.members.1.tenant", "is a member already"),
        ([document("Cohort", "c", "{class: train_llm, members: [{tenant: blue}, {tenant: red}]}")],
         "spec.members.1.tenant", "there is no Tenant 'red'"),
        ([document("Commitment", "c", "{tenant: green, class: train_llm, units: 1}")],
         "spec.tenant", "default deny"),
        ([document("Commitment", "c", "{tenant: blue, class: train_llm, units: 9}")],
         "spec.units", "above the tenant's cap of 8"),
        ([document("Commitment", "c", "{tenant: blue, class: train_llm, cards: 2, model: nope}")],
         "spec.model", "there is no AcceleratorModel 'nope'"),
        ([document("Commitment", "c", "{tenant: blue, class: train_llm, cards: 2}")],
         "spec", "a commitment in cards names its model"),
    ],
)  # fmt: skip
def test_a_contradiction_is_an_error_by_its_field(texts: list[str], field: str, words: str) -> None:
    found = [(fault.field, fault.message) for fault in faults(*texts)]
    assert any(its == field and words in message for its, message in found), found


def test_what_is_not_counted_yet_is_said_so() -> None:
    floor = document("Commitment", "c", "{tenant: blue, class: train_llm, units: 4}")
    judgement = judged(SMALL, floor)
    assert judgement.ok
    assert [w.message for w in judgement.warnings] == [
        "is kept and checked; this version does not count it at placement yet"
    ]


def test_only_a_budget_in_a_class_without_a_cap_is_warned_of() -> None:
    def warned(budgets: str) -> list[tuple[str, str]]:
        text = document(
            "Quota", "green",
            f"{{tenant: green, caps: [{{class: train_llm, units: 1}}], budgets: [{budgets}]}}",
        )  # fmt: skip
        judgement = judged(SMALL, text)
        assert judgement.ok
        return [(w.field, w.message) for w in judgement.warnings]

    assert warned("{class: train_llm, unit_hours: 9}") == []
    assert warned("{class: train_llm, unit_hours: 9, on_exceed: warn}") == []
    assert warned("{class: vision, unit_hours: 9}") == [
        ("spec.budgets.0.class", "the quota has no cap in vision: nothing is granted in it")
    ]


def test_a_case_l05_floor_of_cards_within_the_cap_is_kept() -> None:
    floor = document(
        "Commitment", "c", "{tenant: blue, class: train_llm, cards: 2, model: big-80gb}"
    )
    assert judged(SMALL, floor).ok


LAYOUT = """\
---
apiVersion: quintal/v1
kind: AcceleratorModel
metadata: {{name: cut}}
spec:
  vendor: acme
  family: acme-cut
  memory_bytes: 8
  memory_slices: 8
  partitions:
  - {{name: one, parts: 125000, memory_bytes: 1, count_max: 7,
      placements: [0, 1, 2, 3, 4, 5, 6], memory_slices: 1}}
  - {{name: half, parts: 500000, memory_bytes: 4, count_max: 2,
      placements: [0, 4], memory_slices: 4}}
  - {{name: mid, parts: 500000, memory_bytes: 4, placements: [2], memory_slices: 4}}
  layouts:
  - {{name: l, shapes: {shapes}, overhead_parts: {left}}}
"""


@pytest.mark.parametrize(
    ("shapes", "left", "message"),
    [
        ("{one: 7}", 125_000, ""),
        ("{half: 1, one: 3}", 125_000, ""),
        ("{one: 7}", 0, "875000 parts and 0 left over are not 1000000"),
        ("{one: 8}", 0, "8 x one: at most 7"),
        ("{half: 1, one: 4}", 0, ""),
        ("{mid: 1, one: 4}", 0, "these do not fit side by side"),
        ("{two: 1}", 0, "there is no partition 'two'"),
    ],
)
def test_a_layout_is_a_whole_card_that_can_be_cut_so(shapes: str, left: int, message: str) -> None:
    found = [fault.message for fault in faults(LAYOUT.format(shapes=shapes, left=left))]
    assert found == ([message] if message else [])


def test_a_class_to_be_estimated_is_rated_by_formula_and_says_so() -> None:
    text = document(
        "AcceleratorModel", "new-64gb",
        "{vendor: newco, family: newco-new, memory_bytes: 68719476736, runtime: newrt, "
        "memory_bandwidth_gbs: 1600, tdp_watts: 400, tflops: {bf16: 400, fp8: 800}, "
        "estimate: [train_llm, vision]}",
    )  # fmt: skip
    made = catalog(SMALL, text)
    for workload_class in ("train_llm", "vision"):
        found = made.rating("new-64gb", workload_class)
        assert found is not None
        assert found.provenance == "roofline"
        assert "not measured" in found.evidence
    assert made.rating("new-64gb", "llm_small") is None, "nobody asked for it"
    own = text.replace("estimate:", "ratings: [" + rating("0.9", "operator") + "], estimate:")
    found = catalog(SMALL, own).rating("new-64gb", "train_llm")
    assert found is not None
    assert found.provenance == "operator", "the formula stands only where nothing better does"


def test_an_estimate_without_figures_is_refused_with_what_is_missing() -> None:
    text = document("AcceleratorModel", "new", "{vendor: n, family: f, estimate: [vision]}")
    (fault,) = faults(text)
    assert "estimate vision: give tflops" in fault.message


def test_units_per_watt_rest_on_what_was_measured_here_before_the_nominal_power() -> None:
    text = SMALL.replace("  family: acme-big\n", "  family: acme-big\n  tdp_watts: 700\n")
    assert catalog(text).watts("big-80gb") == (Decimal(700), "nominal power of the model")
    watts = document("EnergyProfile", "w", "{model: big-80gb, watts: 520, evidence: 8 cards}")
    trained = document("EnergyProfile", "t", "{model: big-80gb, class: train_llm, watts: 610}")
    made = catalog(text, watts, trained)
    assert made.watts("big-80gb", "vision") == (Decimal(520), "8 cards")
    assert made.watts("big-80gb", "train_llm") == (Decimal(610), "measured here")
    assert catalog(SMALL).watts("big-80gb") is None
