"""What a tenant may read: its own, what is public, and nothing of any other tenant. Pure.

Not only documents: no name of another tenant may stand in a pool's list of tenants, in an entry
of a price list, or in a text that somebody wrote beside them.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel

from quintal.contracts.documents import (
    AcceleratorModelSpec,
    BoundarySpec,
    Catalog,
    CommitmentSpec,
    Document,
    EnergyProfileSpec,
    Metadata,
    PoolSpec,
    PriceListSpec,
    PriorityClassSpec,
    ProfileSpec,
    QuotaSpec,
    RatingSpec,
    TenantSpec,
    WorkloadSpec,
)


def redact(document: Document, tenant: str, catalog: Catalog) -> Document | None:
    """The document as this tenant may see it; none if it may not know of it."""
    return Redaction(tenant, catalog).of(document)


class Redaction:
    """One tenant's view of one revision; the words of all others are gathered once."""

    def __init__(self, tenant: str, catalog: Catalog) -> None:
        self._tenant = tenant
        self._catalog = catalog
        words = sorted(_others(tenant, catalog), key=len, reverse=True)
        spoken = "|".join(re.escape(word) for word in words)
        self._others = re.compile(rf"(?<![\w-])(?:{spoken})(?![\w-])") if words else None

    def of(self, document: Document) -> Document | None:
        """The document as the tenant may see it; none if it may not know of it."""
        spec = _spec(document, self._tenant, self._catalog)
        if spec is None:
            return None
        metadata = document.metadata
        if isinstance(spec, TenantSpec | QuotaSpec | CommitmentSpec):
            return document
        seen = Metadata.model_construct(
            name=metadata.name, labels={}, description=self.told(metadata.description)
        )
        return document.model_copy(update={"metadata": seen, "spec": self._cleared(spec)})

    def catalog(self) -> Catalog:
        """The whole revision as the tenant may see it."""
        seen = (self.of(document) for document in self._catalog.documents.values())
        kept = tuple(document for document in seen if document is not None)
        return Catalog(kept, revision=self._catalog.revision, digest=self._catalog.digest)

    def _cleared(self, spec: BaseModel) -> BaseModel:
        """Texts that people write freely, kept unless they speak of another tenant."""
        kept: dict[str, Any] = {
            name: self.told(getattr(spec, name))
            for name in _TEXTS
            if isinstance(getattr(spec, name, None), str)
        }
        if isinstance(spec, AcceleratorModelSpec):
            kept["sources"] = tuple(filter(None, map(self.told, spec.sources)))
        if isinstance(spec, AcceleratorModelSpec | RatingSpec):
            kept["ratings"] = tuple(
                rating.model_copy(update={"evidence": self.told(rating.evidence)})
                for rating in spec.ratings
            )
        if isinstance(spec, WorkloadSpec):
            kept["conversions"] = tuple(
                conversion.model_copy(
                    update={
                        name: self.told(getattr(conversion, name))
                        for name in ("effort", "approved_by", "notes")
                    }
                )
                for conversion in spec.conversions
            )
        return spec.model_copy(update=kept)

    def told(self, text: str) -> str:
        """The text, or nothing if it speaks of another tenant."""
        return "" if self._others is not None and self._others.search(text) else text


def _spec(  # noqa: C901, PLR0911, PLR0912 - a case per kind
    document: Document, tenant: str, catalog: Catalog
) -> Any:
    match document.spec:
        case TenantSpec() as spec:
            return spec if document.metadata.name == tenant else None
        case QuotaSpec() | CommitmentSpec() as spec:
            return spec if spec.tenant == tenant else None
        case ProfileSpec() as spec:
            return spec if spec.public else None
        case PoolSpec() as spec:
            if not _open(spec, tenant):
                return None
            shown = tuple(name for name in spec.tenants if name == tenant)
            return spec.model_copy(update={"tenants": shown, "owner": ""})
        case PriceListSpec() as spec:
            return _prices(spec, tenant, catalog)
        case WorkloadSpec() as spec:
            if spec.tenants and tenant not in spec.tenants:
                return None
            return spec.model_copy(
                update={"tenants": tuple(name for name in spec.tenants if name == tenant)}
            )
        case BoundarySpec() as spec:
            return spec.model_copy(update={"evidence": ()})
        case AcceleratorModelSpec() | PriorityClassSpec() | RatingSpec() | EnergyProfileSpec():
            return document.spec
        case _:
            return None


def _prices(spec: PriceListSpec, tenant: str, catalog: Catalog) -> PriceListSpec | None:
    """The entries that can apply to this tenant; what the fleet costs is not its business."""
    if spec.type != "charge":
        return None
    prices = tuple(
        price
        for price in spec.prices
        if price.tenant in {"", tenant}
        and (not price.pool or _known(catalog.pools, price.pool, tenant))
        and (not price.profile or _known(catalog.profiles, price.profile, tenant))
    )
    return spec.model_copy(update={"prices": prices}) if prices else None


def _known(documents: dict[str, Any], name: str, tenant: str) -> bool:
    spec = documents.get(name)
    if isinstance(spec, PoolSpec):
        return _open(spec, tenant)
    return spec is not None and spec.public


def _open(pool: PoolSpec, tenant: str) -> bool:
    return not pool.tenants or tenant in pool.tenants


# --- texts ------------------------------------------------------------------------------------

_TEXTS = ("title", "notes", "evidence", "source")


def _others(tenant: str, catalog: Catalog) -> frozenset[str]:
    """Every word by which another tenant could be known."""
    words: set[str] = set()
    for name, spec in catalog.tenants.items():
        if name != tenant:
            words |= {name, spec.title, spec.contact, *spec.projects}
    for quota in catalog.quotas.values():
        if quota.tenant != tenant:
            words.add(quota.tenant)
    for pool in catalog.pools.values():
        words |= {name for name in pool.tenants if name != tenant}
    own = catalog.tenants.get(tenant)
    if own is not None:
        words -= {own.title, own.contact, *own.projects}
    return frozenset(word for word in words if word.strip())
