"""What is asked of the engine, already translated: names, counts, integers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

PARTS: Final = 1_000_000
"""Of one whole device."""

Objective = Literal["cheapest", "fastest", "efficient", "pack", "spread", "ordered"]


@dataclass(frozen=True, slots=True)
class Offer:
    """One model as an option would use it, with what it delivers and costs per whole device."""

    model: str
    family: str
    kind: str
    rating_micro: int
    """Micro-units of the ask's class per device (per core for a CPU, see `per_core`)."""
    rating_version: str = "1"
    provenance: str = ""
    per_core: bool = False
    price_nano: int | None = None
    """Price of one device for one hour in 1e-9 of the currency; none where there is no price."""
    milliwatts: int | None = None
    rank: int = 0
    """Place in the asker's own order of models."""
    legal_counts: tuple[int, ...] = ()
    parts: int = PARTS
    """Of a device, that one of what is offered holds; a share's depend on the device."""
    charged: int = PARTS
    """Parts that the rating is taken with, of one of what is offered."""
    together: int = 1
    """So many devices are one card: an asker takes whole ones."""
    most: int = 0
    """Of a partition: into how many of it one device can be cut."""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of one device. Its memory is as much of the device's, unless it says more."""

    parts: int
    """Of the device's compute, of 1,000,000."""
    memory_bytes: int = 0
    """0: as much of the memory as of the compute."""

    def of(self, memory_bytes: int | None) -> int | None:
        """Parts that are charged on a device of so much memory; none if it lies on none such."""
        if not self.memory_bytes:
            return self.parts
        if not memory_bytes or self.memory_bytes > memory_bytes:
            return None
        return max(self.parts, -(-self.memory_bytes * PARTS // memory_bytes))


@dataclass(frozen=True, slots=True)
class Group:
    """So many of one kind on a node: whole cards, or shares of cards, or partitions."""

    offers: tuple[Offer, ...]
    cards: int
    share: Share | None = None
    partition: str = ""
    """The profile; empty: no partitions."""
    excluded: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """Software of nodes on which a model must not be used for an option, and why."""

    model: str
    software: str
    """As `Node.software`."""
    code: str
    message: str
    owner: str


Wish = Literal["required", "preferred"]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How the cards of an option must lie; none: as it comes."""

    island: Wish | None = None
    """Those of one node in one island."""
    nic: Wish | None = None
    """Those of one node near one network interface."""
    domain: Wish | None = None
    """All nodes in one domain."""
    over: Literal["fabric", "rack"] = "fabric"


@dataclass(frozen=True, slots=True)
class Option:
    """One alternative: models that would do, and counts of its own."""

    offers: tuple[Offer, ...]
    cards: int
    """Per node."""
    share: Share | None = None
    """A part of each card; none: the whole."""
    partition: str = ""
    """Partitions of this profile instead of cards."""
    beside: tuple[Group, ...] = ()
    """Further groups on the same node."""
    nodes: int = 1
    variant: str = ""
    image: str = ""
    args: tuple[str, ...] = ()
    precision: str = ""
    excluded: tuple[tuple[str, str], ...] = ()
    """(model, why) of models in the fleet's catalog that this option does not take."""
    bars: tuple[Bar, ...] = ()
    """Where the software of nodes does not do; judged outside, once per model and software."""
    unapproved: tuple[tuple[str, str], ...] = ()
    """(pool, why) of pools that did not approve what this option runs."""
    arrangement: Arrangement | None = None
    members: tuple[tuple[int, int], ...] = ()
    """(cards, nodes) of a gang whose members differ, the largest first; `cards` is then the
    largest's, and `nodes` all of them."""
    mixed: bool = False
    """Whether nodes of one gang may give different models."""

    @property
    def seats(self) -> tuple[tuple[int, int], ...]:
        """(cards, nodes) of its members, the largest first."""
        return self.members or ((self.cards, self.nodes),)

    @property
    def least(self) -> int:
        """Cards of its smallest member."""
        return self.members[-1][0] if self.members else self.cards

    @property
    def total(self) -> int:
        """Cards of all members together."""
        return sum(cards * nodes for cards, nodes in self.seats)

    @property
    def arranged(self) -> bool:
        """Whether it asks for more than so many nodes with so many cards of one model."""
        return self.arrangement is not None or bool(self.members) or self.mixed

    @property
    def plain(self) -> bool:
        """Whether it asks for one kind of whole cards or partitions: the index knows these."""
        return self.share is None and not self.beside

    @property
    def groups(self) -> tuple[Group, ...]:
        """All that it asks of a node, its own first."""
        own = Group(self.offers, self.cards, self.share, self.partition, self.excluded)
        return (own, *self.beside)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, encoded for the engine."""

    tenant: str
    workload_class: str
    options: tuple[Option, ...]
    objective: Objective = "pack"
    pools: frozenset[str] = frozenset()
    """Empty: every pool that is open to the tenant."""
    closed_pools: frozenset[str] = frozenset()
    """Pools that the tenant may not use."""
    tainted_pools: frozenset[str] = frozenset()
    """Pools with a taint that the request does not tolerate."""
    clusters: frozenset[str] = frozenset()
    locations: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    labels: tuple[tuple[str, str], ...] = ()
    tolerations: frozenset[str] = frozenset()
    cpu_milli: int = 0
    """Per node, beside the cards."""
    memory_bytes: int = 0
    network_mbits: int = 0
    strict: bool = False
    """Only nodes that end work by themselves where they are cut off."""
    micro_max: int | None = None
    """Micro-units that the tenant's budget still allows for as long as is asked; none: all."""
    avoid: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """(node, uuid) that refused this very request a moment ago."""
    left: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """(pool, model) pairs that are left to those who wait for them and came before."""
    shape: object = field(default=None, compare=False)
    """What asks share that differ in `tenant`, `micro_max` and `avoid` alone: what hangs on nothing
    else is worked out once for all of them. None: on its own. Whoever changes anything else of an
    ask gives it another."""
