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
    unit_hours: Annotated[Exact, Field(ge=0)]
    per: Literal["month"] = "month"
    on_exceed: Literal["warn", "refuse"] = "refuse"


class QuotaSpec(Spec):
    """How much a tenant may hold at once. A class without a cap of its own is refused."""

    tenant: Token
    caps: tuple[Cap, ...]
    budgets: tuple[Budget, ...] = ()
    adopt: Literal["record", "refuse"] = "record"
    """What an outside scheduler opens beyond a cap or budget: recorded as `over_by`, or refused.
    A budget that only warns refuses nothing here either."""


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
    """Must lie after the apply: what was metered was metered at the prices of its time."""
    valid_to_ms: UnixMs | None = None
    retroactive: bool = False
    """Says that it is meant to begin, or to change, in the past: a price correction. Rows that
    are metered keep their price until they are rerated."""
    prices: tuple[Price, ...]

    @model_validator(mode="after")
    def _lasts(self) -> PriceListSpec:
        if self.valid_to_ms is not None and self.valid_to_ms <= self.valid_from_ms:
            raise ValueError("valid_to_ms must lie after valid_from_ms")
        return self


class CohortMember(Spec):
    """One tenant of a cohort, and how far it lends and borrows."""

    tenant: Token
    lending_units: Annotated[Exact, Field(ge=0)] | None = None
    """At most this much of its own cap may be used by the others; empty: all that it leaves."""
    borrowing_units: Annotated[Exact, Field(ge=0)] | None = None
    """At most this much beyond its own cap; empty: all that the others lend."""


class CohortSpec(Spec):
    """Tenants who lend one another what they leave of their caps in one class."""

    title: str = ""
    workload_class: Annotated[WorkloadClass, Field(alias="class")]
    members: Annotated[tuple[CohortMember, ...], Field(min_length=2)]


class CommitmentSpec(Spec):
    """A paid floor: so much is a tenant's at any time, and paid whether it is used or not."""

    tenant: Token
    workload_class: Annotated[WorkloadClass, Field(alias="class")]
    units: Annotated[Exact, Field(gt=0)] | None = None
    cards: Annotated[int, Field(gt=0)] | None = None
    """Cards of `model`, where a floor is agreed by the card."""
    pool: str = ""
    family: str = ""
    model: str = ""
    valid_from_ms: UnixMs = 0
    valid_to_ms: UnixMs | None = None
    amount: Annotated[Exact, Field(ge=0)] | None = None
    """What one committed unit (or card) costs an hour; empty: as the price lists say."""

    @model_validator(mode="after")
    def _is_one_floor(self) -> CommitmentSpec:
        if (self.units is None) == (self.cards is None):
            raise ValueError("a commitment has either units or cards")
        if self.cards is not None and not self.model:
            raise ValueError("a commitment in cards names its model")
        if self.family and self.model:
            raise ValueError("a commitment is for a family or for a model")
        if self.valid_to_ms is not None and self.valid_to_ms <= self.valid_from_ms:
            raise ValueError("valid_to_ms must lie after valid_from_ms")
        return self


class PriorityClassSpec(Spec):
    """A rank in the queue: higher goes first."""

    value: Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
    default: bool = False
