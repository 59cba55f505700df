"""Asking metering: usage, cost, and whether the ledger and the inventory agree."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from quintal.contracts.message import Answer, Ask, BigInt, Money, UnixMs

GroupBy = Literal[
    "tenant", "project", "profile", "model", "pool", "class", "vendor", "month", "day", "hour"
]
LabelBy = Annotated[str, Field(pattern=r"^label:[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
"""By a label's value: `label:team`."""


class SummaryAsk(Ask):
    """Usage and cost in a span of time, grouped. A tenant gets its own only."""

    from_ms: UnixMs | None = None
    to_ms: UnixMs | None = None
    by: Annotated[tuple[GroupBy | LabelBy, ...], Field(min_length=1, max_length=8)] = ("tenant",)
    tenant: str | None = None
    project: str | None = None
    profile: str | None = None
    model: str | None = None


class UsageRow(Answer):
    """One group. Quantities are undivided: micro-units x parts x ms."""

    group: dict[str, str]
    workload_class: Annotated[str, Field(alias="class")]
    leases: int
    quantity: BigInt
    """Delivered."""
    nominal_quantity: BigInt = 0
    unit_hours: str
    """`quantity` as unit-hours, rounded once to 6 places, for people."""
    unit_seconds: str
    """`quantity` as unit-seconds, exact to the micro-unit."""
    card_ms: BigInt = 0
    """Parts x ms / 1,000,000, whole cards."""
    cost: Money
    currency: str = ""
    estimated_quantity: BigInt = 0
    """The part of `quantity` that rests on estimated ratings."""
    unpriced_quantity: BigInt = 0
    """The part for which no price was in force."""


class UsageSummary(Answer):
    """Usage up to the watermark; open leases are counted up to there."""

    kind: Literal["usage"] = "usage"
    from_ms: UnixMs
    to_ms: UnixMs
    watermark_ms: UnixMs
    sequence: int
    rows: tuple[UsageRow, ...]
    restated: bool = False


class SlicesAsk(Ask):
    """The rows beneath a summary, oldest first."""

    from_ms: UnixMs | None = None
    to_ms: UnixMs | None = None
    tenant: str | None = None
    lease: str | None = None
    limit: Annotated[int, Field(ge=1, le=100_000)] = 1_000


class Slice(Answer):
    """One stretch of one device in one lease at one price in one hour."""

    id: str
    kind_of: Literal["usage", "adjustment"] = "usage"
    lease: str
    tenant: str
    project: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    profile: str = ""
    pool: str = ""
    model: str
    workload_class: Annotated[str, Field(alias="class")]
    from_ms: UnixMs
    to_ms: UnixMs
    devices: int
    parts: BigInt
    rating_micro: BigInt
    rating_version: str = ""
    provenance: str = ""
    quantity: BigInt
    nominal_quantity: BigInt
    price: str | None = None
    price_per: str = ""
    price_list: str = ""
    cost: Money
    currency: str = ""
    revision: int = 0
    sequence: int = 0


class Slices(Answer):
    """Slices of closed hours and ended leases, then the open ones clipped at the watermark."""

    kind: Literal["slices"] = "slices"
    watermark_ms: UnixMs
    rows: tuple[Slice, ...]


class VerifyAsk(Ask):
    """Hold the fold against the census, and the store against a recomputation of the fold."""

    from_ms: UnixMs | None = None
    to_ms: UnixMs | None = None


class Difference(Answer):
    """One thing that does not agree."""

    check: Literal["conservation", "census", "recompute", "gap"]
    at_ms: UnixMs
    pool: str = ""
    model: str = ""
    subject: str = ""
    expected: str
    found: str


class Verified(Answer):
    """What was compared and what differed."""

    kind: Literal["verified"] = "verified"
    ok: bool
    sequence: int
    watermark_ms: UnixMs
    censuses: int
    hours: int
    slices: int
    differences: tuple[Difference, ...] = ()


class TelemetryAsk(Ask):
    """Minute rollups of a reading, for a node or all."""

    reading: str = "utilization_percent"
    node: str | None = None
    from_ms: UnixMs | None = None
    to_ms: UnixMs | None = None
    limit: Annotated[int, Field(ge=1, le=100_000)] = 1_000


class TelemetryRow(Answer):
    """One device in one minute; absent values stay absent."""

    node: str
    device: str
    minute_ms: UnixMs
    samples: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None


class TelemetryRows(Answer):
    """Minute rollups."""

    kind: Literal["telemetry"] = "telemetry"
    reading: str
    rows: tuple[TelemetryRow, ...]
    details: dict[str, Any] = Field(default_factory=dict)
