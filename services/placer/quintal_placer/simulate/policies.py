"""What the engine's own score is compared with: published policies, over the same columns.

All but `random` take the best score among the nodes that fit, the first in the run's order among
equals, and on it the fullest cards that still hold the request. As in the study, CPU counts in
units of 128 cores and cards in units of 8.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final

import numpy as np

from quintal_placer.engine.packing import score
from quintal_placer.engine.packing.choice import Policy, Tight
from quintal_placer.engine.packing.columns import Columns, Numbers, Rows
from quintal_placer.engine.packing.packer import Packing
from quintal_placer.engine.packing.score import NO, Setting, Standing
from quintal_placer.engine.packing.shapes import SEEN, WHOLE, Shape, Target, target

CPU_UNIT: Final = 128_000.0
CARDS_UNIT: Final = 8.0 * WHOLE

STUDY: Final = Setting(cover=0.95)
"""The study looks ahead for the shapes that make up 95 % of its list."""


class Fixed:
    """A history that is known from the start, and does not change."""

    version = 0

    def __init__(self, known: Target) -> None:
        self.target = known


def list_target(shapes: Iterable[Shape]) -> Target:
    """A whole list as the history."""
    counts: dict[Shape, int] = {}
    for shape in shapes:
        counts[shape] = counts.get(shape, 0) + SEEN
    return target(counts)


class Baseline:
    """Where a request fits, and the node's own state: what the simple policies score by."""

    by_state = False

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._standing: Standing | None = None
        self._structure = -1

    @property
    def standing(self) -> Standing:
        """The rows as they are."""
        assert self._standing is not None
        return self._standing

    def renew(self) -> bool:
        """Nothing but the nodes themselves is looked at."""
        void = self._structure != self._columns.structure
        if void or self._standing is None:
            prepared = score.prepare(self._target(), self._columns, STUDY)
            self._standing = Standing(self._columns, prepared)
            self._structure = self._columns.structure
        self._standing.renew()
        return void

    def _target(self) -> Target:
        return list_target(())

    def scores(self, rows: Rows, shape: Shape) -> Numbers:
        """`NO` where it does not fit, else the policy's own."""
        columns = self._columns
        card = score.fitting_cards(columns, self.standing, rows, shape)
        fits = (columns.cpu[rows] >= shape.cpu_milli) & np.isfinite(card)
        fits &= columns.memory[rows] >= shape.memory_bytes
        found = np.full(len(rows), NO)
        if fits.any():
            found[fits] = self._score(rows[fits], shape, card[fits])
        return found

    def _score(self, rows: Rows, shape: Shape, card: Numbers) -> Numbers:
        return np.zeros(len(rows))


class FirstFit(Baseline):
    """The first that fits."""


class AnyFit(Baseline):
    """Any that fits, drawn anew for each request."""

    def __init__(self, columns: Columns, chance: Random) -> None:
        super().__init__(columns)
        self._chance = chance
        self._clock = -1

    def renew(self) -> bool:
        """Each placement is followed by another draw."""
        super().renew()
        void = self._clock != self._columns.clock
        self._clock = self._columns.clock
        return void

    def _score(self, rows: Rows, shape: Shape, card: Numbers) -> Numbers:
        mixed = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(
            self._chance.getrandbits(63) | 1
        )
        for shift in (31, 27, 33):  # one draw, mixed into one number for each row
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(0xBF58476D1CE4E5B9)
        return (mixed >> np.uint64(16)).astype(float)


class BestFit(Baseline):
    """The least left over, in whole percents."""

    def _score(self, rows: Rows, shape: Shape, card: Numbers) -> Numbers:
        cpu = (self._columns.cpu[rows] - shape.cpu_milli) / CPU_UNIT
        cards = (self.standing.free[rows] - shape.asked) / CARDS_UNIT
        return np.floor(100 * (1 - (cpu + cards) / 2))


class DotProduct(Baseline):
    """The least product of what is free and what is asked, in whole percents."""

    def _score(self, rows: Rows, shape: Shape, card: Numbers) -> Numbers:
        cpu = self._columns.cpu[rows] / CPU_UNIT * (shape.cpu_milli / CPU_UNIT)
        cards = self.standing.free[rows] / CARDS_UNIT * (shape.asked / CARDS_UNIT)
        return np.floor(100 * (1 - (cpu + cards) / 2))


class CardPacking(Baseline):
    """A card in use, else idle cards of a node in use, else an idle node."""

    def _score(self, rows: Rows, shape: Shape, card: Numbers) -> Numbers:
        if not shape.cards:
            return np.zeros(len(rows))
        idle = self.standing.full[rows]
        used = idle < self._columns.cards[rows]
        in_use = (shape.parts < WHOLE) & (card < WHOLE)
        by_card = 300 - card * (100 / WHOLE)
        return np.where(in_use, by_card, np.where(used, 200.0, 100 - idle))


class Clustering(Baseline):
    """A node with the same kind alone, or among others, else an empty one, else any; the fuller.

    A kind is how many cards a request takes, or that it takes a share.
    """

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        self._kinds: dict[tuple[str, str], dict[int, int]] = {}

    def moved(self, node: str, model: str, shape: Shape, by: int) -> None:
        """The node holds one more, or one less, of the shape's kind."""
        if not shape.cards:
            return
        kinds = self._kinds.setdefault((node, model), {})
        kind = _kind(shape)
        kinds[kind] = kinds.get(kind, 0) + by
        if not kinds[kind]:
            del kinds[kind]

    def _score(self, rows: Rows, shape: Shape, card: Numbers) -> Numbers:
        if not shape.cards:
            return np.zeros(len(rows))
        columns, kind = self._columns, _kind(shape)
        tiers = np.empty(len(rows))
        for place, row in enumerate(rows):
            key = (columns.names[row], columns.models[columns.model[row]])
            held = self._kinds.get(key) or {}
            alone = kind in held and len(held) == 1
            tiers[place] = 3 if alone else 2 if kind in held else 0 if held else 1
        return tiers * 100 - self.standing.free[rows] / WHOLE


def _kind(shape: Shape) -> int:
    return 0 if shape.parts < WHOLE else shape.cards


class Gradient(Baseline):
    """FGD: where fragmentation grows least, in 100 steps as published. It knows the list."""

    def __init__(self, columns: Columns, known: Target) -> None:
        super().__init__(columns)
        self._known = merged(known)

    def _target(self) -> Target:
        return self._known

    def _score(self, rows: Rows, shape: Shape, card: Numbers) -> Numbers:
        columns, standing = self._columns, self.standing
        prepared = standing.prepared
        cpu = columns.cpu[rows] - shape.cpu_milli
        memory = columns.memory[rows] - shape.memory_bytes
        fitting, room = score.after(standing, rows, shape, card)
        model = columns.model[rows]
        used = score.usable(prepared, model, cpu, memory, fitting, room) - standing.usable[rows]
        grown = -(covered(self._known, STUDY.cover) * shape.asked + used / prepared.total)
        return np.floor(100 / (1 + np.exp(grown / WHOLE)))


def merged(known: Target) -> Target:
    """The list as the study counts it: memory, which never binds there, splits no shapes."""
    counts: dict[Shape, int] = {}
    for shape, count in known.shapes:
        bare = shape._replace(memory_bytes=0)
        counts[bare] = counts.get(bare, 0) + count
    return target(counts)


def covered(known: Target, cover: float) -> float:
    """The part of all requests that is looked ahead for, what asks for no card too."""
    seen = 0
    for _, count in known.shapes[: score.SHAPES]:
        if seen >= cover * known.total:
            break
        seen += count
    return seen / max(1, known.total)


def fragmentation(packing: Packing, known: Target) -> float:
    """F of the fleet against a list, over its capacity in parts."""
    columns, known = packing.columns, merged(known)
    standing = Standing(columns, score.prepare(known, columns, STUDY))
    standing.renew()
    count = columns.count
    free = standing.free[:count].sum() * covered(known, STUDY.cover)
    usable = standing.usable[:count].sum() / standing.prepared.total
    capacity = columns.cards[:count].sum() * WHOLE
    return float((free - usable) / capacity) if capacity else 0.0


TIGHT: Final = "tight"

_SIMPLE: Final[dict[str, type[Baseline]]] = {
    "first-fit": FirstFit,
    "best-fit": BestFit,
    "dot-product": DotProduct,
    "packing": CardPacking,
    "clustering": Clustering,
}


def made(name: str, packing: Packing, known: Target, chance: Random) -> Policy:
    """The policy of this name over these columns; `known` is the list, for the one that is told."""
    if name == TIGHT:
        return Tight(packing.columns, packing.demand)
    if name == "random":
        return AnyFit(packing.columns, chance)
    if name == "fgd":
        return Gradient(packing.columns, known)
    return _SIMPLE[name](packing.columns)
