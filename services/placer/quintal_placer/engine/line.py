"""The line: who waits, in which order, and how many of each tenant. Pure.

Higher priority goes first; within one, whoever began to wait first. Requests of one tenant that
ask for the same wait as one group: where its foremost does not fit, none of them does, and whom
the foremost does not hold back, the others do not either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sortedcontainers import SortedDict


class Turn(NamedTuple):
    """A place in the line, comparable: smaller goes first."""

    rank: int
    """The priority's value, negated."""
    since_ms: int
    number: int


Group = tuple[str, str]
"""Tenant, and what is asked for as one short text."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """Somebody in the line."""

    lease: str
    turn: Turn
    group: Group
    priority: str


@dataclass(slots=True)
class Stir:
    """What has changed that could help somebody who waits; a grant never does."""

    everything: bool = True
    models: set[str] = field(default_factory=set)
    tenants: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        """Whether anything has."""
        return self.everything or bool(self.models) or bool(self.tenants)

    def take(self) -> Stir:
        """What has changed until now; from here on nothing has."""
        taken = Stir(self.everything, self.models, self.tenants)
        self.everything, self.models, self.tenants = False, set(), set()
        return taken


class Line:
    """Everybody who waits."""

    def __init__(self) -> None:
        self._waiters: dict[str, Waiter] = {}
        self._order: SortedDict[Turn, str] = SortedDict()
        self._groups: dict[Group, SortedDict[Turn, str]] = {}
        self._of: dict[str, int] = {}
        self._heads: list[Waiter] | None = None
        self._number = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def __iter__(self) -> Iterator[str]:
        """Leases in the order of their turns."""
        return iter(self._order.values())

    def join(self, lease: str, group: Group, *, priority: str, rank: int, since_ms: int) -> None:
        """Wait from here on, as one that began to wait at `since_ms`."""
        self._number += 1
        self._add(Waiter(lease, Turn(rank, since_ms, self._number), group, priority))
        self._of[group[0]] = self._of.get(group[0], 0) + 1

    def leave(self, lease: str) -> None:
        """Wait no more; who does not wait stays as it is."""
        waiter = self._waiters.get(lease)
        if waiter is None:
            return
        self._drop(waiter)
        tenant = waiter.group[0]
        self._of[tenant] -= 1
        if not self._of[tenant]:
            del self._of[tenant]

    def rank_anew(self, rank_of: Callable[[str], int]) -> None:
        """Another catalog: priorities have other values, the order of arrival stands."""
        for waiter in list(self._waiters.values()):
            turn = waiter.turn._replace(rank=rank_of(waiter.priority))
            if turn != waiter.turn:
                self._drop(waiter)
                self._add(Waiter(waiter.lease, turn, waiter.group, waiter.priority))

    def _add(self, waiter: Waiter) -> None:
        self._waiters[waiter.lease] = waiter
        self._order[waiter.turn] = waiter.lease
        self._groups.setdefault(waiter.group, SortedDict())[waiter.turn] = waiter.lease
        self._heads = None

    def _drop(self, waiter: Waiter) -> None:
        del self._waiters[waiter.lease]
        del self._order[waiter.turn]
        members = self._groups[waiter.group]
        del members[waiter.turn]
        if not members:
            del self._groups[waiter.group]
        self._heads = None

    def waiter(self, lease: str) -> Waiter | None:
        """Who waits under this lease; none where nobody does."""
        return self._waiters.get(lease)

    def place(self, lease: str) -> int | None:
        """Its place in the whole line, from 1; none where it does not wait."""
        waiter = self._waiters.get(lease)
        return self._order.index(waiter.turn) + 1 if waiter else None

    def waiting(self, tenant: str) -> int:
        """How many of one tenant wait."""
        return self._of.get(tenant, 0)

    def head(self, group: Group) -> Waiter | None:
        """The foremost of a group; none where nobody of it waits."""
        members = self._groups.get(group)
        return self._waiters[members.peekitem(0)[1]] if members else None

    def heads(self) -> list[Waiter]:
        """The foremost of each group, in the order of their turns."""
        if self._heads is None:
            found = [self._waiters[members.peekitem(0)[1]] for members in self._groups.values()]
            self._heads = sorted(found, key=lambda waiter: waiter.turn)
        return self._heads
