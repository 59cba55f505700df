"""How many of each profile still fit, and what of the free cards could be used."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from quintal.contracts import placement
from quintal.units import PARTS
from quintal_placer import views
from quintal_placer.room import NODES_A_ROUND, Rooms
from tests.placer.site import Site, inventory, models, only, quota
from tests.placer.world import cards, doc


def site(*more: Any, nodes: int = 2) -> Site:
    profiles = [
        doc("Profile", "eight", **{
            "class": "train_llm", "cards": "8", "accelerator": only("a-80"),
            "node": {"cpu_milli": 32_000},
        }),
        doc("Profile", "pair", **{
            "class": "train_llm", "cards": "1", "nodes": "2..4",
            "accelerator": {"families": ["b"]},
        }),
        doc("Pool", "red", selector={"vendors": ["amd"]}),
    ]  # fmt: skip
    return Site(
        [*models(), *quota("ml"), *profiles],
        *(inventory(f"a{at}", *cards(f"a{at}", "A-80", 8)) for at in range(nodes)),
        inventory("b0", *cards("b0", "B-24", 4)),
        inventory("r0", *cards("r0", "RED-192", 4, "amd")),
        *more,
    )


def capacity(its: Site, **more: Any) -> placement.Capacity:
    return views.capacity_view(its.state, placement.FleetAsk(shapes=True, **more), 0)


def fits(told: placement.Capacity) -> dict[tuple[str, str], int]:
    return {(row.profile, row.pool): row.fits for row in told.shapes}


def test_what_still_fits_is_counted_by_cards_and_by_what_is_beside_them() -> None:
    its = site()
    before = fits(capacity(its))
    assert before["eight", "unassigned"] == 2
    assert before["pair", "unassigned"] == 2  # four cards of one node, two nodes a gang: at most
    assert before["train", "red"] == 4
    its.granted(profile="train", cards=1, accelerator=only("a-80"))
    assert fits(capacity(its))["eight", "unassigned"] == 1
    its.granted(
        profile="train", cards=1, accelerator=only("b-24"), node={"cpu_milli": 40_000},
    )  # fmt: skip
    assert fits(capacity(its))["eight", "unassigned"] == 1
    its.granted(
        profile="train", cards=1, accelerator=only("a-80"), node={"cpu_milli": 40_000},
        constraints={"nodes": ["a0"]},
    )  # fmt: skip
    its.granted(
        profile="train", cards=1, accelerator=only("a-80"), constraints={"nodes": ["a1"]},
    )  # fmt: skip
    assert fits(capacity(its))["eight", "unassigned"] == 0


def test_one_pool_is_told_alone_and_nothing_where_nobody_asks() -> None:
    its = site()
    told = capacity(its, pool="red")
    assert {row.pool for row in (*told.shapes, *told.fragments)} == {"red"}
    plain = views.capacity_view(its.state, placement.FleetAsk(), 0)
    assert (plain.shapes, plain.fragments) == ((), ())


def test_what_could_be_used_is_unknown_before_anybody_asked_and_then_told() -> None:
    its = site()
    assert {row.usable_parts for row in capacity(its).fragments} == {None}
    for _ in range(5):
        its.over(its.granted(profile="eight"))
    by_model = {row.model: row for row in capacity(its).fragments}
    assert by_model["a-80"].usable_parts == by_model["a-80"].free_parts == 16 * PARTS
    assert by_model["b-24"].usable_parts == 0
    its.granted(profile="train", cards=1, accelerator=only("a-80"))
    one = next(row for row in capacity(its).fragments if row.model == "a-80")
    assert one.free_parts == 15 * PARTS
    assert one.usable_parts is not None
    assert one.usable_parts < 15 * PARTS


def test_round_by_round_the_same_is_known_without_a_long_pause() -> None:
    its = site(nodes=NODES_A_ROUND + 10)
    rooms = Rooms()
    rooms.step(its.state)
    assert its.state.fleet.packing.stale
    for _ in range(60):
        rooms.step(its.state)
    told = capacity(its)
    assert {row for rows in rooms.rows.values() for row in rows} == set(told.shapes)
    assert rooms.fragments == told.fragments


def test_the_board_asks_for_metrics_that_a_leader_publishes() -> None:
    from deploy.grafana import build
    from quintal_placer.metrics import Families

    its = site()
    its.granted(profile="train", cards=1, accelerator=only("a-80"))
    rooms = Rooms()
    for _ in range(60):
        rooms.step(its.state)
    placer: Any = SimpleNamespace(rooms=rooms)
    front: Any = None
    told = {family.name: family.samples for family in Families(placer, front)._rooms()}
    for board in build.metric_boards():
        for panel in board.panels:
            names = re.findall(r"quintal_placer_\w+", panel.text)
            assert names
            assert all(told[name] for name in names), panel.title
    sample = told["quintal_placer_free_cards"][0]
    assert set(sample.labels) == {"pool", "model"}
