"""Names of nodes by how many devices they have free; the tightest that will do is found at once.

One bucket a count, and one bit a bucket that has a name in it: which count is the nearest is then
a question to one integer. A bucket is a plain list in the order of names: what is asked of it ten
times a decision is its first, and a name that goes or comes once costs less to move up the others
than a tree would cost to be asked.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class Buckets:
    """What one shelf keeps. Within a bucket the order is that of names."""

    __slots__ = ("_bits", "_names")

    def __init__(self) -> None:
        self._names: dict[int, list[str]] = {}
        self._bits = 0

    def __bool__(self) -> bool:
        """Whether any node has anything free here."""
        return self._bits != 0

    def add(self, count: int, name: str) -> None:
        """The node, which was in no bucket, has so many free."""
        insort(self._names.setdefault(count, []), name)
        self._bits |= 1 << count

    def drop(self, count: int, name: str) -> None:
        """The node has them no more."""
        names = self._names[count]
        at = bisect_left(names, name)
        assert names[at] == name
        del names[at]
        if not names:
            del self._names[count]
            self._bits &= ~(1 << count)

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Count -> how many nodes have it."""
        return ((count, len(names)) for count, names in self._names.items())

    def first(self, least: int) -> tuple[int, str] | None:
        """The tightest node with at least so many free, and how many; none if there is none."""
        bits = self._bits >> least
        if not bits:
            return None
        count = least + (bits & -bits).bit_length() - 1
        return count, self._names[count][0]

    def names(self, least: int, *, emptiest: bool = False) -> Iterator[tuple[int, str]]:
        """Every node with at least so many free, tightest (or emptiest) first."""
        bits = self._bits >> least
        while bits:
            bit = bits.bit_length() if emptiest else (bits & -bits).bit_length()
            bits &= ~(1 << (bit - 1))
            count = least + bit - 1
            for name in self._names[count]:
                yield count, name
