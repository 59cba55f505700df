"""How a card can be cut: where a shape fits beside others, and which place keeps the most open.

A shape takes a run of memory slices, from one of its placements on, and a number of compute slices
anywhere: seven compute slices lie on eight memory slices. Free slices that lie apart are no room
for a shape that needs them together, and a shape may begin at some slices only: `fits` says which.
Cards that are switched as a whole (CPX, vNPU templates) are the same with every slice alike.

Pure; nothing here knows who holds what. What a card *is* cut into its agent says: here is only
what it could be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """One profile of a card."""

    name: str
    placements: tuple[int, ...]
    """Memory slices that it can begin at."""
    memory_slices: int
    compute_slices: int
    parts: int = 0
    count_max: int = 1


@dataclass(frozen=True, slots=True)
class Card:
    """What a card has of slices, and the shapes that it can be cut into."""

    memory_slices: int
    compute_slices: int
    shapes: tuple[Shape, ...]

    def shape(self, name: str) -> Shape | None:
        """The shape of this name, whatever its case."""
        wanted = name.casefold()
        return next((shape for shape in self.shapes if shape.name.casefold() == wanted), None)


@dataclass(frozen=True, slots=True)
class Place:
    """A shape where it lies."""

    shape: Shape
    start: int

    @property
    def slices(self) -> frozenset[int]:
        """The memory slices that it takes."""
        return frozenset(range(self.start, self.start + self.shape.memory_slices))


@dataclass(frozen=True, slots=True)
class Fit:
    """Where a shape could begin; or nowhere, and why."""

    placements: tuple[int, ...]
    reason: str = ""

    def __bool__(self) -> bool:
        """Whether it fits at all."""
        return bool(self.placements)


def fits(card: Card, name: str, occupied: Iterable[int], compute_used: int = 0) -> Fit:
    """Where the shape fits beside the memory slices that are taken.

    `compute_used` are the compute slices that these have; at least as many as are told.
    """
    shape = card.shape(name)
    if shape is None:
        return Fit((), f"no shape {name}: there is {', '.join(s.name for s in card.shapes)}")
    taken = frozenset(occupied)
    free = card.memory_slices - len(taken)
    if shape.memory_slices > free:
        return Fit((), f"{name} takes {shape.memory_slices} slices, {free} are free")
    if compute_used + shape.compute_slices > card.compute_slices:
        left = card.compute_slices - compute_used
        return Fit((), f"{name} takes {shape.compute_slices} compute slices, {left} are free")
    found = tuple(
        start
        for start in shape.placements
        if start + shape.memory_slices <= card.memory_slices
        and not Place(shape, start).slices & taken
    )
    if found:
        return Fit(found)
    barred = "; ".join(
        f"at {start} slices {_spoken(Place(shape, start).slices & taken)} are taken"
        for start in shape.placements
    )
    return Fit((), f"{free} slices are free, and {name} begins at none of them: {barred}")


def best(card: Card, name: str, places: Sequence[Place]) -> Fit:
    """The place for one more of the shape that keeps the largest shapes possible beside it.

    Places that keep as much are told in the order of where they begin, the later first: what is
    small is put at the end, where the largest shapes do not begin.
    """
    shape = card.shape(name)
    occupied = frozenset().union(*(place.slices for place in places))
    used = sum(place.shape.compute_slices for place in places)
    found = fits(card, name, occupied, used)
    if shape is None or not found:
        return found
    counts = Counter(place.shape.name for place in places)
    if counts[shape.name] >= shape.count_max:
        return Fit((), f"{name}: at most {shape.count_max} on one card")
    ranked = sorted(
        found.placements,
        key=lambda start: (open_after(card, [*places, Place(shape, start)]), start),
        reverse=True,
    )
    return Fit(tuple(ranked))


def open_after(card: Card, places: Sequence[Place]) -> tuple[int, ...]:
    """How much stays possible: for each shape, the largest first, how many still fit."""
    ordered = sorted(card.shapes, key=lambda s: (-s.compute_slices, -s.memory_slices, s.name))
    return tuple(count_more(card, shape, places) for shape in ordered)


def count_more(card: Card, shape: Shape, places: Sequence[Place]) -> int:
    """How many of one shape fit beside these."""
    occupied = set().union(*(place.slices for place in places))
    used = sum(place.shape.compute_slices for place in places)
    most = shape.count_max - sum(place.shape.name == shape.name for place in places)
    found = 0
    for start in sorted(shape.placements):
        room = Place(shape, start).slices
        if found == most or used + shape.compute_slices > card.compute_slices:
            break
        if start + shape.memory_slices <= card.memory_slices and not room & occupied:
            occupied |= room
            used += shape.compute_slices
            found += 1
    return found


def laid_out(card: Card, shapes: Mapping[str, int]) -> tuple[Place, ...] | None:
    """These shapes side by side on an empty card, or none where they cannot lie so."""
    wanted = [card.shape(name) for name, count in shapes.items() for _ in range(count)]
    known = [shape for shape in wanted if shape is not None]
    if len(known) < len(wanted):
        return None
    known.sort(key=lambda shape: (-shape.memory_slices, shape.name))
    return next(_layings(card, known, ()), None)


def _layings(
    card: Card, shapes: Sequence[Shape], places: tuple[Place, ...]
) -> Iterator[tuple[Place, ...]]:
    if not shapes:
        yield places
        return
    occupied = frozenset().union(*(place.slices for place in places))
    used = sum(place.shape.compute_slices for place in places)
    for start in fits(card, shapes[0].name, occupied, used).placements:
        yield from _layings(card, shapes[1:], (*places, Place(shapes[0], start)))


@dataclass(frozen=True, slots=True)
class Tally:
    """What a fleet is cut into: partitions by shape, and the cards that they are of."""

    partitions: dict[str, int]
    parents: int

    @property
    def total(self) -> int:
        """All partitions together."""
        return sum(self.partitions.values())


def tally(cuts: Iterable[Iterable[str]]) -> Tally:
    """A card's partitions by their shapes, card by card; a card that is not cut is its own one."""
    counts: Counter[str] = Counter()
    parents = 0
    for shapes in cuts:
        parents += 1
        counts.update(shapes)
    return Tally(dict(sorted(counts.items())), parents)


def _spoken(slices: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(slices)))
