"""What reports need of an adopted catalog, as columns: ratings, costs, caps, objectives. Pure.

Slices carry all that a bill rests on; these tables tell what the fleet could do and costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from quintal.contracts.documents import Catalog, PriceListSpec
from quintal.pricing import Terms, price_at
from quintal.units import CLASSES, PARTS, from_micro, to_micro
from quintal_metering.columns import Columns, Insert

END_OF_TIME = 2**53


def described(catalog: Catalog) -> list[Insert]:
    """Rows of the catalog tables, under tokens of the revision."""
    tables = {
        "catalog_models": list(_models(catalog)),
        "catalog_costs": list(_costs(catalog)),
        "catalog_caps": list(_caps(catalog)),
        "catalog_commitments": list(_commitments(catalog)),
        "catalog_profiles": [
            {"profile": name, "workload_class": spec.workload_class,
             "time_to_place_ms": spec.time_to_place_ms}
            for name, spec in sorted(catalog.profiles.items())
        ],
    }  # fmt: skip
    return [
        Insert(table, _columns(catalog.revision, rows), f"catalog:{catalog.revision}")
        for table, rows in tables.items()
        if rows
    ]


def _columns(revision: int, rows: list[dict[str, Any]]) -> Columns:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {"revision": [revision] * len(rows), **columns}


def _models(catalog: Catalog) -> Iterator[dict[str, Any]]:
    for name, spec in sorted(catalog.models.items()):
        for workload_class in CLASSES:
            rating = catalog.rating(name, workload_class)
            if rating is not None and rating.per == "device":
                yield {
                    "model": name, "vendor": spec.vendor, "family": spec.family,
                    "release_year": spec.release_year or 0,
                    "tdp_watts": Decimal(spec.tdp_watts or 0),
                    "workload_class": workload_class, "rating_micro": rating.micro,
                    "provenance": rating.provenance,
                }  # fmt: skip


def _costs(catalog: Catalog) -> Iterator[dict[str, Any]]:
    lists = tuple(
        (name, spec.model_copy(update={"type": "charge"}))
        for name, spec in catalog.prices.items()
        if spec.type == "cost"
    )
    edges = sorted(
        {0, END_OF_TIME}
        | {edge for _, s in lists for edge in (s.valid_from_ms, s.valid_to_ms) if edge is not None}
    )
    for model in sorted(catalog.models):
        for pool in sorted(catalog.pools):
            for start, end in itertools.pairwise(edges):
                found = _card_hour(catalog, (pool, model), start, lists)
                if found is not None:
                    yield {
                        "pool": pool, "model": model, "from_ms": start, "to_ms": end,
                        "card_hour": found[0], "currency": found[1],
                    }  # fmt: skip


def _card_hour(
    catalog: Catalog,
    place: tuple[str, str],
    at_ms: int,
    lists: tuple[tuple[str, PriceListSpec], ...],
) -> tuple[Decimal, str] | None:
    """What an hour of a card costs us: said so, or by the units that it is rated."""
    for workload_class in ("", *CLASSES):
        rating = catalog.rating(place[1], workload_class) if workload_class else None
        terms = Terms("", "", *place, workload_class, devices=1, parts=PARTS, charged_micro=0)
        found = price_at(terms, at_ms, lists)
        if found is None:
            continue
        _, spec, price = found
        if price.per == "card_hour":
            return price.amount, spec.currency
        if rating is not None:
            return price.amount * from_micro(rating.micro), spec.currency
    return None


def _commitments(catalog: Catalog) -> Iterator[dict[str, Any]]:
    for name, spec in sorted(catalog.commitments.items()):
        yield {
            "commitment": name, "tenant": spec.tenant, "workload_class": spec.workload_class,
            "pool": spec.pool, "family": spec.family, "model": spec.model,
            "micro": 0 if spec.units is None else to_micro(spec.units), "cards": spec.cards or 0,
            "from_ms": spec.valid_from_ms,
            "to_ms": END_OF_TIME if spec.valid_to_ms is None else spec.valid_to_ms,
        }  # fmt: skip


def _caps(catalog: Catalog) -> Iterator[dict[str, Any]]:
    for tenant, spec in sorted(catalog.quotas.items()):
        for cap in spec.caps:
            yield {
                "tenant": tenant, "sort": "cap", "workload_class": cap.workload_class or "",
                "family": cap.family, "model": cap.model,
                "micro": 0 if cap.units is None else to_micro(cap.units), "cards": cap.cards,
            }  # fmt: skip
        for budget in spec.budgets:
            yield {
                "tenant": tenant, "sort": "budget", "workload_class": budget.workload_class,
                "family": "", "model": "", "micro": to_micro(budget.unit_hours), "cards": None,
            }  # fmt: skip
