"""Who may use how much, and what it costs: tenants, quotas, budgets, prices, ranks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from quintal.contracts.message import Exact, Token, UnixMs
from quintal.contracts.spec import Spec, WorkloadClass


class TenantSpec(Spec):
    """Who asks, and which projects it accounts to."""

    title: str = ""
    projects: tuple[Token, ...] = ()
    contact: str = ""


class Cap(Spec):
    """At most this much at once. Give `units` (of `class`) or `cards`."""

    workload_class: Annotated[WorkloadClass | None, Field(alias="class")] = None
    family: str = ""
    model: str = ""
    units: Exact | None = None
    cards: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _is_one_cap(self) -> Cap:
        if (self.units is None) == (self.cards is None):
            raise ValueError("a cap has either units or cards")
        if self.units is not None and self.workload_class is None:
            raise ValueError("a cap in units names its class")
        if self.family and self.model:
            raise ValueError("a cap is for a family or for a model")
        return self


class Budget(Spec):
    """Unit-hours of a class in a calendar month, UTC."""

    workload_class: Annotated[WorkloadClass, Field(alias="class")]
    unit_hours: Exact
    per: Literal["month"] = "month"
    on_exceed: Literal["warn", "refuse"] = "refuse"


class QuotaSpec(Spec):
    """How much a tenant may hold at once. A class without a cap of its own is refused."""

    tenant: Token
    caps: tuple[Cap, ...]
    budgets: tuple[Budget, ...] = ()
    adopt: Literal["record", "refuse"] = "record"


class Price(Spec):
    """One price. The first entry of a list whose selectors all hold applies."""

    amount: Exact
    per: Literal["unit_hour", "card_hour"]
    workload_class: Annotated[WorkloadClass | None, Field(alias="class")] = None
    model: str = ""
    pool: str = ""
    profile: str = ""
    tenant: str = ""


class PriceListSpec(Spec):
    """What use costs (`charge`), or what the fleet costs us (`cost`), between two instants."""

    type: Literal["charge", "cost"] = "charge"
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    valid_from_ms: UnixMs = 0
    valid_to_ms: UnixMs | None = None
    prices: tuple[Price, ...]

    @model_validator(mode="after")
    def _lasts(self) -> PriceListSpec:
        if self.valid_to_ms is not None and self.valid_to_ms <= self.valid_from_ms:
            raise ValueError("valid_to_ms must lie after valid_from_ms")
        return self


class PriorityClassSpec(Spec):
    """A rank in the queue: higher goes first."""

    value: Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
    default: bool = False
