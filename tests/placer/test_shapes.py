"""What is worked out once, or made without a second look, is what would have been made anew."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from quintal.contracts import ledger, nodes, placement
from quintal.contracts.documents import Catalog
from quintal.contracts.message import Refusal
from quintal_placer import views
from quintal_placer.asking import Market, translate
from quintal_placer.engine.leases import State
from quintal_placer.shapes import Shapes
from quintal_placer.state import Lease
from tests.placer.site import AT_MS, Site, inventory
from tests.placer.world import GIB, doc, request, small_catalog

TENANTS = ("ml", "bio", "own", "dear", "plain")
"""Two projects; one that a pool is kept for, one with a price of its own, one of neither."""

CATALOG = Catalog(
    (
        *small_catalog(),
        *(doc("Tenant", name, projects=["a"]) for name in ("own", "dear", "plain")),
        doc("Pool", "private", selector={"vendors": ["nvidia"]}, tenants=["own"], order=1),
        doc(
            "PriceList", "special", currency="USD",
            prices=[{"amount": "1", "per": "unit_hour", "tenant": "dear"}],
        ),
    )
)  # fmt: skip

ASKS: tuple[dict[str, Any], ...] = (
    {},
    {"cards": 1},
    {"cards": 2},
    {"cards": 9},
    {"project": "a"},
    {"project": "b"},
    {"objective": "cheapest"},
    {"accelerator": {"models": ["big-80"]}},
    {"accelerator": {"memory": "100GB.."}, "objective": "fastest"},
    {"constraints": {"labels": {"request_id": "x"}}},
    {"constraints": {"pools": ["green"]}, "ttl_ms": 60_000},
    {"labels": {"run": "1"}, "bind": "none", "ttl_ms": 30_000},
)


def test_what_is_translated_once_is_what_would_be_translated_anew() -> None:
    market = Market.at(CATALOG, AT_MS)
    shapes, kinds = Shapes(market), frozenset[tuple[str, str]]()
    for number, (fields, tenant) in enumerate(product(ASKS * 2, TENANTS)):
        ask = request(f"r{number}", **fields)
        anew, found = translate(market, tenant, ask), shapes.fitted(tenant, ask, kinds, AT_MS)
        if isinstance(found, tuple) and not isinstance(found[0], Refusal):
            found = (replace(found[0], tenant=tenant), found[1])
        assert found == anew, (tenant, fields)


def test_asks_of_one_shape_are_known_by_it_and_others_are_not() -> None:
    shapes, kinds = Shapes(Market.at(CATALOG, AT_MS)), frozenset[tuple[str, str]]()

    def shape(tenant: str, **fields: Any) -> object:
        found = shapes.fitted(tenant, request("r", **fields), kinds, AT_MS)
        assert isinstance(found, tuple)
        assert not isinstance(found[0], Refusal)
        return found[0].shape

    assert shape("ml", labels={"a": "b"}) is shape("ml", bind="none")
    assert shape("ml") is not shape("ml", cards=2)
    assert shape("ml", cards=2) is not shape("own", cards=2)


def test_what_is_made_unchecked_is_what_a_check_would_make() -> None:
    cards = (
        nodes.RawDevice(
            uuid=f"GPU-{i}", index=i, vendor="nvidia", name="BIG-80", memory_bytes=80 * GIB
        )
        for i in range(4)
    )
    site = Site(small_catalog(), inventory("n1", *cards))
    for fields in ({}, {"bind": "none", "labels": {"a": "b"}, "project": "a"}, {"cards": 3}):
        ask = request("r", **fields)
        decided = site.desk.decide("ml", ask)
        assert not isinstance(decided, Refusal)
        record = site.desk.record("l", 7, "ml", ask, decided)
        checked = ledger.LeaseGranted.model_validate_json(record.model_dump_json())
        assert record == checked
        assert record.model_dump_json() == checked.model_dump_json()
        lease = Lease(
            "l", "ml", "r", State.GRANTED, granted=record, devices=record.devices,
            ttl_ms=record.ttl_ms, deadline_ms=record.deadline_ms,
        )  # fmt: skip
        view = views.lease_view(site.state, site.desk.market, lease, now_ms=AT_MS, sequence=3)
        again = placement.Lease.model_validate_json(view.model_dump_json())
        assert view == again
        assert view.model_dump_json() == again.model_dump_json()
