"""What of one node's devices a request would get: whole ones, shares, partitions. Pure.

The groups of a request lie on different devices of a node, but for partitions, which may be of
one device. Where some way of giving each group its devices does, one is found.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quintal_placer.engine.asks import PARTS, Ask, Group, Offer, Option, Share
from quintal_placer.engine.devices import Device, Node, Partition, in_whole_sets
from quintal_placer.engine.fleet import Fleet
from quintal_placer.engine.lay import take

WAYS_MAX = 64
"""Ways of giving groups their homes on one node that are tried device by device."""

_Home = tuple[str, str, str]
"""Model, pool, and the partition's profile."""

_Kind = tuple[str, str, str, Share | None]


@dataclass(frozen=True, slots=True, eq=False)
class _Stock:
    """What of one home would do for a group, and for all that want the same of it."""

    size: int
    number: int
    home: _Home
    pieces: list[Piece]
    names: frozenset[str]


class Piece(NamedTuple):
    """What is given of one device."""

    device: Device
    offer: Offer
    parts: int = PARTS
    """Of the device."""
    charged: int = PARTS
    """Parts that the rating is taken with."""
    partition: Partition | None = None

    @property
    def micro(self) -> int:
        """Micro-units of the class that it delivers."""
        return device_micro(self.offer, self.device) * self.charged // PARTS

    @property
    def memory_bytes(self) -> int | None:
        """Of what is given; none where nobody knows."""
        if self.partition is not None:
            return self.partition.memory_bytes
        whole = self.device.memory_bytes
        return whole if self.parts == PARTS or whole is None else whole * self.parts // PARTS

    @property
    def price_nano(self) -> int | None:
        """What an hour of it costs; none where there is no price."""
        price = self.offer.price_nano
        return None if price is None else price * self.parts // self.offer.parts

    @property
    def milliwatts(self) -> int:
        """Its share of what the device draws."""
        return (self.offer.milliwatts or 0) * self.parts // PARTS


def device_micro(offer: Offer, device: Device) -> int:
    """Micro-units that the rating comes to on this device, taken whole."""
    return offer.rating_micro * device.cores if offer.per_core else offer.rating_micro


def of_group(
    fleet: Fleet, ask: Ask, group: Group | Option, offer: Offer, where: tuple[Node, str]
) -> tuple[Piece, ...]:
    """Up to `cards` pieces of one model in one pool of the node; fewer where there is no more."""
    if group.partition:
        return tuple(_partitions(ask, group, offer, where)[: group.cards])
    if group.share is not None:
        return tuple(_shares(fleet, ask, group.share, offer, where)[: group.cards])
    whole = _whole(fleet, ask, offer, where)
    lay = where[0].lay
    if lay.islands is not None and len(whole) > group.cards and whole[0].together == 1:
        # Whoever asks for no island still leaves whole ones to those who do.
        chosen = set(take(lay, [device.uuid for device in whole], group.cards))
        whole = [device for device in whole if device.uuid in chosen]
    return tuple([Piece(device, offer) for device in whole[: group.cards]])


def _whole(fleet: Fleet, ask: Ask, offer: Offer, where: tuple[Node, str]) -> list[Device]:
    node, pool = where
    free = fleet.free_devices(node, offer.model, pool)
    if not ask.avoid:
        return free
    return in_whole_sets([device for device in free if device.key not in ask.avoid])


def _shares(
    fleet: Fleet, ask: Ask, share: Share, offer: Offer, where: tuple[Node, str]
) -> list[Piece]:
    """The fullest first, then whole ones; where they are to be spread, the other way round."""
    node, pool = where
    shared = sorted(
        (
            device
            for device in node.devices.values()
            if device.shares
            and (device.model, device.pool) == (offer.model, pool)
            and device.usable
            and device.key not in ask.avoid
        ),
        key=lambda device: (device.free_parts, device.index, device.uuid),
    )
    whole = _whole(fleet, ask, offer, where)
    spread = ask.objective == "spread"
    found = []
    for device in [*whole, *reversed(shared)] if spread else [*shared, *whole]:
        parts = share.of(device.memory_bytes)
        if parts is not None and parts <= device.free_parts:
            found.append(Piece(device, offer, parts, parts))
    return found


def _partitions(
    ask: Ask, group: Group | Option, offer: Offer, where: tuple[Node, str]
) -> list[Piece]:
    """From the device with the fewest free: the others stay as they are, to be cut anew."""
    node, pool = where
    devices = [
        (len(free), device.index, device.uuid, device)
        for device in node.devices.values()
        if (device.model, device.pool) == (offer.model, pool)
        and device.usable
        and device.key not in ask.avoid
        and (free := device.free_partitions())
    ]
    own = offer.charged == PARTS
    return [
        Piece(device, offer, part.parts, PARTS if own else part.parts, part)
        for *_, device in sorted(devices, key=lambda item: item[:3])
        for part in device.free_partitions(group.partition)
    ]


def filled(
    fleet: Fleet, ask: Ask, option: Option, first: tuple[Offer, str], node: Node
) -> tuple[Piece, ...] | None:
    """All groups of the option on this node, its own by `first` (offer, pool); none if it has not.

    In the order of the option's groups.
    """
    groups = option.groups
    barred = frozenset(b.model for b in option.bars if b.software == node.software)
    closed = frozenset(pool for pool, _ in option.unapproved)
    homes = [[first], *(_homes(ask, group, node, (barred, closed)) for group in groups[1:])]
    known: dict[_Kind, _Stock] = {}
    could: list[list[_Stock]] = []
    for group, its in zip(groups, homes, strict=True):
        found: list[_Stock] = []
        for offer, pool in its:
            kind = (offer.model, pool, group.partition, group.share)
            stock = known.get(kind)
            if stock is None:
                pieces = _all(fleet, ask, group, offer, (node, pool))
                names = frozenset(map(_named, pieces))
                stock = known[kind] = _Stock(len(pieces), len(known), kind[:3], pieces, names)
            if stock.size >= group.cards:
                found.append(stock)
        if not found:
            return None
        could.append(found)
    for candidates in itertools.islice(_ways(groups, could), WAYS_MAX):
        matched = _matched(groups, candidates)
        if matched is not None:
            return matched
    return None


def _ways(
    groups: Sequence[Group], could: Sequence[Sequence[_Stock]]
) -> Iterator[tuple[list[Piece], ...]]:
    """What each group could take of, less the ways that ask more of a home than it has at all.

    Those who want little of a card may have what those who want much may have, and more, so that
    the numbers settle nearly all. A way that came to nothing is not gone again: eight groups over
    three models were twenty thousand ways, and are a few dozen.
    """
    dead: set[tuple[int, frozenset[tuple[_Home, tuple[tuple[_Stock, int], ...]]]]] = set()

    def onward(
        at: int, taken: dict[_Home, tuple[tuple[_Stock, int], ...]]
    ) -> Iterator[tuple[list[Piece], ...]]:
        if at == len(groups):
            yield ()
            return
        here = (at, frozenset(taken.items()))
        if here in dead:
            return
        led = False
        for stock in could[at]:
            its = tuple(sorted((*taken.get(stock.home, ()), (stock, groups[at].cards)), key=_first))
            if not _enough(its):
                continue
            for rest in onward(at + 1, {**taken, stock.home: its}):
                led = True
                yield (stock.pieces, *rest)
        if not led:
            dead.add(here)

    return onward(0, {})


def _first(wanted: tuple[_Stock, int]) -> tuple[int, int, int]:
    return wanted[0].size, wanted[0].number, wanted[1]


def _enough(wanted: Sequence[tuple[_Stock, int]]) -> bool:
    """Whether the first of these, however many, have as many pieces between them as they want."""
    names: frozenset[str] = frozenset()
    cards = 0
    for stock, count in wanted:
        names |= stock.names
        cards += count
        if cards > len(names):
            return False
    return True


def _all(
    fleet: Fleet, ask: Ask, group: Group, offer: Offer, where: tuple[Node, str]
) -> list[Piece]:
    """Every piece that would do for the group, the best first."""
    if group.partition:
        return _partitions(ask, group, offer, where)
    if group.share is not None:
        return _shares(fleet, ask, group.share, offer, where)
    return [Piece(device, offer) for device in _whole(fleet, ask, offer, where)]


def _matched(
    groups: Sequence[Group], candidates: Sequence[Sequence[Piece]]
) -> tuple[Piece, ...] | None:
    """A piece for each card of each group, none twice: found wherever there is such a way.

    Each takes the best that is left; where nothing is left, somebody before gives way (Kuhn's
    augmenting paths). The greatest come first, so that seldom anybody must.
    """
    slots = [place for place, group in enumerate(groups) for _ in range(group.cards)]
    owner: dict[str, int] = {}
    has: dict[int, Piece] = {}

    def give(slot: int, tried: set[str]) -> bool:
        its = candidates[slots[slot]]
        for piece in sorted(its, key=lambda p: _named(p) in owner):
            name = _named(piece)
            if name not in tried:
                tried.add(name)
                if name not in owner or give(owner[name], tried):
                    owner[name], has[slot] = slot, piece
                    return True
        return False

    order = sorted(range(len(slots)), key=lambda slot: (_size(groups[slots[slot]]), slot))
    if not all(give(slot, set()) for slot in order):
        return None
    return tuple(has[slot] for slot in range(len(slots)))


def _named(piece: Piece) -> str:
    return piece.partition.uuid if piece.partition is not None else piece.device.uuid


def _size(group: Group) -> tuple[int, int]:
    """The greatest first."""
    if group.share is not None:
        return 2, -group.share.parts
    return (1 if group.partition else 0), 0


def _homes(
    ask: Ask, group: Group, node: Node, shut: tuple[frozenset[str], frozenset[str]]
) -> list[tuple[Offer, str]]:
    """(offer, pool) of the group's models that the node has, as the asker likes them."""
    barred, closed = shut
    has = {(device.model, device.pool) for device in node.devices.values()}
    return [
        (offer, pool)
        for offer in sorted(group.offers, key=lambda o: (o.rank, o.rating_micro, o.model))
        if offer.model not in barred
        if not offer.legal_counts or group.cards in offer.legal_counts
        for pool in sorted(pool for model, pool in has if model == offer.model)
        if pool not in closed and pool not in ask.closed_pools | ask.tainted_pools
        if (pool, offer.model) not in ask.left
        if not ask.pools or pool in ask.pools
    ]
