"""What each generation of hardware costs for what it delivers, and what old hardware may cost.

Work goes where a unit is cheapest. So an old card is worth keeping only while its own cost per
card-hour is at most its rating times what a unit-hour costs on the cheapest card there is: its
break-even price. Pure; nothing that is not known becomes 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Final

from quintal import pricing
from quintal.contracts.documents import AcceleratorModelSpec, Catalog
from quintal.contracts.placement import CapacityRow
from quintal.contracts.usage import UsageRow
from quintal.units import MS_PER_HOUR, PARTS, QUANTITY_PER_UNIT_HOUR, to_micro

_EXACT: Final = Context(prec=40)
_SHOWN: Final = Decimal("0.000001")


@dataclass(frozen=True, slots=True)
class Generation:
    """One model of the fleet over a span of time, in one class."""

    model: str
    generation: str
    year: int | None
    devices: int
    units_each: Decimal
    estimated: bool
    card_hour_cost: Decimal | None
    """What one costs us, used or not; none where no cost list says."""
    unit_hour_cost: Decimal | None
    """Were it in use all the time."""
    used_percent: Decimal | None
    """Leased card-hours of all that its devices had in the span."""
    used_unit_hour_cost: Decimal | None
    """What a unit-hour that was really delivered came to."""
    break_even: Decimal | None = None
    """The card-hour cost at which it delivers as cheaply as `against`."""
    against: str = ""


def generations(
    catalog: Catalog,
    workload_class: str,
    capacity: Iterable[CapacityRow],
    usage: Iterable[UsageRow],
    span: tuple[int, int],
) -> tuple[Generation, ...]:
    """A row for each model that is rated in the class, oldest first."""
    used = _used(usage)
    merged = _merged(capacity, workload_class)
    rows = [_row(catalog, workload_class, merged[model], used.get(model), span) for model in merged]
    rows.sort(key=lambda row: (row.year is None, row.year or 0, row.model))
    return tuple(_even(row, rows) for row in rows)


@dataclass(frozen=True, slots=True)
class _Stock:
    model: str
    pool: str
    devices: int
    micro: int
    estimated: bool


@dataclass(frozen=True, slots=True)
class _Used:
    card_ms: int
    quantity: int


def _merged(capacity: Iterable[CapacityRow], workload_class: str) -> Mapping[str, _Stock]:
    """Devices of one model over all pools."""
    found: dict[str, _Stock] = {}
    for row in capacity:
        if workload_class not in row.units or not row.devices:
            continue
        known = found.get(row.model) or _Stock(row.model, row.pool, 0, 0, estimated=False)
        found[row.model] = _Stock(
            row.model,
            known.pool,
            known.devices + row.devices,
            known.micro + to_micro(Decimal(row.units[workload_class])),
            row.estimated.get(workload_class, False),
        )
    return found


def _used(usage: Iterable[UsageRow]) -> dict[str, _Used]:
    """By model. Card-time counts whatever it was used for; units are the whole of it, too."""
    found: dict[str, _Used] = {}
    for row in usage:
        model = row.group.get("model", "")
        known = found.get(model, _Used(0, 0))
        found[model] = _Used(known.card_ms + row.card_ms, known.quantity + row.quantity)
    return found


def _row(
    catalog: Catalog, workload_class: str, stock: _Stock, used: _Used | None, span: tuple[int, int]
) -> Generation:
    spec = catalog.models.get(stock.model)
    each = stock.micro // stock.devices
    cost = _cost(catalog, workload_class, stock, each, span[1])
    units = _EXACT.divide(Decimal(each), Decimal(10**6))
    had_ms = stock.devices * (span[1] - span[0])
    card_ms = used.card_ms if used else 0
    share = _EXACT.divide(Decimal(card_ms), Decimal(had_ms)) if had_ms > 0 else None
    return Generation(
        model=stock.model,
        generation=_generation(spec),
        year=spec.release_year if spec else None,
        devices=stock.devices,
        units_each=units,
        estimated=stock.estimated,
        card_hour_cost=cost,
        unit_hour_cost=_over(cost, units),
        used_percent=_shown(share * 100) if share is not None else None,
        used_unit_hour_cost=_over(cost, _EXACT.multiply(units, share) if share else None),
    )


def _generation(spec: AcceleratorModelSpec | None) -> str:
    """The architecture without its chip: `Ampere (GA100)` is Ampere."""
    return spec.architecture.split(" (")[0] if spec else ""


def _cost(
    catalog: Catalog, workload_class: str, stock: _Stock, each: int, at_ms: int
) -> Decimal | None:
    """One card-hour by the cost lists, through the same function that charges."""
    lists = [
        (name, spec.model_copy(update={"type": "charge"}))
        for name, spec in catalog.prices.items()
        if spec.type == "cost"
    ]
    terms = pricing.Terms("", "", stock.pool, stock.model, workload_class, 1, PARTS, each)
    found = pricing.price_at(terms, at_ms, lists)
    if found is None:
        return None
    price = found[2]
    if price.per == "card_hour":
        return price.amount
    hour = price.amount * each * PARTS * MS_PER_HOUR
    return _shown(_EXACT.divide(hour, Decimal(QUANTITY_PER_UNIT_HOUR)))


def _even(row: Generation, rows: list[Generation]) -> Generation:
    """Against the cheapest other model, each as if in use all the time."""
    others = [
        (other.unit_hour_cost, other.model)
        for other in rows
        if other.model != row.model and other.unit_hour_cost is not None
    ]
    if not others:
        return row
    cheapest, against = min(others)
    even = _shown(_EXACT.multiply(cheapest, row.units_each))
    return replace(row, break_even=even, against=against)


def _over(cost: Decimal | None, units: Decimal | None) -> Decimal | None:
    return None if cost is None or not units else _shown(_EXACT.divide(cost, units))


def _shown(value: Decimal) -> Decimal:
    return value.quantize(_SHOWN, ROUND_HALF_EVEN, context=_EXACT)
