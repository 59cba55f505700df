"""Tiny fleets, every way tried: groups and shares are placed whenever some way places them."""

from __future__ import annotations

import itertools
import random
from collections import Counter

from quintal_placer.engine.asks import PARTS, Ask, Group, Offer, Option, Share
from quintal_placer.engine.devices import Device, Node
from quintal_placer.engine.fleet import Fleet
from quintal_placer.engine.placing import Chosen, decide
from quintal_placer.engine.quota import Quotas

ROUNDS = 2_000
OFFERS = {name: Offer(name, name, "accelerator", 1_000_000) for name in ("x", "y")}


def a_fleet(chance: random.Random) -> Fleet:
    """Up to two nodes of up to three cards; some are shared, some held whole."""
    fleet = Fleet()
    for name in ("n1", "n2")[: chance.randint(1, 2)]:
        node = fleet.nodes[name] = Node(name)
        for index in range(chance.randint(1, 3)):
            uuid = f"{name}-{index}"
            its = Device(name, uuid, index, "v", "m", chance.choice("xy"), "p",
                         memory_bytes=chance.choice((10, 20)), smallest_parts=100_000)  # fmt: skip
            held = chance.choice((0, 0, 200_000, 500_000, 800_000, PARTS))
            if held:
                its.hold("somebody", held, None)
            node.devices[uuid] = its
        fleet.touch(name)
    return fleet


def a_group(chance: random.Random) -> Group:
    offers = tuple(OFFERS[name] for name in chance.choice(("x", "y", "xy")))
    parts = chance.choice((None, 200_000, 400_000, 700_000))
    memory = chance.choice((0, 0, 6, 12))
    share = None if parts is None else Share(parts, memory)
    return Group(offers, chance.randint(1, 2), share)


def could(node: Node, groups: list[Group]) -> bool:
    """Whether some way of giving each piece a card of its own does."""
    pieces = [group for group in groups for _ in range(group.cards)]
    return any(
        all(_takes(device, group) for device, group in zip(devices, pieces, strict=True))
        and _alike(devices, groups)
        for devices in itertools.permutations(node.devices.values(), len(pieces))
    )


def _takes(device: Device, group: Group) -> bool:
    if device.model not in {offer.model for offer in group.offers}:
        return False
    if group.share is None:
        return device.whole
    parts = group.share.of(device.memory_bytes)
    return parts is not None and parts <= device.free_parts


def _alike(devices: tuple[Device, ...], groups: list[Group]) -> bool:
    """The cards of one group are of one model."""
    left = list(devices)
    for group in groups:
        its, left = left[: group.cards], left[group.cards :]
        if len({device.model for device in its}) > 1:
            return False
    return True


def test_what_some_way_places_is_placed_and_nothing_else_is() -> None:
    """Case A12 of every kind; each piece on a card of its own, with room for it."""
    chance, seen = random.Random(7), Counter[bool]()
    for _ in range(ROUNDS):
        fleet = a_fleet(chance)
        own, *beside = groups = [a_group(chance) for _ in range(chance.randint(1, 3))]
        option = Option(own.offers, own.cards, own.share, beside=tuple(beside))
        found = decide(fleet, Quotas(), Ask("t", "c", (option,)))
        placed = isinstance(found, Chosen)
        seen[placed] += 1
        assert placed == any(could(node, groups) for node in fleet.nodes.values()), groups
        if isinstance(found, Chosen):
            (pick,) = found.picks
            assert len({piece.device.uuid for piece in pick.pieces}) == len(pick.pieces)
            wanted = [group for group in groups for _ in range(group.cards)]
            for piece, group in zip(pick.pieces, wanted, strict=True):
                assert _takes(piece.device, group)
    assert min(seen[True], seen[False]) > ROUNDS // 10
