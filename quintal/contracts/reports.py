"""What a report of the whole fleet shows over time: exact quantities, nothing divided yet."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from quintal.contracts.message import Answer, Ask, BigInt, Money, UnixMs

HOUR_MS = 3_600_000
STRETCHES_MAX = 1_000
"""Of one report: what a plot can show, and a message can carry."""


class ReportAsk(Ask):
    """The fleet between two instants, in stretches of full hours."""

    from_ms: UnixMs
    to_ms: UnixMs
    stretch_ms: Annotated[int, Field(ge=HOUR_MS, multiple_of=HOUR_MS)] = HOUR_MS


class FleetStretch(Answer):
    """One class in one stretch; all quantities are of this class: micro-units x parts x ms.

    Capacity counts every device that is rated in the class, and so does what other classes hold
    of them. Ratings are those of the newest catalog; what was granted has its own.
    """

    at_ms: UnixMs
    workload_class: Annotated[str, Field(alias="class")]
    capacity: BigInt
    leased: BigInt
    """Of the capacity, by whatever class."""
    unavailable: BigInt
    """Of the capacity, for whatever reason."""
    granted: BigInt
    """In this class."""
    covered: BigInt
    """Of what was granted: where readings came."""
    used: BigInt
    """Of what was covered: as busy as it was."""


class UnitCost(Answer):
    """What one model delivered in one class, what that brought in, and what it cost us."""

    vendor: str
    model: str
    workload_class: Annotated[str, Field(alias="class")]
    release_year: int | None = None
    quantity: BigInt
    charged: Money
    currency: str = ""
    own_cost: Money | None = None
    """Of the time in which its cards were leased for this; none where no cost list says."""
    full_cost: Money | None = None
    """With its share of the time in which they were idle or unavailable."""
    cost_currency: str = ""


class Report(Answer):
    """Closed hours only: `to_ms` is where they end."""

    kind: Literal["report"] = "report"
    from_ms: UnixMs
    to_ms: UnixMs
    stretch_ms: int
    sequence: int
    fleet: tuple[FleetStretch, ...] = ()
    costs: tuple[UnitCost, ...] = ()
