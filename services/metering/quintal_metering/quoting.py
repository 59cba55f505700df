"""What use would cost, on every model of the fleet that would do. Pure.

Charged by `quintal.pricing.charge`, as metering charges what was used: for the same stretch at
the same prices a quote and a bill are equal to the last digit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from quintal.contracts.bills import Offer, QuoteAsk, QuotePart
from quintal.contracts.documents import (
    AcceleratorModelSpec,
    AcceleratorNeed,
    Catalog,
    ProfileSpec,
    memory_range,
)
from quintal.errors import Code, Owner, Refused
from quintal.pricing import Charge, Terms, charge
from quintal.units import to_micro, unit_hours


@dataclass(frozen=True, slots=True)
class Wanted:
    """A quote's question, resolved against the catalog."""

    tenant: str
    profile: str
    workload_class: str
    precision: str
    need: AcceleratorNeed | None
    nominal_micro: int | None
    span: tuple[int, int]


def wanted(ask: QuoteAsk, catalog: Catalog, tenant: str, watermark_ms: int) -> Wanted:
    """Raises Refused where the profile or class is not to be had."""
    spec: ProfileSpec | None = None
    if ask.profile:
        spec = catalog.profiles.get(ask.profile)
        if spec is None:
            raise Refused(
                Code.NOT_FOUND, f"no profile {ask.profile}", details={"profile": ask.profile}
            )
    workload_class = spec.workload_class if spec else ask.workload_class
    if workload_class is None:
        raise Refused(Code.INVALID_REQUEST, "a quote needs a profile or a class")
    start = watermark_ms if ask.from_ms is None else ask.from_ms
    nominal = spec.nominal_units if spec and spec.billing == "nominal" else None
    return Wanted(
        tenant, ask.profile, workload_class,
        ask.precision or (spec.accelerator.precision if spec else ""),
        spec.accelerator if spec else None,
        None if nominal is None else to_micro(Decimal(nominal)),
        (start, start + ask.duration_ms),
    )  # fmt: skip


def offers(
    ask: QuoteAsk, found: Wanted, catalog: Catalog, cells: Iterable[tuple[str, str]]
) -> tuple[Offer, ...]:
    """One for each (pool, model) of the fleet that fits and that the tenant may use."""
    made = []
    for pool, model in sorted(set(cells)):
        if ask.pool not in {"", pool} or ask.model not in {"", model}:
            continue
        spec, room = catalog.models.get(model), catalog.pools.get(pool)
        if spec is None or (room is not None and room.tenants and found.tenant not in room.tenants):
            continue
        if found.need is not None and not fits(model, spec, found.need):
            continue
        offer = _offer(ask, found, catalog, (pool, model, spec))
        if offer is not None:
            made.append(offer)
    if not made:
        raise Refused(
            Code.UNRATED,
            f"no model of the fleet that fits is rated in {found.workload_class}",
            owner=Owner.CATALOG,
        )
    return tuple(sorted(made, key=lambda o: (_unpriced(o), o.cost, o.pool, o.model)))


def _unpriced(offer: Offer) -> bool:
    return any(part.price is None for part in offer.parts)


def _offer(
    ask: QuoteAsk, found: Wanted, catalog: Catalog, place: tuple[str, str, AcceleratorModelSpec]
) -> Offer | None:
    pool, model, spec = place
    rating = catalog.rating(model, found.workload_class, found.precision)
    if rating is None:
        return None
    charged = rating.micro if found.nominal_micro is None else found.nominal_micro
    terms = Terms(
        found.tenant, found.profile, pool, model, found.workload_class,
        devices=ask.cards, parts=ask.parts, charged_micro=charged,
    )  # fmt: skip
    charges = charge(terms, *found.span, catalog.prices.items())
    quantity = ask.cards * ask.parts * rating.micro * (found.span[1] - found.span[0])
    return Offer(
        pool=pool,
        model=model,
        vendor=spec.vendor,
        rating_micro=rating.micro,
        rating_version=rating.version,
        provenance=rating.provenance,
        unit_hours=format(unit_hours(quantity), "f"),
        cost=sum((one.cost for one in charges), Decimal(0)),
        currency=max((one.currency for one in charges), default=""),
        parts=tuple(_part(one) for one in charges),
    )


def _part(one: Charge) -> QuotePart:
    return QuotePart(
        from_ms=one.from_ms,
        to_ms=one.to_ms,
        price=None if one.price is None else format(one.price, "f"),
        price_per=one.per,
        price_list=one.price_list,
        cost=one.cost,
    )


def fits(model: str, spec: AcceleratorModelSpec, need: AcceleratorNeed) -> bool:
    """Whether a card of this model is what the profile needs, as far as the catalog says."""
    low, high = memory_range(need.memory)
    return all(
        (
            spec.kind == need.kind,
            not need.models or model in need.models,
            not need.families or spec.family in need.families,
            not need.vendors or spec.vendor in need.vendors,
            spec.memory_bytes >= low,
            high is None or spec.memory_bytes <= high,
            set(need.features) <= set(spec.features),
        )
    )
