"""What no single document is wrong about, but two of them are, or one with itself.

Models, profiles, pools, prices and shares have rooms of their own; here is the table of all rules,
and those for tenants, quotas and priorities. Of two documents that contradict each other the later
one, by name or by date, is blamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from quintal.contracts.documents import Catalog, QuotaSpec
from quintal_catalog.finding import Finding
from quintal_catalog.model_rules import models
from quintal_catalog.pool_rules import pools, profiles
from quintal_catalog.price_rules import prices
from quintal_catalog.share_rules import shares
from quintal_catalog.software_rules import boundaries, workloads


def findings(catalog: Catalog, now_ms: int) -> Iterator[Finding]:
    """All contradictions of the whole set, and what is merely odd as warnings."""
    for rule in (models, profiles, pools, _tenants, _quotas, _priorities, shares, workloads):
        yield from rule(catalog)
    yield from prices(catalog, now_ms)
    yield from boundaries(catalog, now_ms)


# --- tenants, quotas, priorities --------------------------------------------------------------


def _tenants(catalog: Catalog) -> Iterator[Finding]:
    for name, tenant in catalog.tenants.items():
        if len(name) > _TOKEN_LENGTH or not set(name) <= _TOKEN:
            message = "a tenant's name is one subject token: letters, digits, _ and -, at most 64"
            yield Finding(("Tenant", name), ("metadata", "name"), message)
        yield from _twice(("Tenant", name), "projects", tenant.projects, lambda project: project)


_TOKEN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_TOKEN_LENGTH: Final = 64


def _quotas(catalog: Catalog) -> Iterator[Finding]:
    owners: dict[str, str] = {}
    for (kind, name), document in sorted(catalog.documents.items()):
        if kind != "Quota":
            continue
        quota = document.spec
        if (other := owners.setdefault(quota.tenant, name)) != name:
            message = f"Quota {other!r} is already tenant {quota.tenant!r}'s; a tenant has one"
            yield Finding((kind, name), ("spec", "tenant"), message)
        key = (kind, name)
        for index, cap in enumerate(quota.caps):
            if cap.units is not None and cap.units < 0:
                yield Finding(key, ("spec", "caps", index, "units"), "a cap is not below 0")
        yield from _twice(
            key,
            "caps",
            quota.caps,
            lambda cap: (cap.workload_class, cap.family, cap.model, cap.units is None),
        )
        yield from _twice(key, "budgets", quota.budgets, lambda budget: budget.workload_class)
        yield from _budgets(key, quota)


def _budgets(key: tuple[str, str], quota: QuotaSpec) -> Iterator[Finding]:
    """A class without a cap is refused anyway, so a budget alone would never be drawn on."""
    capped = {cap.workload_class for cap in quota.caps if cap.units is not None}
    for index, budget in enumerate(quota.budgets):
        if budget.workload_class not in capped:
            message = f"the quota has no cap in {budget.workload_class}: nothing is granted in it"
            yield Finding(key, ("spec", "budgets", index, "class"), message, warning=True)


def _twice(
    key: tuple[str, str], field: str, items: tuple[Any, ...], of: Callable[[Any], Any]
) -> Iterator[Finding]:
    seen: dict[Any, int] = {}
    for index, item in enumerate(items):
        first = seen.setdefault(of(item), index)
        if first != index:
            message = f"says the same thing as {field}.{first}"
            yield Finding(key, ("spec", field, index), message)


def _priorities(catalog: Catalog) -> Iterator[Finding]:
    defaults = sorted(name for name, spec in catalog.priorities.items() if spec.default)
    for name in defaults[1:]:
        message = f"PriorityClass {defaults[0]!r} is the default already"
        yield Finding(("PriorityClass", name), ("spec", "default"), message)
