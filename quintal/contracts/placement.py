"""Asking for devices: the request, the lease, and every verb on them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from quintal.contracts.arrangement import Members, TopologyNeed
from quintal.contracts.documents import (
    AcceleratorNeed,
    Alternative,
    CardGroup,
    NodeNeed,
    ShareNeed,
    WorkloadClass,
)
from quintal.contracts.message import (
    Answer,
    Ask,
    DurationMs,
    Labels,
    Money,
    Name,
    Reason,
    Refusal,
    Token,
    UnixMs,
    Word,
)
from quintal.contracts.nodes import Topology
from quintal.units import PARTS

Objective = Literal[
    "cheapest", "fastest", "efficient", "pack", "spread", "ordered", "commitment_first"
]

RequestId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]

Ttl = Annotated[int, Field(ge=30_000, le=86_400_000)]
"""30 s to 24 h."""


class Constraints(Ask):
    """Where it must lie. Every field that is given must hold; lists are any-of."""

    pools: Annotated[tuple[Word, ...], Field(max_length=64)] = ()
    clusters: Annotated[tuple[Word, ...], Field(max_length=64)] = ()
    locations: Annotated[tuple[Word, ...], Field(max_length=64)] = ()
    nodes: Annotated[tuple[Token, ...], Field(max_length=256)] = ()
    labels: Labels = Field(default_factory=dict)
    tolerations: Annotated[tuple[Word, ...], Field(max_length=64)] = ()


class Wait(Ask):
    """What to do when it does not fit now."""

    mode: Literal["fail", "queue"] = "fail"
    deadline_ms: Annotated[int, Field(ge=0, le=2_678_400_000)] = 600_000
    """31 days at most, from now; a queued request that was not placed by then is refused."""


class PlaceAsk(Ask):
    """A capability in. Give a profile, or a class with an accelerator or alternatives."""

    request_id: RequestId
    profile: Name | None = None
    workload: Name | None = None
    """A Workload of the catalog: its variants stand for alternatives, its profile for the
    profile, and nodes whose software does not do are left out."""
    variant: Annotated[str, Field(max_length=64)] = ""
    """Only this variant of the workload."""
    workload_class: Annotated[WorkloadClass | None, Field(alias="class")] = None
    accelerator: AcceleratorNeed | None = None
    """Beside a profile it narrows it; alone it is the whole need."""
    cards: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """On each node."""
    nodes: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """A gang: so many nodes, each giving `cards`; whole or nothing."""
    groups: Annotated[tuple[CardGroup, ...], Field(max_length=8)] = ()
    """Further cards of other kinds on each of these nodes, in the same lease."""
    members: Members = ()
    """Instead of `cards` and `nodes`: a gang whose nodes give different numbers of cards."""
    mixed: bool = False
    """Whether the nodes of a gang may give different models: quota and price take the sum, what
    is delivered is as many times the slowest."""
    topology: TopologyNeed | None = None
    """How the cards must lie: in one island, near one interface, the nodes in one domain."""
    node: NodeNeed | None = None
    alternatives: Annotated[tuple[Alternative, ...], Field(max_length=16)] = ()
    constraints: Constraints = Field(default_factory=Constraints)
    objective: Objective | None = None
    priority: Name | None = None
    ttl_ms: Ttl | None = None
    wait: Wait = Field(default_factory=Wait)
    bind: Literal["wait", "none"] = "wait"
    repairs: Word | None = None
    """A lease of this tenant's, a gang that lost a node: its turn is this request's, and what it
    held is kept for this request for a while."""
    project: Token | None = None
    labels: Annotated[dict[Word, Word], Field(max_length=8)] = Field(default_factory=dict)
    requester: Word = ""

    @model_validator(mode="after")
    def _asks_for_something(self) -> PlaceAsk:
        if self.variant and self.workload is None:
            raise ValueError("variant names one of a workload's: give the workload")
        if self.workload is not None and self.alternatives:
            raise ValueError("a workload's variants are its alternatives: leave them out")
        if self.profile is None and self.workload is None:
            if self.workload_class is None:
                raise ValueError("give a profile, or a class with an accelerator")
            if self.accelerator is None and not self.alternatives:
                raise ValueError("without a profile, give an accelerator or alternatives")
        if self.alternatives and (self.cards is not None or self.nodes is not None):
            raise ValueError("alternatives have counts of their own: leave cards and nodes out")
        if self.members and (self.alternatives or self.cards is not None or self.nodes is not None):
            raise ValueError("members have counts of their own: leave cards and nodes out")
        if self.groups and (self.alternatives or self.workload is not None):
            raise ValueError("groups stand in each alternative: leave them out of the request")
        return self


class RenewAsk(Ask):
    """Hold the lease for one ttl more, from now; a new ttl is kept from here on."""

    lease: str
    ttl_ms: Ttl | None = None


class ReleaseAsk(Ask):
    """The lease is no longer needed."""

    lease: str


class CancelAsk(Ask):
    """Take a queued request back, by its request id."""

    request_id: RequestId


class ReadAsk(Ask):
    """A question that changes nothing; a placer that leads answers it, or one that stands by."""

    at_least_sequence: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Only an answer that reflects this much of the ledger: the sequence of one's last write."""
    by: Literal["leader", "any"] | None = None
    """Who may answer while a leader is heard. If not said: the leader, where it alone knows a part
    of the answer (when a lease expires, how long a node is silent, when one who waits may be
    served); else any placer. While no leader is heard every standby may."""


class GetAsk(ReadAsk):
    """One lease, by its id or by the request's."""

    lease: str | None = None
    request_id: RequestId | None = None


class ListAsk(ReadAsk):
    """The leases that the asker may see, newest first."""

    states: Annotated[tuple[Word, ...], Field(max_length=16)] = (
        "queued", "granted", "bound", "ending",
    )  # fmt: skip
    limit: Annotated[int, Field(ge=1, le=10_000)] = 1_000
    tenant: str | None = None
    """For an operator: only this tenant's."""


class ExplainAsk(ReadAsk):
    """Why a request got what it got; kept under its request id."""

    request_id: RequestId
    tenant: str | None = None
    """For an operator: whose request it was."""
    hints: bool = False
    """Also the smallest changes with which it would be placed now; the leader alone knows."""


class LeaseDevice(Answer):
    """One device of a lease."""

    node: str
    uuid: str
    index: int
    vendor: str
    model: str
    pool: str
    parts: int = 1_000_000
    """Of the device that are held: what conservation counts."""
    partition: str | None = None
    """The uuid of the partition, where one is held and not the device."""
    partition_profile: str = ""
    rating_micro: int
    """Micro-units of the lease's class that the whole device delivers, frozen at the grant; of a
    partition with a rating of its own, what that partition delivers."""
    charged_parts: int | None = None
    """Parts that the rating is taken with; none: `parts`. A partition with a rating of its own is
    a whole by itself: 1,000,000."""
    rating_version: str = "1"
    provenance: str = ""
    memory_bytes: int | None = None
    """Of what is held: the device's, the partition's, the share's."""

    @property
    def charged(self) -> int:
        """Parts that the rating is taken with."""
        return self.parts if self.charged_parts is None else self.charged_parts

    @property
    def units_micro(self) -> int:
        """Micro-units of the lease's class that this delivers."""
        return self.rating_micro * self.charged // PARTS


LeaseState = Literal[
    "queued", "granted", "bound", "ending", "ended", "failed", "refused", "cancelled"
]


class Lease(Answer):
    """A promise: devices for a tenant until a deadline, renewed or released."""

    kind: Literal["lease"] = "lease"
    lease: str
    token: int = 0
    request_id: str
    tenant: str
    project: str = ""
    profile: str = ""
    workload_class: Annotated[str, Field(alias="class")] = ""
    state: LeaseState
    reason: str = ""
    devices: tuple[LeaseDevice, ...] = ()
    variant: str = ""
    image: str = ""
    args: tuple[str, ...] = ()
    environment: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Node -> what a process there must have in its environment."""
    cdi: tuple[str, ...] = ()
    units_micro: int = 0
    """Micro-units of `class` that the lease delivers at once, all devices together."""
    delivered_micro: int | None = None
    """Of a gang of different models: as many times the slowest, since all wait for it."""
    not_met: tuple[str, ...] = ()
    """What of the preferred topology could not be had, and what that cost."""
    price_per_hour: Money | None = None
    currency: str = ""
    ttl_ms: DurationMs = 0
    expires_at: str = ""
    """For display only; act on `ttl_ms`."""
    expires_in_ms: int | None = None
    """None where it ended, and where a standby answers: renewals are the leader's alone."""
    notice_in_ms: int | None = None
    """It is not renewed any more, and ends in so long; none: no notice was given."""
    unhealthy: tuple[str, ...] = ()
    """Its devices that have failed, as `node/uuid`."""
    bind: Literal["wait", "none"] = "wait"
    adopted: bool = False
    queue_place: int | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    catalog_revision: int = 0
    over_by: dict[str, str] = Field(default_factory=dict)
    sequence: int = 0
    """The ledger's sequence that this answer reflects."""


class Pending(Answer):
    """It waits; ask `get` with the same request id, or listen to the lease's news."""

    kind: Literal["pending"] = "pending"
    lease: str
    request_id: str
    queue_place: int
    """In the whole line: higher priority first, then in order of arrival."""
    deadline_in_ms: int
    estimate_ms: int | None = None
    """Until it would be placed if every lease ran to its deadline unrenewed; none: unknown."""
    reasons: tuple[Reason, ...] = ()


class Leases(Answer):
    """Several leases."""

    kind: Literal["leases"] = "leases"
    leases: tuple[Lease, ...]
    sequence: int = 0


class QueueRow(Answer):
    """One who waits."""

    place: int
    """In the whole line, also where only a tenant's own are shown."""
    lease: str
    request_id: str
    tenant: str
    project: str = ""
    priority: str = ""
    profile: str = ""
    workload: str = ""
    workload_class: Annotated[str, Field(alias="class")] = ""
    cards: int | None = None
    nodes: int | None = None
    waits_ms: DurationMs = 0
    deadline_in_ms: DurationMs = 0
    estimate_ms: int | None = None
    """As in `Pending`; a placer that does not lead knows none."""
    labels: dict[str, str] = Field(default_factory=dict)


class QueueView(Answer):
    """Who waits, first served first."""

    kind: Literal["queue"] = "queue"
    rows: tuple[QueueRow, ...]
    waiting: int = 0
    """How many wait in all, whoever's they are."""
    sequence: int = 0


class Verdict(Answer):
    """What a dry run says: what a real run would have said, and nothing was kept."""

    kind: Literal["verdict"] = "verdict"
    verdict: Literal["placed", "not_now", "never_fits", "refused"]
    lease: Lease | None = None
    refusal: Refusal | None = None
    decision: str = ""
    """The hash of the canonical decision: what a replay of a snapshot must come to as well."""
    at_ms: int = 0
    """The ledger's time of the decision."""
    sequence: int = 0


class Hint(Answer):
    """A change with which a refused request would have been placed when this was said."""

    message: str
    change: dict[str, Any] = Field(default_factory=dict)
    """Fields of the request, as they would have to be; a null takes one away."""
    gives: str = ""


class Explanation(Answer):
    """One decision, taken apart."""

    kind: Literal["explanation"] = "explanation"
    request_id: str
    verdict: str
    at: str = ""
    catalog_revision: int = 0
    sequence: int = 0
    chosen: tuple[str, ...] = ()
    summary: str = ""
    reasons: tuple[Reason, ...] = ()
    details: dict[str, Any] = Field(default_factory=dict)
    hints: tuple[Hint, ...] | None = None
    """None where nobody asked for them; empty where no small change helps."""


Placed = Annotated[Lease | Pending | Refusal, Field(discriminator="kind")]
OneLease = Annotated[Lease | Refusal, Field(discriminator="kind")]

PLACED: TypeAdapter[Lease | Pending | Refusal] = TypeAdapter(Placed)
ONE_LEASE: TypeAdapter[Lease | Refusal] = TypeAdapter(OneLease)


# --- what operators ask of the placer --------------------------------------------------------


class CordonAsk(Ask):
    """No new grants on these nodes (or take that back with `uncordon`)."""

    nodes: Annotated[tuple[Token, ...], Field(min_length=1, max_length=10_000)]
    reason: Annotated[str, Field(max_length=512)] = ""


class DrainAsk(Ask):
    """Cordon these nodes, and be rid of what runs there; asked again it says how far that is.

    Leases go at their ends. With a deadline no renewal reaches beyond it, and what is still held
    then is revoked. A deadline once given is moved by giving another.
    """

    nodes: Annotated[tuple[Token, ...], Field(min_length=1, max_length=10_000)]
    deadline_ms: DurationMs | None = None
    """From now."""
    reason: Annotated[str, Field(max_length=512)] = ""


class TaintAsk(Ask):
    """Only requests that tolerate `taint` go to these nodes; `remove` takes it off."""

    nodes: Annotated[tuple[Token, ...], Field(min_length=1)]
    taint: Annotated[str, Field(pattern=r"^[A-Za-z0-9./=_-]{1,128}$")]
    remove: bool = False
    reason: str = ""


class RetireAsk(Ask):
    """These nodes are gone for good; what was held on them ends, unacknowledged."""

    nodes: Annotated[tuple[Token, ...], Field(min_length=1)]
    reason: str = ""


class ClearDisputeAsk(Ask):
    """The device was looked at and may be granted again."""

    node: Token
    uuid: str
    reason: str = ""


class PartitionAsk(Ask):
    """Cut a device that nobody holds as one of its model's layouts says; or show what that is.

    The node's installed task does it: Quintal has no hand of its own on a node. A task is run by
    its name alone; the default is `partition-<index>-<layout>`, lower case, other signs as `-`.
    """

    node: Token
    device: str
    """Its uuid, or its display index as text."""
    layout: Annotated[str, Field(max_length=128)]
    """A layout of the model; `whole` for no cut at all."""
    run: bool = False
    """False: say what would be done, and do nothing."""
    task: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$")] = ""
    timeout_ms: Annotated[int, Field(ge=1_000, le=3_600_000)] = 600_000


class AdoptAsk(Ask):
    """An outside scheduler has given these devices to a tenant: open a lease on them."""

    request_id: RequestId
    tenant: Token
    node: Token
    devices: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)]
    """Uuids (a partition's for a partition), or display indices as text."""
    share: ShareNeed | None = None
    """What the tenant has of each of these cards; none: all of it."""
    workload_class: Annotated[WorkloadClass | None, Field(alias="class")] = None
    profile: Name | None = None
    project: Token | None = None
    ttl_ms: Ttl = 86_400_000
    labels: Annotated[dict[Word, Word], Field(max_length=8)] = Field(default_factory=dict)
    requester: Word = ""

    @model_validator(mode="after")
    def _has_a_class(self) -> AdoptAsk:
        if self.workload_class is None and self.profile is None:
            raise ValueError("give a class or a profile: use is metered in one class")
        return self


class EndAdoptedAsk(Ask):
    """The outside scheduler says that the work on this lease is over."""

    lease: str
    reason: str = ""


class FleetAsk(ReadAsk):
    """The fleet as the placer holds it; all filters must hold."""

    shapes: bool = False
    """Of capacity: how many of each profile still fit, and what of the free cards is fragmented."""
    vendor: str | None = None
    model: str | None = None
    pool: str | None = None
    node: str | None = None
    limit: Annotated[int, Field(ge=1, le=100_000)] = 10_000


class SnapshotAsk(Ask):
    """Append a census and write a snapshot now."""


class SnapshotPartAsk(Ask):
    """A piece of a snapshot with its catalog, to be saved as a file.

    Without a sequence a new one is taken; the others of the same sequence follow by `offset`.
    """

    sequence: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    offset: Annotated[int, Field(ge=0, lt=2**63)] = 0


class SnapshotPart(Answer):
    """A piece of it; the last one ends at `size`."""

    kind: Literal["snapshot_part"] = "snapshot_part"
    sequence: int
    offset: int
    size: int
    """Of the whole, in bytes."""
    data: str
    """Base64."""


class Done(Answer):
    """It is so, and it is in the ledger."""

    kind: Literal["done"] = "done"
    message: str = ""
    nodes: tuple[str, ...] = ()
    sequence: int = 0
    details: dict[str, Any] = Field(default_factory=dict)


class PartView(Answer):
    """A share of a device, or a partition of it, and whose it is."""

    parts: int
    """Of the device's 1,000,000."""
    state: str
    """leased, free, or the reason why neither."""
    lease: str | None = None
    tenant: str | None = None
    partition: str = ""
    """The uuid; empty for a share."""
    profile: str = ""
    memory_bytes: int | None = None
    index: int | None = None


class DeviceView(Answer):
    """A device and what became of it."""

    node: str
    uuid: str
    index: int
    vendor: str
    name: str
    model: str | None = None
    pool: str
    memory_bytes: int | None = None
    state: str
    """leased, free, or the reason why neither."""
    lease: str | None = None
    tenant: str | None = None
    health: str = "ok"
    health_reason: str = ""
    ratings: dict[str, str] = Field(default_factory=dict)
    """Class -> units of the whole device."""
    island: int | None = None
    """Which of its node's islands it is in, counted from 0; none: in none, or nobody knows."""
    nics: tuple[str, ...] = ()
    """The network interfaces that are nearest to it."""
    parts: dict[str, int] = Field(default_factory=dict)
    """What its 1,000,000 parts are: leased, free, or the reason why neither."""
    shares: tuple[PartView, ...] = ()
    """What each lease has of it that shares it."""
    partitions: tuple[PartView, ...] = ()
    """What it is cut into."""


class NodeView(Answer):
    """A node and its devices."""

    node: str
    hostname: str = ""
    cluster: str = ""
    location: str = ""
    liveness: str
    cordoned_by: str | None = None
    cordon_reason: str = ""
    taints: tuple[str, ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0
    drivers: dict[str, str] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    topology: Topology | None = None
    """As its agent tells it; none where it does not."""
    fabric: str = ""
    rack: str = ""
    silent_ms: int | None = None
    clock_skew_ms: int | None = None
    devices: tuple[DeviceView, ...] = ()


class Fleet(Answer):
    """All nodes that met the filters."""

    kind: Literal["fleet"] = "fleet"
    nodes: tuple[NodeView, ...]
    sequence: int = 0
    catalog_revision: int = 0


class CapacityRow(Answer):
    """What one model in one pool amounts to."""

    pool: str
    model: str
    vendor: str
    devices: int
    leased: int
    free: int
    unavailable: dict[str, int] = Field(default_factory=dict)
    units: dict[str, str] = Field(default_factory=dict)
    """Class -> units of all devices together."""
    free_units: dict[str, str] = Field(default_factory=dict)
    estimated: dict[str, bool] = Field(default_factory=dict)
    """Class -> whether that rating is an estimate (roofline or derived)."""
    low80: dict[str, str] = Field(default_factory=dict)
    """Class -> units if every rating were at the low end of its 80 % band."""
    high80: dict[str, str] = Field(default_factory=dict)


class RoomRow(Answer):
    """How many leases of a profile, at its least counts, still fit in one pool.

    By cards, CPU and memory: software, network, taints and quotas may keep them out.
    """

    profile: str
    pool: str
    cards: int
    """On each node."""
    nodes: int
    fits: int


class FragmentRow(Answer):
    """How much of what is free of a model in a pool could still be used, in parts of cards."""

    pool: str
    model: str
    free_parts: int
    usable_parts: int | None = None
    """Usable by a request for cards like those of late, on the mean; none before the first."""
    stranded_parts: int | None = None
    """Beside these too little CPU or memory is left."""


class Capacity(Answer):
    """The fleet in standard units."""

    kind: Literal["capacity"] = "capacity"
    rows: tuple[CapacityRow, ...]
    shapes: tuple[RoomRow, ...] = ()
    """Where `shapes` was asked for."""
    fragments: tuple[FragmentRow, ...] = ()
    sequence: int = 0


class QuotaRow(Answer):
    """One cap of a tenant and what is held under it."""

    tenant: str
    cap: str
    limit: str
    used: str
    """Of a budget, a live lease's part runs to its deadline; a standby, which does not hear
    renewals, takes one ttl from now for it."""
    over_by: str | None = None


class QuotaView(Answer):
    """A tenant's caps."""

    kind: Literal["quota"] = "quota"
    rows: tuple[QuotaRow, ...]
    sequence: int = 0


class QueueAsk(ReadAsk):
    """Who waits: of the asking tenant; an operator names one, or gets all."""

    tenant: str | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = 1_000


class QuotaAsk(ReadAsk):
    """The caps of the asking tenant; an operator names one, or gets all."""

    tenant: str | None = None


class PlacerBeat(Answer):
    """The leader lives: who, in which epoch, at which sequence of the ledger."""

    writer: str
    epoch: int
    sequence: int
    beat: int = 0


class Position(Answer):
    """Up to where a reader of the ledger has verified it."""

    reader: str
    sequence: int


class News(Answer):
    """Something changed, and is durable. Who missed it asks."""

    at: UnixMs
    what: str
    sequence: int = 0
    lease: str = ""
    node: str = ""
    reason: str = ""
    tenant: str = ""
    """Whose lease it is, as `events` tells; news has it in the subject."""


class EventsAsk(ReadAsk):
    """The newest transitions of leases and nodes, oldest first; all filters must hold."""

    lease: Word | None = None
    node: Word | None = None
    tenant: Word | None = None
    """For an operator: only this tenant's leases."""
    since_ms: UnixMs | None = None
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100


class Events(Answer):
    """What happened, as the ledger has it."""

    kind: Literal["events"] = "events"
    events: tuple[News, ...]
    sequence: int = 0
    more: bool = False
    """Whether there may be older ones: give a later `since_ms`, or a filter."""
