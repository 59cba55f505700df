"""What the fold gives out: rows for the store, each named by what it is and never by when.

An id is a hash of what makes the row the only one of its sort, so that a row that is written
again after a crash is seen to be the same row. Rows of which there are many are tuples: they cost
a fifth of a frozen dataclass to make, and turn into columns in one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from typing import Final, Literal, NamedTuple

from quintal.units import PARTS

DIGITS_MAX: Final = 38
"""What the store's `Decimal(38, 0)` holds; a quantity above it is refused, never wrapped."""

_TOO_MUCH: Final = 10**DIGITS_MAX

RowKind = Literal["usage", "adjustment"]


class SliceRow(NamedTuple):
    """A stretch of one lease's equal devices, in one hour, at one price.

    `part_ms` is devices x parts x ms; `quantity` devices x charged parts x ms times the rating's
    micro-units. Both are negative in an adjustment. `home_*` is where the devices stood in the
    inventory meanwhile, which conservation needs; `pool` and `model` are what was granted. An empty
    home is a device that had left the inventory.
    """

    id: str
    kind: RowKind
    lease: str
    tenant: str
    project: str
    labels: dict[str, str]
    profile: str
    pool: str
    model: str
    vendor: str
    workload_class: str
    from_ms: int
    to_ms: int
    devices: int
    parts: int
    part_ms: int
    rating_micro: int
    rating_version: str
    provenance: str
    quantity: int
    nominal_quantity: int
    price: Decimal | None
    price_per: str
    price_list: str
    cost: Decimal
    currency: str
    revision: int
    sequence: int
    home_pool: str
    home_model: str
    correction: str = ""
    """The correction that wrote this row; empty where the fold did."""
    reverses: str = ""
    """The row that this one takes back whole."""
    charged_parts: int = PARTS
    """Parts that the rating was taken with: `parts`, but of a partition rated by itself."""
    partition: str = ""
    """The profile of a partition; empty where it is none."""


class CapacityRow(NamedTuple):
    """What the devices of one model in one pool were, in one hour: `reason` in parts x ms.

    `total` is counted apart from the others, which must sum to it.
    """

    id: str
    kind: RowKind
    pool: str
    model: str
    hour_ms: int
    reason: str
    part_ms: int
    sequence: int


class HoldingRow(NamedTuple):
    """A lease on one device: written when it begins, with no end, and again when it ends.

    It says on which device's readings the use of a lease can be seen. No bill rests on it.
    """

    id: str
    lease: str
    tenant: str
    project: str
    workload_class: str
    pool: str
    model: str
    node: str
    device: str
    parts: int
    from_ms: int
    to_ms: int
    """0 while it lasts."""
    sequence: int


@dataclass(frozen=True, slots=True)
class CensusDifference:
    """One number that the placer counted otherwise than the fold."""

    pool: str
    model: str
    subject: str
    expected: int
    """The census's."""
    found: int
    """The fold's."""


@dataclass(frozen=True, slots=True)
class CensusCheck:
    """A census, held against the fold as of its place in the ledger."""

    sequence: int
    index: int
    at_ms: int
    cause: str
    rows: int
    differences: tuple[CensusDifference, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """A transition that does not fit what came before. It is kept, and somebody is told."""

    sequence: int
    index: int
    at_ms: int
    code: str
    message: str


Row = SliceRow | CapacityRow | HoldingRow | CensusCheck | Fault


def row_id(*parts: object) -> str:
    """The identity of a row: sha256 over its parts, which are kept apart from one another."""
    return sha256("\x1f".join(map(str, parts)).encode()).hexdigest()


def checked(number: int) -> int:
    """`number`, if the store can hold it. Raises OverflowError: a wrapped sum would be believed."""
    if not -_TOO_MUCH < number < _TOO_MUCH:
        raise OverflowError(f"{number} has more than {DIGITS_MAX} digits")
    return number
