"""Whether the nodes of a fleet could hold all members of a request, by how much each has room for.

Nodes are counted by size, per model and pool (a mixed gang over all of them), and per domain where
all must be in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from quintal_placer.engine.asks import Ask
from quintal_placer.engine.fleet import Fleet

Key = tuple[int, str, str]
"""(option, model, pool)."""


def covers(rooms: Mapping[int, int], seats: Iterable[tuple[int, int]]) -> bool:
    """Whether nodes of such sizes (size -> how many) hold members (cards, nodes) of such sizes."""
    wanted = 0
    for cards, nodes in sorted(seats, reverse=True):
        wanted += nodes
        if sum(count for size, count in rooms.items() if size >= cards) < wanted:
            return False
    return True


class Rooms:
    """Filled node by node; then asked which options could be had."""

    def __init__(self, fleet: Fleet, ask: Ask) -> None:
        self._fleet = fleet
        self._ask = ask
        self._sizes: dict[Key, dict[str, dict[int, int]]] = {}
        """Per key and domain: size -> how many nodes."""

    def __bool__(self) -> bool:
        """Whether any node has any room."""
        return bool(self._sizes)

    def add(self, names: Sequence[str], rooms: Iterable[tuple[Key, int]]) -> None:
        """Each of these nodes has so much room."""
        largest: dict[Key, int] = {}
        for key, size in rooms:
            one = (key[0], "", "") if self._ask.options[key[0]].mixed else key
            largest[one] = max(size, largest.get(one, 0))
        for key, size in largest.items():
            for domain, count in self._domains(key[0], names).items():
                sizes = self._sizes.setdefault(key, {}).setdefault(domain, {})
                sizes[size] = sizes.get(size, 0) + count

    def _domains(self, place: int, names: Sequence[str]) -> dict[str, int]:
        needs = self._ask.options[place].arrangement
        if needs is None or needs.domain != "required":
            return {"": len(names)}
        counts: dict[str, int] = {}
        for name in names:
            domain = self._fleet.nodes[name].lay.domain(needs.over)
            if domain:
                counts[domain] = counts.get(domain, 0) + 1
        return counts

    def possible(self) -> list[Key]:
        """Where all members could be had."""
        return list(dict.fromkeys(key for key, _ in self.able()))

    def able(self) -> list[tuple[Key, str]]:
        """The same with the domain; empty where they need not be in one."""
        return [
            (key, domain)
            for key, domains in self._sizes.items()
            for domain, sizes in domains.items()
            if covers(sizes, self._ask.options[key[0]].seats)
        ]

    def apart(self, place: int) -> bool:
        """Whether all members could be had, were they not to lie in one domain."""
        seats = self._ask.options[place].seats
        return any(
            covers(_sum(domains.values()), seats)
            for key, domains in self._sizes.items()
            if key[0] == place
        )


def _sum(parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for sizes in parts:
        for size, count in sizes.items():
            total[size] = total.get(size, 0) + count
    return total
