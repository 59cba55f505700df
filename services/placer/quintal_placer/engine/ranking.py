"""Which node is taken before which, and which candidate is the best: the one place for it. Pure.

`nodes` gives the nodes of a shelf that may have room, the best first, each with the number that
put it there (smaller is better); `placing` looks at so many of them as it needs. Whoever scores
nodes otherwise does it here.

    whole cards, partitions   the node with the fewest free of them that has enough
    shares                    the fullest shared card with room; else a whole one on the node with
                              the fewest whole ones
    either, beside CPU or memory the best by the score of `packing`, if the objective is `pack`

`spread` turns each of these around. `rank` then compares one candidate per model and pool, by the
request's objective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from quintal_placer.engine.asks import PARTS, Ask, Offer, Option
from quintal_placer.engine.devices import Node, Shelf
from quintal_placer.engine.fleet import Fleet
from quintal_placer.engine.packing.columns import Home
from quintal_placer.engine.packing.shapes import Shape
from quintal_placer.engine.pieces import Piece

_UNPRICED = 2**100

Found = tuple[int, str, Shelf, Node]
"""How good a node is (less is better), its name, the shelf it is on, the node."""

Fits = Callable[[Fleet, Ask, Option, Shelf, Node], bool]


class Worth(NamedTuple):
    """What a candidate comes to, all its pieces together."""

    micro: int
    price_nano: int
    """Of an hour; far above all others where there is no price."""
    milliwatts: int
    order: int
    """Of its model among those that the asker names."""


def of_offer(offer: Offer, count: int, micro: int) -> Worth:
    """So many equal pieces of one model, delivering `micro` together."""
    price = _UNPRICED if offer.price_nano is None else offer.price_nano * count
    watts = (offer.milliwatts or 0) * offer.parts // PARTS * count
    return Worth(micro, price, watts, offer.rank)


def of_pieces(pieces: Sequence[Piece]) -> Worth:
    """These pieces, of whatever models."""
    prices = [piece.price_nano for piece in pieces]
    priced = [price for price in prices if price is not None]
    return Worth(
        sum(piece.micro for piece in pieces),
        sum(priced) if len(priced) == len(prices) else _UNPRICED,
        sum(piece.milliwatts for piece in pieces),
        pieces[0].offer.rank,
    )


def tightest(
    fleet: Fleet, ask: Ask, option: Option, shelves: tuple[Shelf, ...], fits: Fits
) -> Found | None:
    """The one node that nearly every request is about: without lists, and without sorting."""
    best: Found | None = None
    for shelf in shelves:
        first = fleet.tightest(shelf, option.cards)
        if first is None:
            continue
        free, node = first
        if best is not None and (free, node.name) > best[:2]:
            continue
        if not fits(fleet, ask, option, shelf, node):
            fitting = fleet.fitting(shelf, option.cards)
            other = next((n for n in fitting if fits(fleet, ask, option, shelf, n)), None)
            if other is None:
                continue
            free, node = fleet.free_count(other, shelf), other
        if best is None or (free, node.name) < best[:2]:
            best = (free, node.name, shelf, node)
    return best


def nodes(fleet: Fleet, ask: Ask, option: Option, shelf: Shelf) -> Iterator[tuple[int, Node]]:
    """Nodes of the shelf that may have room for the option's own group, the best first."""
    spread = ask.objective == "spread"
    if option.share is None:
        for node in fleet.fitting(shelf, option.cards, emptiest=spread):
            free = fleet.free_count(node, shelf)
            yield (-free if spread else free), node
        return
    seen: set[str] = set()
    shared = fleet.sharing(shelf, option.share)
    if spread:
        yield from _whole(fleet, shelf, seen, spread=True)
        for node, device in reversed(list(shared)):
            if node.name not in seen:
                seen.add(node.name)
                yield -device.free_parts, node
        return
    for node, device in shared:
        if node.name not in seen:
            seen.add(node.name)
            yield device.free_parts, node
    yield from _whole(fleet, shelf, seen, spread=False)


def packs(fleet: Fleet, ask: Ask, option: Option, offer: Offer) -> bool:
    """Whether packing says which node is best: for what asks for a part, or for some of the host.

    Whole cards alone are as tight by their number as by any score, and the index is faster.
    """
    if ask.objective != "pack" or option.nodes > 1 or option.beside or option.partition:
        return False
    if offer.kind == "cpu":
        return False
    if option.share is not None:
        return option.cards == 1
    return bool(ask.cpu_milli or ask.memory_bytes) or fleet.packing.always


def packed(
    fleet: Fleet, ask: Ask, option: Option, offer: Offer, shelves: tuple[Shelf, ...]
) -> Iterator[tuple[int, Node]]:
    """Nodes of shelves of one model and pool that have room, the best by the score first."""
    packing = fleet.packing
    packing.renew(fleet.nodes)
    parts = PARTS
    if option.share is not None:
        found = option.share.of(packing.columns.memory_of(Home(shelves[0].pool, offer.model)))
        if found is None:
            return
        parts = found
    # Which models would do is the shelves' to say: the worth of a node does not hang on it.
    scores = packing.scores(Shape(option.cards, parts, ask.cpu_milli, ask.memory_bytes))
    best = packing.best(scores, shelves)
    if best is None:
        return
    yield -int(best[0]), fleet.nodes[best[1]]
    # The score knows neither a request's own list of nodes nor devices to avoid.
    for score, name in packing.ranked(scores, shelves):
        yield -int(score), fleet.nodes[name]


def _whole(
    fleet: Fleet, shelf: Shelf, seen: set[str], *, spread: bool
) -> Iterator[tuple[int, Node]]:
    for node in fleet.fitting(shelf, 1, emptiest=spread):
        if node.name not in seen:
            seen.add(node.name)
            free = PARTS + fleet.free_count(node, shelf)
            yield (-free if spread else free), node


def rank(ask: Ask, place: int, worth: Worth, free: int) -> tuple[int | str, ...]:
    """Smaller is better. Every objective ends in the same order, so that ties are no chance.

    `place` is the option's among the alternatives, `free` what put its first node first.
    """
    micro, price, watts, order = worth
    match ask.objective:
        case "cheapest":
            return (price, place, free, micro, order)
        case "fastest":
            return (-micro, place, free, micro, order)
        case "efficient":
            return (-(micro * 1_000_000 // watts) if watts else 0, place, free, micro, order)
        case "ordered":
            return (place, order, free, micro)
        case "spread":
            return (place, free, micro, order)
        case "pack":
            return (place, micro, free, order)
