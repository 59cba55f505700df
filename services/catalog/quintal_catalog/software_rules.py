"""What can be wrong with workloads and boundaries: contradictions, and what says nothing."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator

from quintal.compatibility import misfit
from quintal.contracts.boundaries import BoundarySpec
from quintal.contracts.documents import (
    AcceleratorModelSpec,
    AcceleratorNeed,
    Catalog,
    ProfileSpec,
    WorkloadSpec,
    count_range,
)
from quintal.contracts.workloads import Variant
from quintal_catalog.finding import Finding
from quintal_catalog.sources import Path


def workloads(catalog: Catalog) -> Iterator[Finding]:
    """Variants that contradict their profile, or that no model could run."""
    for name, spec in catalog.workloads.items():
        profile = catalog.profiles.get(spec.profile)
        if profile is None:
            continue  # told as a reference
        for index, variant in enumerate(spec.variants):
            path: Path = ("spec", "variants", index)
            yield from _variant(catalog, name, (path, variant), profile)
        yield from _conversions(name, spec)


def _variant(
    catalog: Catalog, name: str, placed: tuple[Path, Variant], profile: ProfileSpec
) -> Iterator[Finding]:
    path, variant = placed
    key = ("Workload", name)
    taken = {
        its: model
        for its, model in catalog.models.items()
        if _takes(profile.accelerator, its, model)
    }
    runtimes = {model.runtime for model in taken.values()}
    if catalog.models and variant.runtime not in runtimes:
        wanted = ", ".join(sorted(filter(None, runtimes))[:6]) or "nothing"
        message = (
            f"contradicts its profile {catalog.workloads[name].profile!r}: {variant.runtime} runs "
            f"on none of the models that this takes (they run {wanted})"
        )
        yield Finding(key, (*path, "runtime"), message)
        return
    wrong = {its: misfit(its, model, variant) for its, model in taken.items()}
    if wrong and all(wrong.values()):
        own = [
            said
            for its, said in wrong.items()
            if said is not None and taken[its].runtime == variant.runtime
        ]
        told = own[0].told if own else "no model has its runtime"
        yield Finding(key, path, f"no model could ever run it: {told}", warning=True)
    for what, count, allowed in (
        ("cards", variant.cards, profile.cards),
        ("nodes", variant.nodes, profile.nodes),
    ):
        low, high = count_range(allowed)
        if count < low or (high is not None and count > high):
            message = f"{what} {count}: its profile allows {allowed}"
            yield Finding(key, (*path, what), message)


def _takes(need: AcceleratorNeed, name: str, spec: AcceleratorModelSpec) -> bool:
    """By what a need says of vendors; memory and features are the variant's own matter."""
    checks = ((need.models, name), (need.families, spec.family), (need.vendors, spec.vendor))
    if spec.kind != need.kind:
        return False
    return all(not wanted or value in wanted for wanted, value in checks)


def _conversions(name: str, spec: WorkloadSpec) -> Iterator[Finding]:
    built = {variant.runtime for variant in spec.variants}
    for index, conversion in enumerate(spec.conversions):
        path: Path = ("spec", "conversions", index)
        if conversion.cost is not None and conversion.cost < 0:
            yield Finding(("Workload", name), (*path, "cost"), "a cost is not below 0")
        if conversion.target.runtime in built:
            message = f"there is a variant for {conversion.target.runtime} already"
            yield Finding(("Workload", name), (*path, "target"), message, warning=True)


def boundaries(catalog: Catalog, now_ms: int) -> Iterator[Finding]:
    """Statements on runtimes that nothing has, and evidence that is too old to count."""
    runtimes = {model.runtime for model in catalog.models.values()}
    today = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC).date()
    for name, spec in catalog.boundaries.items():
        key = ("Boundary", name)
        for index, runtime in enumerate(spec.runtimes):
            if catalog.models and runtime not in runtimes:
                path: Path = ("spec", "runtimes", index)
                message = f"no AcceleratorModel has the runtime {runtime!r}"
                yield Finding(key, path, message, warning=True)
        yield from _speaks_of_tenants(catalog, name, spec)
        if _expired(spec, today):
            message = f"expired on {spec.expires}: what it says is unknown since"
            yield Finding(key, ("spec", "expires"), message, warning=True)


def _speaks_of_tenants(catalog: Catalog, name: str, spec: BoundarySpec) -> Iterator[Finding]:
    """A reason is told to whoever is refused for it: it must name nobody."""
    named = {*catalog.tenants, *(p for tenant in catalog.tenants.values() for p in tenant.projects)}
    for index, exclusion in enumerate(spec.exclusions):
        words = set(re.findall(r"[\w-]+", exclusion.reason))
        if found := sorted(words & named):
            path: Path = ("spec", "exclusions", index, "reason")
            message = f"names tenant or project {found[0]!r}, and every tenant may read it"
            yield Finding(("Boundary", name), path, message)


def _expired(spec: BoundarySpec, today: dt.date) -> bool:
    return bool(spec.expires) and today > dt.date.fromisoformat(spec.expires)
