"""How cards can be cut: where shapes fit, and which place keeps the largest ones possible."""

from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from quintal_placer.cutting import card_of
from quintal_placer.engine.geometry import Card, Place, Shape, best, fits, laid_out, tally
from tests.catalog.test_starter import STARTER

H100 = card_of(STARTER.models["nvidia-h100-sxm5-80gb"])
MI300X = card_of(STARTER.models["amd-mi300x-192gb"])
VNPU = Card(
    8, 8, tuple(Shape(f"vir0{n}", tuple(range(9 - n)), n, n, count_max=8 // n) for n in (1, 2, 4))
)


def placed(card: Card, *names: str) -> tuple[Place, ...]:
    """One shape after the other, each where it keeps the most open."""
    places: tuple[Place, ...] = ()
    for name in names:
        found = best(card, name, places)
        assert found, found.reason
        shape = card.shape(name)
        assert shape is not None
        places = (*places, Place(shape, found.placements[0]))
    return places


def test_case_e06_a_small_shape_leaves_room_for_the_largest_one() -> None:
    small, large = placed(H100, "1g.10gb", "4g.40gb")
    assert not small.slices & large.slices
    assert placed(H100, "1g.10gb", "3g.40gb", "2g.20gb")


def test_case_e07_free_slices_that_lie_apart_are_no_room_and_the_reason_is_the_place() -> None:
    found = fits(H100, "3g.40gb", {0, 1, 5})
    assert not found
    assert found.reason.startswith("5 slices are free, and 3g.40gb begins at none of them")
    assert "at 0 slices 0, 1 are taken" in found.reason
    assert "at 4 slices 5 are taken" in found.reason
    assert fits(H100, "3g.40gb", {0, 1}).placements == (4,)


def test_compute_slices_can_be_what_is_short() -> None:
    places = placed(H100, "4g.40gb", "3g.40gb")
    assert len(places) == 2
    taken = set().union(*(p.slices for p in places))
    assert "memory" not in fits(H100, "1g.10gb", taken, 7).reason
    assert "compute" in fits(H100, "1g.10gb", range(3), 7).reason


def test_case_e08_partitions_are_counted_by_their_class_and_by_their_parents() -> None:
    counted = tally([["spx"]] * 6 + [["cpx"] * 8] * 2)
    assert (counted.total, counted.partitions, counted.parents) == (22, {"cpx": 16, "spx": 6}, 8)


def test_a_mode_that_switches_the_whole_card_fills_it() -> None:
    assert len(laid_out(MI300X, {"cpx": 8}) or ()) == 8
    assert laid_out(MI300X, {"cpx": 9}) is None
    assert laid_out(MI300X, {"dpx": 1, "cpx": 8}) is None


def test_a_template_of_one_core_takes_one_core() -> None:
    """Case E10 in the geometry: one slice is one slice, and seven are left."""
    (one,) = placed(VNPU, "vir01")
    assert len(one.slices) == 1
    assert len(placed(VNPU, *["vir01"] * 8)) == 8


def test_every_layout_of_the_starter_catalog_lies_side_by_side() -> None:
    for name, spec in STARTER.models.items():
        for layout in spec.layouts:
            assert laid_out(card_of(spec), layout.shapes) is not None, (name, layout.name)


def brute(card: Card, places: tuple[Place, ...], name: str) -> bool:
    shape = card.shape(name)
    assert shape is not None
    taken = set().union(*(p.slices for p in places))
    compute = sum(p.shape.compute_slices for p in places) + shape.compute_slices
    return compute <= card.compute_slices and any(
        not set(range(start, start + shape.memory_slices)) & taken for start in shape.placements
    )


@given(st.lists(st.sampled_from([s.name for s in H100.shapes]), max_size=6))
def test_what_is_said_to_fit_is_what_trying_every_place_finds(names: list[str]) -> None:
    places: tuple[Place, ...] = ()
    for name in names:
        occupied = set().union(*(p.slices for p in places))
        used = sum(p.shape.compute_slices for p in places)
        assert bool(fits(H100, name, occupied, used)) == brute(H100, places, name)
        if found := best(H100, name, places):
            shape = H100.shape(name)
            assert shape is not None
            places = (*places, Place(shape, found.placements[0]))
    for one, other in itertools.combinations(places, 2):
        assert not one.slices & other.slices
