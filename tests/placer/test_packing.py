"""Tight packing: the score against a reckoning by hand, and what the engine does with it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from quintal.contracts import ledger
from quintal.contracts.documents import Document
from quintal.contracts.models import LegalShares
from quintal.units import PARTS
from quintal_placer import snapshots
from quintal_placer.engine.packing import score
from quintal_placer.engine.packing.choice import Choice, Tight
from quintal_placer.engine.packing.columns import Columns, Free, Home
from quintal_placer.engine.packing.score import NO, Standing
from quintal_placer.engine.packing.shapes import SEEN, SEEN_MAX, SHAPES_MAX, Demand, Shape, target
from quintal_placer.state import PlacerState
from tests.placer.site import AT_MS, Site, asked, inventory, models, only, quota
from tests.placer.world import cards

HOME = Home("pool", "m")
GIB = 2**30


def share(milli: int, cpu: int = 1000) -> Shape:
    return Shape(1, milli * 1000, cpu, GIB)


def whole(count: int, cpu: int = 8000) -> Shape:
    return Shape(count, PARTS, cpu, 4 * GIB)


SHAPES = (share(250), share(500), share(810), whole(1), whole(2), whole(4), whole(8, 64_000),
          Shape(0, PARTS, 12_000, 8 * GIB))  # fmt: skip


def some_free(chance: random.Random) -> Free:
    count = chance.choice((1, 2, 4, 8))
    parts = tuple(chance.choice((0, 190_000, 250_000, 500_000, PARTS, PARTS)) for _ in range(count))
    return Free(
        parts, chance.randrange(0, 96_000, 1000), chance.randrange(64) * GIB, "",
        count, 0, (96_000, 64 * GIB),
    )  # fmt: skip


def some_demand(chance: random.Random) -> Demand:
    demand = Demand()
    for _ in range(200):
        demand.saw(chance.choice(SHAPES))
    return demand


def taken(free: Free, shape: Shape) -> Free | None:
    """The node after the shape, by the rule: the fullest card with room, or the first free ones."""
    if shape.cpu_milli > free.cpu_milli or shape.memory_bytes > free.memory_bytes:
        return None
    parts = list(free.parts)
    if shape.cards and shape.parts < PARTS:
        room = [p for p in parts if p >= shape.parts]
        if not room:
            return None
        parts[parts.index(min(room))] -= shape.parts
    else:
        idle = [at for at, p in enumerate(parts) if p == PARTS]
        if len(idle) < shape.cards:
            return None
        for at in idle[: shape.cards]:
            parts[at] = 0
    left = free.cpu_milli - shape.cpu_milli, free.memory_bytes - shape.memory_bytes
    return Free(tuple(parts), *left, "", free.cards, 0, free.host)


def usable(free: Free, demand: Demand, cover: float) -> int:
    """U times the total of the counts, one shape and one card after the other."""
    found = seen = 0
    for shape, count in demand.target.shapes:
        if seen >= cover * demand.target.total:
            break
        seen += count
        if not shape.cards or taken(free, shape) is None:
            continue
        found += count * sum(p for p in free.parts if p >= shape.parts)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_score_is_what_a_reckoning_by_hand_comes_to(seed: int) -> None:
    chance = random.Random(seed)
    columns, demand = Columns(), some_demand(chance)
    frees = {f"n{number}": some_free(chance) for number in range(30)}
    for name, free in frees.items():
        columns.put(name, {HOME: free})
    policy = Tight(columns, demand)
    policy.renew()
    lean = policy.prepared.lean
    assert lean[0] > 0
    rows = np.arange(columns.count)
    for shape in SHAPES:
        scores = policy.scores(rows, shape)
        for row, (name, before) in enumerate(frees.items()):
            after = taken(before, shape)
            if after is None:
                assert scores[row] == NO, (name, shape)
                continue
            used = usable(after, demand, score.COVER) - usable(before, demand, score.COVER)
            added = _stranded(after, lean) - _stranded(before, lean)
            gained = used / demand.target.total + shape.asked - score.BETA * added
            worth = np.floor(gained / score.QUANTUM + 0.5) * score.STEP
            full = 0
            if shape.cards and shape.parts < PARTS:
                room = min(p for p in before.parts if p >= shape.parts)
                full = (PARTS - room) * score.EQUAL // PARTS
            assert scores[row] == worth * score.EQUAL + full, (name, shape)


def _stranded(free: Free, lean: tuple[float, float]) -> int:
    left, all_free = (free.cpu_milli, free.memory_bytes), sum(free.parts)
    over = [all_free - int(at / of) for at, of in zip(left, lean, strict=True) if of]
    return max(0, *over)


def test_scores_that_were_kept_are_those_that_would_be_made_anew() -> None:
    chance = random.Random(1)
    columns, demand = Columns(), some_demand(chance)
    frees = {f"n{number}": some_free(chance) for number in range(40)}
    for name, free in frees.items():
        columns.put(name, {HOME: free})
    choice = Choice(columns, Tight(columns, demand))
    placed = 0
    for step in range(300):
        shape = chance.choice(SHAPES)
        fresh = Choice(columns, Tight(columns, demand))
        assert choice.best(choice.scores(shape), HOME) == fresh.best(fresh.scores(shape), HOME)
        found = choice.best(choice.scores(shape), HOME)
        name = columns.names[found[1]] if found else chance.choice(list(frees))
        after = taken(frees[name], shape) if found else some_free(chance)
        assert after is not None
        placed += found is not None
        frees[name] = after
        columns.put(name, {HOME: after})
        if step % 50 == 0:
            demand.saw(shape)
    assert placed > 100


def test_a_state_that_was_scored_before_is_worth_the_same_and_another_is_another() -> None:
    chance = random.Random(2)
    columns, demand = Columns(), some_demand(chance)
    for _ in range(200):
        demand.saw(whole(1)._replace(models=("another",)))

    def free() -> Free:
        parts = [chance.choice((0, 500_000, PARTS)) for _ in range(2)]
        cpu, memory = chance.choice((2_000, 12_000, 40_000)), chance.choice((8, 64)) * GIB
        return Free(tuple(parts), cpu, memory, "", 2, 0, (96_000, 64 * GIB))

    homes = (HOME, Home("pool", "another"))
    for number in range(30):
        columns.put(f"n{number}", {homes[number % 2]: free()})
    choice = Choice(columns, Tight(columns, demand))
    for _ in range(200):
        number = chance.randrange(30)
        columns.put(f"n{number}", {homes[number % 2]: free()})
        fresh = Choice(columns, Tight(columns, demand))
        for shape in SHAPES:
            assert (choice.scores(shape)[:30] == fresh.scores(shape)[:30]).all()


def test_among_equal_nodes_the_order_of_their_coming_plays_no_part() -> None:
    names = [f"rack-{number}" for number in range(50)]
    free = Free((PARTS,) * 4, 64_000, 64 * GIB, "", 4, 0, (64_000, 64 * GIB))
    found = set()
    for order in (names, names[::-1], sorted(names, key=hash)):
        columns, demand = Columns(), Demand()
        demand.saw(share(500))
        for name in order:
            columns.put(name, {HOME: free})
        columns.put(order[3], {})
        columns.put(order[3], {HOME: free})
        choice = Choice(columns, Tight(columns, demand))
        scores = choice.scores(share(500))
        assert len(set(scores[: columns.count])) == 1
        best = choice.best(scores, HOME)
        assert best is not None
        found.add(columns.names[best[1]])
    assert len(found) == 1


def test_a_model_that_others_must_have_is_left_to_them() -> None:
    columns, demand = Columns(), Demand()
    free = Free((PARTS,) * 4, 64_000, 64 * GIB, "", 4, 0, (64_000, 64 * GIB))
    rare, common = Home("pool", "rare"), Home("pool", "common")
    columns.put("a", {rare: free})
    for name in "bcd":
        columns.put(name, {common: free})
    for _ in range(10):
        demand.saw(whole(1)._replace(models=("rare",)))
        demand.saw(whole(1)._replace(models=("common", "rare")))  # all there are: names none
    choice = Choice(columns, Tight(columns, demand))
    scores = choice.scores(whole(1))
    on_rare, on_common = choice.best(scores, rare), choice.best(scores, common)
    assert on_rare is not None
    assert on_common is not None
    assert on_common[0] > on_rare[0]
    standing = Standing(columns, score.prepare(demand.target, columns))
    assert dict(zip(columns.models, standing.prepared.rho, strict=True)) == {
        "rare": 1.0, "common": 0.0,
    }  # fmt: skip


def test_the_history_forgets_by_halves_and_stays_bounded() -> None:
    demand = Demand()
    old = share(100)
    for _ in range(1000):
        demand.saw(old)
    before = demand.counts[old]
    for _ in range(SEEN_MAX // SEEN):
        demand.saw(whole(1))
    assert demand.counts[old] <= before // 2
    assert demand.total == sum(demand.counts.values())
    for number in range(3 * SHAPES_MAX):
        demand.saw(share(1 + number % 900, cpu=number))
    assert len(demand.counts) <= SHAPES_MAX
    assert target(demand.counts).total == demand.total


# --- the engine -------------------------------------------------------------------------------


def shared() -> list[Document]:
    """The site's models, and that cards of one may be shared."""
    first, *others = models()
    spec = first.spec.model_copy(update={"shares": LegalShares(smallest_milli=10)})
    return [first.model_copy(update={"spec": spec}), *others]


def site(*, nodes: int = 4, cpu: int = 64_000) -> Site:
    return Site(
        [*shared(), *quota("ml")],
        *(inventory(f"n{at}", *cards(f"n{at}", "A-80", 8), cpu_milli=cpu) for at in range(nodes)),
    )


def small(milli: int = 1000, cpu: int = 4000) -> dict[str, Any]:
    need: dict[str, Any] = only("a-80")
    if milli < 1000:
        need = {**need, "share": {"compute_milli": milli}}
    return {"accelerator": need, "cards": 1, "node": {"cpu_milli": cpu}}


def test_case_e12_small_jobs_fill_used_nodes_first_and_a_whole_node_request_still_fits() -> None:
    its = site()
    whole_node = {"accelerator": only("a-80"), "cards": 8, "node": {"cpu_milli": 32_000}}
    for _ in range(2):  # once it was asked for, it is looked ahead for
        its.over(its.granted(**whole_node))
    for milli in (250, 500, 1000, 250, 1000, 500, 1000, 1000, 500, 250, 1000):
        its.granted(**small(milli, cpu=3000))
    used = {name for name, node in its.state.fleet.nodes.items() if node.cpu_held}
    assert len(used) == 1
    found = [its.granted(**whole_node).devices[0].node for _ in range(3)]
    assert len(set(found)) == 3


def test_shares_go_where_a_card_is_open_already() -> None:
    its = site()
    first = its.granted(**small(500))
    second = its.granted(**small(500))
    assert [d.uuid for d in second.devices] == [d.uuid for d in first.devices]


def test_cards_beside_which_no_cpu_would_be_left_are_not_the_tightest() -> None:
    its = site(nodes=2)
    for _ in range(8):
        its.over(its.granted(**small(cpu=8000)))
    one = its.granted(**small(cpu=8000)).devices[0].node
    other = "n1" if one == "n0" else "n0"
    its.granted(**small(cpu=8000), constraints={"nodes": [other]})
    its.granted(**small(cpu=8000), constraints={"nodes": [other]})
    assert its.granted(**small(cpu=30_000)).devices[0].node == one
    assert its.granted(**small(cpu=30_000)).devices[0].node == other


def test_what_the_score_does_not_know_still_holds() -> None:
    its = site()
    free = its.granted(**small())
    named = next(name for name in its.state.fleet.nodes if name != free.devices[0].node)
    assert its.granted(**small(), constraints={"nodes": [named]}).devices[0].node == named
    avoid = frozenset(
        (f"n{at}", device.uuid)
        for at in (0, 1, 2)
        for device in its.state.fleet.nodes[f"n{at}"].devices.values()
    )
    decided: Any = its.desk.decide("ml", asked(99, **small()), avoid)
    assert decided[2].picks[0].node == "n3"


def test_law_11_a_placer_that_read_a_snapshot_chooses_as_the_one_that_wrote_it() -> None:
    chance = random.Random(11)
    its = site(nodes=12)
    held = []
    for _ in range(60):
        if held and chance.random() < 0.3:
            its.over(held.pop(chance.randrange(len(held))))
        else:
            found = its.ask(
                **small(chance.choice((250, 500, 810, 1000)), chance.choice((1, 3)) * 2000)
            )
            if isinstance(found, ledger.LeaseGranted):
                held.append(found)
    its.state.forget(AT_MS + 48 * 3_600_000)  # what is over is known by the history alone
    again = PlacerState()
    again.adopt_catalog(its.state.catalog)
    snapshots.fill(again, snapshots.dump(its.state, 1))
    live, restored = its.state.fleet.packing.demand, again.fleet.packing.demand
    assert live.counts
    assert (live.counts, live.target, live.total) == (
        restored.counts, restored.target, restored.total,
    )  # fmt: skip
    wrote = [its.decide(**small(m, c))[2].picks for m in (250, 810, 1000) for c in (500, 6000)]
    its.desk.state = again
    read = [its.decide(**small(m, c))[2].picks for m in (250, 810, 1000) for c in (500, 6000)]
    assert _names(read) == _names(wrote)


def _names(many: list[Any]) -> list[list[tuple[str, str]]]:
    return [[(piece.device.node, piece.device.uuid) for piece in pick.pieces]
            for picks in many for pick in picks]  # fmt: skip


def test_a_request_counts_once_and_an_adopted_lease_does_not() -> None:
    its = site()
    before = its.state.fleet.packing.demand.total
    its.granted(**small(500))
    counts = its.state.fleet.packing.demand.counts
    assert its.state.fleet.packing.demand.total == before + SEEN
    assert counts[Shape(1, 500_000, 4000, 0, ("a-80",))] == SEEN
    its.granted(node={"cpu_milli": 1000}, cards=2)
    assert counts[Shape(2, PARTS, 1000, 0, ())] == SEEN
