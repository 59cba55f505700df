"""The ledger's records: every fact that the engine or the fold of metering reads is one of these.

A `Group` is one message on the LEDGER stream: what was decided while the last append was in
flight. Its `expected` is the stream's last sequence before it, its `epoch` the writer's: together
they are the fence. `at_ms` never decreases along the stream, also across a takeover, and is the
only time that counts for usage.

The state of a device, at any instant, is the first of these that holds:

    leased       a lease that is bound holds it
    binding      a lease that is granted holds it
    releasing    a lease that is ending holds it
    lost, suspect, cordoned, tainted, disputed, unhealthy, unresolved
    free

A lease may hold a part of a device only: a share of it, or partitions of it. Then each held part
is what its lease makes of it, and the rest of the device is

    of one that is cut      its free partitions: as if no lease held it (`free`, or why not); and
                            what the layout leaves over, or nobody can name, `partition_overhead`
    of one that is shared   as if no lease held it, while the smallest legal share still fits;
                            `stranded` where none does

A device is cut where its record names partitions. One that is held whole, or shared, counts as
such whatever its partitions; then nothing of these is free.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, TypeAdapter
from pydantic.json_schema import SkipJsonSchema

from quintal.contracts.message import BigInt, Event, Message, Refusal, UnixMs, recorded
from quintal.contracts.nodes import DeviceHealth, RawDevice, Stack, Topology
from quintal.contracts.placement import AdoptAsk, LeaseDevice, PlaceAsk

UNAVAILABLE: Final = (
    "binding",
    "releasing",
    "stranded",
    "partition_overhead",
    "lost",
    "suspect",
    "cordoned",
    "tainted",
    "disputed",
    "unhealthy",
    "unresolved",
)
"""Why parts that are in inventory are neither leased nor free, in the order of precedence."""


class Record(Event):
    """One transition. `at_ms` is the leader's UTC, never decreasing."""

    at_ms: UnixMs


class EpochBegan(Record):
    """A placer took the lead. Every live lease now lasts at least one full ttl from `at_ms`."""

    kind: Literal["epoch"] = "epoch"
    epoch: int
    writer: str


class CatalogAdopted(Record):
    """From here on decisions and prices use this revision."""

    kind: Literal["catalog_adopted"] = "catalog_adopted"
    revision: int
    digest: str


class Tick(Record):
    """Nothing happened until `at_ms`: the watermark moves."""

    kind: Literal["tick"] = "tick"


class NodeChanged(Record):
    """A node appeared or what it has besides devices changed. A new boot id ends its leases."""

    kind: Literal["node"] = "node"
    node: str
    boot_id: str
    hostname: str = ""
    cluster: str = "default"
    location: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    cpu_milli: int = 0
    memory_bytes: int = 0
    network_mbits: int = 0
    stack: Stack = Field(default_factory=Stack)
    topology: Topology | None = None
    inventory_sequence: int = 0
    fences: bool = False
    """Whether the task `fence` is installed: what `fence: strict` needs."""


class LivenessChanged(Record):
    """By the placer's clock. `heard_ms` is the last heartbeat, in ledger time."""

    kind: Literal["liveness"] = "liveness"
    node: str
    liveness: Literal["ready", "suspect", "lost"]
    heard_ms: UnixMs


class CordonChanged(Record):
    """Who took the node out of (or back into) placement, and why."""

    kind: Literal["cordon"] = "cordon"
    node: str
    cordoned: bool
    by: str
    reason: str = ""
    drain_by_ms: UnixMs | None = None
    """A drain: no renewal reaches beyond this, and what is held then is revoked."""


class TaintChanged(Record):
    """Only requests that tolerate the taint go there."""

    kind: Literal["taint"] = "taint"
    node: str
    taint: str
    present: bool
    by: str
    reason: str = ""


class NodeRetired(Record):
    """Gone for good: its devices leave the inventory with it."""

    kind: Literal["retired"] = "retired"
    node: str
    by: str
    reason: str = ""


class PartitionFact(Message):
    """A partition of a device, resolved as of the adopted catalog."""

    uuid: str
    profile: str
    parts: Annotated[int, Field(ge=0, le=1_000_000)]
    """Of its device; 0 where nobody can say, and then it is not granted."""
    memory_bytes: int | None = None
    index: int | None = None
    missing: bool = False
    """A lease holds it, and its agent reports it no more: it goes when it is let go."""


class Cut(Record):
    """What of a device can be had apart from the whole of it."""

    smallest_parts: int = 1_000_000
    """The smallest legal share; the whole where the model is not shared."""
    partitions: tuple[PartitionFact, ...] = ()
    """Together at most 1,000,000 parts."""
    together: int = 1
    """So many with neighbouring indexes are one card, and are not given apart."""


class DeviceAppeared(Cut):
    """A device joined the inventory, resolved and pooled as of the adopted catalog."""

    kind: Literal["device_appeared"] = "device_appeared"
    node: str
    device: RawDevice
    model: str | None
    pool: str


class DeviceChanged(Cut):
    """What the agent says of a known device changed: index, foreign use, name, ..."""

    kind: Literal["device_changed"] = "device_changed"
    node: str
    device: RawDevice
    model: str | None
    pool: str


class DeviceGone(Record):
    """No longer reported by its agent: it leaves the inventory."""

    kind: Literal["device_gone"] = "device_gone"
    node: str
    uuid: str


class DeviceResolved(Cut):
    """Another catalog gave it another model or pool, or cuts and shares it otherwise."""

    kind: Literal["device_resolved"] = "device_resolved"
    node: str
    uuid: str
    model: str | None
    pool: str


class DeviceHealthChanged(Record):
    """As its agent sees it."""

    kind: Literal["device_health"] = "device_health"
    node: str
    uuid: str
    health: DeviceHealth
    reason: str = ""


class DisputeChanged(Record):
    """Two nodes report one uuid, or an agent refused a bind: not granted until cleared."""

    kind: Literal["dispute"] = "dispute"
    node: str
    uuid: str
    disputed: bool
    reason: str = ""


def _place_ask(value: Any) -> Any:
    return recorded(PlaceAsk, value) if isinstance(value, dict) else value


def _adopt_ask(value: Any) -> Any:
    return recorded(AdoptAsk, value) if isinstance(value, dict) else value


# As it is today first, since nearly all are; only what does not validate is taken as it stands.
RecordedPlace = Annotated[
    PlaceAsk | Annotated[PlaceAsk, BeforeValidator(_place_ask), SkipJsonSchema()],
    Field(union_mode="left_to_right"),
]
RecordedAdopt = Annotated[
    AdoptAsk | Annotated[AdoptAsk, BeforeValidator(_adopt_ask), SkipJsonSchema()],
    Field(union_mode="left_to_right"),
]


class LeaseQueued(Record):
    """A request that waits; it holds nothing."""

    kind: Literal["queued"] = "queued"
    lease: str
    tenant: str
    request: RecordedPlace
    deadline_ms: UnixMs
    since_ms: UnixMs | None = None
    """Since when it waits, where it waited before: it keeps its turn. None: since now."""


class LeaseGranted(Record):
    """Devices are held. Frozen from here on: class, ratings and their versions, billing mode."""

    kind: Literal["granted"] = "granted"
    lease: str
    token: int
    tenant: str
    project: str = ""
    profile: str = ""
    workload_class: Annotated[str, Field(alias="class")]
    labels: dict[str, str] = Field(default_factory=dict)
    request: RecordedPlace | None = None
    """The whole request; none for an adopted lease."""
    adopt: RecordedAdopt | None = None
    devices: tuple[LeaseDevice, ...]
    cpu_milli: dict[str, int] = Field(default_factory=dict)
    """Node -> cpu that the lease holds beside its cards."""
    memory_bytes: dict[str, int] = Field(default_factory=dict)
    variant: str = ""
    image: str = ""
    args: tuple[str, ...] = ()
    precision: str = ""
    not_met: tuple[str, ...] = ()
    """What of the preferred topology could not be had."""
    billing: Literal["delivered", "nominal"] = "delivered"
    nominal_micro: int | None = None
    """Micro-units that one card is charged as, under `billing: nominal`."""
    fence: Literal["keep", "strict"] = "keep"
    on_unhealthy: Literal["none", "drain", "evict"] = "none"
    ttl_ms: int
    deadline_ms: UnixMs
    bound: bool = False
    """`bind: none`: granted and bound are one transition."""
    catalog_revision: int = 0
    over_by: dict[str, str] = Field(default_factory=dict)


class LeaseBound(Record):
    """The agents hold it: usage runs from here."""

    kind: Literal["bound"] = "bound"
    lease: str


class LeaseMoved(Record):
    """A bind was refused; the lease has other devices now, and nobody was told of the old ones."""

    kind: Literal["moved"] = "moved"
    lease: str
    token: int
    devices: tuple[LeaseDevice, ...]
    cpu_milli: dict[str, int] = Field(default_factory=dict)
    memory_bytes: dict[str, int] = Field(default_factory=dict)
    variant: str = ""
    """These four as in the grant: another alternative runs another variant."""
    image: str = ""
    args: tuple[str, ...] = ()
    precision: str = ""
    not_met: tuple[str, ...] = ()


class LeaseTtlChanged(Record):
    """A renewal with another ttl. A renewal with the same one is not appended."""

    kind: Literal["ttl"] = "ttl"
    lease: str
    ttl_ms: int
    deadline_ms: UnixMs


class LeaseNoticed(Record):
    """A bound lease is renewed no more, and ends at its deadline; or, without one, is again."""

    kind: Literal["noticed"] = "noticed"
    lease: str
    until_ms: UnixMs | None
    """Its standing deadline; none: the notice is withdrawn."""
    message: str = ""


class LeaseEnding(Record):
    """Use ended at `effective_ms`; the devices wait for their agents."""

    kind: Literal["ending"] = "ending"
    lease: str
    reason: Literal[
        "released",
        "expired",
        "revoked",
        "preempted",
        "node_lost",
        "rebooted",
        "retired",
        "bind_unknown",
        "bind_refused",
        "ended_outside",
        "device_gone",
    ]
    effective_ms: UnixMs
    message: str = ""
    """What brought it about, where the reason alone does not say."""


class NodeReleased(Record):
    """The agent of one node acknowledged that the lease is over there."""

    kind: Literal["node_released"] = "node_released"
    lease: str
    node: str
    by: Literal["agent", "boot", "retire", "operator"]
    message: str = ""
    """What did not go well there."""


class LeaseEnded(Record):
    """All nodes released; the devices are free."""

    kind: Literal["ended"] = "ended"
    lease: str


class LeaseFailed(Record):
    """Granted, but no agent took it, and nothing else fits."""

    kind: Literal["failed"] = "failed"
    lease: str
    code: str
    message: str = ""


class LeaseRefused(Record):
    """A queued request met its deadline, or can no longer ever fit."""

    kind: Literal["refused"] = "refused"
    lease: str
    code: str
    message: str = ""


class LeaseCancelled(Record):
    """A queued request was taken back."""

    kind: Literal["cancelled"] = "cancelled"
    lease: str


class CensusRow(Message):
    """The devices of one model in one pool, in parts."""

    pool: str
    model: str
    total: BigInt
    leased: BigInt = 0
    free: BigInt = 0
    unavailable: dict[str, BigInt] = Field(default_factory=dict)


class Census(Record):
    """What the placer counts at this instant, for metering's own fold to be held against."""

    kind: Literal["census"] = "census"
    cause: Literal["hour", "snapshot", "stop", "takeover"]
    rows: tuple[CensusRow, ...]


class ShapeCount(Message):
    """How often requests of one shape were seen lately: a weight that is halved with time."""

    cards: int
    parts: int
    cpu_milli: int = 0
    memory_bytes: BigInt = 0
    models: tuple[str, ...] = ()
    """Admissible ones; empty: any."""
    count: int


class HistoryKept(Record):
    """Which shapes of requests the placer knew, and which its choices looked ahead for.

    In snapshots alone: a reader of the whole ledger counts the requests themselves.
    """

    kind: Literal["history"] = "history"
    counts: tuple[ShapeCount, ...]
    target: tuple[ShapeCount, ...]


AnyRecord = (
    EpochBegan
    | CatalogAdopted
    | Tick
    | NodeChanged
    | LivenessChanged
    | CordonChanged
    | TaintChanged
    | NodeRetired
    | DeviceAppeared
    | DeviceChanged
    | DeviceGone
    | DeviceResolved
    | DeviceHealthChanged
    | DisputeChanged
    | LeaseQueued
    | LeaseGranted
    | LeaseBound
    | LeaseMoved
    | LeaseTtlChanged
    | LeaseNoticed
    | LeaseEnding
    | NodeReleased
    | LeaseEnded
    | LeaseFailed
    | LeaseRefused
    | LeaseCancelled
    | Census
    | HistoryKept
)
Transition = Annotated[AnyRecord, Field(discriminator="kind")]


class Group(Event):
    """One message of the LEDGER stream."""

    epoch: int
    writer: str
    group: int
    """Counts this writer's groups of this epoch: with the epoch, the group's identity."""
    expected: int
    """The stream's last sequence before this message."""
    transitions: tuple[Transition, ...]


GROUP: TypeAdapter[Group] = TypeAdapter(Group)


def follows(group: Group, sequence: int, holder: tuple[int, str], *, unread: bool = False) -> bool:
    """Whether a stored group is of the writer that the ledger had, or of the one that took over.

    `holder` is (epoch, writer) as of the message before. The fence lets nothing else in; whoever
    wrote past it (with other rights than a placer's own code) has decided nothing, and every
    reader passes it over alike. Where the message before could not be read (`unread`) it may have
    been the one that began an epoch: a group of a later epoch is then taken for its writer's.
    """
    if group.expected != sequence - 1:
        return False
    if group.group == 0 or unread:
        return group.epoch > holder[0] or (unread and (group.epoch, group.writer) == holder)
    return (group.epoch, group.writer) == holder


def device_key(node: str, uuid: str) -> str:
    """A device's identity over the fleet."""
    return f"{node}/{uuid}"


class DecisionRecord(Event):
    """One answered request, for the DECISIONS stream: never a source of truth."""

    at_ms: UnixMs
    tenant: str
    request_id: str
    verb: str
    verdict: str
    code: str = ""
    lease: str = ""
    micros: int
    candidates: int = 0
    reasons: dict[str, int] = Field(default_factory=dict)
    catalog_revision: int = 0
    refusal: Refusal | None = None
    """The whole of it, for `explain` after a takeover; a grant is explained from the ledger."""
    request: RecordedPlace | None = None
    """What was refused."""
