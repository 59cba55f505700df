"""A node and its devices: what each is, and what is held of it. Whole, shared, or cut.

Everything that knows what a lease can hold of a device is here; the index over many nodes is
`fleet`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from quintal_placer.engine.asks import PARTS
from quintal_placer.engine.lay import UNKNOWN, Lay


class StackClass(NamedTuple):
    """What nodes have in common as far as a request can tell them apart."""

    cluster: str
    location: str
    labels: tuple[tuple[str, str], ...]
    taints: tuple[str, ...]
    software: str = ""
    fences: bool = False


class Shelf(NamedTuple):
    """The key of the free index."""

    pool: str
    model: str
    stack: StackClass
    partition: str = ""
    """A profile: what lies here are partitions of the model's devices; empty: whole ones."""


@dataclass(slots=True)
class Partition:
    """A part of a device that is had as a device of its own."""

    uuid: str
    profile: str
    parts: int
    """Of its device; 0 where nobody can say."""
    memory_bytes: int | None = None
    index: int | None = None
    missing: bool = False
    """No longer reported: it goes once its lease lets it go."""
    holder: str | None = None

    @property
    def free(self) -> bool:
        """Whether it could be granted, were its device fit for it."""
        return self.holder is None and self.parts > 0 and not self.missing


class Slot(NamedTuple):
    """A device that is shared: where it lies in the index of shares."""

    shelf: Shelf
    memory_bytes: int
    free_parts: int
    uuid: str


@dataclass(slots=True)
class Device:
    """One device, and what is held of it: all, or shares, or partitions; never two of these.

    Who holds has it, bound or not yet or not any more. A device that was cut while a lease held
    it is that lease's alone until it lets go.
    """

    node: str
    uuid: str
    index: int
    vendor: str
    name: str
    model: str | None
    pool: str
    kind: str = "accelerator"
    memory_bytes: int | None = None
    cores: int = 0
    health: str = "ok"
    health_reason: str = ""
    disputed: str = ""
    foreign_bytes: int = 0
    holder: str | None = None
    """The lease that has the whole of it."""
    shares: dict[str, int] | None = None
    """Lease -> parts that it has; none where nobody shares it."""
    partitions: dict[str, Partition] | None = None
    """By uuid; none where it is not cut."""
    smallest_parts: int = PARTS
    """The smallest legal share; the whole where it is not shared."""
    together: int = 1
    """So many with neighbouring indexes are one card, and are not given apart."""

    @property
    def key(self) -> tuple[str, str]:
        """Identity over the fleet."""
        return self.node, self.uuid

    @property
    def whole(self) -> bool:
        """Whether nobody holds anything of it, and it is not cut."""
        return self.holder is None and not self.shares and not self.partitions

    @property
    def free_parts(self) -> int:
        """Parts that are left for shares."""
        if self.holder is not None or self.partitions:
            return 0
        return PARTS - sum(self.shares.values()) if self.shares else PARTS

    @property
    def holders(self) -> tuple[str, ...]:
        """Every lease that holds something of it, once each."""
        found = [self.holder] if self.holder is not None else []
        found += self.shares or ()
        found += (p.holder for p in (self.partitions or {}).values() if p.holder is not None)
        return tuple(dict.fromkeys(found))

    def free_partitions(self, profile: str = "") -> list[Partition]:
        """Its partitions that could be granted, of one profile or of any, by index."""
        if not self.partitions or self.holder is not None or self.shares:
            return []
        free = (p for p in self.partitions.values() if p.free and profile in {"", p.profile})
        return sorted(free, key=lambda p: (p.index if p.index is not None else -1, p.uuid))

    def hold(self, lease: str, parts: int, partition: str | None) -> None:
        """`lease` holds so much of it from now on. Raises AssertionError (law 1)."""
        if partition is not None:
            self._hold_partition(lease, parts, partition)
        elif parts < PARTS:
            shares = {**(self.shares or {}), lease: parts}
            assert self.holder is None, f"{self.uuid} is held whole by {self.holder}"
            assert sum(shares.values()) <= PARTS, f"{self.uuid}: shares beyond the whole"
            assert not self._cut_held, f"{self.uuid}: a share beside a partition"
            self.shares = shares
        else:
            assert self.holder is None, f"{self.uuid} is held twice"
            assert not self.shares, f"{self.uuid}: the whole beside a share"
            assert not self._cut_held, f"{self.uuid}: the whole beside a partition"
            self.holder = lease

    def _hold_partition(self, lease: str, parts: int, uuid: str) -> None:
        assert self.holder is None, f"{self.uuid}: a partition beside the whole"
        assert not self.shares, f"{self.uuid}: a partition beside a share"
        if self.partitions is None:
            self.partitions = {}
        known = self.partitions.get(uuid)
        if known is None:  # it is there no more, and still its lease's
            known = self.partitions[uuid] = Partition(uuid, "", parts, missing=True)
        assert known.holder is None, f"{uuid} is held twice"
        known.holder = lease

    @property
    def _cut_held(self) -> bool:
        if not self.partitions:
            return False
        return any(p.holder is not None for p in self.partitions.values())

    def let_go(self, lease: str) -> None:
        """`lease` holds nothing of it any more; a partition that is missing goes with it."""
        if self.holder == lease:
            self.holder = None
        if self.shares and lease in self.shares:
            self.shares = {k: v for k, v in self.shares.items() if k != lease} or None
        for partition in list((self.partitions or {}).values()):
            if partition.holder == lease:
                partition.holder = None
                if partition.missing and self.partitions is not None:
                    del self.partitions[partition.uuid]

    @property
    def usable(self) -> bool:
        """Whether it may be granted at all, held or not."""
        return (
            self.model is not None
            and self.health in {"ok", "degraded"}
            and not self.disputed
            and self.foreign_bytes <= FOREIGN_BYTES_MAX
        )


FOREIGN_BYTES_MAX = 512 * 2**20
"""A driver's own housekeeping stays below this; what is above is somebody's work."""


def in_whole_sets(free: list[Device]) -> list[Device]:
    """Those of these whose card is free with all of its devices: half a card is no card."""
    if all(device.together == 1 for device in free):
        return free
    counts: dict[tuple[str | None, str, int], int] = {}
    for device in free:
        key = (device.model, device.pool, device.index // device.together)
        counts[key] = counts.get(key, 0) + 1
    return [
        device
        for device in free
        if counts[device.model, device.pool, device.index // device.together] == device.together
    ]


@dataclass(slots=True)
class Node:
    """One node and what is held of it beside its devices."""

    name: str
    boot_id: str = ""
    hostname: str = ""
    cluster: str = "default"
    location: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    cpu_milli: int = 0
    memory_bytes: int = 0
    network_mbits: int = 0
    liveness: str = "ready"
    heard_ms: int = 0
    cordons: dict[str, str] = field(default_factory=dict)
    """Who cordoned it -> why. It is open only when nobody does: a foreign cordon stands."""
    drains: dict[str, int] = field(default_factory=dict)
    """Who drains it -> until when (ledger time) what runs there must be gone."""
    taints: dict[str, str] = field(default_factory=dict)
    software: str = ""
    """What stands for its drivers, runtimes and firmware: equal text, equal software."""
    fences: bool = False
    """Whether it can end work by itself where it is cut off (`fence: strict`)."""
    lay: Lay = UNKNOWN
    devices: dict[str, Device] = field(default_factory=dict)
    cpu_held: int = 0
    memory_held: int = 0
    inventory_sequence: int = 0

    @property
    def open(self) -> bool:
        """Whether anything on it may be granted."""
        return self.liveness == "ready" and not self.cordons

    @property
    def stack(self) -> StackClass:
        """Its class in the index."""
        return StackClass(
            self.cluster,
            self.location,
            tuple(sorted(self.labels.items())),
            tuple(sorted(self.taints)),
            self.software,
            self.fences,
        )

    def unavailable(self, device: Device) -> str | None:
        """Why this device is not grantable, in the ledger's order of precedence; none if it is."""
        checks = (
            ("lost", self.liveness == "lost"),
            ("suspect", self.liveness == "suspect"),
            ("cordoned", bool(self.cordons)),
            ("tainted", bool(self.taints)),
            ("disputed", bool(device.disputed)),
            ("unhealthy", device.health not in {"ok", "degraded"}),
            ("unresolved", device.model is None),
        )
        return next((reason for reason, holds in checks if holds), None)
