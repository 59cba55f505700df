"""The fleet as the engine sees it: nodes, devices, who holds what, and the index of what is free.

The index: nodes whose static facts are equal (cluster, location, labels, taints) form a *stack
class*; per (pool, model, class) the nodes lie in buckets by how many devices they have free. The
tightest node that fits is then the first of the first bucket that is large enough: the cost does
not grow with the number of nodes. The naive way, a pass over all nodes, costs 10,000 steps a
request. What we pay is a few set operations whenever a device changes hands.

Buckets are ordered by node name, so that a fleet rebuilt from a snapshot decides as the live one.
A shelf that runs empty stays: which shelves may serve a sort of request is then worked out once
(`serving`), and not anew whenever the last device of a kind is taken or comes back.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from sortedcontainers import SortedSet

from quintal_placer.engine.buckets import Buckets


class StackClass(NamedTuple):
    """What nodes have in common as far as a request can tell them apart."""

    cluster: str
    location: str
    labels: tuple[tuple[str, str], ...]
    taints: tuple[str, ...]
    software: str = ""


class Shelf(NamedTuple):
    """The key of the free index."""

    pool: str
    model: str
    stack: StackClass


@dataclass(slots=True)
class Device:
    """One device. `holder` is the lease that has it, bound or not yet or not any more."""

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

    @property
    def key(self) -> tuple[str, str]:
        """Identity over the fleet."""
        return self.node, self.uuid

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


class _Sort(NamedTuple):
    """What a node is to whoever asks why: equal sorts, equal answers."""

    lasting: tuple[object, ...]
    free: tuple[tuple[object, ...], ...]


def _sort_of(node: Node) -> _Sort:
    kinds: dict[tuple[object, ...], int] = {}
    free: dict[tuple[object, ...], int] = {}
    for device in node.devices.values():
        kind = (
            device.model or "", device.model is None, device.pool, device.kind, device.usable,
            bool(device.disputed), device.foreign_bytes > FOREIGN_BYTES_MAX,
        )  # fmt: skip
        kinds[kind] = kinds.get(kind, 0) + 1
        if device.holder is None:
            free[kind] = free.get(kind, 0) + 1
    lasting = (
        node.stack, node.liveness, bool(node.cordons), node.cpu_milli, node.memory_bytes,
        node.network_mbits,
        tuple(sorted(kinds.items())),
    )  # fmt: skip
    return _Sort(lasting, tuple(sorted(free.items())))


EMPTY_SHELVES_MAX = 1_000

SERVING_MAX = 10_000
"""Shapes of requests whose shelves are kept; whoever asks for ever new things only empties it."""

T = TypeVar("T")


class Fleet:
    """All nodes, and the index of what is free. Whoever changes a node calls `touch` after."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.version = 0
        """Grows with every change that could change an answer."""
        self._shelves: dict[Shelf, Buckets] = {}
        self._serving: dict[object, Any] = {}
        self._filed: dict[str, dict[Shelf, int]] = {}
        self._stacks: dict[str, StackClass] = {}
        self._having: dict[tuple[str, str, str], SortedSet[str]] = {}
        self._known: dict[str, frozenset[tuple[str, str, str]]] = {}
        self._kinds: frozenset[tuple[str, str]] | None = None
        self._alike: dict[_Sort, SortedSet[str]] = {}
        self._sorts: dict[str, _Sort] = {}
        self._stale: set[str] = set()
        self._structure = 0
        self._unfiled: set[str] | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While a ledger is read nobody decides: each node is filed once, at the end.

        The collector rests meanwhile: what is read stays, and looking for what does not would
        cost more than the reading.
        """
        if self._unfiled is not None:
            yield
            return
        self._unfiled = set()
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            names, self._unfiled = self._unfiled, None
            for name in sorted(names):
                self.version -= 1  # it was counted when it was touched
                self.touch(name)
            if collects:
                gc.enable()

    def touch(self, name: str) -> None:
        """File the node anew: its facts or its devices changed."""
        if self._unfiled is None:
            node = self.nodes.get(name)
            self._know(name, node)
            if node is None:
                self._stacks.pop(name, None)
            else:
                self._stacks[name] = node.stack
        self.reheld(name)

    def reheld(self, name: str) -> None:
        """File the node anew where nothing but who holds what of it changed."""
        self.version += 1
        if self._unfiled is not None:
            self._unfiled.add(name)
            return
        self._stale.add(name)
        node = self.nodes.get(name)
        wanted = self._count(node) if node is not None and node.open else {}
        filed = self._filed.get(name, {})
        if wanted == filed:
            return
        for shelf, count in filed.items():
            if wanted.get(shelf) != count:
                self._shelves[shelf].drop(count, name)
        for shelf, count in wanted.items():
            if filed.get(shelf) != count:
                self._shelf(shelf).add(count, name)
        self._filed[name] = wanted

    def alike(self) -> Iterator[SortedSet[str]]:
        """The names of nodes that differ in nothing but what is held of their CPU and memory.

        Brought up to date here and not at every touch: grants need it not, refusals do.
        """
        self._sort_stale()
        return iter(self._alike.values())

    @property
    def structure(self) -> int:
        """Grows with every change but who holds what: what can never fit hangs on this alone."""
        self._sort_stale()
        return self._structure

    def _sort_stale(self) -> None:
        for name in self._stale:
            node = self.nodes.get(name)
            before = self._sorts.pop(name, None)
            after = _sort_of(node) if node is not None else None
            if before != after:
                if before is None or after is None or before.lasting != after.lasting:
                    self._structure += 1
                if before is not None:
                    self._alike[before].discard(name)
                    if not self._alike[before]:
                        del self._alike[before]
                if after is not None:
                    self._alike.setdefault(after, SortedSet()).add(name)
            if after is not None:
                self._sorts[name] = after
        self._stale.clear()

    def draining(self, at_ms: int) -> list[str]:
        """Nodes that must be empty by now."""
        return sorted(
            name
            for name, node in self.nodes.items()
            if node.drains and min(node.drains.values()) <= at_ms
        )

    def kinds(self) -> frozenset[tuple[str, str]]:
        """(model, software) of every pair that the fleet has, held or not."""
        if self._kinds is None:
            self._kinds = frozenset((model, software) for model, software, _ in self._having)
        return self._kinds

    def having(self) -> Iterator[tuple[tuple[str, str, str], SortedSet[str]]]:
        """(model, software, pool) -> the nodes that have such a device, held or not."""
        return iter(self._having.items())

    def _know(self, name: str, node: Node | None) -> None:
        """Keep what the node has apart from who holds it; that changes seldom."""
        has = (
            frozenset((d.model or "", node.software, d.pool) for d in node.devices.values())
            if node is not None
            else frozenset()
        )
        had = self._known.get(name, frozenset())
        if has == had:
            return
        for each in had - has:
            self._having[each].discard(name)
            if not self._having[each]:
                del self._having[each]
        for each in has - had:
            self._having.setdefault(each, SortedSet()).add(name)
        self._known[name] = has
        self._kinds = None

    def _shelf(self, shelf: Shelf) -> Buckets:
        buckets = self._shelves.get(shelf)
        if buckets is None:
            self._drop_empty()
            buckets = self._shelves[shelf] = Buckets()
            self._serving.clear()
        return buckets

    def _drop_empty(self) -> None:
        """Shelves that ran empty stay, but not for ever: nodes' software and labels change."""
        empty = [shelf for shelf, buckets in self._shelves.items() if not buckets]
        if len(empty) > EMPTY_SHELVES_MAX:
            for shelf in empty:
                del self._shelves[shelf]

    def _count(self, node: Node) -> dict[Shelf, int]:
        counts: dict[Shelf, int] = {}
        stack = self._stacks[node.name]
        for device in node.devices.values():
            if device.holder is None and device.usable and self._core_free(node, device):
                shelf = Shelf(device.pool, device.model or "", stack)
                counts[shelf] = counts.get(shelf, 0) + 1
        return counts

    @staticmethod
    def _core_free(node: Node, device: Device) -> bool:
        """A CPU is counted once: as a device it is free only while no lease holds cores of it."""
        return device.kind != "cpu" or node.cpu_held == 0

    def shelves(self) -> Iterator[Shelf]:
        """Every (pool, model, class) that has or had something free."""
        return iter(self._shelves)

    def serving(self, shape: object, find: Callable[[], T]) -> T:
        """What `find` gives, kept under `shape` until there is another shelf.

        What is found must hang on the shape and on which shelves there are, and on nothing else.
        """
        known: T | None = self._serving.get(shape)
        if known is None:
            if len(self._serving) >= SERVING_MAX:
                self._serving.clear()
            known = self._serving[shape] = find()
        return known

    def tightest(self, shelf: Shelf, cards: int) -> tuple[int, Node] | None:
        """The first node of `fitting`, and how many it has free."""
        found = self._shelves[shelf].first(cards)
        return None if found is None else (found[0], self.nodes[found[1]])

    def fitting(self, shelf: Shelf, cards: int, *, emptiest: bool = False) -> Iterator[Node]:
        """Nodes with at least `cards` free on this shelf, tightest (or emptiest) first."""
        for _, name in self._shelves[shelf].names(cards, emptiest=emptiest):
            yield self.nodes[name]

    def free_devices(self, node: Node, model: str, pool: str) -> list[Device]:
        """The node's grantable devices of one model and pool, by index."""
        found = [
            device
            for device in node.devices.values()
            if device.holder is None
            and device.model == model
            and device.pool == pool
            and device.usable
            and self._core_free(node, device)
        ]
        found.sort(key=lambda device: (device.index, device.uuid))
        return found

    def free_count(self, node: Node, shelf: Shelf) -> int:
        """How many of the shelf's devices the node has free."""
        return self._filed.get(node.name, {}).get(shelf, 0)
