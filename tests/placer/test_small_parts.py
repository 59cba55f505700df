"""As `test_small_fleets`, for parts of cards: shares, whole cards, groups of both on one node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product
from random import Random
from typing import Any

import pytest

from quintal.contracts.message import Refusal
from quintal.units import PARTS
from tests.placer.cut import card, documents
from tests.placer.site import Site, inventory, only
from tests.placer.test_small_fleets import FLEETS, SEED
from tests.placer.world import GIB, cards

pytestmark = pytest.mark.laws

WHOLE_BYTES = 80 * GIB
MILLI = (100, 250, 400, 500, 650, 900)


@dataclass(frozen=True)
class Card:
    """A card as the brute force sees it: how much of it is left."""

    model: str
    left: int


Node = tuple[Card, ...]


def town(random: Random) -> Site:
    """One to three nodes of two models, some of their cards held, whole or in part."""
    nodes = []
    for at in range(random.randint(1, 3)):
        name = f"n{at}"
        shared = [card(name, index) for index in range(random.randint(0, 2))]
        plain = cards(name, "A-80", random.randint(0 if shared else 1, 2))
        nodes.append(inventory(name, *shared, *plain))
    site = Site(documents(), *nodes)
    for node in nodes:
        where = {"constraints": {"nodes": [node.node]}}
        for _ in range(random.randint(0, 2)):
            site.ask("bio", **group(random), **where)
    return site


def group(random: Random) -> dict[str, Any]:
    """Whole cards of one or both models, or shares of the one that is shared."""
    if random.random() < 0.5:
        need = {"compute_milli": random.choice(MILLI)}
        if random.random() < 0.3:
            need["memory"] = f"{random.choice((8, 30, 60))}GiB"
        return {"accelerator": {"models": ["cut-80"], "share": need}, "cards": 1}
    names = random.choice((["cut-80"], ["a-80"], ["cut-80", "a-80"]))
    return {"accelerator": only(*names), "cards": random.randint(1, 2)}


def request(random: Random) -> dict[str, Any]:
    beside = [group(random) for _ in range(random.choice((0, 0, 1, 1, 2)))]
    return {**group(random), "groups": beside, "nodes": random.choice((1, 1, 1, 2))}


# --- trying everything ----------------------------------------------------------------------------


def as_it_is(site: Site, *, empty: bool) -> list[Node]:
    """What is left of each card, counted from the leases alone."""
    held: dict[tuple[str, str], int] = {}
    for lease in site.state.live.values():
        for device in lease.devices:
            key = (device.node, device.uuid)
            held[key] = held.get(key, 0) + device.parts
    return [
        tuple(
            Card(str(device.model), PARTS - (0 if empty else held.get(device.key, 0)))
            for device in node.devices.values()
        )
        for node in site.state.fleet.nodes.values()
    ]


def charged(need: dict[str, Any]) -> int:
    """Parts that one piece takes; all of them where it is no share."""
    share = need.get("share")
    if share is None:
        return PARTS
    memory = int(str(share.get("memory", "0GiB")).removesuffix("GiB")) * GIB
    return max(share["compute_milli"] * 1000, -(-memory * PARTS // WHOLE_BYTES))


def possible(nodes: list[Node], asked: dict[str, Any]) -> bool:
    groups = [asked, *asked["groups"]]
    for first in groups[0]["accelerator"]["models"]:
        able = [node for node in nodes if any(holds(node, p) for p in pieces(groups, first))]
        if len(able) >= asked["nodes"]:
            return True
    return False


def pieces(groups: list[dict[str, Any]], first: str) -> Iterator[list[tuple[str, int]]]:
    """(model, parts) of every piece, for each choice of a model per group."""
    names = [[first], *(each["accelerator"]["models"] for each in groups[1:])]
    for models in product(*names):
        yield [
            (model, charged(each["accelerator"]))
            for model, each in zip(models, groups, strict=True)
            for _ in range(each["cards"])
        ]


def holds(node: Node, wanted: list[tuple[str, int]]) -> bool:
    """Whether each piece finds a card of its own."""
    return any(
        all(c.model == m and c.left >= parts for c, (m, parts) in zip(chosen, wanted, strict=True))
        for chosen in permutations(node, len(wanted))
    )


def check(random: Random) -> str:
    site = town(random)
    asked = request(random)
    now = possible(as_it_is(site, empty=False), asked)
    ever = possible(as_it_is(site, empty=True), asked)
    told = site.ask("ml", **asked)
    if isinstance(told, Refusal):
        assert not now, f"refused ({told.code}: {told.message}), and it fits: {asked}"
        assert told.verdict != "never_fits" or not ever, (told, asked)
        return told.code.value
    assert now, f"placed, and it does not fit: {asked}"
    count = sum(each["cards"] for each in (asked, *asked["groups"]))
    assert len(told.devices) == count * asked["nodes"], "whole or nothing"
    for node in as_it_is(site, empty=False):
        assert all(its.left >= 0 for its in node), "law 1"
    return "placed"


@pytest.mark.timeout(600)
def test_what_of_parts_is_refused_nobody_could_place_and_the_other_way_round() -> None:
    random = Random(SEED)
    verdicts: dict[str, int] = {}
    for _ in range(FLEETS):
        verdict = check(random)
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    assert {"placed", "never_fits", "no_capacity"} <= set(verdicts), verdicts
