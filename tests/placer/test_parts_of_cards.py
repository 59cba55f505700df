"""Shares, partitions and groups of unlike cards: what is granted, charged, refused, and why."""

from __future__ import annotations

from typing import Any

import pytest

from quintal.contracts import placement
from quintal.contracts.message import Refusal
from quintal_placer.adoption import adoption_record
from tests.laws.audit import check_state, restored
from tests.placer.cut import card, documents, fleet, partition, share, site
from tests.placer.site import Site, asked, inventory, only
from tests.placer.world import GIB, cards


def parts(place: Site, node: str = "n1", index: int = 0) -> dict[str, int]:
    its = place.state.fleet.nodes[node]
    return dict(place.state.parts(its, its.devices[f"GPU-{node}-{index}"]))


# --- shares -----------------------------------------------------------------------------------


def test_a_share_is_charged_the_greater_of_compute_and_memory() -> None:
    place = site(card("n1"))
    (small,) = place.granted(**share(250, "10GiB")).devices
    (memory,) = place.granted(**share(100, "40GiB")).devices
    (plain,) = place.granted(**share(250)).devices
    assert [d.parts for d in (small, memory, plain)] == [250_000, 500_000, 250_000]
    assert [d.memory_bytes for d in (memory, plain)] == [40 * GIB, 20 * GIB]
    assert place.used() == {"cut-80": (1, 1_000_000)}
    assert parts(place) == {"binding": 1_000_000}
    check_state(place.state)
    check_state(restored(place.state, 1))


def test_shares_fit_while_their_sum_is_at_most_the_whole() -> None:
    place = site(card("n1"))
    for _ in range(4):
        place.granted(**share(250))
    assert place.refused(**share(100)).code == "no_capacity"


def test_the_fullest_card_that_still_holds_the_share_is_taken() -> None:
    place = fleet(n1=(card("n1", 0), card("n1", 1)), n2=(card("n2"),))
    first = place.granted(**share(600))
    second = place.granted(**share(700))
    assert {d.uuid for r in (first, second) for d in r.devices} == {"GPU-n2-0", "GPU-n1-0"}
    (third,) = place.granted(**share(300)).devices
    assert third.uuid == second.devices[0].uuid
    (fourth,) = place.granted(**share(350)).devices
    assert fourth.uuid == first.devices[0].uuid
    assert len(place.granted(**only_whole(1)).devices) == 1


def only_whole(cards: int) -> dict[str, object]:
    return {"cards": cards, "accelerator": only("cut-80")}


def test_what_no_legal_share_could_use_is_stranded_and_else_free() -> None:
    place = site(card("n1"))
    held = place.granted(**share(900))
    assert parts(place) == {"binding": 900_000, "free": 100_000}
    place.granted(**share(100, "7GiB"))
    place.over(held)
    place.granted(**share(850))
    assert parts(place) == {"binding": 950_000, "stranded": 50_000}


def test_a_shared_card_is_not_granted_whole_nor_a_whole_one_shared() -> None:
    place = site(card("n1"))
    held = place.granted(**share(100))
    assert place.refused(**only_whole(1)).code == "no_capacity"
    place.over(held)
    place.granted(**only_whole(1))
    assert place.refused(**share(100)).code == "no_capacity"


def test_several_shares_of_one_request_lie_on_several_cards() -> None:
    place = site(card("n1", 0), card("n1", 1))
    found = place.granted(**share(400, cards=2))
    assert {d.uuid for d in found.devices} == {"GPU-n1-0", "GPU-n1-1"}
    assert place.refused(**share(100, cards=3)).verdict == "never_fits"


def test_a_gang_of_shares_is_whole_or_nothing() -> None:
    place = fleet(n1=(card("n1"),), n2=(card("n2"),))
    found = place.granted(**share(600, nodes=2))
    assert sorted(d.node for d in found.devices) == ["n1", "n2"]
    assert place.refused(**share(600, nodes=2)).code == "no_capacity"
    check_state(place.state)


@pytest.mark.parametrize(
    ("milli", "told"), [(50, "the nearest is 100"), (320, "the nearest is 300 or 350")]
)
def test_a_share_that_is_not_legal_is_refused_at_once_with_the_nearest(
    milli: int, told: str
) -> None:
    refused = site(card("n1")).refused(**share(milli))
    assert refused.code == "invalid_request"
    assert told in refused.message


def test_a_cap_in_cards_counts_a_share_as_its_part_of_one() -> None:
    place = site(card("n1", 0), card("n1", 1), caps=({"model": "cut-80", "cards": 1},))
    for _ in range(3):
        place.granted(**share(300))
    refused = place.refused(**share(150))
    assert refused.code == "model_quota_exceeded"
    assert (refused.details["used"], refused.details["over_by"]) == ("0.9", "0.05")


# --- groups -----------------------------------------------------------------------------------


def whole_and_half() -> dict[str, object]:
    half = {"accelerator": {"models": ["cut-80"], "share": {"compute_milli": 500}}}
    return {"cards": 1, "accelerator": only("cut-80"), "groups": [half]}


def test_case_a12_a_whole_card_and_half_of_another_are_one_lease() -> None:
    place = site(card("n1", 0), card("n1", 1))
    whole, half = place.granted(**whole_and_half()).devices
    assert (whole.parts, half.parts) == (1_000_000, 500_000)
    assert whole.uuid != half.uuid
    assert place.used() == {"cut-80": (1, 1_500_000)}
    refused = place.refused(**whole_and_half())
    assert refused.code == "no_capacity"
    check_state(restored(place.state, 1))


def test_groups_lie_on_one_node_or_nowhere() -> None:
    place = fleet(n1=(card("n1"),), n2=(card("n2"),))
    assert place.refused(**whole_and_half()).verdict == "not_now"
    assert place.state.on_node == {}


def test_groups_count_together_against_a_cap() -> None:
    place = site(card("n1", 0), card("n1", 1), caps=({"class": "train_llm", "units": "1.4"},))
    assert place.refused(**whole_and_half()).code == "quota_exceeded"
    assert len(place.granted(**share(500)).devices) == 1


def test_groups_of_unlike_models_are_found_whatever_is_named_first() -> None:
    place = Site(documents(), inventory("n1", card("n1"), *cards("n1", "A-80", 1)))
    both = place.granted(
        accelerator=only("a-80", "cut-80"),
        cards=1,
        groups=[{"accelerator": only("cut-80"), "cards": 1}],
    )
    assert [d.model for d in both.devices] == ["a-80", "cut-80"]


# --- partitions -------------------------------------------------------------------------------


def test_a_partition_with_a_rating_of_its_own_is_debited_by_it_and_conserved_by_its_parts() -> None:
    place = site(card("n1", 0, *["1g.10gb"] * 7))
    (got,) = place.granted(**partition("1g.10gb")).devices
    assert (got.parts, got.charged, got.units_micro) == (125_000, 1_000_000, 150_000)
    assert (got.partition, got.partition_profile) == ("MIG-n1-0-0", "1g.10gb")
    assert got.memory_bytes == 10 * GIB
    assert parts(place) == {"binding": 125_000, "free": 750_000, "partition_overhead": 125_000}


def test_a_partition_without_a_rating_of_its_own_is_its_part_of_the_parents() -> None:
    place = site(card("n1", 0, "3g.40gb", "3g.40gb"))
    (got,) = place.granted(**partition("3g.40gb")).devices
    assert (got.charged, got.units_micro, got.provenance) == (500_000, 500_000, "derived")


def test_case_h05_a_whole_card_and_its_partitions_are_never_both_granted() -> None:
    place = site(card("n1", 0, "3g.40gb", "3g.40gb"))
    held = place.granted(**partition("3g.40gb"))
    assert place.refused(**only_whole(1)).code == "partition_mode"
    place.over(held)
    place.report(inventory("n1", card("n1")))
    place.granted(**only_whole(1))
    place.report(inventory("n1", card("n1", 0, "3g.40gb", "3g.40gb")))
    assert isinstance(place.ask(**partition("3g.40gb")), Refusal)
    assert parts(place) == {"binding": 1_000_000}
    check_state(restored(place.state, 1))


def test_case_d04_enough_devices_in_another_mode_is_the_mode_and_not_capacity() -> None:
    place = site(card("n1", 0, "3g.40gb", "3g.40gb"), card("n1", 1))
    place.granted(**only_whole(1))
    refused = place.refused(**only_whole(1))
    assert (refused.code, refused.owner) == ("partition_mode", "infrastructure")
    refused = place.refused(**partition("2g.20gb"))
    assert refused.code == "partition_mode"
    assert refused.verdict == "not_now"
    assert place.refused(**partition("2g.20gb", 9)).verdict == "never_fits"


def test_case_e10_one_slice_is_debited_as_exactly_one_slice() -> None:
    place = site(card("n1", 0, *["1g.10gb"] * 7))
    place.granted(**partition("1g.10gb"))
    assert place.used() == {"cut-80": (0, 150_000)}
    held = place.state.fleet.nodes["n1"].devices["GPU-n1-0"].partitions or {}
    assert sum(part.holder is not None for part in held.values()) == 1


def test_a_partition_that_is_recreated_comes_by_its_uuid_and_the_held_one_stays() -> None:
    place = site(card("n1", 0, "3g.40gb", "3g.40gb"))
    held = place.granted(**partition("3g.40gb"))
    fresh = card("n1", 0, "2g.20gb", "2g.20gb")
    fresh = fresh.model_copy(
        update={
            "partitions": tuple(
                part.model_copy(update={"uuid": f"{part.uuid}-new"}) for part in fresh.partitions
            )
        }
    )
    place.report(inventory("n1", fresh))
    assert parts(place) == {"binding": 500_000, "free": 500_000}
    check_state(restored(place.state, 1))
    place.over(held)
    assert parts(place) == {"free": 500_000, "partition_overhead": 500_000}
    check_state(restored(place.state, 1))


def test_a_partition_that_no_document_knows_is_not_granted_and_counts_as_overhead() -> None:
    place = site(card("n1", 0, "9g.90gb", "3g.40gb"))
    assert parts(place) == {"free": 500_000, "partition_overhead": 500_000}
    place.granted(**partition("3g.40gb"))
    assert isinstance(place.ask(**partition("3g.40gb")), Refusal)


def test_case_e11_a_partition_that_no_model_has_is_refused_with_those_that_they_have() -> None:
    refused = site(card("n1")).refused(**partition("5g.50gb"))
    assert refused.code == "invalid_request"
    assert "1g.10gb, 2g.20gb" in refused.message


def test_case_e11_an_illegal_shape_or_count_is_refused_at_once_with_the_nearest() -> None:
    place = site(card("n1"), legal_counts=[4, 8], legal_shapes=["2x2", "2x4"])
    shape = {"accelerator": {"models": ["cut-80"], "shape": "1x1"}, "cards": 1}
    refused = place.refused(**shape)
    assert refused.code == "invalid_request"
    assert "the nearest is 2x2" in refused.message
    refused = place.refused(cards=3, accelerator=only("cut-80"))
    assert refused.code == "invalid_request"
    assert "the nearest to 3 is 4" in refused.message


def test_case_e09_half_pairs_are_no_pair_and_nothing_is_granted() -> None:
    place = site(*(card("n1", i) for i in range(6)), together=2, legal_counts=[2, 4, 6])
    place.state.fleet.nodes["n1"].devices["GPU-n1-2"].health = "failed"
    place.state.fleet.nodes["n1"].devices["GPU-n1-5"].health = "failed"
    place.state.fleet.touch("n1")
    refused = place.refused(cards=4, accelerator=only("cut-80"))
    assert refused.verdict == "not_now"
    assert place.state.on_node == {}
    assert {d.index for d in place.granted(cards=2, accelerator=only("cut-80")).devices} == {0, 1}


def test_half_a_pair_is_not_asked_for_and_a_refused_half_takes_its_other_with_it() -> None:
    place = site(*(card("n1", i) for i in range(4)), together=2)
    refused = place.refused(cards=3, accelerator=only("cut-80"))
    assert refused.code == "invalid_request"
    assert "the nearest to 3 is 2 or 4" in refused.message
    avoid = frozenset({("n1", "GPU-n1-1")})
    ask = asked(1, cards=2, accelerator=only("cut-80"))
    _, _, chosen = place.desk.decide("ml", ask, avoid)
    assert [d.index for d in chosen.picks[0].devices] == [2, 3]


def test_a_mode_that_is_the_whole_card_is_no_cut() -> None:
    profile = {"name": "spx", "model": "cut-80", "parts": 1_000_000, "memory_bytes": 80 * GIB}
    place = site(card("n1", 0, "SPX"), partitions=[profile], layouts=[])
    assert place.granted(**only_whole(1)).devices[0].partition is None


# --- adoption ---------------------------------------------------------------------------------


def adopting(place: Site, device: str, **more: Any) -> Any:
    fields = {"request_id": f"job-{device}-{more.pop('number', 1)}", "tenant": "ml", "node": "n1"}
    ask = placement.AdoptAsk.model_validate(
        {**fields, "devices": [device], "class": "train_llm", **more}
    )
    record = adoption_record(place.desk, ask)
    if not isinstance(record, Refusal):
        place.apply(record)
    return record


def test_an_outside_scheduler_adopts_a_partition_by_its_uuid() -> None:
    place = site(card("n1", 0, *["1g.10gb"] * 7))
    (got,) = adopting(place, "MIG-n1-0-3").devices
    assert (got.partition, got.parts, got.units_micro) == ("MIG-n1-0-3", 125_000, 150_000)
    assert adopting(place, "MIG-n1-0-3", number=2).code == "conflict"
    assert adopting(place, "GPU-n1-0").code == "conflict"
    check_state(restored(place.state, 1))


def test_an_outside_scheduler_adopts_shares_up_to_the_whole_and_no_further() -> None:
    place = site(card("n1"))
    half = {"compute_milli": 500}
    assert adopting(place, "0", share=half).devices[0].parts == 500_000
    assert adopting(place, "0", share=half, number=2).devices[0].parts == 500_000
    assert adopting(place, "0", share={"compute_milli": 10}, number=3).code == "conflict"
    assert adopting(place, "0", number=4).code == "conflict"
    check_state(place.state)
