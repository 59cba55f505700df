"""Where a workload runs, at what price, and how much of the fleet is closed to it. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final, Literal

from quintal import pricing
from quintal.compatibility import Judge, Judgement, StackKey, Subject
from quintal.contracts.boundaries import CompatibilityVerdict
from quintal.contracts.documents import Catalog, Rating, WorkloadSpec
from quintal.contracts.portability import Fit, FitRow, Portability, PortabilityRow
from quintal.contracts.workloads import Conversion, Variant
from quintal.errors import Owner
from quintal.units import PARTS, from_micro
from quintal_catalog.fitting import why_not
from quintal_catalog.fleet import Held, Place

NAMES_MAX: Final = 20

_STEP: Final = Decimal("0.000000001")
_PERCENT: Final = Decimal("0.1")


@dataclass(frozen=True, slots=True)
class View:
    """What an answer is made from: the catalog, whose prices, and when."""

    catalog: Catalog
    tenant: str
    """Whose effective prices; empty: nobody's own."""
    now_ms: int

    @property
    def today(self) -> dt.date:
        """Against which boundaries expire, UTC."""
        return dt.datetime.fromtimestamp(self.now_ms / 1000, dt.UTC).date()


@dataclass(frozen=True, slots=True)
class Work:
    """A workload by name, of the catalog or as written."""

    name: str
    spec: WorkloadSpec


def accepted(view: View, work: Work) -> CompatibilityVerdict:
    """The lowest verdict that policy accepts for it."""
    return work.spec.accept or view.catalog.profiles[work.spec.profile].accept


# --- check, can-run ---------------------------------------------------------------------------


def fit(view: View, work: Work, where: Mapping[Place, Held]) -> Fit:
    """Every variant on every place."""
    judge = Judge(view.catalog.boundaries)
    rows = tuple(
        _row(view, work, variant, (place, held), judge)
        for place, held in where.items()
        for variant in work.spec.variants
    )
    return Fit(
        accept=accepted(view, work),
        runs=any(row.accepted for row in rows),
        rows=rows,
        revision=view.catalog.revision,
    )


def can_run(view: View, works: Iterable[Work], where: Mapping[Place, Held]) -> Iterator[FitRow]:
    """The best variant of each workload on each place."""
    judge = Judge(view.catalog.boundaries)
    for work in works:
        for place, held in where.items():
            rows = [
                _row(view, work, variant, (place, held), judge) for variant in work.spec.variants
            ]
            yield min(rows, key=lambda row: (not row.accepted, _RANK[row.verdict]))


_RANK: Final = {"validated": 0, "supported_unvalidated": 1, "unknown": 2, "blocked": 3}


def _row(
    view: View, work: Work, variant: Variant, there: tuple[Place, Held], judge: Judge
) -> FitRow:
    place, held = there
    said = _judged(view, place, variant, judge)
    allowed = said.accepted(accepted(view, work))
    return FitRow(
        workload=work.name,
        variant=variant.name,
        model=place.model,
        pool=place.pool,
        nodes=tuple(sorted(held.nodes)[:NAMES_MAX]),
        count=len(held.nodes),
        software=software(place.stack),
        verdict=said.verdict,
        accepted=allowed,
        bound=said.bound,
        passing=said.passing,
        owner=None if allowed else said.owner,
        boundary=said.boundary,
        source=said.source,
    )


def _judged(view: View, place: Place, variant: Variant, judge: Judge) -> Judgement:
    spec = view.catalog.models[place.model]
    return judge.of(Subject(place.model, spec, place.stack, variant, view.today))


def software(stack: StackKey) -> dict[str, str]:
    """A stack as people read it."""
    return {
        f"{component} {name}": version
        for component, pairs in (
            ("driver", stack.drivers),
            ("runtime", stack.runtimes),
            ("firmware", stack.firmware),
        )
        for name, version in pairs
    }


# --- portability ------------------------------------------------------------------------------


def portability(view: View, work: Work, where: Mapping[Place, Held]) -> Portability:
    """The whole fleet: as it is, after an approved conversion, or not and why; and the lock-in."""
    judge = Judge(view.catalog.boundaries)
    profile = view.catalog.profiles[work.spec.profile]
    sums = dict.fromkeys(("runs", "after_conversion", "no"), 0)
    rows: list[PortabilityRow] = []
    ecosystems: set[str] = set()
    currencies: set[str] = set()
    for place, held in where.items():
        spec = view.catalog.models[place.model]
        if spec.kind != profile.accelerator.kind and not _wants(work, spec.runtime):
            continue
        found = _outcome(view, work, place, judge)
        micro = _micro(view, work, place, held, found.precision)
        price = _price(view, work, place, micro, held)
        if price is not None:
            currencies.add(price[1])
        row = _portability_row(work, place, held, found, micro, price and price[0])
        rating = _rating(view, work, place, found.precision)
        estimated = rating is not None and rating.provenance in {"derived", "roofline"}
        rows.append(row.model_copy(update={"estimated": estimated}))
        sums[found.outcome] += micro or 0
        if found.outcome == "runs":
            ecosystems.add(spec.runtime)
    total = sum(sums.values())
    opened = sums["runs"]
    later = opened + sums["after_conversion"]
    return Portability(
        workload=work.name,
        workload_class=profile.workload_class,
        rows=tuple(sorted(rows, key=lambda r: (_ORDER[r.outcome], r.pool, r.model))),
        units=_units(total),
        units_open=_units(opened),
        units_after_conversion=_units(later - opened),
        open_percent=_percent(opened, total),
        open_after_conversion_percent=_percent(later, total),
        ecosystems=tuple(sorted(ecosystems)),
        currency=next(iter(currencies), ""),
        revision=view.catalog.revision,
    )


_ORDER: Final = {"runs": 0, "after_conversion": 1, "no": 2}


def _wants(work: Work, runtime: str) -> bool:
    targets = (conversion.target for conversion in work.spec.conversions)
    return any(variant.runtime == runtime for variant in (*work.spec.variants, *targets))


@dataclass(frozen=True, slots=True)
class _Outcome:
    outcome: Literal["runs", "after_conversion", "no"]
    judgement: Judgement
    variant: str = ""
    precision: str = ""
    conversion: Conversion | None = None


def _outcome(view: View, work: Work, place: Place, judge: Judge) -> _Outcome:
    """As it is before a conversion before nothing; of what fails, what came nearest."""
    lowest = accepted(view, work)
    profile = view.catalog.profiles[work.spec.profile]
    model = view.catalog.models[place.model]
    need = profile.accelerator
    unmet = why_not(place.model, model, need, profile.workload_class, (1, None))
    if unmet is not None:
        bound = f"profile {work.spec.profile} does not take {place.model}: {unmet}"
        passing = "a model that the profile takes"
        return _Outcome("no", Judgement("blocked", bound, passing, Owner.SUBMITTER))
    tried = [
        _Outcome("runs", _judged(view, place, variant, judge), variant.name, variant.precision)
        for variant in work.spec.variants
    ]
    tried += [
        _Outcome(
            "after_conversion",
            _judged(view, place, conversion.target, judge),
            conversion.target.name,
            conversion.target.precision,
            conversion,
        )
        for conversion in work.spec.conversions
    ]
    for found in tried:
        approved = found.conversion is None or found.conversion.approved
        if approved and found.judgement.accepted(lowest):
            return found
    runtime = model.runtime
    built = {conversion.target.name: conversion for conversion in work.spec.conversions}
    nearest = min(
        tried,
        key=lambda t: (_runtime(work, t.variant, built) != runtime, t.judgement.rank),
    )
    if nearest.conversion is not None and nearest.judgement.accepted(lowest):
        told = f"the conversion by {nearest.conversion.toolchain} is not approved"
        nearest = _Outcome("no", Judgement("blocked", told, "its approval"), nearest.variant)
    return _Outcome("no", nearest.judgement, precision=nearest.precision)


def _runtime(work: Work, name: str, built: Mapping[str, Conversion]) -> str:
    variant = work.spec.variant(name) or built[name].target
    return variant.runtime


def _micro(view: View, work: Work, place: Place, held: Held, precision: str) -> int | None:
    rating = _rating(view, work, place, precision)
    if rating is None:
        return None
    return rating.micro * (held.cores if rating.per == "core" else held.devices)


def _rating(view: View, work: Work, place: Place, precision: str) -> Rating | None:
    workload_class = view.catalog.profiles[work.spec.profile].workload_class
    return view.catalog.rating(place.model, workload_class, precision)


def _price(
    view: View, work: Work, place: Place, micro: int | None, held: Held
) -> tuple[Decimal, str] | None:
    """What a unit-hour costs there today, and in which currency; none where there is no price."""
    if not micro:
        return None
    terms = pricing.Terms(
        tenant=view.tenant,
        profile=work.spec.profile,
        pool=place.pool,
        model=place.model,
        workload_class=view.catalog.profiles[work.spec.profile].workload_class,
        devices=held.devices,
        parts=PARTS,
        charged_micro=micro // held.devices,
    )
    found = pricing.price_at(terms, view.now_ms, view.catalog.prices.items())
    if found is None:
        return None
    _, prices, price = found
    amount = price.amount
    if price.per == "card_hour":
        amount = amount * held.devices / from_micro(micro)
    return amount.quantize(_STEP, ROUND_HALF_EVEN), prices.currency


def _portability_row(
    work: Work,
    place: Place,
    held: Held,
    found: _Outcome,
    micro: int | None,
    price: Decimal | None,
) -> PortabilityRow:
    cost = None
    if price is not None and work.spec.expected_unit_hours is not None and found.outcome != "no":
        once = found.conversion.cost if found.conversion is not None else Decimal(0)
        if once is not None:
            hours = work.spec.expected_unit_hours
            cost = (price * hours + once).quantize(_STEP, ROUND_HALF_EVEN)
    said = found.judgement
    return PortabilityRow(
        pool=place.pool,
        model=place.model,
        software=software(place.stack),
        devices=held.devices,
        outcome=found.outcome,
        variant=found.variant,
        toolchain=found.conversion.toolchain if found.conversion else "",
        verdict=said.verdict,
        reason=said.bound,
        passing=said.passing,
        owner=said.owner if found.outcome == "no" else None,
        units=_units(micro) if micro is not None else None,
        price_per_unit_hour=price,
        expected_cost=cost,
    )


def _units(micro: int) -> str:
    return f"{from_micro(micro).normalize():f}"


def _percent(part: int, whole: int) -> str | None:
    if not whole:
        return None
    return f"{(Decimal(100 * part) / whole).quantize(_PERCENT, ROUND_HALF_EVEN):f}"
