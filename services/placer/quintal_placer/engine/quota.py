"""What each tenant holds, and the caps on it. Micro-units and parts of cards, integers.

A cap is on a class, or on a family or model within one (in units), or on a family or model in
cards whatever the class. The debit is the rating's value of what was granted; of a card's cap, the
parts of cards that are held: a quarter of a card counts as a quarter, and four of them as one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from quintal_placer.engine.asks import PARTS

Scope = Literal["class", "family", "model"]


class Meter(NamedTuple):
    """What is counted: one tenant, one class (or any), one family or model (or all)."""

    tenant: str
    workload_class: str
    """Empty: whatever the class."""
    scope: Scope
    name: str
    """The family or model; empty for scope `class`."""


class Holding(NamedTuple):
    """What a lease adds: so many parts of a model's cards, delivering so many micro-units."""

    tenant: str
    workload_class: str
    family: str
    model: str
    parts: int
    micro: int


@dataclass(frozen=True, slots=True)
class Limit:
    """One cap."""

    meter: Meter
    micro: int | None = None
    cards: int | None = None


@dataclass(frozen=True, slots=True)
class Excess:
    """A cap that would be passed, and by how much: in micro-units, or in parts of cards."""

    limit: Limit
    used: int
    wanted: int
    over: int


@dataclass(slots=True)
class Usage:
    """Units and parts of cards under one meter."""

    micro: int = 0
    parts: int = 0


NOTHING: Final = Usage()

BOUND_MAX: Final = 16_384
"""Accounts whose caps are kept at hand."""


@dataclass(slots=True)
class Quotas:
    """Counters of all tenants, and their caps."""

    used: dict[Meter, Usage] = field(default_factory=dict)
    limits: dict[str, tuple[Limit, ...]] = field(default_factory=dict)
    """Tenant -> caps. A tenant that is missing has no quota at all. Other caps are another dict."""
    changes: dict[str, int] = field(default_factory=dict)
    """Tenant -> how often its account has changed: what hangs on it alone may be kept."""
    _bound: dict[tuple[str, str, str, str], tuple[Limit, ...]] = field(default_factory=dict)
    """(tenant, class, family, model) -> its caps that count these; as long as `limits` stands."""
    _bound_of: dict[str, tuple[Limit, ...]] | None = None

    def add(self, holding: Holding) -> None:
        """The tenant now holds this as well."""
        self._count(holding, 1)

    def drop(self, holding: Holding) -> None:
        """The tenant holds this no more."""
        self._count(holding, -1)

    def _count(self, holding: Holding, sign: int) -> None:
        self.changes[holding.tenant] = self.changes.get(holding.tenant, 0) + 1
        for meter in _meters(*holding[:4]):
            usage = self.used.get(meter)
            if usage is None:
                usage = self.used[meter] = Usage()
            usage.micro += sign * holding.micro
            usage.parts += sign * holding.parts
            if usage.micro == 0 and usage.parts == 0:
                del self.used[meter]

    def usage(self, meter: Meter) -> Usage:
        """What is held under a meter."""
        return self.used.get(meter, NOTHING)

    def defined(self, tenant: str, workload_class: str) -> bool:
        """Whether the tenant has a cap on this class: without one nothing is granted."""
        for limit in self.limits.get(tenant, ()):
            _, its, scope, _ = limit.meter
            if scope == "class" and its == workload_class:
                return True
        return False

    def exceeded(self, *holdings: Holding) -> Excess | None:
        """The first cap that these would pass together, the narrowest first; none if all hold."""
        found = self.excesses(*holdings)
        if not found:
            return None
        order = ("model", "family", "class")
        return min(found, key=lambda e: order.index(e.limit.meter.scope))

    def excesses(self, *holdings: Holding) -> list[Excess]:
        """Every cap that these would pass together."""
        found: list[Excess] = []
        for limit in self._binding(holdings):
            micro = parts = 0
            for holding in holdings:
                if counts(limit.meter, holding):
                    micro, parts = micro + holding.micro, parts + holding.parts
            if not micro and not parts:
                continue
            usage = self.used.get(limit.meter, NOTHING)
            if limit.micro is not None:
                used, wanted, top = usage.micro, micro, limit.micro
            else:
                used, wanted, top = usage.parts, parts, (limit.cards or 0) * PARTS
            if used + wanted > top:
                found.append(Excess(limit, used, wanted, used + wanted - top))
        return found

    def _binding(self, holdings: tuple[Holding, ...]) -> tuple[Limit, ...]:
        """The tenant's caps that these may touch: nearly always those of one model."""
        if not holdings:
            return ()
        if len(holdings) > 1:
            return self.limits.get(holdings[0].tenant, ())
        if self._bound_of is not self.limits or len(self._bound) >= BOUND_MAX:
            self._bound_of, self._bound = self.limits, {}
        key = holdings[0][:4]
        found = self._bound.get(key)
        if found is None:
            caps = self.limits.get(holdings[0].tenant, ())
            found = tuple(limit for limit in caps if counts(limit.meter, holdings[0]))
            self._bound[key] = found
        return found


def counts(meter: Meter, holding: Holding) -> bool:
    """Whether the meter is one of the holding's `_meters`, without making them."""
    _, its, scope, name = meter
    if its != holding.workload_class and (its or scope == "class"):
        return False
    return name == (
        holding.model if scope == "model" else holding.family if scope == "family" else ""
    )


@lru_cache(maxsize=16_384)
def _meters(tenant: str, its: str, family: str, model: str) -> tuple[Meter, ...]:
    return (
        Meter(tenant, its, "class", ""),
        Meter(tenant, its, "family", family),
        Meter(tenant, its, "model", model),
        Meter(tenant, "", "family", family),
        Meter(tenant, "", "model", model),
    )
