"""Tiny fleets, taken apart by trying everything: what the engine refuses, nobody could place.

The other engine here knows no index and no order: it tries every node for every member, and every
set of cards. Two thousand fleets with `make proof`; some hundreds else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, permutations
from random import Random
from typing import Any

import pytest

from quintal.contracts import ledger
from quintal.contracts.message import Refusal
from quintal.contracts.nodes import FabricDomain, Inventory, Island, NearNics, Topology
from quintal.contracts.placement import AdoptAsk
from quintal_placer.adoption import adoption_record
from tests.placer.site import Site, inventory, models, quota
from tests.placer.test_engine import cards

pytestmark = pytest.mark.laws

FLEETS = 2_000 if os.environ.get("QUINTAL_PROOF") else 200
SEED = 20261130
MODELS = {"A-80": "a-80", "B-24": "b-24"}


@dataclass(frozen=True)
class Small:
    """A node as the brute force sees it."""

    name: str
    model: str
    free: tuple[str, ...]
    every: tuple[str, ...]
    islands: tuple[tuple[str, ...], ...] | None
    near: tuple[tuple[str, ...], ...] | None
    fabric: str


def fleet(random: Random) -> tuple[Site, list[Small]]:
    """A few nodes, some cards of them held."""
    reports, told = [], []
    for at in range(random.randint(2, 5)):
        report, small = one_node(random, f"n{at}")
        reports.append(report)
        told.append(small)
    site = Site([*models(), *quota("ml"), *quota("bio")], *reports)
    found = []
    for small in told:
        taken = [uuid for uuid in small.every if random.random() < 0.3]
        if taken:
            hold(site, small.name, taken)
        free = tuple(uuid for uuid in small.every if uuid not in taken)
        found.append(Small(**{**vars(small), "free": free}))
    return site, found


def one_node(random: Random, name: str) -> tuple[Inventory, Small]:
    (model,) = random.choices(list(MODELS), [4, 1])
    devices = cards(name, model, random.randint(1, 5))
    uuids = tuple(device.uuid for device in devices)
    islands = parts_of(random, uuids)
    near = parts_of(random, uuids)
    fabric = random.choice(["", "f0", "f1"])
    topology = Topology(
        islands=None
        if islands is None
        else tuple(Island(kind="nvlink", devices=its) for its in islands),
        nics=None
        if near is None
        else tuple(NearNics(distance="numa", nics=("ib",), devices=its) for its in near),
        fabrics=(FabricDomain(kind="nvlink", domain=fabric),) if fabric else (),
    )
    report = inventory(name, *devices, topology=topology)
    return report, Small(name, MODELS[model], uuids, uuids, islands, near, fabric)


def parts_of(random: Random, uuids: tuple[str, ...]) -> tuple[tuple[str, ...], ...] | None:
    """Some of them in sets that do not overlap; none: nobody knows."""
    if random.random() < 0.15:
        return None
    left, found = list(uuids), []
    random.shuffle(left)
    while left:
        size = random.randint(1, len(left))
        its, left = left[:size], left[size:]
        if size > 1 or random.random() < 0.5:
            found.append(tuple(uuid for uuid in uuids if uuid in its))
    return tuple(found)


def hold(site: Site, name: str, uuids: list[str]) -> None:
    ask = AdoptAsk(
        request_id=f"held-{name}", tenant="bio", node=name, profile="train", devices=tuple(uuids)
    )
    record = adoption_record(site.desk, ask)
    assert isinstance(record, ledger.LeaseGranted)
    site.apply(record)


def request(random: Random) -> dict[str, Any]:
    """What somebody may ask: some of it required, some preferred, members alike or not."""
    topology = {
        name: random.choice(["required", "preferred"])
        for name in ("island", "nic", "domain")
        if random.random() < 0.3
    }
    body: dict[str, Any] = {"topology": topology} if topology else {}
    if random.random() < 0.5:
        members = [
            {"cards": random.randint(1, 4), "nodes": random.randint(1, 2)}
            for _ in range(random.randint(1, 2))
        ]
        return {**body, "members": members}
    return {**body, "cards": random.randint(1, 4), "nodes": random.randint(1, 3)}


# --- trying everything ----------------------------------------------------------------------------


def members_of(asked: dict[str, Any]) -> list[int]:
    if "members" in asked:
        return [m["cards"] for m in asked["members"] for _ in range(m["nodes"])]
    return [asked["cards"]] * int(asked["nodes"])


def possible(nodes: list[Small], asked: dict[str, Any], *, ever: bool) -> bool:
    """Whether some choice of nodes and cards meets all that is required."""
    members = members_of(asked)
    need = {name for name, wish in asked.get("topology", {}).items() if wish == "required"}
    for chosen in permutations(nodes, len(members)):
        if len({node.model for node in chosen}) > 1:
            continue
        if "domain" in need and (not chosen[0].fabric or len({n.fabric for n in chosen}) > 1):
            continue
        if all(
            any(lies(node, its, need) for its in choices(node, count, ever=ever))
            for node, count in zip(chosen, members, strict=True)
        ):
            return True
    return False


def choices(node: Small, count: int, *, ever: bool) -> Iterator[tuple[str, ...]]:
    yield from combinations(node.every if ever else node.free, count)


def lies(node: Small, its: tuple[str, ...], need: set[str]) -> bool:
    if "island" in need and len(its) > 1 and not within(node.islands, its):
        return False
    return "nic" not in need or within(node.near, its)


def within(sets: tuple[tuple[str, ...], ...] | None, its: tuple[str, ...]) -> bool:
    return any(set(its) <= set(one) for one in sets or ())


# --- the check ------------------------------------------------------------------------------------


def check(random: Random) -> str:
    site, nodes = fleet(random)
    asked = request(random)
    told = site.ask("ml", **asked)
    now, ever = possible(nodes, asked, ever=False), possible(nodes, asked, ever=True)
    if isinstance(told, Refusal):
        assert not now, f"refused ({told.code}), and it fits: {asked} on {nodes}"
        assert (told.verdict == "never_fits") == (not ever), (told, asked, nodes)
        assert site.used() == {}, "law 5: what is refused holds nothing"
        return told.code.value
    assert now, f"placed, and it does not fit: {asked} on {nodes}"
    placed = {node.name: [d.uuid for d in told.devices if d.node == node.name] for node in nodes}
    held = {name: uuids for name, uuids in placed.items() if uuids}
    assert sorted(map(len, held.values())) == sorted(members_of(asked)), "whole or nothing"
    need = {name for name, wish in asked.get("topology", {}).items() if wish == "required"}
    by_name = {node.name: node for node in nodes}
    assert all(lies(by_name[name], tuple(uuids), need) for name, uuids in held.items())
    if "domain" in need:
        assert len({by_name[name].fabric for name in held}) == 1
    wished = set(asked.get("topology", {}))
    full = {**asked, "topology": dict.fromkeys(wished, "required")}
    assert bool(told.not_met) == (not possible(nodes, full, ever=False)), (told.not_met, asked)
    return "placed"


@pytest.mark.timeout(600)
def test_what_the_engine_refuses_nobody_could_place_and_the_other_way_round() -> None:
    random = Random(SEED)
    verdicts: dict[str, int] = {}
    for _ in range(FLEETS):
        verdict = check(random)
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    # Each sort of answer was met: a check that never refuses proves nothing.
    assert {"placed", "never_fits", "fragmented", "no_capacity"} <= set(verdicts), verdicts
