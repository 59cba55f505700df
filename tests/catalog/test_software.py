"""Workloads and boundaries in the catalog: what is refused, who sees them, where things run."""

from __future__ import annotations

from decimal import Decimal

import pytest

from quintal.contracts.catalog import Fault
from quintal.contracts.documents import Catalog, Document
from quintal.contracts.nodes import Inventory, RawDevice, Stack
from quintal_catalog.fleet import places
from quintal_catalog.judging import Judgement
from quintal_catalog.portability import View, Work, can_run, fit, portability
from quintal_catalog.redaction import redact
from tests.catalog.given import NOW_MS, SMALL, catalog, document, judged

CARDS = """\
apiVersion: quintal/v1
kind: AcceleratorModel
metadata: {name: red-80gb}
spec:
  vendor: red
  family: red
  memory_bytes: 85899345920
  features: [bf16]
  runtime: redrun
  match: [{vendor: red, names: [Red]}]
  ratings: [{class: train_llm, value: 0.5, provenance: roofline}]
---
apiVersion: quintal/v1
kind: AcceleratorModel
metadata: {name: sea-80gb}
spec:
  vendor: sea
  family: sea
  memory_bytes: 85899345920
  features: [bf16, fp8]
  runtime: searun
  match: [{vendor: sea, names: [Sea]}]
  ratings: [{class: train_llm, value: 1.5, provenance: benchmark}]
---
apiVersion: quintal/v1
kind: Profile
metadata: {name: any}
spec: {class: train_llm, cards: 1..8}
---
apiVersion: quintal/v1
kind: Profile
metadata: {name: reds}
spec: {class: train_llm, accelerator: {vendors: [red]}, cards: 1..8}
---
apiVersion: quintal/v1
kind: Boundary
metadata: {name: red-floor}
spec:
  runtimes: [redrun]
  requires: [{component: driver, name: red, versions: ">=5"}]
  source: a table of Red's
---
apiVersion: quintal/v1
kind: Boundary
metadata: {name: sea-floor}
spec:
  runtimes: [searun]
  requires: [{component: driver, name: sea, versions: ">=2"}]
  source: a table of Sea's
---
apiVersion: quintal/v1
kind: Pool
metadata: {name: red}
spec: {selector: {vendors: [red]}}
---
apiVersion: quintal/v1
kind: Pool
metadata: {name: sea}
spec: {selector: {vendors: [sea]}, tenants: [green]}
"""

CHAT = """{
  profile: any, expected_unit_hours: 10,
  variants: [{name: red, runtime: redrun, runtime_version: "1.0", precision: bf16}],
  conversions: [{source: red, toolchain: red2sea, cost: 100, approved: true,
                 target: {name: sea, runtime: searun, runtime_version: "7.1", precision: bf16}}]}
"""


def whole(*more: str) -> Catalog:
    return catalog(SMALL + "---\n" + CARDS, *more)


def faults(judgement: Judgement, severity: str = "error") -> list[Fault]:
    return [fault for fault in judgement.faults if fault.severity == severity]


def work(spec: str, name: str = "w") -> str:
    return document("Workload", name, spec)


def inventory(node: str, vendor: str, name: str, driver: str, count: int = 2) -> Inventory:
    return Inventory(
        node=node,
        boot_id="b",
        sequence=1,
        at_ms=NOW_MS,
        stack=Stack(drivers={vendor: driver}),
        devices=tuple(
            RawDevice(uuid=f"{node}-{index}", index=index, vendor=vendor, name=name)
            for index in range(count)
        ),
    )


FLEET = (
    inventory("r1", "red", "Red", "5.1", count=4),
    inventory("r2", "red", "Red", "4.9", count=4),
    inventory("s1", "sea", "Sea", "2.0", count=4),
    inventory("x1", "new", "Never heard of", "1"),
)


def view(its: Catalog, tenant: str = "") -> View:
    return View(its, tenant, NOW_MS)


def named(its: Catalog, name: str = "w") -> Work:
    return Work(name, its.workloads[name])


# --- what is refused --------------------------------------------------------------------------


def test_case_b04_a_variant_of_another_vendor_than_its_profile_is_refused_as_contradictory() -> (
    None
):
    text = work("{profile: reds, variants: [{name: s, runtime: searun}]}")
    (fault,) = faults(judged(SMALL + "---\n" + CARDS, text))
    assert fault.field == "spec.variants.0.runtime"
    assert fault.line is not None
    assert "contradicts its profile 'reds'" in fault.message
    assert "they run redrun" in fault.message


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ("{profile: anny, variants: [{name: r, runtime: redrun}]}", "spec.profile", "mean 'any'?"),
        ("{profile: any, variants: []}", "spec", "needs a variant"),
        (
            "{profile: any, variants: [{name: r, runtime: redrun}, {name: r, runtime: redrun}]}",
            "spec",
            "r stands twice",
        ),
        (
            "{profile: any, variants: [{name: r, runtime: redrun, cards: 9}]}",
            "spec.variants.0.cards",
            "allows 1..8",
        ),
        (
            "{profile: any, tenants: [nobody], variants: [{name: r, runtime: redrun}]}",
            "spec.tenants.0",
            "no Tenant 'nobody'",
        ),
        (
            "{profile: any, variants: [{name: r, runtime: redrun, precison: bf16}]}",
            "spec.variants.0.precison",
            "did you mean 'precision'?",
        ),
    ],
)
def test_a_workload_that_cannot_be_meant_is_refused_with_its_place(
    spec: str, field: str, words: str
) -> None:
    found = faults(judged(SMALL + "---\n" + CARDS, work(spec)))
    assert [fault.field for fault in found] == [field]
    assert words in found[0].message


def test_a_variant_that_no_model_could_ever_run_is_a_warning_that_says_why() -> None:
    text = work("{profile: any, variants: [{name: r, runtime: redrun, precision: fp8}]}")
    (warning,) = faults(judged(SMALL + "---\n" + CARDS, text), "warning")
    assert "precision fp8 is not in red-80gb; would pass: bf16" in warning.message


def test_a_profile_or_model_that_others_name_is_not_deleted() -> None:
    its = whole(work(CHAT))
    (fault,) = faults(judged(over=its, delete=("Profile/any",)))
    assert "which this apply deletes" in fault.message


def test_a_boundary_speaks_of_models_that_there_are_and_of_no_tenant() -> None:
    wrong = document("Boundary", "b", "{models: [red-90gb], source: x}")
    (fault,) = faults(judged(SMALL + "---\n" + CARDS, wrong))
    assert fault.field == "spec.models.0"
    blamed = "{source: x, exclusions: [{modes: [m], reason: as green found out}]}"
    (fault,) = faults(judged(SMALL + "---\n" + CARDS, document("Boundary", "b", blamed)))
    assert fault.field == "spec.exclusions.0.reason"


def test_evidence_that_expired_and_runtimes_that_nothing_has_are_warnings() -> None:
    text = document("Boundary", "b", "{runtimes: [blue], source: x, expires: 2020-01-01}")
    found = faults(judged(SMALL + "---\n" + CARDS, text), "warning")
    assert {fault.field for fault in found} == {"spec.runtimes.0", "spec.expires"}


# --- who sees what ----------------------------------------------------------------------------


def one(its: Catalog, kind: str, name: str) -> Document:
    return its.documents[kind, name]


def test_a_tenant_sees_open_workloads_and_its_own_and_never_who_else_may() -> None:
    spec = CHAT.replace("profile: any,", "profile: any, tenants: [blue, green],")
    its = whole(work(CHAT, "open"), work(spec, "both"), work(spec.replace("blue, ", ""), "greens"))
    assert redact(one(its, "Workload", "open"), "blue", its) is not None
    assert redact(one(its, "Workload", "greens"), "blue", its) is None
    shown = redact(one(its, "Workload", "both"), "blue", its)
    assert shown is not None
    assert shown.spec.tenants == ("blue",)
    assert "green" not in shown.model_dump_json()


def test_a_tenant_sees_boundaries_without_what_was_tried_by_whom() -> None:
    spec = "{source: told by green, verdict: validated, evidence: [green ran it]}"
    its = whole(document("Boundary", "tried", spec))
    shown = redact(one(its, "Boundary", "tried"), "blue", its)
    assert shown is not None
    assert "green" not in shown.model_dump_json()


# --- where it runs ----------------------------------------------------------------------------


def test_devices_of_equal_software_share_a_place_and_unknown_ones_have_none() -> None:
    its = whole()
    found = places(its, (*FLEET, inventory("r3", "red", "Red", "5.1")))
    assert [(place.model, len(held.nodes), held.devices) for place, held in found.items()] == [
        ("red-80gb", 1, 4),
        ("red-80gb", 2, 6),
        ("sea-80gb", 1, 4),
    ]


def test_portability_parts_the_fleet_into_runs_after_conversion_and_no_with_reasons() -> None:
    its = whole(work(CHAT))
    found = portability(view(its), named(its), places(its, FLEET))
    assert [(row.outcome, row.model, *row.software.values()) for row in found.rows] == [
        ("runs", "red-80gb", "5.1"),
        ("after_conversion", "sea-80gb", "2.0"),
        ("no", "red-80gb", "4.9"),
    ]
    refused = found.rows[-1]
    assert refused.reason == "driver red 4.9 is not >=5"
    assert refused.passing == "driver red >=5"
    assert refused.owner == "infrastructure"


def test_the_lock_in_is_the_share_of_units_that_is_closed_and_not_of_cards() -> None:
    its = whole(work(CHAT))
    found = portability(view(its), named(its), places(its, FLEET))
    assert (found.units, found.units_open, found.units_after_conversion) == ("10", "2", "6")
    assert (found.open_percent, found.open_after_conversion_percent) == ("20.0", "80.0")
    assert found.ecosystems == ("redrun",)


def test_an_empty_fleet_has_no_share_rather_than_0() -> None:
    its = whole(work(CHAT))
    found = portability(view(its), named(its), {})
    assert (found.units, found.open_percent) == ("0", None)


def test_the_price_is_the_askers_own_and_a_conversion_adds_what_it_costs_once() -> None:
    its = whole(work(CHAT))
    everybody = portability(view(its), named(its), places(its, FLEET))
    assert everybody.rows[0].price_per_unit_hour == Decimal(2)
    assert everybody.rows[0].expected_cost == Decimal(20)
    assert everybody.rows[1].expected_cost == Decimal(120)
    assert everybody.rows[2].expected_cost is None
    greens = portability(view(its, "green"), named(its), places(its, FLEET))
    assert greens.rows[0].price_per_unit_hour == Decimal("1.5")


def test_a_price_by_the_card_is_told_per_unit() -> None:
    cards = document(
        "PriceList", "standard", "{currency: EUR, prices: [{amount: 3, per: card_hour}]}"
    )
    its = catalog(SMALL.replace("metadata: {name: standard}", "metadata: {name: older}").replace(
        "  currency: EUR", "  currency: EUR\n  valid_from_ms: 5"), CARDS, work(CHAT),
        cards.replace("{currency", "{valid_from_ms: 9, currency"),
    )  # fmt: skip
    found = portability(view(its), named(its), places(its, FLEET))
    assert found.rows[0].price_per_unit_hour == Decimal(6), "half a unit for 3"


def test_a_conversion_that_nobody_approved_does_not_count() -> None:
    its = whole(work(CHAT.replace("approved: true", "approved: false")))
    found = portability(view(its), named(its), places(its, FLEET))
    row = next(row for row in found.rows if row.model == "sea-80gb")
    assert row.outcome == "no"
    assert "red2sea is not approved" in row.reason


def test_check_says_of_each_variant_on_each_place_what_fails_and_what_would_pass() -> None:
    its = whole(work(CHAT))
    found = fit(view(its), named(its), places(its, FLEET[1:2]))
    assert not found.runs
    (row,) = found.rows
    assert (row.verdict, row.bound, row.boundary) == (
        "blocked", "driver red 4.9 is not >=5", "red-floor",
    )  # fmt: skip
    assert row.nodes == ("r2",)
    assert fit(view(its), named(its), places(its, FLEET[:1])).runs


def test_can_run_gives_the_best_variant_of_every_workload() -> None:
    two = """{profile: any, variants: [
      {name: blocked, runtime: redrun, runtime_version: "1", precision: fp8},
      {name: good, runtime: redrun, runtime_version: "1", precision: bf16}]}"""
    its = whole(work(CHAT, "a"), work(two, "b"))
    works = [named(its, "a"), named(its, "b")]
    rows = list(can_run(view(its), works, places(its, FLEET[:1])))
    assert [(row.workload, row.variant, row.accepted) for row in rows] == [
        ("a", "red", True),
        ("b", "good", True),
    ]
