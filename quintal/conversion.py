"""Cards into units and back: exact sums with their band, and how much of them is estimated.

Nothing converts between classes: a card that trains well may serve badly, so units of one class
are worth nothing in another. What converts is cards, by their rating in one class.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from quintal.units import CLASSES, MICRO, UNIT_NAMES, from_micro, to_micro, unit_name

_TERM: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:x\s+|\s)\s*([A-Za-z][\w.+-]*)\s*")


@dataclass(frozen=True, slots=True)
class Term:
    """So many of a model, or so many units of a class."""

    count: Decimal
    name: str

    @property
    def workload_class(self) -> str | None:
        """The class, if the name is a unit's."""
        return class_of(self.name)


@dataclass(frozen=True, slots=True)
class Total:
    """Micro-units of one class. The band is as if all ratings were off the same way."""

    workload_class: str
    micro: int = 0
    low: int = 0
    high: int = 0
    estimated: int = 0
    """The part that rests on estimates."""

    def plus(self, micro: int, low: int, high: int, *, estimated: bool) -> Total:
        """With so much more."""
        return replace(
            self,
            micro=self.micro + micro,
            low=self.low + low,
            high=self.high + high,
            estimated=self.estimated + (micro if estimated else 0),
        )

    @property
    def estimated_percent(self) -> int:
        """Rounded up, so that a little is not nothing."""
        return -(-100 * self.estimated // self.micro) if self.micro else 0

    def words(self) -> str:
        """`12.5 STU (11.2 - 14, 38 % estimated)`."""
        unit = unit_name(self.workload_class)
        notes = []
        if (self.low, self.high) != (self.micro, self.micro):
            notes.append(f"{rounded(self.low)} - {rounded(self.high)}")
        if self.estimated:
            notes.append(f"{self.estimated_percent} % estimated")
        exact = f"{from_micro(self.micro).normalize():f} {unit}"
        return f"{exact} ({', '.join(notes)})" if notes else exact


def class_of(name: str) -> str | None:
    """`STU`, `siu`, `train_llm`: the class that a unit belongs to."""
    for workload_class in CLASSES:
        if name.casefold() in {workload_class, UNIT_NAMES.get(workload_class, "").casefold()}:
            return workload_class
    return None


def terms(text: str) -> tuple[Term, ...]:
    """`16 nvidia-a100-sxm4-80gb + 8 x nvidia-l4-24gb`. Raises ValueError naming the part."""
    found = []
    for part in text.split(" + "):
        match = _TERM.fullmatch(part)
        if match is None:
            raise ValueError(f"{part.strip()!r} is no term: write it like `16 nvidia-l4-24gb`")
        term = Term(Decimal(match[1]), match[2])
        if term.workload_class is None and term.count != term.count.to_integral_value():
            raise ValueError(f"{part.strip()!r}: cards are counted whole")
        found.append(term)
    return tuple(found)


def other_class(term: Term, wanted: str) -> str | None:
    """Why units of another class do not convert; none where they are of this one."""
    has = term.workload_class
    if has in {None, wanted}:
        return None
    assert has is not None
    return (
        f"{term.name} does not convert to {unit_name(wanted)}: the one counts {has}, the other "
        f"{wanted}, and a card's worth in one says nothing of its worth in the other; "
        "give cards instead of units"
    )


def units_of(term: Term) -> int:
    """The micro-units of a term in units. Raises ValueError beyond six decimals."""
    return to_micro(term.count)


def cards_in(micro: int, rating_micro: int) -> int:
    """How many whole cards of a rating stay within so many units."""
    return micro // rating_micro


def rounded(micro: int) -> str:
    """To three significant digits: a band is no more exact than that."""
    value = Decimal(micro) / MICRO
    return f"{value:.3g}" if abs(value) < 1000 and "E" not in f"{value:.3g}" else f"{value:.0f}"  # noqa: PLR2004


def two_digits(value: Decimal) -> str:
    """An estimate as people may read it: never more than two significant digits."""
    if not value:
        return "0"
    places = max(0, 1 - value.adjusted())
    return f"{value:.{places}f}"
