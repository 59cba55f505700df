"""What a placement is worth: the one place where that is written down.

In cards, higher is better, for a request of `asked` cards on a node of one model:

    worth = (U after - U before + asked) - BETA x (D after - D before)      rounded to QUANTUM
            - SCARCE x rho(model) x asked

*U, usable*: the node's free cards that requests like those of the history could use. The sum over
the history's shapes, each by its share: 0 where the shape does not fit on the node (host, model,
number of cards) or asks for no card; else the free parts of the cards with room for it. What a
placement takes from U beyond what it asked for is fragmentation (the gradient of Weng et al.,
USENIX ATC '23).

*D, stranded*: free cards beside which too little of the host is left: the larger, over CPU and
memory, of max(0, free - free host / c), where c is the mean of the host per card that the history
asks for, times LEAN, and no more than the densest node has. U looks one request ahead and does
not see how requests for CPU alone starve idle cards; D does.

*rho, scarcity*: demand that names the model, in proportion to all demand, over the model's share
of the fleet; at most 1. Who may go anywhere keeps off the models that others must have.

Rounding makes many nodes equal, on purpose: among equals a share goes to the fullest card with
room, and then the order of `columns` decides, which mixes hardware. Unrounded scores are worth a
point less on the public trace, and an order by rack seven points.

The naive way, every node anew for every request, costs milliseconds. `Prepared` keeps what hangs
on the history alone, `Standing` what hangs on the nodes as they are; a request is then scored for
a batch of rows in some twenty array operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quintal_placer.engine.packing.columns import Columns, Numbers, Rows
from quintal_placer.engine.packing.shapes import WHOLE, Shape, Target

BETA: Final = 0.25
QUANTUM: Final = 0.04 * WHOLE
SCARCE: Final = 0.375
LEAN: Final = 0.85
COVER: Final = 0.9
"""The most frequent shapes that make up so much of the history are looked ahead for."""
SHAPES: Final = 256
"""And never more than so many."""

STEP: Final = 1_024
"""A quantum in the units that scores are compared in."""

EQUAL: Final = 1_024
"""Steps between two scores, for what decides among equals: how full a share's card is already."""

NO: Final = -np.inf
"""The score of a row that cannot take the shape."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The constants; other than the usual only where policies are compared."""

    beta: float = BETA
    quantum: float = QUANTUM
    scarce: float = SCARCE
    lean: float = LEAN
    cover: float = COVER


USUAL: Final = Setting()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A target, and what the fleet has, as arrays: shapes (M) and their classes of cards (K)."""

    cpu: Numbers
    memory: Numbers
    admits: NDArray[np.bool_]
    """Model x M."""
    counts: Numbers
    """Per shape; shapes of one class lie together."""
    starts: Rows
    """Where each class begins among the shapes."""
    cards: Numbers
    parts: Numbers
    total: float
    lean: tuple[float, float]
    """CPU and memory that free cards want beside each part; 0 where nobody asks for any."""
    rho: Numbers
    """Per model."""


def prepare(target: Target, columns: Columns, setting: Setting = USUAL) -> Prepared:
    """What scoring wants to know of the history and of the fleet."""
    ahead = sorted(
        _ahead(target, setting.cover), key=lambda item: (item[0].cards, item[0].parts, item[0])
    )
    classes = sorted({(shape.cards, shape.parts) for shape, _ in ahead})
    begins: dict[tuple[int, int], int] = {}
    for number, (shape, _) in enumerate(ahead):
        begins.setdefault((shape.cards, shape.parts), number)
    admits = np.ones((len(columns.models), len(ahead)), np.bool_)
    for number, (shape, _) in enumerate(ahead):
        if shape.models:
            admits[:, number] = np.isin(columns.models, shape.models)
    return Prepared(
        cpu=np.array([shape.cpu_milli for shape, _ in ahead], float),
        memory=np.array([shape.memory_bytes for shape, _ in ahead], float),
        admits=admits,
        counts=np.array([count for _, count in ahead], float),
        starts=np.array([begins[each] for each in classes], np.intp),
        cards=np.array([cards for cards, _ in classes], float),
        parts=np.array([parts for _, parts in classes], float),
        total=float(max(1, target.total)),
        lean=_lean(target, columns, setting.lean),
        rho=_rho(target, columns),
    )


def _ahead(target: Target, cover: float) -> list[tuple[Shape, int]]:
    """The most frequent shapes, and of those the ones that ask for cards: others use none."""
    found, seen = [], 0
    for shape, count in target.shapes[:SHAPES]:
        if seen >= cover * target.total:
            break
        seen += count
        if shape.cards:
            found.append((shape, count))
    return found


def _lean(target: Target, columns: Columns, lean: float) -> tuple[float, float]:
    if not target.parts:
        return 0.0, 0.0
    cpu, memory = columns.densest()
    return (
        min(lean * target.cpu_milli / target.parts, cpu),
        min(lean * target.memory_bytes / target.parts, memory),
    )


def _rho(target: Target, columns: Columns) -> Numbers:
    supply = columns.supply()
    having = {model for model, parts in zip(columns.models, supply, strict=True) if parts}
    named: dict[str, int] = {}
    for shape, count in target.shapes:
        if shape.models and not having <= set(shape.models):
            for model in shape.models:
                named[model] = named.get(model, 0) + count * shape.asked
    asked = np.array([float(named.get(model, 0)) for model in columns.models])
    share = np.divide(supply, supply.sum() or 1.0)
    wanted = asked / (target.parts or 1)
    return np.minimum(1.0, np.divide(wanted, share, out=np.zeros_like(wanted), where=share > 0))


class Standing:
    """Each row as it is: what is free, and what of it is usable and stranded.

    Brought up to date for the rows that changed, before anything is scored.
    """

    def __init__(self, columns: Columns, prepared: Prepared) -> None:
        self._columns = columns
        self.prepared = prepared
        self._as_of = -1
        self.free: Numbers = np.zeros(0)
        self.full: Numbers = np.zeros(0)
        self.room: Numbers = np.zeros((0, 0))
        """Row x K: free parts of the cards with room for the class."""
        self.fitting: Numbers = np.zeros((0, 0))
        """Row x K: how many cards have."""
        self.usable: Numbers = np.zeros(0)
        self.stranded: Numbers = np.zeros(0)

    def renew(self) -> None:
        """Catch up with the columns."""
        columns = self._columns
        if self._as_of == columns.clock:
            return
        count = columns.count
        if len(self.free) < count:
            self._grow(len(columns.cpu))
        rows = np.flatnonzero(columns.changed[:count] > self._as_of)
        self._as_of = columns.clock
        if not len(rows):
            return
        parts = columns.parts[rows]
        has = parts[:, :, None] >= self.prepared.parts
        self.free[rows] = parts.sum(axis=1)
        self.full[rows] = (parts == WHOLE).sum(axis=1)
        self.room[rows] = (parts[:, :, None] * has).sum(axis=1)
        self.fitting[rows] = has.sum(axis=1)
        cpu, memory = columns.cpu[rows], columns.memory[rows]
        self.usable[rows] = usable(
            self.prepared, columns.model[rows], cpu, memory, self.fitting[rows], self.room[rows]
        )
        self.stranded[rows] = stranded(self.prepared, self.free[rows], cpu, memory)

    def _grow(self, room: int) -> None:
        self._as_of = -1
        classes = len(self.prepared.parts)
        self.free, self.full = np.zeros(room), np.zeros(room)
        self.usable, self.stranded = np.zeros(room), np.zeros(room)
        self.room, self.fitting = np.zeros((room, classes)), np.zeros((room, classes))


def usable(
    prepared: Prepared, model: Rows, cpu: Numbers, memory: Numbers, fitting: Numbers, room: Numbers
) -> Numbers:
    """U of each row, times the total of the history's counts."""
    hosts = (cpu[:, None] >= prepared.cpu) & (memory[:, None] >= prepared.memory)
    hosts &= prepared.admits[model]
    if not len(prepared.starts):
        return np.zeros(len(model))
    # No matrix product: a library that works it out in threads costs more than it brings here.
    weights = np.add.reduceat(hosts * prepared.counts, prepared.starts, axis=1)
    found: Numbers = (weights * (fitting >= prepared.cards) * room).sum(axis=1)
    return found


def stranded(prepared: Prepared, free: Numbers, cpu: Numbers, memory: Numbers) -> Numbers:
    """D of each row."""
    found = np.zeros_like(free)
    for lean, left in zip(prepared.lean, (cpu, memory), strict=True):
        if lean:
            np.maximum(found, free - np.floor(np.maximum(left, 0) / lean), out=found)
    return found


def fitting_cards(columns: Columns, standing: Standing, rows: Rows, shape: Shape) -> Numbers:
    """The parts of the card that a share would go to: the fullest with room; inf where none is.

    For whole cards and for the host alone: WHOLE where enough are free, else inf.
    """
    if shape.parts < WHOLE and shape.cards:
        parts = columns.parts[rows]
        fullest: Numbers = np.where(parts >= shape.parts, parts, np.inf).min(axis=1)
        return fullest
    return np.where(standing.full[rows] >= shape.cards, float(WHOLE), np.inf)


def worth(
    columns: Columns, standing: Standing, rows: Rows, shape: Shape, setting: Setting = USUAL
) -> Numbers:
    """The score of `shape` on each row; `NO` where it does not fit."""
    prepared = standing.prepared
    scores = np.full(len(rows), NO)
    cpu, memory = columns.cpu[rows] - shape.cpu_milli, columns.memory[rows] - shape.memory_bytes
    card = fitting_cards(columns, standing, rows, shape)
    fits = (cpu >= 0) & (memory >= 0) & np.isfinite(card)
    if not fits.all():
        rows, cpu, memory, card = rows[fits], cpu[fits], memory[fits], card[fits]
    if not len(rows):
        return scores
    fitting, room = after(standing, rows, shape, card)
    model = columns.model[rows]
    used = usable(prepared, model, cpu, memory, fitting, room) - standing.usable[rows]
    added = stranded(prepared, standing.free[rows] - shape.asked, cpu, memory)
    added -= standing.stranded[rows]
    gained = used / prepared.total + shape.asked - setting.beta * added
    steps = np.floor(gained / setting.quantum + 0.5) * STEP
    dear = prepared.rho[model] * (setting.scarce * shape.asked / setting.quantum * STEP)
    fuller = np.floor((WHOLE - card) * (EQUAL / WHOLE)) if shape.parts < WHOLE else 0.0
    scores[fits] = (steps - np.floor(dear + 0.5)) * EQUAL + fuller
    return scores


def after(standing: Standing, rows: Rows, shape: Shape, card: Numbers) -> tuple[Numbers, Numbers]:
    """`fitting` and `room` of each row, once it has taken the shape."""
    fitting, room = standing.fitting[rows], standing.room[rows]
    if not shape.cards:
        return fitting, room
    if shape.parts == WHOLE:  # a free card has room for every class
        return fitting - shape.cards, room - shape.asked
    before, left = card[:, None], card[:, None] - shape.parts
    had, has = before >= standing.prepared.parts, left >= standing.prepared.parts
    return fitting - had + has, room - before * had + left * has
