"""The best row for a shape: scores are kept for each shape, and renewed where a node changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from quintal_placer.engine.packing import score
from quintal_placer.engine.packing.columns import Columns, Home, Numbers, Rows
from quintal_placer.engine.packing.score import NO, Prepared, Setting, Standing
from quintal_placer.engine.packing.shapes import Demand, Shape

KEPT_MAX: Final = 512
"""Shapes whose scores are kept; ten thousand rows of one take 80 KB."""


FEW: Final = 16
"""So many rows that changed are looked up by their state, one by one; more are scored at once."""

STATES_MAX: Final = 4_096
"""States whose worth is kept for one shape."""


class Policy(Protocol):
    """How rows are scored. One is in use; others are there to be compared with."""

    by_state: bool
    """Whether rows of one state (`Columns.states`) are worth the same until all is void."""

    def renew(self) -> bool:
        """Catch up with fleet and history; whether all that was scored before is void."""
        ...

    def scores(self, rows: Rows, shape: Shape) -> Numbers:
        """The worth of each row for the shape; `NO` where it does not fit."""
        ...


class Tight:
    """The policy in use: `score.worth` over the history as it stands."""

    by_state = True

    def __init__(self, columns: Columns, demand: Demand, setting: Setting = score.USUAL) -> None:
        self._columns, self._demand, self._setting = columns, demand, setting
        self._made = (-1, -1)
        self._standing: Standing | None = None

    @property
    def standing(self) -> Standing:
        """The rows as they are, up to date."""
        self.renew()
        assert self._standing is not None
        self._standing.renew()
        return self._standing

    @property
    def prepared(self) -> Prepared:
        """What is looked ahead for."""
        return self.standing.prepared

    def renew(self) -> bool:
        """A target drawn anew, or another fleet, makes all scores void."""
        made = (self._demand.version, self._columns.structure)
        void = made != self._made
        if void or self._standing is None:
            prepared = score.prepare(self._demand.target, self._columns, self._setting)
            self._standing = Standing(self._columns, prepared)
            self._made = made
        return void

    def scores(self, rows: Rows, shape: Shape) -> Numbers:
        """By the documented score."""
        assert self._standing is not None
        self._standing.renew()
        return score.worth(self._columns, self._standing, rows, shape, self._setting)


class _Kept:
    """The scores of one shape, as of a moment."""

    __slots__ = ("as_of", "scores", "worths")

    def __init__(self) -> None:
        self.as_of = -1
        self.scores: Numbers = np.zeros(0)
        self.worths: dict[int, float] = {}
        """By state: on a fleet of many equal nodes most that change have been seen like that."""


class Choice:
    """Rows by worth, for one shape at a time."""

    def __init__(self, columns: Columns, policy: Policy) -> None:
        self.columns = columns
        self.policy = policy
        self._kept: OrderedDict[Shape, _Kept] = OrderedDict()

    def best(
        self, scores: Numbers, home: Home, stacks: NDArray[np.bool_] | None = None
    ) -> tuple[float, int] | None:
        """(score, row) of the home's best; none where nothing fits. Equals: the first in order."""
        rows, found = self._among(scores, home, stacks)
        if not len(rows):
            return None
        place = int(found.argmax())
        value = float(found[place])
        return None if value == NO else (value, int(rows[place]))

    def ranked(
        self, scores: Numbers, home: Home, stacks: NDArray[np.bool_] | None = None
    ) -> Iterator[tuple[float, int]]:
        """All rows of the home that fit, the best first."""
        rows, found = self._among(scores, home, stacks)
        for place in np.argsort(-found, kind="stable"):
            if found[place] == NO:
                return
            yield float(found[place]), int(rows[place])

    def _among(
        self, scores: Numbers, home: Home, stacks: NDArray[np.bool_] | None
    ) -> tuple[Rows, Numbers]:
        rows = self.columns.rows(home)
        found = scores[rows]
        if stacks is not None:
            found = np.where(stacks[self.columns.stack[rows]], found, NO)
        return rows, found

    def scores(self, shape: Shape) -> Numbers:
        """The shape's scores over all rows, up to date."""
        if self.policy.renew():
            self._kept.clear()
        columns, count = self.columns, self.columns.count
        kept = self._kept.get(shape)
        if kept is None:
            kept = self._kept[shape] = _Kept()
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(shape)
        if len(kept.scores) < count:
            kept.scores, kept.as_of = np.full(len(columns.cpu), NO), -1
        if kept.as_of == columns.clock:
            return kept.scores
        rows = np.flatnonzero(columns.changed[:count] > kept.as_of)
        if self.policy.by_state and len(rows) <= FEW:
            self._by_state(kept, shape, rows)
        elif len(rows):
            kept.scores[rows] = self.policy.scores(rows, shape)
        kept.as_of = columns.clock
        return kept.scores

    def _by_state(self, kept: _Kept, shape: Shape, rows: Rows) -> None:
        """Score a few rows: those in a state that was scored before cost a look."""
        states, worths = self.columns.states, kept.worths
        unseen = []
        for row in rows.tolist():
            known = worths.get(states[row])
            if known is None:
                unseen.append(row)
            else:
                kept.scores[row] = known
        if not unseen:
            return
        if len(worths) > STATES_MAX:
            worths.clear()
        found = self.policy.scores(np.array(unseen, np.intp), shape)
        kept.scores[unseen] = found
        worths.update(zip([states[row] for row in unseen], found.tolist(), strict=True))
