"""The fleet's packing: its columns, the history, and the choice over both, brought up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quintal_placer.engine.devices import Node, Shelf
from quintal_placer.engine.packing.choice import Choice, Policy, Tight
from quintal_placer.engine.packing.columns import Columns, Free, Home, Numbers, order_of
from quintal_placer.engine.packing.score import Standing
from quintal_placer.engine.packing.shapes import Demand, Shape

CLOSED: Final = -1
"""The CPU of a node on which nothing may be granted: no request asks for so little."""


def free_of(node: Node) -> dict[Home, Free]:
    """What a node has free of each model and pool, by device in order of index."""
    homes: dict[Home, list[int]] = {}
    memories: dict[Home, int] = {}
    open_ = node.open
    for device in sorted(node.devices.values(), key=lambda device: (device.index, device.uuid)):
        if device.kind != "cpu" and device.model is not None:
            parts = device.free_parts if open_ and device.usable else 0
            home = Home(device.pool, device.model)
            homes.setdefault(home, []).append(parts)
            memories[home] = max(memories.get(home, 0), device.memory_bytes or 0)
    host = (node.cpu_milli, node.memory_bytes)
    cpu = node.cpu_milli - node.cpu_held if open_ else CLOSED
    memory = node.memory_bytes - node.memory_held
    stack = node.stack
    return {
        home: Free(tuple(parts), cpu, memory, stack, len(parts), memories[home], host)
        for home, parts in homes.items()
    }


class Packing:
    """What `fleet` keeps of it. A node that changed is read again when somebody next asks."""

    def __init__(self, order: Callable[[str], int] = order_of) -> None:
        self.columns = Columns(order)
        self.demand = Demand()
        self._tight = Tight(self.columns, self.demand)
        self.policy: Policy = self._tight
        self.choice = Choice(self.columns, self.policy)
        self.stale: set[str] = set()
        self.always = False
        """Score whole cards without needs of the host too, and leave nothing to the index."""

    def use(self, policy: Policy) -> None:
        """Score by another policy, to compare."""
        self.policy = policy
        self.choice = Choice(self.columns, policy)

    def renew(self, nodes: Mapping[str, Node], most: int | None = None) -> None:
        """Read the nodes that changed: all of them, or at most so many, whichever they are."""
        # A set is taken whole: taking names off one that was large looks through all its room.
        names, self.stale = self.stale, set()
        if most is not None and most < len(names):
            found = iter(names)
            names, self.stale = set(islice(found, most)), set(found)
        for name in names:
            node = nodes.get(name)
            self.columns.put(name, free_of(node) if node is not None else {})

    @property
    def standing(self) -> Standing:
        """The rows as the engine's own score sees them."""
        return self._tight.standing

    def scores(self, shape: Shape) -> Numbers:
        """The shape's worth on every row."""
        return self.choice.scores(shape)

    def best(self, scores: Numbers, shelves: tuple[Shelf, ...]) -> tuple[float, str] | None:
        """(score, node) of the best over shelves of one pool and model."""
        home, stacks = self._where(shelves)
        found = self.choice.best(scores, home, stacks)
        return None if found is None else (found[0], self.columns.names[found[1]])

    def ranked(self, scores: Numbers, shelves: tuple[Shelf, ...]) -> Iterator[tuple[float, str]]:
        """The same, of all that fit, the best first."""
        home, stacks = self._where(shelves)
        for score, row in self.choice.ranked(scores, home, stacks):
            yield score, self.columns.names[row]

    def place_of(self, name: str) -> int:
        """A node's place among equals."""
        return self.columns.place_among(name)

    def _where(self, shelves: tuple[Shelf, ...]) -> tuple[Home, NDArray[np.bool_] | None]:
        home = Home(shelves[0].pool, shelves[0].model)
        known = self.columns.stacks
        if len(known) == 1:
            return home, None
        stacks = np.zeros(len(known), np.bool_)
        for shelf in shelves:
            number = known.get(shelf.stack)
            if number is not None:
                stacks[number] = True
        return home, stacks
