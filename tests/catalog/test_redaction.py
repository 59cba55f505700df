"""Law 13: no string of tenant B occurs in any answer to tenant A."""

from __future__ import annotations

import json
import string
from typing import Any

from hypothesis import given, strategies as st

from quintal.contracts.catalog import RateAsk
from quintal.contracts.documents import Catalog, Document
from quintal_catalog.canonical import canonical
from quintal_catalog.rating import rated
from quintal_catalog.redaction import Redaction, redact
from tests.catalog.given import SMALL, catalog, document

A, B = "a0a0", "b0b0"

SECRET = "b0b0-"
"""Everything that is tenant B's own begins with this; nothing else does."""

secrets = st.text(string.ascii_lowercase, min_size=1, max_size=6).map(lambda text: SECRET + text)
names = st.text(string.ascii_lowercase, min_size=3, max_size=6)
whose = st.sampled_from([(), (A,), (B,), (A, B)])


def doc(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> Document:
    return Document.model_validate(
        {"kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}
    )


@st.composite
def catalogs(draw: st.DrawFn) -> Catalog:
    """Two tenants; B's name, projects, pools, prices, profiles, and texts that speak of B."""
    projects = draw(st.lists(secrets, max_size=3, unique=True))
    words = st.sampled_from([B, *projects])
    texts = st.one_of(names, words.map(lambda word: f"made for {word}, mostly"))
    found = [
        doc("Tenant", A, {"projects": ["own"], "title": draw(names), "contact": "a@x"}),
        doc("Tenant", B, {"projects": projects, "title": SECRET + "T", "contact": SECRET + "C"}),
        doc("Quota", A, {"tenant": A, "caps": [{"class": "vision", "units": 1}]}),
        doc("Quota", draw(secrets), {"tenant": B, "caps": []}),
        doc(
            "AcceleratorModel", "m", {
                "vendor": "v", "family": "f", "notes": draw(texts), "sources": [draw(texts)],
                "ratings": [{"class": "vision", "value": 1, "provenance": "measured",
                             "evidence": draw(texts)}],
            },
            description=draw(texts), labels={draw(texts): draw(texts)},
        ),
        doc("PriorityClass", "normal", {"value": 0}, description=draw(texts)),
        doc(
            "Rating", "r", {"model": "m", "ratings": [
                {"class": "vision", "value": 2, "provenance": "operator", "evidence": draw(texts)},
            ]},
            description=draw(texts),
        ),
        doc("EnergyProfile", "e", {"model": "m", "watts": 300, "evidence": draw(texts)}),
        doc("Cohort", "c", {"class": "vision", "title": draw(texts),
                            "members": [{"tenant": A}, {"tenant": B}]}),
        doc("Commitment", "mine", {"tenant": A, "class": "vision", "units": 1}),
        doc("Commitment", draw(secrets), {"tenant": B, "class": "vision", "units": 1}),
    ]  # fmt: skip
    pools = {"p0": draw(whose), "p1": draw(whose), draw(secrets): (B,)}
    for name, tenants in pools.items():
        spec = {"selector": {}, "tenants": tenants, "title": draw(texts), "owner": draw(texts)}
        labels = {"team": draw(texts)}
        found.append(doc("Pool", name, spec, description=draw(texts), labels=labels))
    profiles = {"open": True, draw(secrets): False}
    for name, public in profiles.items():
        spec = {"class": "vision", "public": public, "title": draw(texts)}
        found.append(doc("Profile", name, spec, description=draw(texts)))
    entry = st.fixed_dictionaries(
        {
            "amount": st.integers(0, 9),
            "per": st.just("card_hour"),
            "tenant": st.sampled_from(["", A, B]),
            "pool": st.sampled_from(["", *pools]),
            "profile": st.sampled_from(["", *profiles]),
        }
    )
    entries = draw(st.lists(entry, max_size=6))
    for kind in ("charge", "cost"):
        spec = {"type": kind, "currency": "EUR", "prices": entries}
        found.append(doc("PriceList", kind, spec, description=draw(texts)))
    return Catalog(tuple(found))


def strings(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | set().union(*(strings(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(strings(item) for item in value))
    return {value} if isinstance(value, str) else set()


@given(catalogs())
def test_no_string_of_tenant_b_occurs_in_any_answer_to_tenant_a(made: Catalog) -> None:
    seen = [redact(each, A, made) for each in made.documents.values()]
    found = set().union(*(strings(json.loads(canonical(each))) for each in seen if each))
    assert not [text for text in found if B in text]


@given(catalogs())
def test_what_a_card_is_worth_is_told_without_a_word_of_another_tenant(made: Catalog) -> None:
    told = rated(Redaction(A, made).catalog(), RateAsk(model="m"))
    assert [(row.value, row.applies) for row in told.rows] == [(2, True), (1, False)]
    assert not [text for text in strings(json.loads(told.model_dump_json())) if B in text]


@given(catalogs())
def test_a_tenant_loses_nothing_that_is_its_own_or_public(made: Catalog) -> None:
    seen = {key for key, each in made.documents.items() if redact(each, A, made)}
    assert {("Tenant", A), ("Quota", A), ("AcceleratorModel", "m"), ("Profile", "open")} <= seen
    assert {("Commitment", "mine"), ("Rating", "r"), ("EnergyProfile", "e")} <= seen
    assert ("Cohort", "c") not in seen
    assert ("PriceList", "cost") not in seen
    for name, pool in made.pools.items():
        assert (("Pool", name) in seen) == (not pool.tenants or A in pool.tenants)
    charge = redact(made.documents["PriceList", "charge"], A, made)
    own = [p for p in made.prices["charge"].prices if (p.tenant, p.pool, p.profile) == (A, "", "")]
    for price in own:
        assert charge is not None
        assert price in charge.spec.prices


def test_whom_nobody_knows_sees_what_is_public_and_no_tenant() -> None:
    made = catalog(SMALL)
    seen = {key for key, each in made.documents.items() if redact(each, "stranger", made)}
    assert seen == {
        ("AcceleratorModel", "big-80gb"), ("Profile", "train"), ("PriceList", "standard"),
        ("PriorityClass", "normal"),
    }  # fmt: skip


def test_a_pools_list_of_tenants_is_cut_to_the_one_who_asks() -> None:
    made = catalog(SMALL)
    shown = redact(made.documents["Pool", "acme"], "blue", made)
    assert shown is not None
    assert shown.spec.tenants == ("blue",)


def test_prices_of_others_are_gone_and_the_first_that_applies_is_still_the_first() -> None:
    made = catalog(SMALL)
    blue = redact(made.documents["PriceList", "standard"], "blue", made)
    green = redact(made.documents["PriceList", "standard"], "green", made)
    assert blue is not None
    assert green is not None
    assert [str(price.amount) for price in blue.spec.prices] == ["2"]
    assert [str(price.amount) for price in green.spec.prices] == ["1.5", "2"]


def test_a_text_that_speaks_of_another_tenant_is_not_shown() -> None:
    text = document("Profile", "p", "{class: train_llm, title: reserved for green}")
    made = catalog(SMALL, text)
    shown = redact(made.documents["Profile", "p"], "blue", made)
    assert shown is not None
    assert shown.spec.title == ""
