"""What nodes have free, as arrays: one row for each (node, pool, model), one lane for each card.

A row belongs to a home (pool, model), the unit that a decision compares; a home's rows lie in a
fixed order that mixes hardware: by a hash of the node's name. Which of equal nodes is taken then
hangs neither on the order of arrival nor on names that were given rack by rack.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quintal_placer.engine.packing.shapes import WHOLE

Numbers = NDArray[np.float64]
"""Whole numbers, exact to 2**53."""

Rows = NDArray[np.intp]

_LANES: Final = 8

STATES_MAX: Final = 100_000


class Home(NamedTuple):
    """What a decision compares: nodes with one model in one pool."""

    pool: str
    model: str


@dataclass(frozen=True, slots=True)
class Free:
    """What one node has free of one home."""

    parts: tuple[int, ...]
    """Per card that may be granted; a card that may not is 0."""
    cpu_milli: int
    """-1 where nothing may be granted at all."""
    memory_bytes: int
    stack: Hashable = ""
    """What else a request may tell nodes apart by."""
    cards: int = 0
    """How many it has at all, held ones too."""
    card_memory: int = 0
    """Memory of its largest card; 0 where nobody knows."""
    host: tuple[int, int] = (0, 0)
    """CPU and memory that the node has at all."""


def order_of(name: str) -> int:
    """A node's place among equals."""
    return int.from_bytes(blake2b(name.encode(), digest_size=6).digest(), "big")


class Columns:
    """The arrays, and where each node stands in them."""

    def __init__(self, order: Callable[[str], int] = order_of) -> None:
        self._order = order
        self.count = 0
        """Rows in use or once in use."""
        self.clock = 0
        """Grows with every change; `changed` says when each row last changed."""
        self.parts: Numbers = np.zeros((0, _LANES))
        self.cpu: Numbers = np.zeros(0)
        self.memory: Numbers = np.zeros(0)
        self.cards: Numbers = np.zeros(0)
        self.card_memory: Numbers = np.zeros(0)
        self.host: Numbers = np.zeros((0, 2))
        self.model: Rows = np.zeros(0, np.intp)
        self.stack: Rows = np.zeros(0, np.intp)
        self.changed: NDArray[np.int64] = np.zeros(0, np.int64)
        self.states: list[int] = []
        """Per row: rows of one number are alike in all that a score may hang on."""
        self._numbers: dict[tuple[object, ...], int] = {}
        self._last_number = 0
        self.names: list[str] = []
        self.models: list[str] = []
        self.stacks: dict[Hashable, int] = {}
        self.structure = 0
        """Grows when nodes come, go, or have other cards or another host than before."""
        self._model_ids: dict[str, int] = {}
        self._rows: dict[str, dict[Home, int]] = {}
        self._unused: list[int] = []
        self._members: dict[Home, dict[int, int]] = {}
        """Home -> row -> its place among equals."""
        self._sorted: dict[Home, Rows] = {}

    def put(self, name: str, free: Mapping[Home, Free]) -> None:
        """What the node has free now; a home that is not named any more is gone from it."""
        known = self._rows.setdefault(name, {})
        for home in [home for home in known if home not in free]:
            self._drop(home, known.pop(home))
        for home, its in free.items():
            row = known.get(home)
            if row is None:
                row = known[home] = self._add(name, home)
            self._write(row, its)
        if not known:
            del self._rows[name]

    def rows(self, home: Home) -> Rows:
        """The home's rows in their fixed order."""
        found = self._sorted.get(home)
        if found is None:
            members = self._members.get(home, {})
            ordered = sorted(members, key=lambda row: (members[row], self.names[row]))
            found = self._sorted[home] = np.array(ordered, np.intp)
        return found

    def homes(self) -> Iterable[Home]:
        """Every home that some node has."""
        return self._members

    def row_of(self, name: str, home: Home) -> int | None:
        """Where a node's cards of this home stand."""
        return self._rows.get(name, {}).get(home)

    def memory_of(self, home: Home) -> int:
        """Memory of the home's largest card."""
        rows = self.rows(home)
        return int(self.card_memory[rows].max()) if len(rows) else 0

    def place_among(self, name: str) -> int:
        """A node's place among equals."""
        return self._order(name)

    def _write(self, row: int, its: Free) -> None:
        width = len(its.parts)
        if width > self.parts.shape[1]:
            wider = np.zeros((len(self.parts), -(-width // _LANES) * _LANES))
            wider[:, : self.parts.shape[1]] = self.parts
            self.parts = wider
        self.parts[row] = 0
        self.parts[row, :width] = its.parts
        self.cpu[row], self.memory[row] = its.cpu_milli, its.memory_bytes
        self.card_memory[row] = its.card_memory
        if its.cards != self.cards[row] or its.host != tuple(self.host[row]):
            self.cards[row], self.host[row] = its.cards, its.host
            self.structure += 1
        self.states[row] = self._number(row, its)
        self.stack[row] = self.stacks.setdefault(its.stack, len(self.stacks))
        self.clock += 1
        self.changed[row] = self.clock

    def _number(self, row: int, its: Free) -> int:
        """Which cards are free, and not where each lies: the score sums over them."""
        state = (int(self.model[row]), its.cpu_milli, its.memory_bytes, *sorted(its.parts))
        if len(self._numbers) >= STATES_MAX:
            self._numbers.clear()  # numbers are not given twice, so that what was known stays true
        number = self._numbers.get(state)
        if number is None:
            self._last_number += 1
            number = self._numbers[state] = self._last_number
        return number

    def _add(self, name: str, home: Home) -> int:
        row = self._unused.pop() if self._unused else self.count
        if row == self.count:
            self.count += 1
            if row >= len(self.cpu):
                self._grow()
            self.names.append(name)
            self.states.append(0)
        self.names[row] = name
        if home.model not in self._model_ids:
            self._model_ids[home.model] = len(self.models)
            self.models.append(home.model)
        self.model[row] = self._model_ids[home.model]
        self._members.setdefault(home, {})[row] = self._order(name)
        self._sorted.pop(home, None)
        return row

    def _drop(self, home: Home, row: int) -> None:
        self._write(row, Free((), -1, -1))
        self._unused.append(row)
        del self._members[home][row]
        if not self._members[home]:
            del self._members[home]
        self._sorted.pop(home, None)

    def _grow(self) -> None:
        room = max(64, 2 * len(self.cpu))
        for column in (
            "parts",
            "cpu",
            "memory",
            "cards",
            "card_memory",
            "host",
            "model",
            "stack",
            "changed",
        ):
            old: NDArray[Any] = getattr(self, column)
            new = np.zeros((room, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            setattr(self, column, new)

    def supply(self) -> Numbers:
        """Parts of the cards that the fleet has of each model, in the order of `models`."""
        count = self.count
        cards: Numbers = np.bincount(
            self.model[:count], self.cards[:count], minlength=len(self.models)
        ).astype(np.float64)
        return cards * WHOLE

    def densest(self) -> tuple[float, float]:
        """The most CPU and memory that any node has beside each part of a card."""
        count = self.count
        having = self.cards[:count] > 0
        if not having.any():
            return 0.0, 0.0
        beside = self.host[:count][having] / (self.cards[:count][having, None] * WHOLE)
        cpu, memory = beside.max(axis=0)
        return float(cpu), float(memory)
