"""The nodes and devices of a request that says how they must lie, or whose members differ. Pure.

Greedy here never fails where a placing exists. A node that has room for a large member has room
for every smaller one: so the largest members take theirs first, and which of the nodes that fit is
taken makes no difference to whether the rest fit (this is Hall's condition where the choices lie
in one another). Between domains there is nothing to combine: each is tried by itself, the one with
the fewest nodes that would do first, so that whole ones stay free. What is preferred is tried in
all combinations, the dearest loss last: at most eight passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from quintal_placer.engine import lay
from quintal_placer.engine.asks import Arrangement, Ask, Option
from quintal_placer.engine.buckets import Buckets
from quintal_placer.engine.devices import Device, Node, Shelf, in_whole_sets
from quintal_placer.engine.domains import Sort, sizes
from quintal_placer.engine.fleet import Fleet
from quintal_placer.engine.rooms import covers

Fits = Callable[[Node], bool]
"""What neither the shelf nor the devices tell of a node: its name, CPU, memory."""

Kind = tuple[str, str]
"""(pool, model)."""

NOTHING: Final = Arrangement()

_WEIGHTS: Final = {"nic": 1, "island": 2, "domain": 4}
"""What is given up first, where not all that is preferred can be had."""


class Seat(NamedTuple):
    """What one node gives."""

    node: Node
    shelf: Shelf
    devices: tuple[Device, ...]


class Seating(NamedTuple):
    """All nodes of a request."""

    seats: tuple[Seat, ...]
    penalty: int
    """More where more of what is preferred was not met."""
    free: int
    """How many the first node had free; less is better, whatever the objective."""
    cost: tuple[str, ...]
    """The same in words."""


class _Search(NamedTuple):
    fleet: Fleet
    ask: Ask
    option: Option
    shelves: frozenset[Shelf]
    fits: Fits
    over: str


def seating(
    fleet: Fleet, ask: Ask, option: Option, shelves: Sequence[Shelf], fits: Fits
) -> Seating | None:
    """Where the option goes on these shelves; none where it does not."""
    needs = option.arrangement or NOTHING
    search = _Search(fleet, ask, option, frozenset(shelves), fits, needs.over)
    for dropped in _drops(needs):
        kept = {name for name in _WEIGHTS if getattr(needs, name)} - dropped
        seats = _seated(search, kept)
        if seats is not None:
            penalty = sum(_WEIGHTS[name] for name in dropped)
            free = fleet.free_count(seats[0].node, seats[0].shelf)
            cost = tuple(_cost(seats, dropped, needs.over))
            return Seating(seats, penalty, -free if ask.objective == "spread" else free, cost)
    return None


def _drops(needs: Arrangement) -> list[frozenset[str]]:
    """Which of what is preferred to give up: nothing first, all last."""
    sets: list[frozenset[str]] = [frozenset()]
    for name in _WEIGHTS:
        if getattr(needs, name) == "preferred":
            sets += [dropped | {name} for dropped in sets]
    return sorted(sets, key=lambda dropped: sum(_WEIGHTS[name] for name in dropped))


def _seated(search: _Search, kept: set[str]) -> tuple[Seat, ...] | None:
    """Every domain that could hold all members by its sizes, the one with fewest nodes first."""
    spread = search.ask.objective == "spread"
    over = search.over if "domain" in kept else ""
    domains: dict[str, list[tuple[Kind, Buckets]]] = {}
    for pool, model in dict.fromkeys((shelf.pool, shelf.model) for shelf in search.shelves):
        sort = Sort(pool, model, "island" in kept, "nic" in kept, over)
        for domain, buckets in search.fleet.domains(sort).buckets().items():
            domains.setdefault(domain, []).append(((pool, model), buckets))
    told = {name: sizes(b for _, b in parts) for name, parts in domains.items()}
    able = [name for name, rooms in told.items() if covers(rooms, search.option.seats)]
    least = search.option.least
    for name in sorted(
        able, key=lambda d: (sum(n for r, n in told[d].items() if r >= least), d), reverse=spread
    ):
        seats = _matched(search, kept, domains[name])
        if seats is not None:
            return seats
    return None


def _matched(
    search: _Search, kept: set[str], parts: Sequence[tuple[Kind, Buckets]]
) -> tuple[Seat, ...] | None:
    """The largest members first, each on the tightest node (or the emptiest) that holds it."""
    seats: list[Seat] = []
    seen: dict[str, bool] = {}
    """Node -> whether it was taken; what does not fit one member fits none."""
    for cards, nodes in search.option.seats:
        wanted = nodes
        for _, name, kind in _nearest(search, parts, cards):
            if not wanted:
                break
            if name in seen:
                continue
            seat = _seat(search, kept, (name, kind), cards)
            if seat is not None:
                seen[name] = True
                seats.append(seat)
                wanted -= 1
        if wanted:
            return None
    return tuple(seats)


def _nearest(
    search: _Search, parts: Sequence[tuple[Kind, Buckets]], least: int
) -> Iterator[tuple[int, str, Kind]]:
    """(room, node, kind) with room for so many, the tightest (or emptiest) first."""
    emptiest = search.ask.objective == "spread"
    if len(parts) == 1:
        ((kind, buckets),) = parts
        for room, name in buckets.names(least, emptiest=emptiest):
            yield room, name, kind
        return
    every = [
        (room, name, kind)
        for kind, buckets in parts
        for room, name in buckets.names(least, emptiest=emptiest)
    ]
    yield from sorted(every, key=lambda one: (-one[0] if emptiest else one[0], *one[1:]))


def _seat(search: _Search, kept: set[str], where: tuple[str, Kind], cards: int) -> Seat | None:
    """What this node gives to a member; none where it may not, or too much is to be avoided."""
    name, (pool, model) = where
    node = search.fleet.nodes[name]
    shelf = search.fleet.shelf_of(name, model, pool)
    if shelf not in search.shelves or not search.fits(node):
        return None
    free = {device.uuid: device for device in _free(search, shelf, node)}
    taken = lay.take(node.lay, tuple(free), cards, island="island" in kept, nic="nic" in kept)
    return Seat(node, shelf, tuple(free[uuid] for uuid in taken)) if taken else None


def _free(search: _Search, shelf: Shelf, node: Node) -> list[Device]:
    free = search.fleet.free_devices(node, shelf.model, shelf.pool)
    return in_whole_sets([device for device in free if device.key not in search.ask.avoid])


# --- what it cost ---------------------------------------------------------------------------------


def _cost(seats: Sequence[Seat], dropped: frozenset[str], over: str) -> Iterator[str]:
    """What was preferred and not met, as it turned out."""
    if "domain" in dropped:
        domains = [seat.node.lay.domain(over) for seat in seats]
        unknown = domains.count("")
        known = len({*domains} - {""})
        if known > 1:
            yield f"{len(seats)} nodes over {known} {over}s"
        if unknown:
            yield f"the {over} of {unknown} of {len(seats)} nodes is unknown"
    if "island" in dropped:
        yield from _island_cost(seats)
    if "nic" in dropped:
        apart = [s for s in seats if not lay.shared_interface(s.node.lay, _uuids(s))]
        if apart:
            yield f"on {len(apart)} of {len(seats)} nodes no interface is near all cards"


def _island_cost(seats: Sequence[Seat]) -> Iterator[str]:
    counts = {(len(seat.devices), lay.islands_of(seat.node.lay, _uuids(seat))) for seat in seats}
    for cards, islands in sorted(counts, key=lambda c: (c[0], c[1] or 0)):
        if cards > 1 and islands is None:
            yield f"which of {cards} cards are linked is unknown"
        elif islands is not None and islands > 1:
            yield f"{cards} cards over {islands} islands"


def _uuids(seat: Seat) -> list[str]:
    return [device.uuid for device in seat.devices]
