"""How much of a model each node could give to one member, by domain.

The index of free cards knows counts alone; which of them lie in one island, and which nodes lie in
one fabric, it does not. Working that out for every node at every request costs tens of milliseconds
at ten thousand nodes. So it is kept, one index a sort of request, from its first on: a node that
changed is marked, and worked out anew when somebody asks. Nothing of it is there while nobody does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from quintal_placer.engine.buckets import Buckets
from quintal_placer.engine.lay import most

if TYPE_CHECKING:
    from quintal_placer.engine.fleet import Fleet

SORTS_MAX: Final = 64
"""Kept at once; who asks for ever new sorts empties it from its oldest on."""


class Sort(NamedTuple):
    """What an index is of."""

    pool: str
    model: str
    island: bool
    nic: bool
    over: str
    """Which sort of domain; empty: all nodes are in one."""


class Domains:
    """One index: domain -> room -> names."""

    def __init__(self, fleet: Fleet, sort: Sort) -> None:
        self._fleet = fleet
        self._sort = sort
        self._placed: dict[str, tuple[str, int]] = {}
        self._buckets: dict[str, Buckets] = {}
        self.marked: set[str] = set(fleet.nodes)
        """Nodes that changed since they were worked out."""

    def buckets(self) -> Mapping[str, Buckets]:
        """Domain -> its nodes by how much room they have, as it is now."""
        for name in self.marked:
            self._place(name)
        self.marked.clear()
        return self._buckets

    def _place(self, name: str) -> None:
        before = self._placed.pop(name, None)
        after = self._room(name)
        if before != after:
            if before is not None:
                domain, room = before
                self._buckets[domain].drop(room, name)
                if not self._buckets[domain]:
                    del self._buckets[domain]
            if after is not None:
                domain, room = after
                self._buckets.setdefault(domain, Buckets()).add(room, name)
        if after is not None:
            self._placed[name] = after

    def _room(self, name: str) -> tuple[str, int] | None:
        pool, model, island, nic, over = self._sort
        count = self._fleet.free_of(name, model, pool)
        if not count:
            return None
        node = self._fleet.nodes[name]
        domain = node.lay.domain(over) if over else ""
        if over and not domain:
            return None  # who is in no known domain shares it with nobody
        if island or nic:
            free = [device.uuid for device in self._fleet.free_devices(node, model, pool)]
            count = most(node.lay, free, island=island, nic=nic)
        return (domain, count) if count else None


class Indexes:
    """Those that are kept."""

    def __init__(self) -> None:
        self._kept: dict[Sort, Domains] = {}

    def mark(self, name: str) -> None:
        """The node, or what is held of it, changed."""
        for index in self._kept.values():
            index.marked.add(name)

    def of(self, fleet: Fleet, sort: Sort) -> Domains:
        """The index of this sort, made if it is the first time."""
        known = self._kept.get(sort)
        if known is None:
            if len(self._kept) >= SORTS_MAX:
                del self._kept[next(iter(self._kept))]
            known = self._kept[sort] = Domains(fleet, sort)
        return known


def sizes(parts: Iterable[Buckets]) -> dict[int, int]:
    """Room -> how many nodes have it, over all of these."""
    found: dict[int, int] = {}
    for buckets in parts:
        for room, count in buckets.sizes():
            found[room] = found.get(room, 0) + count
    return found
