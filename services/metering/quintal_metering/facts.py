"""The state of the fold: what metering knows of nodes, devices and leases, from the ledger alone.

Plain data, so that a checkpoint is this state as JSON and nothing else (`checkpoint.py`). All keys
are texts and all numbers integers for that reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from quintal.units import MS_PER_HOUR, PARTS

HoldState = Literal["granted", "bound", "ending"]

HEALTHY: Final = frozenset({"ok", "degraded"})


class Hold(NamedTuple):
    """One lease on one device."""

    lease: str
    state: HoldState
    parts: int
    partitions: tuple[str, ...] = ()
    """The uuids of those that it has; none where it has the device, or a share of it."""


class Piece(NamedTuple):
    """What a device was from an instant on: until the next piece, or until now."""

    from_ms: int
    pool: str
    """Empty, like `model`, where the device was not in the inventory."""
    model: str
    present: bool
    base: str
    """What it would be if no lease held it: `free`, or why not."""
    holds: tuple[Hold, ...]
    smallest_parts: int = PARTS
    partitions: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class Node:
    """What makes a node's devices ungrantable."""

    liveness: str = "ready"
    cordons: set[str] = field(default_factory=set)
    """Who cordoned it: it is open when nobody does."""
    taints: set[str] = field(default_factory=set)
    devices: dict[str, bool] = field(default_factory=dict)
    """The uuids in inventory, in the order they came."""


@dataclass(slots=True)
class Device:
    """A device in inventory, or one that has left it while a lease still holds it."""

    node: str
    uuid: str
    present: bool = False
    model: str | None = None
    pool: str = ""
    health: str = "ok"
    disputed: bool = False
    smallest_parts: int = PARTS
    """The smallest legal share of it."""
    partitions: tuple[tuple[str, int], ...] = ()
    """(uuid, parts) of those that it is cut into and that its agent reports."""
    holds: dict[str, Hold] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    """Kept while a bound lease holds it, because its end may lie before now."""


class Card(NamedTuple):
    """A device of a lease as it was granted: what is billed."""

    node: str
    uuid: str
    vendor: str
    model: str
    pool: str
    parts: int
    rating_micro: int
    rating_version: str
    provenance: str
    charged_parts: int
    """Parts that the rating is taken with."""
    partition: str = ""
    """The uuid; empty where it is no partition."""
    partition_profile: str = ""


class Group(NamedTuple):
    """Cards of a lease that differ in nothing that a slice names, and how many there are."""

    vendor: str
    model: str
    pool: str
    parts: int
    rating_micro: int
    rating_version: str
    provenance: str
    home_pool: str
    home_model: str
    devices: int
    charged_parts: int
    partition: str = ""
    """Its profile; empty where it is none."""

    @property
    def named(self) -> tuple[object, ...]:
        """What makes a slice of it the only one of its sort. Whole cards are named as ever."""
        return self if self.partition else self[:10]


class Use(NamedTuple):
    """What a bound lease used from an instant on, under one catalog revision."""

    from_ms: int
    revision: int
    groups: tuple[Group, ...]


@dataclass(slots=True)
class Lease:
    """A lease that holds devices."""

    id: str
    tenant: str
    project: str
    profile: str
    workload_class: str
    labels: dict[str, str]
    nominal_micro: int | None
    """What one card is charged as, where billing is nominal."""
    cards: tuple[Card, ...]
    state: HoldState = "granted"
    bound_ms: int = 0
    held_ms: int = 0
    """Since when it has had these very cards."""
    billed_ms: int = 0
    """Up to where its slices have been given out."""
    uses: list[Use] = field(default_factory=list)


@dataclass(slots=True)
class Cell:
    """All devices of one model in one pool: how many parts are what, and for how long so far."""

    pool: str
    model: str
    at_ms: int
    total: int = 0
    """Counted by devices that come and go, not by summing `parts`."""
    total_part_ms: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    part_ms: dict[str, int] = field(default_factory=dict)
    """Within the open hour, up to `at_ms`."""


@dataclass(slots=True)
class State:
    """All of it, as of one transition of the ledger."""

    sequence: int = 0
    index: int = -1
    """Which transition of the message: with the sequence, a place in the ledger."""
    at_ms: int = 0
    """The watermark."""
    epoch: int = 0
    writer: str = ""
    """Who has the ledger."""
    unread: bool = False
    """Whether the last message was none that can be read."""
    hour_ms: int | None = None
    """Where the open hour began; none before the first transition."""
    revision: int = 0
    """The adopted catalog; 0 before the first."""
    nodes: dict[str, Node] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    cells: dict[str, Cell] = field(default_factory=dict)


def hour_of(at_ms: int) -> int:
    """The instant at which the hour of `at_ms` began, UTC."""
    return at_ms - at_ms % MS_PER_HOUR


def hours_within(from_ms: int, to_ms: int) -> list[tuple[int, int, int]]:
    """`[from_ms, to_ms)` cut at full hours, as (hour, from, to)."""
    found = []
    while from_ms < to_ms:
        hour = hour_of(from_ms)
        end = min(to_ms, hour + MS_PER_HOUR)
        found.append((hour, from_ms, end))
        from_ms = end
    return found
