"""What old hardware may cost: by hand, on a fleet of three cards."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from quintal.contracts.documents import Catalog, Document
from quintal.contracts.placement import CapacityRow
from quintal.contracts.usage import UsageRow
from quintal.generations import Generation, generations

HOUR = 3_600_000
SPAN = (1_000 * HOUR, 1_010 * HOUR)


def doc(kind: str, name: str, **spec: Any) -> Document:
    return Document.model_validate({"kind": kind, "metadata": {"name": name}, "spec": spec})


def card(name: str, year: int, architecture: str, value: str) -> Document:
    return doc(
        "AcceleratorModel", name, vendor="v", family=name, release_year=year,
        architecture=architecture,
        ratings=[{"class": "train_llm", "value": value, "provenance": "benchmark"}],
    )  # fmt: skip


CATALOG = Catalog(
    (
        card("new", 2024, "Blackwell (GB100)", "2"),
        card("mid", 2022, "Hopper (GH100)", "1"),
        card("old", 2020, "Ampere (GA100)", "0.25"),
        doc(
            "PriceList", "own", type="cost", currency="EUR",
            prices=[
                {"amount": "4", "per": "card_hour", "model": "new"},
                {"amount": "1", "per": "card_hour", "model": "old"},
                {"amount": "3", "per": "unit_hour", "model": "mid"},
            ],
        ),
    ),
    revision=1,
)  # fmt: skip


def stock(model: str, devices: int, units: str, pool: str = "p") -> CapacityRow:
    return CapacityRow(
        pool=pool, model=model, vendor="v", devices=devices, leased=0, free=devices,
        units={"train_llm": units},
    )  # fmt: skip


def used(model: str, card_hours: int) -> UsageRow:
    return UsageRow(
        group={"model": model}, workload_class="train_llm", leases=1, quantity=1,
        unit_hours="0", unit_seconds="0", card_ms=card_hours * HOUR, cost=Decimal(0),
    )  # fmt: skip


def report(*usage: UsageRow, catalog: Catalog = CATALOG) -> dict[str, Generation]:
    fleet = [
        stock("new", 2, "4"),
        stock("mid", 1, "1", "q"),
        stock("mid", 1, "1"),
        stock("old", 4, "1"),
    ]
    return {row.model: row for row in generations(catalog, "train_llm", fleet, usage, SPAN)}


def test_an_old_card_pays_up_to_what_its_units_cost_on_the_cheapest_one() -> None:
    rows = report()
    assert list(rows) == ["old", "mid", "new"], "the oldest first"
    assert {name: row.unit_hour_cost for name, row in rows.items()} == {
        "old": Decimal(4), "mid": Decimal(3), "new": Decimal(2)
    }  # fmt: skip
    assert (rows["old"].break_even, rows["old"].against) == (Decimal("0.5"), "new")
    assert (rows["new"].break_even, rows["new"].against) == (Decimal(6), "mid")
    assert rows["old"].generation == "Ampere"


def test_a_unit_costs_more_the_less_its_card_is_used() -> None:
    rows = report(used("old", 10), used("mid", 20))
    assert rows["old"].used_percent == Decimal(25)
    assert rows["old"].used_unit_hour_cost == Decimal(16)
    assert rows["mid"].used_percent == Decimal(100), "two cards, ten hours, twenty card-hours"
    assert rows["mid"].used_unit_hour_cost == rows["mid"].unit_hour_cost


def test_a_card_that_nobody_used_delivered_nothing_at_any_price() -> None:
    row = report()["old"]
    assert row.used_percent == 0
    assert row.used_unit_hour_cost is None


def test_a_cost_that_nobody_gave_is_unknown_and_not_nothing() -> None:
    bare = Catalog(tuple(d for d in CATALOG.documents.values() if d.kind != "PriceList"))
    row = report(catalog=bare)["old"]
    assert (row.card_hour_cost, row.unit_hour_cost, row.break_even) == (None, None, None)


def test_devices_of_one_model_in_two_pools_are_one_row() -> None:
    assert report()["mid"].devices == 2
    assert report()["mid"].units_each == Decimal(1)
