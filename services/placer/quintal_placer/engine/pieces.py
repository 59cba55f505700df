"""What of one node's devices a request would get: whole ones, shares, partitions. Pure.

The groups of a request lie on different devices of a node, but for partitions, which may be of
one device. Whole devices are taken first, then partitions, then shares from the greatest down:
what is taken early could hold anything that comes later, so that taking greedily never fails
where some other order would do. Only between models is there a choice to try.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quintal_placer.engine.asks import PARTS, Ask, Group, Offer, Option
from quintal_placer.engine.devices import Device, Node, Partition, in_whole_sets
from quintal_placer.engine.fleet import Fleet
from quintal_placer.engine.lay import take


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
    fleet: Fleet, ask: Ask, group: Group | Option, offer: Offer, where: tuple[Node, str],
    taken: frozenset[str] = frozenset(),
) -> tuple[Piece, ...]:  # fmt: skip
    """Up to `cards` pieces of one model in one pool of the node; fewer where there is no more."""
    node, pool = where
    if group.partition:
        return _partitions(ask, group, offer, where, taken)
    free = fleet.free_devices(node, offer.model, pool)
    whole = in_whole_sets(
        [device for device in free if device.key not in ask.avoid and device.uuid not in taken]
        if ask.avoid or taken
        else free
    )
    if group.share is None:
        if node.lay.islands is not None and len(whole) > group.cards:
            # Whoever asks for no island still leaves whole ones to those who do.
            chosen = set(take(node.lay, [device.uuid for device in whole], group.cards))
            whole = [device for device in whole if device.uuid in chosen]
        return tuple([Piece(device, offer) for device in whole[: group.cards]])
    shared = sorted(
        (device for device in node.devices.values() if device.shares and device.usable),
        key=lambda device: (device.free_parts, device.index, device.uuid),
    )
    spread = ask.objective == "spread"
    candidates = [*whole, *reversed(shared)] if spread else [*shared, *whole]
    found: list[Piece] = []
    for device in candidates:
        if len(found) == group.cards:
            break
        if (device.model, device.pool) != (offer.model, pool) or device.uuid in taken:
            continue
        parts = group.share.of(device.memory_bytes)
        if parts is None or parts > device.free_parts or device.key in ask.avoid:
            continue
        found.append(Piece(device, offer, parts, parts))
    return tuple(found)


def _partitions(
    ask: Ask, group: Group | Option, offer: Offer, where: tuple[Node, str], taken: frozenset[str]
) -> tuple[Piece, ...]:
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
    found = [
        Piece(device, offer, part.parts, PARTS if own else part.parts, part)
        for *_, device in sorted(devices, key=lambda item: item[:3])
        for part in device.free_partitions(group.partition)
        if part.uuid not in taken
    ]
    return tuple(found[: group.cards])


def filled(
    fleet: Fleet, ask: Ask, option: Option, first: tuple[Offer, str], node: Node
) -> tuple[Piece, ...] | None:
    """All groups of the option on this node, its own by `first` (offer, pool); none if it has not.

    In the order of the option's groups.
    """
    groups = option.groups
    barred = frozenset(b.model for b in option.bars if b.software == node.software)
    closed = frozenset(pool for pool, _ in option.unapproved)
    homes = [_homes(ask, group, node, (barred, closed)) for group in groups[1:]]
    order = sorted(range(len(groups)), key=lambda place: (_size(groups[place]), place))
    found = _fill(fleet, ask, (groups, order, [[first], *homes]), node, ())
    if found is None:
        return None
    return tuple(piece for _, pieces in sorted(found, key=lambda g: g[0]) for piece in pieces)


def _size(group: Group) -> tuple[int, int]:
    """The greatest first."""
    if group.share is not None:
        return 2, -group.share.parts
    return (1 if group.partition else 0), 0


_Placed = tuple[int, tuple[Piece, ...]]


def _fill(
    fleet: Fleet,
    ask: Ask,
    what: tuple[tuple[Group, ...], Sequence[int], list[list[tuple[Offer, str]]]],
    node: Node,
    placed: tuple[_Placed, ...],
) -> tuple[_Placed, ...] | None:
    groups, order, homes = what
    if len(placed) == len(order):
        return placed
    place = order[len(placed)]
    group = groups[place]
    taken = frozenset(
        piece.partition.uuid if piece.partition is not None else piece.device.uuid
        for _, pieces in placed
        for piece in pieces
    )
    for offer, pool in homes[place]:
        pieces = of_group(fleet, ask, group, offer, (node, pool), taken)
        if len(pieces) == group.cards:
            done = _fill(fleet, ask, what, node, (*placed, (place, pieces)))
            if done is not None:
                return done
    return None


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
