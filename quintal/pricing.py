"""What a stretch of use costs: one pure function for quote, metering and bill."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Final, NamedTuple

from quintal.contracts.documents import Price, PriceListSpec
from quintal.units import MS_PER_HOUR, PARTS, QUANTITY_PER_UNIT_HOUR

_STEP: Final = Decimal("0.000000001")
_EXACT: Final = Context(prec=80)
_UNIT_HOUR: Final = Decimal(QUANTITY_PER_UNIT_HOUR)
_CARD_HOUR: Final = Decimal(PARTS * MS_PER_HOUR)
_NOTHING: Final = Decimal(0)


class Terms(NamedTuple):
    """What a price depends on, frozen at the grant: one model's devices of one lease."""

    tenant: str
    profile: str
    pool: str
    model: str
    workload_class: str
    devices: int
    parts: int
    """Charged parts of each device."""
    charged_micro: int
    """Micro-units one whole device is charged as: its rating, or the nominal figure."""
    charged_parts: int | None = None
    """Parts that `charged_micro` is taken with; none: `parts`. A partition with a rating of its own
    is a whole by itself, while by the card-hour it is the part of a card that it is."""


class Charge(NamedTuple):
    """One stretch at one price. `price` is none where no list was in force."""

    from_ms: int
    to_ms: int
    price: Decimal | None
    per: str
    price_list: str
    currency: str
    cost: Decimal
    """To 1e-9, half-even, rounded once."""


def charge(
    terms: Terms, from_ms: int, to_ms: int, lists: Iterable[tuple[str, PriceListSpec]]
) -> tuple[Charge, ...]:
    """`[from_ms, to_ms)` cut wherever the price in force changes; costs nothing where none is."""
    ordered = _newest_first(lists)
    edges = {from_ms, to_ms}
    for _, spec in ordered:
        ends = (spec.valid_from_ms, spec.valid_to_ms if spec.valid_to_ms is not None else to_ms)
        edges.update(edge for edge in ends if from_ms < edge < to_ms)
    cuts = sorted(edges)
    return tuple(_one(terms, start, end, ordered) for start, end in itertools.pairwise(cuts))


def price_at(
    terms: Terms, at_ms: int, lists: Iterable[tuple[str, PriceListSpec]]
) -> tuple[str, PriceListSpec, Price] | None:
    """The price in force: the newest valid list that has an entry for these terms."""
    return _in_force(terms, at_ms, _newest_first(lists))


def _newest_first(lists: Iterable[tuple[str, PriceListSpec]]) -> list[tuple[str, PriceListSpec]]:
    return sorted(lists, key=lambda item: (-item[1].valid_from_ms, item[0]))


def _in_force(
    terms: Terms, at_ms: int, ordered: list[tuple[str, PriceListSpec]]
) -> tuple[str, PriceListSpec, Price] | None:
    for name, spec in ordered:
        if spec.type != "charge" or at_ms < spec.valid_from_ms:
            continue
        if spec.valid_to_ms is not None and at_ms >= spec.valid_to_ms:
            continue
        for price in spec.prices:
            if _applies(price, terms):
                return name, spec, price
    return None


def _one(terms: Terms, start: int, end: int, ordered: list[tuple[str, PriceListSpec]]) -> Charge:
    found = _in_force(terms, start, ordered)
    if found is None:
        return Charge(start, end, None, "", "", "", _NOTHING)
    name, spec, price = found
    if price.per == "unit_hour":
        charged = terms.parts if terms.charged_parts is None else terms.charged_parts
        quantity = terms.charged_micro * terms.devices * charged * (end - start)
        amount = _EXACT.divide(price.amount * quantity, _UNIT_HOUR)
    else:
        part_ms = terms.devices * terms.parts * (end - start)
        amount = _EXACT.divide(price.amount * part_ms, _CARD_HOUR)
    cost = amount.quantize(_STEP, ROUND_HALF_EVEN, context=_EXACT)
    return Charge(start, end, price.amount, price.per, name, spec.currency, cost)


def _applies(price: Price, terms: Terms) -> bool:
    return (
        (price.workload_class is None or price.workload_class == terms.workload_class)
        and (not price.model or price.model == terms.model)
        and (not price.pool or price.pool == terms.pool)
        and (not price.profile or price.profile == terms.profile)
        and (not price.tenant or price.tenant == terms.tenant)
    )
