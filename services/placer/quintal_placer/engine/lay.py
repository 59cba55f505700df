"""How a node's devices lie to one another, and which of the free ones to take.

Devices are named by uuid. A set that nobody could tell is none, and meets nothing that is
required; a device that is in no island is one by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Sets = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Lay:
    """Of one node."""

    islands: Sets | None = None
    """Devices that reach one another over links of their own; none: unknown."""
    near: Sets | None = None
    """Devices with network interfaces in common, the nearest first; none: unknown."""
    fabric: str = ""
    """The network domain between nodes; empty: in none, or unknown."""
    rack: str = ""

    def domain(self, over: str) -> str:
        """Which domain of this sort the node is in."""
        return self.fabric if over == "fabric" else self.rack


UNKNOWN: Final = Lay()


def most(lay: Lay, free: Sequence[str], *, island: bool, nic: bool) -> int:
    """How many of the free devices lie in one island, near one interface, or both."""
    return max(map(len, _together(lay, free, island=island, nic=nic)), default=0)


def take(
    lay: Lay, free: Sequence[str], cards: int, *, island: bool = False, nic: bool = False
) -> tuple[str, ...]:
    """So many of the free ones, in their order; empty where they do not lie as they must.

    Of the sets that hold as many the tightest is taken, so that whole ones stay whole.
    """
    sets = [s for s in _together(lay, free, island=island, nic=nic) if len(s) >= cards]
    if not sets:
        return ()
    best = min(sets, key=len)
    if len(best) == cards:
        return best
    return _fewest(lay, best, cards)


def islands_of(lay: Lay, taken: Sequence[str]) -> int | None:
    """Over how many islands these lie; none where nobody knows."""
    return None if lay.islands is None else len(_split(lay.islands, taken))


def shared_interface(lay: Lay, taken: Sequence[str]) -> bool | None:
    """Whether these have an interface in common; none where nobody knows."""
    wanted = set(taken)
    return None if lay.near is None else any(wanted <= set(group) for group in lay.near)


def signature(lay: Lay, uuids: Sequence[str]) -> tuple[tuple[int, ...] | None, ...]:
    """How these devices fall into islands and groups, by size: what tells nodes apart."""
    return tuple(
        None if sets is None else tuple(sorted(len(s) for s in _within(sets, uuids)))
        for sets in (lay.islands, lay.near)
    )


def _fewest(lay: Lay, among: Sequence[str], cards: int) -> tuple[str, ...]:
    """From the tightest island that holds them; else from as few islands as can be."""
    if not lay.islands:
        return tuple(among[:cards])
    sets = _split(lay.islands, among)
    holding = [s for s in sets if len(s) >= cards]
    if holding:
        return min(holding, key=len)[:cards]
    taken: set[str] = set()
    for island in sorted(sets, key=len, reverse=True):
        taken.update(island[: cards - len(taken)])
    return tuple(uuid for uuid in among if uuid in taken)


def _together(lay: Lay, free: Sequence[str], *, island: bool, nic: bool) -> Sets:
    sets: Sets = (tuple(free),)
    if island:
        # One device needs no link, and so no knowledge of any.
        sets = _split(lay.islands or (), free)
    if nic:
        sets = tuple(s for among in sets for s in _within(lay.near or (), among))
    return sets


def _within(sets: Sets, free: Sequence[str]) -> Sets:
    found = [tuple(uuid for uuid in free if uuid in group) for group in map(set, sets)]
    return tuple(group for group in found if group)


def _split(islands: Sets, free: Sequence[str]) -> Sets:
    """The free devices by island, those of none each by itself."""
    inside = {uuid for island in islands for uuid in island}
    return (*_within(islands, free), *((uuid,) for uuid in free if uuid not in inside))
