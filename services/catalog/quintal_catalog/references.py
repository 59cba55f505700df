"""Every name that a document gives of another must be one, in the whole set as it will be.

A quota that names an unknown model would hold nothing and nobody would notice: so it is refused
where it is written, and so is the deletion of what others name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from quintal.contracts.documents import (
    AcceleratorModelSpec,
    AcceleratorNeed,
    BoundarySpec,
    CohortSpec,
    CommitmentSpec,
    Document,
    EnergyProfileSpec,
    PoolSpec,
    PriceListSpec,
    ProfileSpec,
    QuotaSpec,
    RatingSpec,
    WorkloadSpec,
)
from quintal.names import meant
from quintal_catalog.sources import Path


@dataclass(frozen=True, slots=True)
class Known:
    """What may be named: documents by kind, and what the models say of themselves."""

    names: dict[str, frozenset[str]]
    families: frozenset[str]
    vendors: frozenset[str]
    deleted: frozenset[tuple[str, str]] = field(default_factory=frozenset)

    def wrong(self, kind: str, name: str) -> str | None:
        """Why `name` is no document of this kind (or family, or vendor); none if it is one."""
        known = {"family": self.families, "vendor": self.vendors}.get(kind)
        if known is None:
            known = self.names.get(kind, frozenset())
        if name in known:
            return None
        if (kind, name) in self.deleted:
            return f"names {kind} {name!r}, which this apply deletes"
        if kind in {"family", "vendor"}:
            return f"no AcceleratorModel has the {kind} {name!r}{meant(name, known)}"
        return f"there is no {kind} {name!r}{meant(name, known)}"


def known(documents: dict[tuple[str, str], Document], deleted: frozenset[tuple[str, str]]) -> Known:
    """What the documents of a whole set give names to."""
    names: dict[str, set[str]] = {}
    for kind, name in documents:
        names.setdefault(kind, set()).add(name)
    models = [doc.spec for doc in documents.values() if doc.kind == "AcceleratorModel"]
    return Known(
        {kind: frozenset(its) for kind, its in names.items()},
        frozenset(spec.family for spec in models),
        frozenset(spec.vendor for spec in models) | {"cpu"},
        deleted,
    )


def references(document: Document) -> Iterator[tuple[Path, str, str]]:
    """(path, kind, name) of everything that this document names."""
    match document.spec:
        case AcceleratorModelSpec() as model:
            for index, partition in enumerate(model.partitions):
                if partition.model is not None:
                    path: Path = ("spec", "partitions", index, "model")
                    yield path, "AcceleratorModel", partition.model
        case ProfileSpec() as profile:
            yield from _profile(profile)
        case PoolSpec() as pool:
            path = ("spec", "selector")
            yield from _each(path, "models", "AcceleratorModel", pool.selector.models)
            yield from _each(path, "families", "family", pool.selector.families)
            yield from _each(("spec",), "tenants", "Tenant", pool.tenants)
        case QuotaSpec() as quota:
            yield from _quota(quota)
        case BoundarySpec() as boundary:
            yield from _each(("spec",), "vendors", "vendor", boundary.vendors)
            yield from _each(("spec",), "families", "family", boundary.families)
            yield from _each(("spec",), "models", "AcceleratorModel", boundary.models)
        case WorkloadSpec() as workload:
            yield ("spec", "profile"), "Profile", workload.profile
            yield from _each(("spec",), "tenants", "Tenant", workload.tenants)
        case PriceListSpec() as prices:
            yield from _prices(prices)
        case _:
            yield from _shares(document)


def _shares(document: Document) -> Iterator[tuple[Path, str, str]]:
    match document.spec:
        case RatingSpec() | EnergyProfileSpec() as about:
            yield ("spec", "model"), "AcceleratorModel", about.model
        case CohortSpec() as cohort:
            for index, member in enumerate(cohort.members):
                yield ("spec", "members", index, "tenant"), "Tenant", member.tenant
        case CommitmentSpec() as commitment:
            yield from _commitment(commitment)
        case _:
            return


def _profile(profile: ProfileSpec) -> Iterator[tuple[Path, str, str]]:
    yield from _need(("spec", "accelerator"), profile.accelerator)
    for index, alternative in enumerate(profile.alternatives):
        path: Path = ("spec", "alternatives", index, "accelerator")
        yield from _need(path, alternative.accelerator)


def _quota(quota: QuotaSpec) -> Iterator[tuple[Path, str, str]]:
    yield ("spec", "tenant"), "Tenant", quota.tenant
    for index, cap in enumerate(quota.caps):
        if cap.family:
            yield ("spec", "caps", index, "family"), "family", cap.family
        if cap.model:
            yield ("spec", "caps", index, "model"), "AcceleratorModel", cap.model


def _commitment(commitment: CommitmentSpec) -> Iterator[tuple[Path, str, str]]:
    yield ("spec", "tenant"), "Tenant", commitment.tenant
    named = (("pool", "Pool"), ("family", "family"), ("model", "AcceleratorModel"))
    for name, kind in named:
        if value := getattr(commitment, name):
            yield ("spec", name), kind, value


def _prices(prices: PriceListSpec) -> Iterator[tuple[Path, str, str]]:
    for index, price in enumerate(prices.prices):
        for name, kind in _PRICED.items():
            if value := getattr(price, name):
                yield ("spec", "prices", index, name), kind, value


_PRICED = {"model": "AcceleratorModel", "pool": "Pool", "profile": "Profile", "tenant": "Tenant"}


def _need(path: Path, need: AcceleratorNeed) -> Iterator[tuple[Path, str, str]]:
    yield from _each(path, "models", "AcceleratorModel", need.models)
    yield from _each(path, "families", "family", need.families)
    yield from _each(path, "vendors", "vendor", need.vendors)


def _each(
    path: Path, name: str, kind: str, values: tuple[str, ...]
) -> Iterator[tuple[Path, str, str]]:
    for index, value in enumerate(values):
        yield (*path, name, index), kind, value
