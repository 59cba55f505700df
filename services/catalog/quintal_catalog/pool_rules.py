"""What can be wrong with profiles and pools: needs nobody meets, devices two pools would take."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from quintal.contracts.documents import AcceleratorModelSpec, Catalog, PoolSelector
from quintal_catalog.finding import Finding
from quintal_catalog.fitting import unmet
from quintal_catalog.model_rules import share
from quintal_catalog.sources import Path


def profiles(catalog: Catalog) -> Iterator[Finding]:
    """Profiles that no model of the catalog could ever meet: a warning that says why."""
    for name, profile in catalog.profiles.items():
        for path, why in unmet(profile, catalog.models):
            yield Finding(("Profile", name), path, why, warning=True)


def pools(catalog: Catalog) -> Iterator[Finding]:
    """Selectors that cannot hold, and pools between which only the name decides."""
    for name, pool in catalog.pools.items():
        yield from _hostless(catalog, name, pool.selector)
        for index, vendor in enumerate(pool.selector.vendors):
            if catalog.models and vendor not in {m.vendor for m in catalog.models.values()}:
                message = f"no AcceleratorModel has the vendor {vendor!r}"
                path: Path = ("spec", "selector", "vendors", index)
                yield Finding(("Pool", name), path, message, warning=True)
    ordered = sorted(catalog.pools.items())
    for (name, pool), (other, its) in itertools.combinations(ordered, 2):
        if pool.order == its.order and _overlap(catalog, pool.selector, its.selector):
            message = (
                f"Pool {name!r} has the same order {pool.order} and may select the same devices: "
                f"the name would decide"
            )
            yield Finding(("Pool", other), ("spec", "order"), message, warning=True)


def _hostless(catalog: Catalog, name: str, selector: PoolSelector) -> Iterator[Finding]:
    """A pool that names a model which its own other fields rule out can never hold it."""
    for index, wanted in enumerate(selector.models):
        spec = catalog.models.get(wanted)
        if spec is None:
            continue
        for field, has in (
            ("vendors", spec.vendor),
            ("families", spec.family),
            ("kinds", spec.kind),
        ):
            allowed = getattr(selector, field)
            if allowed and has not in allowed:
                message = f"{wanted} can never be here: it is {has!r}, and {field} do not have that"
                yield Finding(("Pool", name), ("spec", "selector", "models", index), message)


def _overlap(catalog: Catalog, one: PoolSelector, other: PoolSelector) -> bool:
    """Whether one device could be in both, as far as the catalog can tell."""
    for field in ("clusters", "locations", "nodes"):
        if not share(getattr(one, field), getattr(other, field)):
            return False
    if any(other.labels.get(key, value) != value for key, value in one.labels.items()):
        return False
    if not _hardware(one) or not _hardware(other):
        return True
    return any(
        _takes(one, name, spec) and _takes(other, name, spec)
        for name, spec in catalog.models.items()
    )


def _hardware(selector: PoolSelector) -> bool:
    return bool(selector.vendors or selector.models or selector.families or selector.kinds)


def _takes(selector: PoolSelector, name: str, spec: AcceleratorModelSpec) -> bool:
    checks = (
        (selector.vendors, spec.vendor),
        (selector.models, name),
        (selector.families, spec.family),
        (selector.kinds, spec.kind),
    )
    return all(not wanted or value in wanted for wanted, value in checks)
