"""Asking metering for money: a tenant's bill, a quote beforehand, a correction afterwards."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from quintal.contracts.message import Answer, Ask, BigInt, DurationMs, Money, Token, UnixMs
from quintal.contracts.spec import WorkloadClass


class BillAsk(Ask):
    """One tenant's bill of one calendar month, UTC. A tenant gets its own."""

    month: Annotated[str, Field(pattern=r"^\d{4}-(0[1-9]|1[0-2])$")]
    tenant: Token | None = None


class BillLine(Answer):
    """What differs in nothing that a price depends on, summed; the amount is rounded once."""

    project: str = ""
    profile: str = ""
    pool: str = ""
    model: str = ""
    vendor: str = ""
    workload_class: Annotated[str, Field(alias="class")]
    price: str | None = None
    price_per: str = ""
    price_list: str = ""
    quantity: BigInt
    """Delivered, undivided."""
    nominal_quantity: BigInt = 0
    """What the price was multiplied with, undivided."""
    unit_hours: str
    card_ms: BigInt = 0
    cost: Money
    """The sum of the slices' stored costs."""
    amount: Money
    """`cost` rounded to the currency's minor unit."""
    residue: Money
    """`cost` less `amount`: what the rounding left."""
    currency: str = ""
    leases: int = 0
    slices: int = 0
    adjustments: int = 0
    """How many of the slices are later corrections; the line is restated if there are any."""
    estimated_quantity: BigInt = 0
    ratings: tuple[str, ...] = ()
    """Provenance and version of the ratings that it rests on."""
    revisions: tuple[int, ...] = ()
    """The catalog revisions that it was charged under."""
    first_sequence: int = 0
    last_sequence: int = 0
    """Where in the ledger the evidence lies."""


class BillTotal(Answer):
    """One currency: nothing converts."""

    currency: str
    amount: Money
    """The sum of the lines' amounts."""
    residue: Money


class Bill(Answer):
    """A bill, line by line, each with its evidence."""

    kind: Literal["bill"] = "bill"
    tenant: str
    month: str
    from_ms: UnixMs
    to_ms: UnixMs
    watermark_ms: UnixMs
    sequence: int
    closed: bool
    """Whether the month is over; an open one counts up to the watermark."""
    restated: bool = False
    lines: tuple[BillLine, ...]
    totals: tuple[BillTotal, ...] = ()


class QuoteAsk(Ask):
    """What a profile (or a class) would cost for a while, on each model of the fleet."""

    profile: str = ""
    workload_class: Annotated[WorkloadClass | None, Field(alias="class")] = None
    precision: str = ""
    model: str = ""
    pool: str = ""
    cards: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    parts: Annotated[int, Field(ge=1, le=1_000_000)] = 1_000_000
    duration_ms: Annotated[DurationMs, Field(ge=1, le=31_622_400_000)] = 3_600_000
    from_ms: UnixMs | None = None
    """When it would begin; else at the watermark."""
    tenant: Token | None = None


class QuotePart(Answer):
    """A stretch at one price; none where no price is in force."""

    from_ms: UnixMs
    to_ms: UnixMs
    price: str | None = None
    price_per: str = ""
    price_list: str = ""
    cost: Money


class Offer(Answer):
    """The cards of one model in one pool."""

    pool: str
    model: str
    vendor: str = ""
    rating_micro: BigInt
    rating_version: str = ""
    provenance: str = ""
    unit_hours: str
    cost: Money
    """Equal to what metering would charge for the same stretch, from the same function."""
    currency: str = ""
    parts: tuple[QuotePart, ...] = ()


class Quote(Answer):
    """The cheapest first; those without a price last."""

    kind: Literal["quote"] = "quote"
    tenant: str
    workload_class: Annotated[str, Field(alias="class")]
    from_ms: UnixMs
    to_ms: UnixMs
    revision: int
    offers: tuple[Offer, ...]


class RerateAsk(Ask):
    """Charge what was charged again, by the ratings and prices of one catalog revision."""

    from_ms: UnixMs
    to_ms: UnixMs | None = None
    revision: int | None = None
    """Else the adopted one."""
    what: Literal["both", "ratings", "prices"] = "both"
    tenant: Token | None = None
    model: str = ""
    why: Annotated[str, Field(max_length=1_024)] = ""
    dry_run: bool = False


class Rerated(Answer):
    """By how much one tenant's use in one class changes."""

    tenant: str
    workload_class: Annotated[str, Field(alias="class")]
    slices: int
    unit_hours_before: str
    unit_hours_after: str
    cost_before: Money
    cost_after: Money
    difference: Money
    currency: str = ""


class Rerating(Answer):
    """A correction: a reversal and a new row for each slice that changes; the old rows stand."""

    kind: Literal["rerated"] = "rerated"
    correction: str = ""
    """Names the correction; its rows carry it."""
    revision: int
    looked_at: int
    changed: int
    unmatched: int = 0
    """Slices whose rating could not be found again in the revision: left as they are."""
    rows: tuple[Rerated, ...]
    dry_run: bool = False


class DeadLettersAsk(Ask):
    """What could not be taken in; `retry` tries once more, the ledger's own messages too."""

    retry: bool = False
    limit: Annotated[int, Field(ge=1, le=10_000)] = 100


class DeadLetterRow(Answer):
    """One of them."""

    id: str
    stream: str
    sequence: int
    place: int = -1
    at_ms: int
    code: str
    message: str
    body: str = ""
    outcome: str = ""
    """What the retry came to: `taken`, or why not."""


class DeadLetters(Answer):
    """Newest first; those that a retry took are gone."""

    kind: Literal["dead_letters"] = "dead_letters"
    waiting: int
    taken: int = 0
    rows: tuple[DeadLetterRow, ...]


MINOR_DIGITS: dict[str, int] = {
    "BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0,
    "RWF": 0, "UGX": 0, "VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
    "BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3,
}  # fmt: skip
"""How many decimals a currency's minor unit has where it is not 2 (ISO 4217)."""


def minor_step(currency: str) -> Decimal:
    """The currency's minor unit: 0.01 for most."""
    return Decimal(1).scaleb(-MINOR_DIGITS.get(currency, 2))
