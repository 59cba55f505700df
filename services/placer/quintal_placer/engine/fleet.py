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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from sortedcontainers import SortedDict, SortedSet

from quintal_placer.engine.asks import Share
from quintal_placer.engine.buckets import Buckets
from quintal_placer.engine.devices import (
    FOREIGN_BYTES_MAX,
    Device,
    Node,
    Partition,
    Shelf,
    Slot,
    StackClass,
    in_whole_sets,
)
from quintal_placer.engine.domains import Domains, Indexes, Sort
from quintal_placer.engine.lay import signature
from quintal_placer.engine.packing.packer import Packing

__all__ = [
    "FOREIGN_BYTES_MAX", "Device", "Fleet", "Node", "Partition", "Shelf", "Slot", "StackClass",
]  # fmt: skip


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
            _profiles(device.partitions.values()) if device.partitions else "",
            device.memory_bytes or 0, device.smallest_parts,
            device.index // device.together if device.together > 1 else -1,
        )  # fmt: skip
        kinds[kind] = kinds.get(kind, 0) + 1
        if device.holder is None:
            left: tuple[object, ...] = kind
            if device.shares or device.partitions:
                left = (*kind, device.free_parts, _profiles(device.free_partitions()))
            free[left] = free.get(left, 0) + 1
    lies, lies_free = _lying(node)
    lasting = (
        node.stack, node.liveness, bool(node.cordons), node.cpu_milli, node.memory_bytes,
        node.network_mbits,
        tuple(sorted(kinds.items())), lies,
    )  # fmt: skip
    return _Sort(lasting, (*sorted(free.items()), lies_free))


def _lying(node: Node) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """How its devices, and the free ones, fall into islands; nothing where nobody knows."""
    if node.lay.islands is None and node.lay.near is None:
        return (), ()
    sets: dict[tuple[str, str], list[Device]] = {}
    for device in node.devices.values():
        if device.model is not None:
            sets.setdefault((device.model, device.pool), []).append(device)
    every, free = [], []
    for key, devices in sorted(sets.items()):
        usable = [device.uuid for device in devices if device.usable]
        whole = [device for device in devices if device.whole]
        every.append((key, signature(node.lay, [d.uuid for d in devices]),
                      signature(node.lay, usable)))  # fmt: skip
        free.append((key, signature(node.lay, [d.uuid for d in whole]),
                     signature(node.lay, [d.uuid for d in whole if d.usable])))  # fmt: skip
    return tuple(every), tuple(free)


def _profiles(partitions: Iterable[Partition]) -> str:
    return ",".join(sorted(p.profile for p in partitions))


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
        self._partly: dict[Shelf, dict[int, SortedDict[int, SortedSet[tuple[str, str]]]]] = {}
        """Shelf -> memory of its devices -> free parts -> shared devices (node, uuid)."""
        self._slots: dict[str, frozenset[Slot]] = {}
        """Node -> its shared devices as they are filed."""
        self._stacks: dict[str, StackClass] = {}
        self._having: dict[tuple[str, str, str], SortedSet[str]] = {}
        self._known: dict[str, frozenset[tuple[str, str, str]]] = {}
        self._kinds: frozenset[tuple[str, str]] | None = None
        self._alike: dict[_Sort, SortedSet[str]] = {}
        self._sorts: dict[str, _Sort] = {}
        self._among: dict[str, SortedSet[str]] = {}
        self._stale: set[str] = set()
        self.packing = Packing()
        """The same nodes as columns, for requests that packing decides."""
        self._structure = 0
        self._wheres: dict[str, tuple[str, str]] = {}
        """Node -> the domains that it is in."""
        self._lasting: tuple[int, dict[object, Any]] = (-1, {})
        self._indexes = Indexes()
        self._unfiled: set[str] | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While a ledger is read nobody decides: each node is filed once, at the end.

        The collector rests meanwhile, and leaves what was read alone for good: it stays, and
        looking through it for what does not would cost more than the reading.
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
                gc.freeze()
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
        self._indexes.mark(name)
        self.packing.stale.add(name)
        node = self.nodes.get(name)
        slots: set[Slot] = set()
        wanted = self._count(node, slots) if node is not None and node.open else {}
        if slots or name in self._slots:
            self._file_slots(name, frozenset(slots))
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

    def _file_slots(self, name: str, wanted: frozenset[Slot]) -> None:
        filed = self._slots.pop(name, frozenset())
        for slot in filed - wanted:
            sizes = self._partly[slot.shelf]
            by_free = sizes[slot.memory_bytes]
            by_free[slot.free_parts].discard((name, slot.uuid))
            if not by_free[slot.free_parts]:
                del by_free[slot.free_parts]
            if not by_free:
                del sizes[slot.memory_bytes]
            if not sizes:
                del self._partly[slot.shelf]
        for slot in wanted - filed:
            self._shelf(slot.shelf)
            sizes = self._partly.setdefault(slot.shelf, {})
            by_free = sizes.setdefault(slot.memory_bytes, SortedDict())
            by_free.setdefault(slot.free_parts, SortedSet()).add((name, slot.uuid))
        if wanted:
            self._slots[name] = wanted

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
            where = (node.lay.fabric, node.lay.rack) if node is not None else ("", "")
            if where != self._wheres.get(name, where):
                self._structure += 1
            self._wheres[name] = where
            if before != after:
                if before is None or after is None or before.lasting != after.lasting:
                    self._structure += 1
                if before is not None:
                    self._alike[before].discard(name)
                    if not self._alike[before]:
                        del self._alike[before]
                self._among.pop(name, None)
                if after is not None:
                    self._among[name] = self._alike.setdefault(after, SortedSet())
                    self._among[name].add(name)
            if after is not None:
                self._sorts[name] = after
        self._stale.clear()

    def sort_of(self, name: str) -> int:
        """A number that a node has in common with those `alike` to it, until anything changes."""
        if self._stale:
            self._sort_stale()
        return id(self._among[name])

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
        empty = [
            shelf
            for shelf, buckets in self._shelves.items()
            if not buckets and shelf not in self._partly
        ]
        if len(empty) > EMPTY_SHELVES_MAX:
            for shelf in empty:
                del self._shelves[shelf]

    def _count(self, node: Node, slots: set[Slot]) -> dict[Shelf, int]:
        """What of the node is free, by shelf; into `slots` go the devices that are shared."""
        whole: dict[tuple[str, str], int] = {}
        counts: dict[Shelf, int] = {}
        joint: list[Device] = []
        stack = self._stacks[node.name]
        for device in node.devices.values():
            if device.holder is not None or not device.usable or not self._core_free(node, device):
                continue
            kind = (device.pool, device.model or "")
            if device.shares:
                memory, left = device.memory_bytes or 0, device.free_parts
                if left >= device.smallest_parts:
                    slots.add(Slot(Shelf(*kind, stack), memory, left, device.uuid))
            elif device.partitions:
                for partition in device.free_partitions():
                    cut = Shelf(*kind, stack, partition=partition.profile)
                    counts[cut] = counts.get(cut, 0) + 1
            elif device.together > 1:
                joint.append(device)
            else:
                whole[kind] = whole.get(kind, 0) + 1
        for device in in_whole_sets(joint):
            kind = (device.pool, device.model or "")
            whole[kind] = whole.get(kind, 0) + 1
        for kind, count in whole.items():
            counts[Shelf(*kind, stack)] = count
        return counts

    @staticmethod
    def _core_free(node: Node, device: Device) -> bool:
        """A CPU is counted once: as a device it is free only while no lease holds cores of it."""
        return device.kind != "cpu" or node.cpu_held == 0

    def shelves(self) -> Iterator[Shelf]:
        """Every (pool, model, class, partition) that has or had something free."""
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

    def lasting(self, key: object, find: Callable[[], T]) -> T:
        """What `find` gives, kept under `key` for as long as nothing but holders changes."""
        structure = self.structure
        if self._lasting[0] != structure or len(self._lasting[1]) >= SERVING_MAX:
            self._lasting = (structure, {})
        known: T | None = self._lasting[1].get(key)
        if known is None:
            known = self._lasting[1][key] = find()
        return known

    def tightest(self, shelf: Shelf, cards: int) -> tuple[int, Node] | None:
        """The first node of `fitting`, and how many it has free."""
        found = self._shelves[shelf].first(cards)
        return None if found is None else (found[0], self.nodes[found[1]])

    def fitting(self, shelf: Shelf, cards: int, *, emptiest: bool = False) -> Iterator[Node]:
        """Nodes with at least `cards` free on this shelf, tightest (or emptiest) first."""
        for _, name in self._shelves[shelf].names(cards, emptiest=emptiest):
            yield self.nodes[name]

    def sharing(self, shelf: Shelf, share: Share) -> Iterator[tuple[Node, Device]]:
        """Shared devices with room for it, the fullest first, by name among equals."""
        found: list[tuple[int, tuple[str, str]]] = []
        sizes = self._partly.get(shelf, {})
        for memory, by_free in sizes.items():
            least = share.of(memory)
            if least is None:
                continue
            if len(sizes) == 1:
                for free in by_free.irange(minimum=least):
                    for node, uuid in by_free[free]:
                        yield self.nodes[node], self.nodes[node].devices[uuid]
                return
            for free in by_free.irange(minimum=least):
                found += [(free, key) for key in by_free[free]]
        for _, (node, uuid) in sorted(found):
            yield self.nodes[node], self.nodes[node].devices[uuid]

    def free_devices(self, node: Node, model: str, pool: str) -> list[Device]:
        """The node's grantable devices of one model and pool, by index."""
        found = [
            device
            for device in node.devices.values()
            if device.holder is None
            and not device.shares
            and not device.partitions
            and device.model == model
            and device.pool == pool
            and device.usable
            and self._core_free(node, device)
        ]
        found.sort(key=lambda device: (device.index, device.uuid))
        return in_whole_sets(found) if found and found[0].together > 1 else found

    def domains(self, sort: Sort) -> Domains:
        """The index for requests that say how their cards must lie; kept from the first on."""
        return self._indexes.of(self, sort)

    def shelf_of(self, name: str, model: str, pool: str) -> Shelf | None:
        """Where the node's whole free devices of this kind lie; none if it has none free."""
        for shelf in self._filed.get(name, ()):
            if shelf.model == model and shelf.pool == pool and not shelf.partition:
                return shelf
        return None

    def free_of(self, name: str, model: str, pool: str) -> int:
        """How many whole free devices of this kind the node has."""
        shelf = self.shelf_of(name, model, pool)
        return 0 if shelf is None else self._filed[name][shelf]

    def free_count(self, node: Node, shelf: Shelf) -> int:
        """How many of the shelf's devices the node has free."""
        return self._filed.get(node.name, {}).get(shelf, 0)
