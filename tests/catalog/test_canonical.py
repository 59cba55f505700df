"""Equal content has one hash, however it was written, and comes back as it was."""

from __future__ import annotations

import json
from decimal import Decimal

from hypothesis import given, strategies as st

from quintal.contracts.documents import Document, PriceListSpec
from quintal_catalog.canonical import canonical, digest
from tests.catalog.given import SMALL_CATALOG

PINNED = "56e4274a384cfd2ee36899ff550f7704c8529977ef6cd87cd654720d2eaf6186"
"""Changes with a new field of the kind, and for no other reason: readers hash the stored bytes."""

amounts = st.decimals(min_value=0, max_value=10**9, places=6)
labels = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4)


def price_list(amount: object, label: dict[str, str]) -> Document:
    return Document.model_validate(
        {
            "kind": "PriceList",
            "metadata": {"name": "p", "labels": label},
            "spec": {"currency": "EUR", "prices": [{"amount": amount, "per": "card_hour"}]},
        }
    )


@given(amounts, labels)
def test_trailing_zeros_and_the_order_of_keys_change_no_hash(
    amount: Decimal, label: dict[str, str]
) -> None:
    one = price_list(format(amount, "f"), label)
    other = price_list(format(amount.normalize(), "f"), dict(reversed(label.items())))
    assert one == other
    assert canonical(one) == canonical(other)


@given(amounts, amounts, labels)
def test_other_content_has_another_hash(a: Decimal, b: Decimal, label: dict[str, str]) -> None:
    one, other = price_list(a, label), price_list(b, label)
    assert (digest(canonical(one)) == digest(canonical(other))) == (a == b)


@given(amounts, labels)
def test_what_is_stored_reads_back_as_the_same_document(
    amount: Decimal, label: dict[str, str]
) -> None:
    made = price_list(amount, label)
    read = Document.model_validate_json(canonical(made))
    assert read == made
    assert canonical(read) == canonical(made)


def test_defaults_are_stored_so_that_a_later_default_changes_nothing_old() -> None:
    stored = json.loads(canonical(SMALL_CATALOG.documents["PriceList", "standard"]))
    assert set(stored["spec"]) == set(PriceListSpec.model_fields)
    assert stored["spec"]["prices"][0]["class"] == "train_llm"


def test_a_hash_once_given_stays_so_that_stored_catalogs_can_be_read() -> None:
    made = price_list("1.50", {"b": "2", "a": "\u00e9"})
    assert digest(canonical(made)) == PINNED
