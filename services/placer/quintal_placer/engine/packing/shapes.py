"""What is asked for, and how often: the request history that the score looks ahead with.

The history is a fold of the ledger, so that a standby, a restart and a replay know the same. It
forgets by halving all counts whenever they have grown to a bound: integers, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

WHOLE: Final = 1_000_000
"""Parts of a whole card."""

SEEN: Final = 64
"""What one request adds to its shape's count; halving keeps so many steps of memory."""

SEEN_MAX: Final = SEEN * 16_384
"""The sum of all counts that sets off a halving: the last ten thousand requests or so count."""

SHAPES_MAX: Final = 1_024
"""Shapes kept; the rarest are forgotten first, with each halving or when there are too many."""

GROWTH: Final = 4
"""The target is drawn anew when the history has grown by one part in so many."""

SETTLED: Final = SEEN * 2_048
"""From so large a history on it is drawn anew after each such a stretch."""


class Shape(NamedTuple):
    """What one node must give."""

    cards: int
    """0: the host alone."""
    parts: int
    """Of each card; `WHOLE`, or less of a single card."""
    cpu_milli: int = 0
    memory_bytes: int = 0
    models: tuple[str, ...] = ()
    """Admissible models in order of name; empty: any."""

    @property
    def asked(self) -> int:
        """Parts of all its cards."""
        return self.cards * self.parts


@dataclass(frozen=True, slots=True)
class Target:
    """The history at one moment: what the score takes for the requests to come."""

    shapes: tuple[tuple[Shape, int], ...]
    """Shape and count, the most frequent first."""
    total: int
    """The sum of the counts."""
    parts: int
    """Parts asked for by what asks for cards, each times its count."""
    cpu_milli: int
    """CPU that the same asked for."""
    memory_bytes: int


NOTHING: Final = Target((), 0, 0, 0, 0)


class Demand:
    """Counts per shape. `version` grows when the target is drawn anew."""

    def __init__(self) -> None:
        self.counts: dict[Shape, int] = {}
        self.total = 0
        self.drawn = 0
        """The total when the target was last drawn."""
        self.version = 0
        self.target = NOTHING

    def saw(self, shape: Shape) -> None:
        """One request more of this shape."""
        self.counts[shape] = self.counts.get(shape, 0) + SEEN
        self.total += SEEN
        if self.total >= SEEN_MAX or len(self.counts) > SHAPES_MAX:
            self._halve()
        if self.total - self.drawn >= min(max(self.drawn // GROWTH, SEEN), SETTLED):
            self._draw()

    def restore(self, counts: Iterable[tuple[Shape, int]], drawn: Mapping[Shape, int]) -> None:
        """As another placer had it: its counts, and those its target was drawn from."""
        self.counts = dict(drawn)
        self.total = sum(self.counts.values())
        self._draw()
        self.counts = dict(counts)
        self.total = sum(self.counts.values())

    def _halve(self) -> None:
        halved = {shape: count // 2 for shape, count in self.counts.items()}
        kept = sorted(
            ((shape, count) for shape, count in halved.items() if count),
            key=lambda item: (-item[1], item[0]),
        )[: SHAPES_MAX // 2]
        self.counts = dict(kept)
        self.total = sum(self.counts.values())
        self._draw()

    def _draw(self) -> None:
        self.drawn = self.total
        self.version += 1
        self.target = target(self.counts)


def target(counts: Mapping[Shape, int]) -> Target:
    """A history as the score uses it. The order of its making plays no part."""
    shapes = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    parts = cpu_milli = memory_bytes = 0
    for shape, count in shapes:
        if not shape.cards:
            continue
        parts += count * shape.asked
        cpu_milli += count * shape.cpu_milli
        memory_bytes += count * shape.memory_bytes
    return Target(tuple(shapes), sum(counts.values()), parts, cpu_milli, memory_bytes)
