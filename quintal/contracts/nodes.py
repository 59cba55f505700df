"""What an agent says of its node: devices, stack, health, readings; and what it is told to bind."""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Final, Literal

from pydantic import Field

from quintal.contracts.message import (
    Answer,
    Ask,
    DurationMs,
    Event,
    Message,
    Token,
    UnixMs,
    Word,
)

DEVICES_MAX: Final = 512
"""Of one node; each costs a look at all its neighbours when it changes."""

CORES_MAX: Final = 65_536
"""Of one device: more is no number of cores."""

Count = Annotated[int, Field(ge=0, lt=2**53)]
"""Bytes of a host. A number that no machine has is no inventory."""

Text = Annotated[str, Field(max_length=2_048)]


class Quality(StrEnum):
    """How far a reading can be trusted. Only `ok` enters a rollup."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    """The device or its driver cannot."""
    UNAVAILABLE = "unavailable"
    """It should be there: lost, no permission, a deadline passed, not yet sampled."""
    STALE = "stale"
    OUT_OF_RANGE = "out_of_range"
    IMPLAUSIBLE = "implausible"
    CLOCK = "clock"
    """The sample's time cannot be right."""


class Reading(Event):
    """A value or none, and its quality. None is never 0."""

    value: float | int | None = None
    quality: Quality = Quality.OK
    derived: bool = False
    """True where the number does not stand in the raw output, even after unit conversion."""
    raw: str | None = None
    """What the tool printed, where it was no usable number."""


class DeviceHealth(StrEnum):
    """The state of a device, as its agent sees it."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class RawPartition(Event):
    """A part of a device that the vendor's tool shows as a device of its own (MIG, CPX, vNPU)."""

    uuid: str
    profile: str = ""
    memory_bytes: int | None = None
    index: int | None = None


class RawDevice(Event):
    """One device as the vendor's tool names it; nothing here is interpreted."""

    uuid: Annotated[str, Field(min_length=1)]
    """The vendor's, where it is a real one; else PCI address and serial. Identity on the node."""
    index: int
    """Display and visibility number only: it shifts after a reset."""
    vendor: str
    """Lower case: nvidia, amd, intel, huawei, ...; `cpu` for the host as a device."""
    name: str
    memory_bytes: int | None = None
    memory_kind: Literal["device", "unified", "host"] = "device"
    pci_address: str | None = None
    pci_id: str | None = None
    """vendor:device, four hex digits each, lower case."""
    pci_subsystem: str | None = None
    serial: str | None = None
    numa_node: int | None = None
    cores: Annotated[int, Field(ge=0, le=CORES_MAX)] | None = None
    """Of a CPU: logical cores that may be used."""
    architecture: str | None = None
    health: DeviceHealth = DeviceHealth.OK
    health_reason: str = ""
    foreign_bytes: int = 0
    """Memory held by processes that belong to no lease of ours."""
    partitions: Annotated[tuple[RawPartition, ...], Field(max_length=64)] = ()


class Problem(Event):
    """Something the agent could not do or understand; the rest of the report stands."""

    code: str
    message: str
    vendor: str = ""
    device: str = ""


class ProbeReport(Event):
    """How one vendor's probe is doing."""

    vendor: str
    tool: str = ""
    duration_ms: int | None = None
    """Of its last look."""
    failures: int = 0
    """Since the agent started."""
    last_good_age_ms: int | None = None
    """How long ago it last saw what there is; none where it never did."""


class Disk(Event):
    """A mounted file system."""

    mount: str
    filesystem: str
    total_bytes: int
    free_bytes: int


class Network(Event):
    """A network interface that is up, or an RDMA device without one."""

    name: str
    speed_mbits: int | None = None
    mac: str = ""
    pci_address: str | None = None
    numa_node: int | None = None
    rdma: str | None = None
    """Its RDMA device (`mlx5_0`); none where it has none."""


Members = Annotated[
    tuple[Annotated[str, Field(max_length=256)], ...], Field(max_length=DEVICES_MAX)
]
"""Devices of one node, by uuid."""


class Island(Event):
    """Devices of one node that reach one another over links of their own, not over PCIe."""

    kind: Word
    """nvlink, nvswitch, xgmi, hccs, xelink, ..."""
    bandwidth: Word = ""
    """The least between any two, as the vendor grades it (`NV18`, `XL16`); empty if unknown."""
    full: bool = True
    """Whether any two are linked directly, and not some only over a third."""
    devices: Members


class BusGroup(Event):
    """Devices below one PCIe switch or port, or below one host bridge."""

    kind: Literal["switch", "bridge"]
    name: Word
    devices: Members


class NearNics(Event):
    """Network interfaces that are at most so far from each of these devices.

    Of one device there may be several such groups, the nearest first: the interface below its
    switch, then all of its NUMA node.
    """

    distance: Literal["switch", "bridge", "numa"]
    nics: Annotated[tuple[Word, ...], Field(max_length=64)]
    devices: Members


class FabricDomain(Event):
    """A network domain between nodes that these devices belong to."""

    kind: Word
    """nvlink (a multi-node NVLink domain), hccs (a super pod), ici (a TPU slice)."""
    domain: Word
    """The same text on every node of the domain."""
    devices: Members = ()


class Topology(Event):
    """How the devices of one node lie to one another, to its network, and to other nodes.

    Each part is none where nobody could tell (a virtual machine hides its PCIe tree), and empty
    where there is none.
    """

    islands: Annotated[tuple[Island, ...], Field(max_length=DEVICES_MAX)] | None = None
    bus: Annotated[tuple[BusGroup, ...], Field(max_length=DEVICES_MAX)] | None = None
    nics: Annotated[tuple[NearNics, ...], Field(max_length=DEVICES_MAX)] | None = None
    fabrics: Annotated[tuple[FabricDomain, ...], Field(max_length=DEVICES_MAX)] | None = None


class Stack(Event):
    """The software a node runs on."""

    os: str = ""
    kernel: str = ""
    architecture: str = ""
    container_runtime: str = ""
    drivers: dict[str, str] = Field(default_factory=dict)
    """Vendor -> driver version, as the vendor writes it."""
    runtimes: dict[str, str] = Field(default_factory=dict)
    """cuda, rocm, cann, ... -> version."""
    firmware: dict[str, str] = Field(default_factory=dict)


class Inventory(Event):
    """All that a node has. Sent on change and on a slow beat; the newest per node is kept."""

    node: Token
    boot_id: Word
    sequence: int
    """Grows with every inventory of this boot."""
    at_ms: UnixMs
    hostname: str = ""
    cluster: str = "default"
    location: str = ""
    labels: Annotated[dict[str, Text], Field(max_length=256)] = Field(default_factory=dict)
    cpu_milli: Annotated[int, Field(ge=0, le=65_536_000)] = 0
    memory_bytes: Count = 0
    disks: tuple[Disk, ...] = ()
    networks: tuple[Network, ...] = ()
    stack: Stack = Field(default_factory=Stack)
    devices: Annotated[tuple[RawDevice, ...], Field(max_length=DEVICES_MAX)] = ()
    topology: Topology | None = None
    """None from an agent that knows nothing of it."""
    problems: tuple[Problem, ...] = ()
    probes: tuple[ProbeReport, ...] = ()
    tasks: tuple[str, ...] | None = None
    """Installed tasks by name; none where the node does not act (`not_enabled`)."""
    agent_version: str = ""


class Heartbeat(Event):
    """The node lives, and this is the lease set and inventory it holds."""

    node: Token
    boot_id: Word
    sequence: int
    at_ms: UnixMs
    lease_version: str = ""
    """`lease_set_version()` of the leases that the agent keeps."""
    outside_version: str | None = None
    """The same of the leases that it only knows of (`bind: none`); an older agent knows none."""
    inventory_sequence: int = 0
    wants_word: bool = False
    """The node holds leases with `fence: strict` and wants to know that it was heard."""


class Heard(Event):
    """The placer that leads heard this beat of the node."""

    node: Token
    sequence: int


class Telemetry(Event):
    """One node's readings of one period: columns over its devices."""

    node: Token
    boot_id: str
    sequence: int
    at_ms: UnixMs
    period_ms: DurationMs = 10_000
    devices: tuple[str, ...] = ()
    """The devices' uuids; each column has one value per device."""
    columns: dict[str, tuple[float | int | None, ...]] = Field(default_factory=dict)
    """Reading (its unit in its name: `power_watts`) -> value per device."""
    qualities: dict[str, tuple[Quality, ...]] = Field(default_factory=dict)
    """Only the columns in which some reading is not `ok`, up to the last that is not."""


class HealthEvent(Event):
    """A device changed its health, or its vendor reported an event (Xid, RAS)."""

    node: Token
    boot_id: str
    at_ms: UnixMs
    device: str
    kind: Literal["transition", "vendor_event"] = "transition"
    before: DeviceHealth | None = None
    after: DeviceHealth | None = None
    code: str = ""
    message: str = ""


class BoundDevice(Message):
    """A device of a lease, as the agent and the workload need to know it."""

    uuid: str
    index: int
    vendor: str
    model: str
    memory_bytes: int | None = None
    parts: int = 1_000_000
    partition: str | None = None
    units_micro: int = 0


class BoundLease(Message):
    """A lease as the agent keeps it: enough to write the workload's lease file."""

    lease: str
    token: int
    """Fencing token: the agent refuses any that is older than the newest it saw on a device."""
    tenant: Token
    project: str = ""
    profile: str = ""
    workload_class: Annotated[str, Field(alias="class")] = ""
    ttl_ms: DurationMs
    fence: Literal["keep", "strict"] = "keep"
    bind: Literal["wait", "none"] = "wait"
    adopted: bool = False
    devices: tuple[BoundDevice, ...]
    environment: dict[str, str] = Field(default_factory=dict)
    precision: str = ""


class BindAsk(Ask):
    """Hand these devices to this lease."""

    lease: BoundLease


class EndAsk(Ask):
    """The lease is over; forget it and say so."""

    lease: str
    token: int
    reason: str = ""


class SetAsk(Ask):
    """The whole set of the node's leases as the placer knows it; the agent makes it its own.

    Leases with `bind: none` are in it for information, so that what an outside scheduler runs is
    not taken for foreign use: the agent neither binds nor acknowledges them, and they do not enter
    the set's version.
    `ended` are leases that the agent may still hold and must drop; it acknowledges each.
    """

    leases: tuple[BoundLease, ...]
    ended: tuple[str, ...] = ()
    inventory_wanted: bool = False


class BindDone(Answer):
    """The agent did as it was told; for `set`, which ended leases it no longer holds."""

    kind: Literal["bound"] = "bound"
    boot_id: str
    lease_version: str = ""
    released: tuple[str, ...] = ()
    uncleaned: dict[str, str] = Field(default_factory=dict)
    """Of the released ones: lease -> why the cleanup after it failed."""


class TaskAsk(Ask):
    """Run an installed task by its name; names are all that can be asked for."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    timeout_ms: DurationMs = 600_000


class TaskDone(Answer):
    """The task has ended; whether it did well is its exit status."""

    kind: Literal["task"] = "task"
    name: str
    exit_status: int | None = None
    """None where it was ended at its deadline."""
    duration_ms: DurationMs = 0
    output: str = ""
    """The end of what it printed."""


def lease_set_version(leases: dict[str, int]) -> str:
    """The version of a node's lease set: lease -> token, whoever computes it gets the same text."""
    text = ",".join(f"{lease}:{token}" for lease, token in sorted(leases.items()))
    return sha256(text.encode()).hexdigest()[:16]
