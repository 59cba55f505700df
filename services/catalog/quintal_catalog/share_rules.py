"""What can be wrong with ratings that a site adds, cohorts, commitments and energy profiles."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from quintal.contracts.documents import Catalog, CohortSpec, RatingSpec
from quintal_catalog.finding import Finding
from quintal_catalog.model_rules import ratings
from quintal_catalog.sources import Path

NOT_COUNTED = "is kept and checked; this version does not count it at placement yet"


def shares(catalog: Catalog) -> Iterator[Finding]:
    """Each kind's own rules."""
    yield from _ratings(catalog)
    yield from _energy(catalog)
    yield from _cohorts(catalog)
    yield from _commitments(catalog)


def _ratings(catalog: Catalog) -> Iterator[Finding]:
    """One statement for each model, class, precision and provenance, wherever it stands."""
    said: dict[tuple[str, str, str, str], str] = {}
    for (kind, name), document in sorted(catalog.documents.items()):
        if kind == "AcceleratorModel":
            for rating in document.spec.ratings:
                said[name, rating.workload_class, rating.precision, rating.provenance] = name
    for (kind, name), document in sorted(catalog.documents.items()):
        if kind != "Rating":
            continue
        spec: RatingSpec = document.spec
        yield from ratings((kind, name), spec.model, spec.ratings)
        for index, rating in enumerate(spec.ratings):
            what = (spec.model, rating.workload_class, rating.precision, rating.provenance)
            other = said.setdefault(what, f"Rating/{name}")
            if other != f"Rating/{name}":
                message = f"{other} has a {rating.provenance} rating in {what[1]} already"
                yield Finding((kind, name), ("spec", "ratings", index), message)


def _energy(catalog: Catalog) -> Iterator[Finding]:
    seen: dict[tuple[str, str | None], str] = {}
    for name, spec in sorted(catalog.energy.items()):
        other = seen.setdefault((spec.model, spec.workload_class), name)
        if other != name:
            message = f"EnergyProfile {other!r} says it of the same model and class"
            yield Finding(("EnergyProfile", name), ("spec", "model"), message)
        if spec.idle_watts is not None and spec.idle_watts > spec.watts:
            message = f"idle draws more than under load ({spec.watts})"
            yield Finding(("EnergyProfile", name), ("spec", "idle_watts"), message)


def _cohorts(catalog: Catalog) -> Iterator[Finding]:
    homes: dict[tuple[str, str], str] = {}
    for name, spec in sorted(catalog.cohorts.items()):
        key = ("Cohort", name)
        yield from _members(key, spec, catalog, homes)
        yield Finding(key, ("kind",), NOT_COUNTED, warning=True)


def _members(
    key: tuple[str, str],
    spec: CohortSpec,
    catalog: Catalog,
    homes: dict[tuple[str, str], str],
) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, member in enumerate(spec.members):
        path: Path = ("spec", "members", index)
        if member.tenant in seen:
            yield Finding(key, (*path, "tenant"), f"{member.tenant!r} is a member already")
            continue
        seen.add(member.tenant)
        other = homes.setdefault((member.tenant, spec.workload_class), key[1])
        if other != key[1]:
            message = f"is in Cohort {other!r} already; a tenant lends in one cohort of a class"
            yield Finding(key, (*path, "tenant"), message)
        cap = cap_of(catalog, member.tenant, spec.workload_class)
        if cap is None:
            message = f"{member.tenant!r} has no cap in {spec.workload_class} to lend from"
            yield Finding(key, (*path, "tenant"), message)
        elif member.lending_units is not None and member.lending_units > cap:
            message = f"lends more than its cap of {cap}"
            yield Finding(key, (*path, "lending_units"), message)


def cap_of(catalog: Catalog, tenant: str, workload_class: str) -> Decimal | None:
    """A tenant's cap over a whole class."""
    quota = catalog.quotas.get(tenant)
    whole = (
        cap.units
        for cap in (quota.caps if quota else ())
        if cap.workload_class == workload_class and not cap.family and not cap.model
    )
    return next((units for units in whole if units is not None), None)


def _commitments(catalog: Catalog) -> Iterator[Finding]:
    """A floor that the tenant's own cap would refuse can never be had."""
    for name, spec in sorted(catalog.commitments.items()):
        key = ("Commitment", name)
        cap = cap_of(catalog, spec.tenant, spec.workload_class)
        if cap is None:
            message = f"{spec.tenant!r} has no cap in {spec.workload_class}: default deny"
            yield Finding(key, ("spec", "tenant"), message)
        elif spec.units is not None and spec.units > cap:
            message = f"is above the tenant's cap of {cap}: it could never be held"
            yield Finding(key, ("spec", "units"), message)
        if spec.cards is not None and catalog.rating(spec.model, spec.workload_class) is None:
            message = f"{spec.model} is unrated in {spec.workload_class}: never granted in it"
            yield Finding(key, ("spec", "model"), message)
        yield Finding(key, ("kind",), NOT_COUNTED, warning=True)
