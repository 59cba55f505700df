"""An order for versions as vendors write them, and ranges over it. Pure.

PEP 440 refuses `8.0.RC3.beta1`, `535.183.01`, `23.0.rc2`, `r580.65`, `6.2.4-1` and
`1.22.1-97ec1a4`, and these are what drivers say of themselves. The rules, for all vendors alike:

1.  A word before the first digit names the thing (`v`, `r`, `maca-`) and does not count.
2.  What is left is cut where `.`, `_`, `-`, `+`, `~` or a blank stands, and between letters and
    digits. Case does not count; leading zeros of a number do not (`01` is 1).
3.  The pieces up to the first `-` or `+` are the *release*, what follows is the *build*; but a
    word of rule 4 after a `-` or `~` still belongs to the release (`1.0-rc1`).
4.  Place by place: `dev` < `alpha` (`a`) < `beta` (`b`) < `rc` (`pre`, `preview`, `c`) < nothing,
    which is 0 < any other word (`post`, `p`, `t`) < 1 < 2 ... Missing places are nothing, so
    `12.0` is `12.0.0`; and `8.0.RC3` lies before `8.0.0`, whose third place is a number.
5.  Equal releases are ordered by their builds: none first, then place by place as above. A piece
    of seven or more hexadecimal digits with both letters and digits is a commit and counts as one
    word: there is an order, but it means nothing.

So equal are versions that differ in writing alone, and any two are ordered: a total order over
what they say. A text without a digit is no version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from itertools import zip_longest
from typing import Final

Place = tuple[int, int, str]
"""(-1, rank, '') a word before a release; (0, n, '') a number, 0 is nothing; (0, 0, word)."""

_NOTHING: Final[Place] = (0, 0, "")

_BEFORE: Final = {
    "dev": 0, "alpha": 1, "a": 1, "beta": 2, "b": 2, "rc": 3, "pre": 3, "preview": 3, "c": 3,
}  # fmt: skip
"""Words that come before their release, the earliest lowest."""

_PIECE: Final = re.compile(r"([-+~._ ]*)([0-9a-z]+)")
_RUN: Final = re.compile(r"\d+|[a-z]+")
_COMMIT: Final = re.compile(r"(?=.*[a-f])(?=.*\d)[0-9a-f]{7,}")
_LENGTH_MAX: Final = 128


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """A version as written, and what it is ordered by."""

    text: str
    release: tuple[Place, ...]
    build: tuple[Place, ...]

    def __eq__(self, other: object) -> bool:
        """Whether both say the same, however written."""
        if not isinstance(other, Version):
            return NotImplemented
        return (self.release, self.build) == (other.release, other.build)

    def __lt__(self, other: Version) -> bool:
        """By release, then by build."""
        sign = _compare(self.release, other.release) or _compare(self.build, other.build)
        return sign < 0

    def __hash__(self) -> int:
        """Equal versions hash alike."""
        return hash((self.release, self.build))

    def __str__(self) -> str:
        """As written."""
        return self.text


@lru_cache(maxsize=4096)
def parse(text: str) -> Version:
    """The version that a text says. Raises ValueError where it has no digit, or is too long."""
    folded = text.strip().casefold()
    start = next((i for i, char in enumerate(folded) if char in "0123456789"), None)
    if start is None or len(folded) > _LENGTH_MAX:
        raise ValueError(f"{text!r} is no version: it needs a digit and at most {_LENGTH_MAX}")
    release: list[Place] = []
    build: list[Place] = []
    into = release
    for separator, piece in _PIECE.findall(folded[start:]):
        places = _places(piece)
        if into is release and set(separator) & {"-", "+"} and places[0][0] == 0:
            into = build
        into += places
    return Version(text.strip(), _trimmed(release), _trimmed(build))


def _places(piece: str) -> list[Place]:
    if _COMMIT.fullmatch(piece):
        return [(0, 0, piece)]
    return [_place(run) for run in _RUN.findall(piece)]


def _place(run: str) -> Place:
    if run[0] in "0123456789":
        return (0, int(run), "")
    rank = _BEFORE.get(run)
    return (0, 0, run) if rank is None else (-1, rank, "")


def _trimmed(places: list[Place]) -> tuple[Place, ...]:
    while places and places[-1] == _NOTHING:
        places.pop()
    return tuple(places)


def _compare(one: tuple[Place, ...], other: tuple[Place, ...]) -> int:
    for mine, its in zip_longest(one, other, fillvalue=_NOTHING):
        if mine != its:
            return -1 if mine < its else 1
    return 0


# --- ranges -----------------------------------------------------------------------------------

_BOUND: Final = re.compile(r"\s*(>=|<=|==|!=|>|<)?\s*([^\s<>=!,|]+)\s*")


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range, or one version of it, or (`12.4.*`) all that begin so."""

    sign: str
    version: Version
    prefix: bool = False

    def holds(self, version: Version) -> bool:
        """Whether `version` is on the right side."""
        if self.prefix:
            begins = _begins(version.release, self.version.release)
            return begins if self.sign == "==" else not begins
        match self.sign:
            case ">=":
                return version >= self.version
            case ">":
                return version > self.version
            case "<=":
                return version <= self.version
            case "<":
                return version < self.version
            case "!=":
                return version != self.version
            case _:
                return version == self.version

    def __str__(self) -> str:
        """As people write it."""
        return f"{self.sign}{self.version}{'.*' if self.prefix else ''}"


def _begins(release: tuple[Place, ...], start: tuple[Place, ...]) -> bool:
    padded = release + (_NOTHING,) * (len(start) - len(release))
    return padded[: len(start)] == start


@dataclass(frozen=True, slots=True)
class Range:
    """Stretches of versions: any of them may hold, and of one stretch all bounds must."""

    text: str
    stretches: tuple[tuple[Bound, ...], ...]

    def __contains__(self, version: Version) -> bool:
        """Whether the version lies in some stretch."""
        return any(all(b.holds(version) for b in bounds) for bounds in self.stretches)

    def failing(self, version: Version) -> str:
        """The bound that keeps this version out: of the nearest stretch, the first; else empty."""
        if version in self:
            return ""
        missed = [
            [bound for bound in bounds if not bound.holds(version)] for bounds in self.stretches
        ]
        return str(min(missed, key=len)[0])

    def __str__(self) -> str:
        """As written."""
        return self.text


@lru_cache(maxsize=4096)
def parse_range(text: str) -> Range:
    """`>=525.60.13, <580` (and), `==12.4.* | >=12.6` (or), `!=6.1.2` (a hole), `*` (any).

    `>=` and `<=` include their end, `>` and `<` do not; a version alone means `==`. Raises
    ValueError that names what cannot be read, and for a stretch that can hold nothing.
    """
    stretches: list[tuple[Bound, ...]] = []
    for part in text.split("|"):
        if part.strip() == "*":
            stretches.append(())
            continue
        bounds = tuple(_bound(piece, text) for piece in part.split(","))
        _not_empty(bounds, text)
        stretches.append(bounds)
    return Range(text, tuple(stretches))


def _bound(piece: str, text: str) -> Bound:
    found = _BOUND.fullmatch(piece)
    if found is None:
        raise ValueError(f"{piece.strip()!r} in {text!r} is no bound: write it like >=525.60.13")
    sign, version = found[1] or "==", found[2]
    prefix = version.endswith(".*")
    if prefix and sign not in {"==", "!="}:
        raise ValueError(f"{piece.strip()!r} in {text!r}: .* goes with == and != only")
    bare = version.removesuffix(".*")
    if not prefix:
        return Bound(sign, parse(bare))
    if not re.fullmatch(r"\d+(?:\.\d+)*", bare):
        raise ValueError(f"{piece.strip()!r} in {text!r}: before .* stand numbers only")
    places = tuple((0, int(run), "") for run in bare.split("."))
    return Bound(sign, Version(bare, places, ()), prefix=True)


def _not_empty(bounds: tuple[Bound, ...], text: str) -> None:
    lows = [bound for bound in bounds if bound.sign in {">", ">="}]
    highs = [bound for bound in bounds if bound.sign in {"<", "<="}]
    for low in lows:
        for high in highs:
            meets = low.version == high.version and (low.sign, high.sign) == (">=", "<=")
            if high.version < low.version or (low.version == high.version and not meets):
                raise ValueError(f"{text!r}: nothing is {low} and {high}")
