"""What no single document is wrong about, but two of them are, or one with itself.

Models, profiles and pools have rooms of their own; here is the table of all rules, and those for
tenants, quotas, prices and priorities. Of two documents that contradict each other the later one,
by name or by date, is blamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from quintal.contracts.documents import Catalog, PriceListSpec
from quintal_catalog.finding import Finding
from quintal_catalog.model_rules import ENDLESS, models
from quintal_catalog.pool_rules import pools, profiles


def findings(catalog: Catalog, now_ms: int) -> Iterator[Finding]:
    """All contradictions of the whole set, and what is merely odd as warnings."""
    for rule in (models, profiles, pools, _tenants, _quotas, _priorities):
        yield from rule(catalog)
    yield from _prices(catalog, now_ms)


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


# --- prices -----------------------------------------------------------------------------------


def _prices(catalog: Catalog, now_ms: int) -> Iterator[Finding]:
    lists = sorted(catalog.prices.items(), key=lambda item: (item[1].valid_from_ms, item[0]))
    for index, (name, spec) in enumerate(lists):
        key = ("PriceList", name)
        for place, price in enumerate(spec.prices):
            if price.amount < 0:
                message = "a price is not below 0"
                yield Finding(key, ("spec", "prices", place, "amount"), message)
        first = lists[0]
        if spec.currency != first[1].currency:
            message = (
                f"PriceList {first[0]!r} is in {first[1].currency}; "
                f"an installation has one currency"
            )
            yield Finding(key, ("spec", "currency"), message)
        for other, its in lists[:index]:
            if its.type == spec.type and its.valid_from_ms == spec.valid_from_ms:
                message = f"PriceList {other!r} ({its.type}) begins at the same instant"
                yield Finding(key, ("spec", "valid_from_ms"), message)
    yield from _stale(lists, now_ms)


def _stale(lists: list[tuple[str, PriceListSpec]], now_ms: int) -> Iterator[Finding]:
    charges = [(name, spec) for name, spec in lists if spec.type == "charge"]
    lasting = [spec for _, spec in charges if (spec.valid_to_ms or ENDLESS) > now_ms]
    if charges and not lasting:
        name, spec = max(charges, key=lambda item: item[1].valid_to_ms or 0)
        message = f"the last charge prices ended at {spec.valid_to_ms}: use costs nothing since"
        yield Finding(("PriceList", name), ("spec", "valid_to_ms"), message, warning=True)
