"""What the catalog means to a request: which model, at what price, with how many watts."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import given, strategies as st

from quintal.contracts.documents import AcceleratorNeed, Catalog, Document
from quintal.contracts.message import Refusal
from quintal.errors import Code, Owner
from quintal.units import PARTS
from quintal_placer.asking import Market, translate
from quintal_placer.engine.quota import Holding, Limit, Meter, Quotas
from tests.placer.world import doc, model, request, small_catalog

NOW_MS = 1_800_000_000_000


def market(*more: Document, **price: Any) -> Market:
    kept = [document for document in small_catalog() if document.kind != "PriceList"]
    prices = doc(
        "PriceList", "list", currency="USD", prices=[{"amount": "2", "per": "unit_hour"}], **price
    )
    return Market.at(Catalog((*kept, prices, *more)), NOW_MS)


def test_case_k05_nothing_is_cheapest_once_the_prices_have_ended() -> None:
    stale = market(valid_to_ms=NOW_MS - 1)
    refused = translate(stale, "ml", request("r", objective="cheapest"))
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.owner) == (Code.PRICE_STALE, Owner.CATALOG)
    assert "the prices have ended" in refused.message


def test_case_k05_other_objectives_go_on_and_a_price_in_force_is_a_price() -> None:
    assert not isinstance(translate(market(valid_to_ms=NOW_MS), "ml", request("r")), Refusal)
    lasting = market(valid_to_ms=NOW_MS + 1)
    assert not isinstance(translate(lasting, "ml", request("r", objective="cheapest")), Refusal)


def test_watts_measured_here_stand_before_the_nominal_power() -> None:
    watts = doc("EnergyProfile", "here", model="big-80", watts="512.5")
    found = translate(market(watts), "ml", request("r"))
    assert not isinstance(found, Refusal)
    by_model = {offer.model: offer.milliwatts for offer in found[0].options[0].offers}
    assert by_model["big-80"] == 512_500
    assert by_model["mid-40"] == 700_000


def test_a_rating_that_the_site_adds_is_what_is_granted_by() -> None:
    added = doc(
        "Rating", "here", model="mid-40",
        ratings=[{"class": "train_llm", "value": "0.31", "provenance": "measured"}],
    )  # fmt: skip
    found = translate(market(added), "ml", request("r"))
    assert not isinstance(found, Refusal)
    offer = next(offer for offer in found[0].options[0].offers if offer.model == "mid-40")
    assert (offer.rating_micro, offer.provenance) == (310_000, "measured")


@given(st.decimals(0, 1, places=3), st.decimals(1, 8, places=3))
def test_a_quota_of_ten_units_admits_21_h20_whatever_the_band(low: Decimal, high: Decimal) -> None:
    """The value debits, never an end of the band: an unsure rating makes no quota smaller."""
    value = Decimal("0.4596")
    h20 = model("h20", memory=96, llm_large=str(value))
    rating = h20.spec.ratings[0].model_copy(
        update={"low80": value * low, "high80": value * high, "provenance": "roofline"}
    )
    banded = h20.model_copy(update={"spec": h20.spec.model_copy(update={"ratings": (rating,)})})
    need = AcceleratorNeed(models=("h20",))
    (offer,) = market(banded).offers((need,), "llm_large", "", "ml").offers
    quotas = Quotas(limits={"ml": (Limit(Meter("ml", "llm_large", "class", ""), 10_000_000),)})
    one = Holding("ml", "llm_large", offer.family, offer.model, PARTS, offer.rating_micro)
    admitted = 0
    while quotas.exceeded(one) is None:
        quotas.add(one)
        admitted += 1
    assert admitted == 21
