"""A set of documents is judged as a whole: every fault at once, with its file, line and field."""

from __future__ import annotations

import pytest

from quintal.contracts.catalog import Fault
from quintal_catalog.judging import judge
from tests.catalog.given import NOW_MS, SMALL, SMALL_CATALOG, document, file, judged


def faults(*texts: str, severity: str = "error") -> list[Fault]:
    return [f for f in judged(SMALL, *texts).faults if f.severity == severity]


def test_the_small_catalog_has_no_fault_at_all() -> None:
    assert judged(SMALL).faults == ()


def test_every_fault_of_a_set_is_told_at_once_with_file_line_and_a_near_name() -> None:
    text = """\
apiVersion: quintal/v1
kind: AcceleratorModel
metadata: {name: x}
spec:
  vendor: acme
  familly: foo
  family: 3
  ratings:
  - class: train_lm
    value: 0.1234567
    provenance: benchmark
    provenence: x
---
kind: Profil
---
apiVersion: quintal/v2
kind: Quota
metadata: {name: a, lable: b}
spec: {tenant: green, caps: [{units: 1}]}
"""
    judgement = judge(SMALL_CATALOG, (file(text, "bad.yaml"),), (), NOW_MS)
    told = [(f.file, f.line, f.document, f.field, f.message) for f in judgement.faults]
    assert told == [
        ("bad.yaml", 6, "AcceleratorModel/x", "spec.familly",
         "no such field; did you mean 'family'?"),
        ("bad.yaml", 7, "AcceleratorModel/x", "spec.family", "Input should be a valid string"),
        ("bad.yaml", 9, "AcceleratorModel/x", "spec.ratings.0.class",
         ("Input should be 'train_llm', 'train_other', 'llm_large', 'llm_small', 'llm_decode', "
         "'vision' or 'scientific'; did you mean 'train_llm'?")),
        ("bad.yaml", 10, "AcceleratorModel/x", "spec.ratings.0.value",
         "Decimal input should have no more than 6 decimal places"),
        ("bad.yaml", 12, "AcceleratorModel/x", "spec.ratings.0.provenence",
         "no such field; did you mean 'provenance'?"),
        ("bad.yaml", 14, "", "", "apiVersion is missing"),
        ("bad.yaml", 14, "", "", "metadata is missing"),
        ("bad.yaml", 14, "", "", "spec is missing"),
        ("bad.yaml", 14, "", "kind", "kind 'Profil' is not known; did you mean 'Profile'?"),
        ("bad.yaml", 16, "", "apiVersion", "apiVersion is quintal/v1, not 'quintal/v2'"),
        ("bad.yaml", 18, "Quota/a", "metadata.lable", "no such field; did you mean 'labels'?"),
        ("bad.yaml", 19, "Quota/a", "spec.caps.0", "a cap in units names its class"),
    ]  # fmt: skip
    assert judgement.changes == ()


def test_a_fault_hides_no_other_and_the_lines_stay_those_of_the_file() -> None:
    text = """\
apiVersion: quintal/v1
kind: Quota
metadata: {name: green}
spec:
  tenant: green
  tenent: green
  caps:
  - {class: train_lm, units: 1}
  - {class: train_llm, units: one}
  - {class: train_llm, units: -1}
  - {class: vision, units: 1}
  - {model: big-80G, cards: 1}
"""
    found = [(f.line, f.field) for f in faults(text)]
    assert found == [
        (6, "spec.tenent"),
        (8, "spec.caps.0.class"),
        (9, "spec.caps.1.units"),
        (10, "spec.caps.2.units"),
        (12, "spec.caps.4.model"),
    ]


def test_a_tenant_with_a_misspelt_field_is_still_a_tenant_to_those_who_name_it() -> None:
    tenant = document("Tenant", "red", "{tittle: Red}")
    quota = document("Quota", "red", "{tenant: red, caps: []}")
    judgement = judged(SMALL, tenant, quota)
    assert [f.message for f in judgement.faults] == ["no such field; did you mean 'title'?"]
    assert not judgement.ok
    assert judgement.changes == ()


@pytest.mark.parametrize(
    ("kind", "spec", "field", "words"),
    [
        ("Profile", "{class: train_llm, accelerator: {models: [big-80g]}}",
         "spec.accelerator.models.0", "there is no AcceleratorModel 'big-80g'; did you mean"),
        ("Profile", "{class: train_llm, alternatives: [{accelerator: {families: [acme-bg]}}]}",
         "spec.alternatives.0.accelerator.families.0", "did you mean 'acme-big'?"),
        ("Profile", "{class: train_llm, accelerator: {vendors: [acne]}}",
         "spec.accelerator.vendors.0", "no AcceleratorModel has the vendor 'acne'"),
        ("Pool", "{selector: {models: [nope]}}", "spec.selector.models.0", "there is no"),
        ("Pool", "{selector: {}, order: 7, tenants: [red]}", "spec.tenants.0", "no Tenant 'red'"),
        ("Quota", "{tenant: red, caps: []}", "spec.tenant", "there is no Tenant 'red'"),
        ("Quota", "{tenant: green, caps: [{family: acme-bog, cards: 1}]}",
         "spec.caps.0.family", "did you mean 'acme-big'?"),
        ("PriceList", ("{currency: EUR, valid_from_ms: 5, prices: "
         "[{amount: 1, per: card_hour, model: a, pool: b, profile: c, tenant: d}]}"),
         "spec.prices.0.model", "there is no AcceleratorModel 'a'"),
        ("AcceleratorModel", ("{vendor: v, family: f, memory_bytes: 9, partitions: "
         "[{name: p, model: gone, parts: 1, memory_bytes: 1}]}"),
         "spec.partitions.0.model", "there is no AcceleratorModel 'gone'"),
    ],
)  # fmt: skip
def test_a_name_that_nobody_has_is_an_error(kind: str, spec: str, field: str, words: str) -> None:
    found = [f for f in faults(document(kind, "extra", spec)) if f.field == field]
    assert len(found) == 1
    assert words in found[0].message
    assert (found[0].file, found[0].line) == ("1.yaml", 5)


def test_case_a10_a_quota_that_names_an_unknown_model_is_refused_where_it_is_written() -> None:
    quota = document("Quota", "green", "{tenant: green, caps: [{model: big-80G, cards: 1}]}")
    judgement = judged(SMALL, quota)
    assert not judgement.ok
    assert judgement.faults[0].message == (
        "there is no AcceleratorModel 'big-80G'; did you mean 'big-80gb'?"
    )


def test_case_a15_a_cap_far_above_what_the_fleet_has_may_exist() -> None:
    quota = document("Quota", "green", "{tenant: green, caps: [{model: big-80gb, cards: 100000}]}")
    assert judged(SMALL, quota).ok


def test_case_b06_a_pool_that_can_never_hold_the_model_it_names_is_refused() -> None:
    """A pool is where hosts are described here: one whose own fields rule its model out."""
    pool = document("Pool", "wrong", "{order: 7, selector: {models: [big-80gb], kinds: [cpu]}}")
    (fault,) = faults(pool)
    assert fault.field == "spec.selector.models.0"
    assert "can never be here" in fault.message


def test_case_b06_a_slice_larger_than_its_card_is_refused() -> None:
    model = document(
        "AcceleratorModel", "odd",
        "{vendor: v, family: f, memory_bytes: 8, partitions: "
        "[{name: a, parts: 400000, memory_bytes: 9, count_max: 3}]}",
    )  # fmt: skip
    messages = [fault.message for fault in faults(model)]
    assert messages == [
        "3 x 400000 parts are more than the whole's 1000000",
        "a has more memory than the whole device",
    ]


@pytest.mark.parametrize(
    ("texts", "field", "words"),
    [
        ([document("AcceleratorModel", "twin", "{vendor: acme, family: f, match: "
          "[{vendor: acme, names: [ACME  big], memory: 80GiB..90GiB}]}")],
         "spec.match.0", "AcceleratorModel 'big-80gb' has the same match rule"),
        ([document("Quota", "other", "{tenant: blue, caps: []}")],
         "spec.tenant", "a tenant has one"),
        ([document("PriceList", "zweite", "{currency: EUR, prices: []}")],
         "spec.valid_from_ms", "begins at the same instant"),
        ([document("PriceList", "zweite", "{currency: USD, valid_from_ms: 9, prices: []}")],
         "spec.currency", "an installation has one currency"),
        ([document("PriorityClass", "other", "{value: 1, default: true}")],
         "spec.default", "is the default already"),
        ([document("Quota", "green", "{tenant: green, caps: [{class: vision, units: 1}, "
          "{class: vision, units: 2}]}")], "spec.caps.1", "says the same thing as caps.0"),
        ([document("Tenant", "re.d", "{}")], "metadata.name", "one subject token"),
        ([document("Tenant", "red", "{projects: [a, b, a]}")], "spec.projects.2", "projects.0"),
        ([document("AcceleratorModel", "m", "{vendor: v, family: f, ratings: "
          "[{class: vision, value: 0, provenance: roofline}]}")],
         "spec.ratings.0.value", "what is not known is left out"),
        ([document("AcceleratorModel", "m", "{vendor: v, family: f, ratings: "
          "[{class: vision, value: 2, high80: 1, provenance: roofline}]}")],
         "spec.ratings.0", "lies outside 2..1"),
        ([document("AcceleratorModel", "nvidia-h100-sxm5-80gb", "{vendor: v, family: f, ratings: "
          "[{class: vision, value: 0.99, provenance: benchmark}]}")],
         "spec.ratings.0.value", "1 in every class"),
        ([document("PriceList", "other", "{currency: EUR, valid_from_ms: 9, prices: "
          "[{amount: -1, per: card_hour}]}")], "spec.prices.0.amount", "not below 0"),
        ([document("Tenant", "blue", "{}")], "metadata.name", "also in 0.yaml, line 30"),
    ],
)  # fmt: skip
def test_a_contradiction_is_an_error(texts: list[str], field: str, words: str) -> None:
    (fault,) = faults(*texts)
    assert fault.field == field
    assert words in fault.message
    assert fault.file == "1.yaml"


def test_two_models_of_one_name_are_told_apart_by_their_memory() -> None:
    other = document(
        "AcceleratorModel", "small-40gb",
        "{vendor: acme, family: f, match: [{vendor: acme, names: [Acme Big], "
        "memory: 38GiB..41GiB}]}",
    )  # fmt: skip
    assert judged(SMALL, other).ok


def test_a_profile_that_no_model_could_meet_is_a_warning_that_says_why() -> None:
    profile = document("Profile", "dream", "{class: vision, accelerator: {memory: 1TB..}}")
    (fault,) = faults(profile, severity="warning")
    assert fault.field == "spec.accelerator"
    assert fault.message == (
        "no model of the catalog could ever meet this "
        "(1 is ruled out: its memory lies outside 1TB..)"
    )
    assert judged(SMALL, profile).ok


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("{class: vision}", "it is unrated in vision"),
        ("{class: train_llm, accelerator: {features: [fp64, fp4]}}", "it lacks fp4"),
        ("{class: train_llm, accelerator: {kind: cpu}}", "it is of kind accelerator"),
        ("{class: train_llm, cards: '3'}", "it cannot be had in that number of cards"),
    ],
)
def test_the_reason_why_a_profile_cannot_be_met_is_the_first_that_holds(
    spec: str, why: str
) -> None:
    text = SMALL.replace("  features: [bf16, fp64]", "  features: [fp64]\n  legal_counts: [2, 4]")
    warnings = judged(text, document("Profile", "dream", spec)).warnings
    assert [why in fault.message for fault in warnings] == [True]


def test_two_pools_of_one_order_that_may_hold_the_same_device_are_a_warning() -> None:
    pool = document("Pool", "beta", "{selector: {families: [acme-big]}}")
    (fault,) = faults(pool, severity="warning")
    assert fault.field == "spec.order"
    apart = document("Pool", "beta", "{order: 99, selector: {families: [acme-big]}}")
    assert faults(apart, severity="warning") == []


def test_case_k05_charge_prices_that_have_all_ended_are_a_warning() -> None:
    ended = SMALL.replace("  currency: EUR", f"  currency: EUR\n  valid_to_ms: {NOW_MS - 1}")
    (fault,) = judged(ended).warnings
    assert fault.document == "PriceList/standard"
    assert "use costs nothing since" in fault.message
    lasting = SMALL.replace("  currency: EUR", f"  currency: EUR\n  valid_to_ms: {NOW_MS + 1}")
    assert judged(lasting).warnings == ()


def test_what_others_name_cannot_be_deleted() -> None:
    judgement = judged(over=SMALL_CATALOG, delete=("AcceleratorModel/big-80gb",))
    told = {(f.document, f.field, f.message) for f in judgement.faults if f.severity == "error"}
    gone = "names AcceleratorModel 'big-80gb', which this apply deletes"
    assert ("Profile/train", "spec.accelerator.models.0", gone) in told
    assert ("Quota/blue", "spec.caps.1.model", gone) in told
    assert not judgement.ok


def test_what_nobody_names_is_deleted() -> None:
    judgement = judged(over=SMALL_CATALOG, delete=("Profile/train",))
    assert judgement.ok
    assert [(c.action, c.kind, c.name) for c in judgement.changes] == [
        ("removed", "Profile", "train")
    ]


@pytest.mark.parametrize(
    ("delete", "words"),
    [
        ("Profile/trian", "did you mean 'train'?"),
        ("Profil/train", "delete takes Kind/name; did you mean 'Profile'?"),
        ("train", "delete takes Kind/name"),
        ("Tenant/blue", "stands in a file as well"),
    ],
)
def test_a_delete_that_cannot_be_is_an_error(delete: str, words: str) -> None:
    text = document("Tenant", "blue", "{title: Blue}")
    judgement = judged(text, over=SMALL_CATALOG, delete=(delete,))
    assert any(words in fault.message for fault in judgement.faults)
    assert not judgement.ok


def test_the_same_content_written_otherwise_changes_nothing() -> None:
    otherwise = SMALL.replace("value: 0.8,", "value: 0.800000,").replace(
        "spec: {projects: [sky]}", "spec:\n  projects:\n  - sky\n  title: ''"
    )
    judgement = judged(otherwise, over=SMALL_CATALOG)
    assert judgement.ok
    assert judgement.changes == ()
    for key, kept in judgement.documents.items():
        assert kept is SMALL_CATALOG.documents[key]


def test_a_change_names_its_fields_before_and_after() -> None:
    judgement = judged(SMALL.replace("value: 0.8,", "value: 0.85,"), over=SMALL_CATALOG)
    (change,) = judgement.changes
    assert (change.action, change.name) == ("changed", "big-80gb")
    assert change.fields == {"spec.ratings.0.value": ("0.8", "0.85")}
