"""How the cards of a request lie: islands and interfaces in a node, domains between nodes."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from pydantic import ValidationError

from quintal.contracts import ledger
from quintal.contracts.arrangement import TopologyNeed
from quintal.contracts.nodes import (
    DeviceHealth,
    FabricDomain,
    Inventory,
    Island,
    NearNics,
    Topology,
)
from quintal.contracts.placement import AdoptAsk, FleetAsk, PlaceAsk
from quintal_agent import report
from quintal_agent.probes.probe import Device, Host, Link, Observation
from quintal_placer import views
from quintal_placer.adoption import adoption_record
from quintal_placer.engine import lay, placing
from quintal_placer.engine.lay import Lay
from tests.laws.audit import restored
from tests.placer.site import AT_MS, Site, inventory, models, quota
from tests.placer.test_engine import cards
from tests.placer.world import doc

ISLAND = {"island": "required"}


def node(
    name: str,
    count: int = 8,
    *,
    islands: tuple[int, ...] | None = (),
    near: tuple[int, ...] | None = None,
    fabric: str = "",
    model: str = "A-80",
    **more: Any,
) -> Inventory:
    """A node whose first cards fall into islands (and reaches of interfaces) of these sizes."""
    devices = cards(name, model, count)
    uuids = [device.uuid for device in devices]

    def cut(sizes: tuple[int, ...]) -> list[tuple[str, ...]]:
        starts = [sum(sizes[:at]) for at in range(len(sizes))]
        return [tuple(uuids[a : a + n]) for a, n in zip(starts, sizes, strict=True)]

    topology = Topology(
        islands=None
        if islands is None
        else tuple(Island(kind="nvlink", bandwidth="NV4", devices=its) for its in cut(islands)),
        nics=None
        if near is None
        else tuple(
            NearNics(distance="switch", nics=(f"ib{at}",), devices=its)
            for at, its in enumerate(cut(near))
        ),
        fabrics=(FabricDomain(kind="nvlink", domain=fabric, devices=tuple(uuids)),)
        if fabric
        else None,
    )
    return inventory(name, *devices, topology=topology, **more)


def site(*nodes: Inventory) -> Site:
    return Site([*models(), *quota("ml"), *quota("bio")], *nodes)


def indices(record: ledger.LeaseGranted) -> list[int]:
    return sorted(device.index for device in record.devices)


def hold(where: Site, name: str, *taken: int, model: str = "A-80") -> None:
    """Somebody has these cards of the node, chosen by nobody here."""
    ask = AdoptAsk(
        request_id=f"{name}-{'-'.join(map(str, taken))}", tenant="bio", node=name, profile="train",
        devices=tuple(str(index) for index in taken),
    )  # fmt: skip
    record = adoption_record(where.desk, ask)
    assert isinstance(record, ledger.LeaseGranted), record
    where.apply(record)


# --- in a node ------------------------------------------------------------------------------------


def test_cards_that_must_be_of_one_island_are() -> None:
    town = site(node("n1", islands=(4, 4)))
    hold(town, "n1", 0)
    assert indices(town.granted(cards=4, topology=ISLAND)) == [4, 5, 6, 7]


def test_the_tightest_island_is_taken_also_where_nobody_asks() -> None:
    """Case E12's kin: what is used already fills first, and whole islands stay whole."""
    town = site(node("n1", islands=(4, 4)))
    hold(town, "n1", 5)
    assert indices(town.granted(cards=2)) == [4, 6]
    assert indices(town.granted(cards=4, topology=ISLAND)) == [0, 1, 2, 3]


def test_more_than_an_island_is_taken_from_as_few_as_can_be() -> None:
    town = site(node("n1", 8, islands=(2, 2, 4)))
    assert indices(town.granted(cards=6)) == [0, 1, 4, 5, 6, 7]


def test_a_required_island_that_is_there_but_held_is_fragmented() -> None:
    town = site(node("n1", islands=(4, 4)))
    hold(town, "n1", 0, 4)
    refused = town.refused(cards=4, topology=ISLAND)
    assert (refused.code.value, refused.verdict) == ("fragmented", "not_now")
    assert refused.message == "enough is free in sum, but not together in one island"
    assert refused.reasons[0].message == "enough free, but not lying as asked"


def test_an_island_that_no_node_has_never_fits() -> None:
    refused = site(node("n1", islands=(4, 4))).refused(cards=8, topology=ISLAND)
    assert refused.verdict == "never_fits"
    assert "no island of so many cards" in refused.message


def test_unknown_islands_meet_no_requirement_and_one_card_needs_none() -> None:
    town = site(node("n1", islands=None))
    refused = town.refused(cards=2, topology=ISLAND)
    assert refused.verdict == "never_fits"
    assert "unknown" in refused.message
    town.granted(cards=1, topology=ISLAND)


def test_an_island_with_a_bad_card_is_told_as_unhealthy() -> None:
    whole = node("n1", 4, islands=(4,))
    bad = whole.devices[0].model_copy(update={"health": DeviceHealth.FAILED})
    town = site(whole.model_copy(update={"devices": (bad, *whole.devices[1:])}))
    assert town.refused(cards=4, topology=ISLAND).code == "device_unhealthy"
    assert indices(town.granted(cards=3, topology=ISLAND)) == [1, 2, 3]


def test_what_was_preferred_and_not_met_is_told_with_what_it_cost() -> None:
    town = site(node("n1", islands=(4, 4)))
    placed = town.granted(cards=8, topology={"island": "preferred"})
    assert placed.not_met == ("8 cards over 2 islands",)
    told = town.desk.explanation("ml", "r1")
    assert told is not None
    assert "8 cards over 2 islands" in told.summary
    assert town.desk.view(town.state.leases[placed.lease]).not_met == placed.not_met


def test_a_preference_that_is_met_costs_nothing_and_chooses_the_node() -> None:
    town = site(node("n1", 4, islands=(2, 2)), node("n2", 8, islands=(8,)))
    placed = town.granted(cards=4, topology={"island": "preferred"})
    assert (placed.devices[0].node, placed.not_met) == ("n2", ())


def test_a_preference_weighs_more_than_the_tightest_pool() -> None:
    pools = [doc("Pool", "a", selector={"nodes": ["n1"]}), doc("Pool", "b", selector={}, order=9)]
    town = Site(
        [*models(), *quota("ml"), *pools],
        node("n1", 4, islands=(2, 2)),
        node("n2", 8, islands=(8,)),
    )
    assert town.granted(cards=4, topology={"island": "preferred"}).devices[0].node == "n2"
    assert town.granted(cards=4).devices[0].node == "n1"


def test_cards_near_one_interface_are_taken_together() -> None:
    town = site(node("n1", near=(2, 2, 4)))
    hold(town, "n1", 0)
    assert indices(town.granted(cards=2, topology={"nic": "required"})) == [2, 3]
    assert town.refused(cards=8, topology={"nic": "required"}).verdict == "never_fits"
    placed = town.granted(cards=5, topology={"nic": "preferred"})
    assert placed.not_met == ("on 1 of 1 nodes no interface is near all cards",)


def test_an_island_and_an_interface_hold_together() -> None:
    town = site(node("n1", islands=(4, 4), near=(2, 4, 2)))
    both = {"island": "required", "nic": "required"}
    assert indices(town.granted(cards=2, topology=both)) == [0, 1]
    assert town.refused(cards=4, topology=both).verdict == "never_fits"


# --- between nodes --------------------------------------------------------------------------------


def test_a_gang_that_must_be_in_one_fabric_is_and_in_the_tightest() -> None:
    wide = [node(f"w{i}", 2, fabric="wide") for i in range(4)]
    tight = [node(f"z{i}", 2, fabric="tight") for i in range(2)]
    town = site(*wide, *tight)
    placed = town.granted(cards=2, nodes=2, topology={"domain": "required"})
    assert {d.node for d in placed.devices} == {"z0", "z1"}
    assert len(town.granted(cards=2, nodes=4, topology={"domain": "required"}).devices) == 8


def test_enough_nodes_but_not_in_one_fabric_is_fragmented_and_says_so() -> None:
    town = site(*(node(f"n{i}", 2, fabric=f"f{i // 2}") for i in range(4)))
    hold(town, "n0", 0)
    hold(town, "n2", 0)
    refused = town.refused(cards=2, nodes=2, topology={"domain": "required"})
    assert (refused.code.value, refused.verdict) == ("fragmented", "not_now")
    assert refused.message == "enough nodes are free, but not in one fabric"
    never = town.refused(cards=2, nodes=3, topology={"domain": "required"})
    assert never.verdict == "never_fits"
    assert "no fabric has 3 nodes" in never.message
    assert town.used() == {}


def test_a_domain_that_was_preferred_and_not_met_names_how_many_it_became() -> None:
    town = site(node("n1", 2, fabric="a"), node("n2", 2, fabric="b"), node("n3", 2))
    placed = town.granted(cards=2, nodes=3, topology={"domain": "preferred"})
    assert placed.not_met == (
        "3 nodes over 2 fabrics",
        "the fabric of 1 of 3 nodes is unknown",
    )


def test_a_rack_is_a_label_or_the_location() -> None:
    town = site(
        node("n1", 2, labels={"rack": "r1"}),
        node("n2", 2, labels={"rack": "r2"}),
        node("n3", 2, labels={"rack": "r1"}),
        node("n4", 2, location="hall"),
        node("n5", 2, location="hall"),
    )
    rack = {"domain": "required", "over": "rack"}
    first = town.granted(cards=2, nodes=2, topology=rack)
    second = town.granted(cards=2, nodes=2, topology=rack)
    assert [{d.node for d in placed.devices} for placed in (first, second)] == [
        {"n1", "n3"},
        {"n4", "n5"},
    ]
    assert town.refused(cards=2, nodes=2, topology=rack).code == "no_capacity"


def test_a_fabric_that_no_device_tells_is_the_label() -> None:
    town = site(*(node(f"n{i}", 1, labels={"fabric": "spod-7"}) for i in range(2)))
    town.granted(nodes=2, topology={"domain": "required"})


def test_of_two_preferences_the_dearer_is_kept() -> None:
    """In one fabric there are only split nodes, the whole ones lie apart: the fabric stands."""
    town = site(
        *(node(f"s{i}", 4, islands=(2, 2), fabric="one") for i in range(2)),
        *(node(f"w{i}", 4, islands=(4,), fabric=f"own{i}") for i in range(2)),
    )
    both = {"island": "preferred", "domain": "preferred"}
    placed = town.granted(cards=4, nodes=2, topology=both)
    assert {d.node for d in placed.devices} == {"s0", "s1"}
    assert placed.not_met == ("4 cards over 2 islands",)


def test_a_profiles_topology_holds_for_every_request_under_it() -> None:
    documents = [*models(), *quota("ml")]
    profile = doc(
        "Profile", "linked", **{"class": "train_llm", "cards": "1..8", "topology": ISLAND}
    )
    town = Site([*documents, profile], node("n1", islands=(4, 4)))
    refused = town.refused(profile="linked", cards=8, topology={"island": "preferred"})
    assert refused.verdict == "never_fits"


def test_the_stricter_of_two_needs_holds() -> None:
    one = TopologyNeed(island="preferred", domain="preferred", over="rack")
    other = TopologyNeed(island="required", nic="preferred", domain="required")
    for both in (one.stricter(other), other.stricter(one)):
        assert both == TopologyNeed(island="required", nic="preferred", domain="required")
    assert one.stricter(TopologyNeed()) == one
    assert TopologyNeed().stricter(one) == one


# --- gangs ----------------------------------------------------------------------------------------


def test_case_e03_a_gang_of_thirty_and_fifty_fits_nodes_of_fifty_three_and_thirty_one() -> None:
    """In whichever order its members and the nodes are given."""
    for order in ((0, 1), (1, 0)):
        for members in ([{"cards": 30}, {"cards": 50}], [{"cards": 50}, {"cards": 30}]):
            nodes = [node("n1", 53), node("n2", 31)]
            town = site(*(nodes[at] for at in order))
            placed = town.granted(members=members)
            counts = [sum(d.node == name for d in placed.devices) for name in ("n1", "n2")]
            assert counts == [50, 30]


def test_a_gang_of_unlike_members_that_does_not_fit_says_in_which_way() -> None:
    town = site(node("n1", 4), node("n2", 2))
    assert town.refused(members=[{"cards": 3, "nodes": 2}]).verdict == "never_fits"
    assert town.refused(members=[{"cards": 4}, {"cards": 3}]).verdict == "never_fits"
    hold(town, "n1", 0)
    refused = town.refused(members=[{"cards": 4}, {"cards": 1}])
    assert (refused.code.value, refused.verdict) == ("fragmented", "not_now")
    assert town.used() == {}
    assert len(town.granted(members=[{"cards": 1}, {"cards": 3}]).devices) == 4


def test_members_have_counts_of_their_own() -> None:
    with pytest.raises(ValidationError, match="members have counts of their own"):
        PlaceAsk.model_validate(
            {"request_id": "r", "profile": "p", "cards": 2, "members": [{"cards": 1}]}
        )


def test_each_members_cards_must_be_what_the_profile_and_the_model_allow() -> None:
    documents = [*models(), *quota("ml")]
    spec = documents[0].spec.model_copy(update={"legal_counts": (2, 4)})
    pairs = documents[0].model_copy(update={"spec": spec})
    town = Site([pairs, *documents[1:]], node("n1", 4), node("n2", 4))
    assert town.refused(members=[{"cards": 4}, {"cards": 1}]).verdict == "never_fits"
    assert town.refused(members=[{"cards": 65}, {"cards": 1}]).code == "invalid_request"
    assert town.refused(members=[{"cards": 1, "nodes": 150}, {"cards": 2, "nodes": 51}]).code == (
        "invalid_request"
    )
    town.granted(members=[{"cards": 4}, {"cards": 2}])


def test_a_gang_is_of_one_model_unless_it_says_that_it_may_be_mixed() -> None:
    town = site(node("n1", 4), node("n2", 4, model="A-40"))
    assert town.refused(cards=4, nodes=2).verdict == "never_fits"
    placed = town.granted(cards=4, nodes=2, mixed=True)
    assert {d.model for d in placed.devices} == {"a-80", "a-40"}
    assert town.used() == {"a-80": (4, 4_000_000), "a-40": (4, 2_000_000)}
    told = town.desk.view(town.state.leases[placed.lease])
    assert (told.units_micro, told.delivered_micro) == (6_000_000, 8 * 500_000)


def test_every_cap_counts_its_part_of_a_mixed_gang_and_the_class_all_of_it() -> None:
    nodes = (node("n1", 4), node("n2", 4, model="A-40"))
    asked = {"cards": 4, "nodes": 2, "mixed": True}
    of_model = Site([*models(), *quota("ml", {"model": "a-40", "cards": 3})], *nodes)
    assert of_model.refused(**asked).code == "model_quota_exceeded"
    of_class = Site([*models(), *quota("ml", {"class": "train_llm", "units": "5"})], *nodes)
    assert of_class.refused(**asked).code == "quota_exceeded"


def test_a_mixed_gang_that_is_held_apart_is_fragmented_and_one_that_is_not_there_never_fits() -> (
    None
):
    town = site(node("n1", 4), node("n2", 4, model="A-40"))
    hold(town, "n1", 0)
    hold(town, "n2", 0)
    refused = town.refused(cards=3, nodes=3, mixed=True)
    assert refused.verdict == "never_fits"
    assert town.refused(members=[{"cards": 4}, {"cards": 2}], mixed=True).code == "fragmented"
    town.granted(cards=3, nodes=2, mixed=True)


def test_topology_is_of_whole_cards() -> None:
    share = {"models": ["a-80"], "share": {"compute_milli": 500}}
    refused = site(node("n1")).refused(accelerator=share, topology=ISLAND)
    assert refused.code == "invalid_request"
    assert "of whole cards" in refused.message


def test_case_e01_of_two_gangs_at_once_one_is_whole_a_thousand_times() -> None:
    """Two gangs of N on N nodes; who was late holds nothing, and is whole in its turn."""
    town = site(*(node(f"n{i}", 2) for i in range(4)))
    for turn in range(1_000):
        first, second = ("ml", "bio") if turn % 2 else ("bio", "ml")
        one = town.granted(first, cards=2, nodes=4)
        assert len({d.node for d in one.devices}) == 4
        late = town.refused(second, cards=2, nodes=4)
        assert late.verdict == "not_now"
        assert town.used(second) == {}
        town.over(one)
        town.state.forget(AT_MS + 2 * 86_400_000 * (turn + 1))
    assert not town.state.live


def test_case_e05_a_replayed_fleet_decides_as_the_live_one() -> None:
    """Also after nodes came, went, were held and let go: no gang is refused on idle nodes."""
    town = site(*(node(f"n{i}", 4, islands=(2, 2), fabric=f"f{i // 3}") for i in range(9)))
    wanted = {"cards": 4, "nodes": 3, "topology": {"domain": "required", "island": "preferred"}}
    for turn in range(3):
        held = [town.granted(**wanted) for _ in range(3)]
        town.refused(**wanted)
        for record in held:
            town.over(record)
        town.report(node(f"n{turn}", 4, islands=(4,), fabric="f9"))
        town.report(node(f"n{turn}", 4, islands=(2, 2), fabric=f"f{turn // 3}"))
    again = restored(town.state, 1)
    ask, _, chosen = town.decide(**wanted)
    other = placing.decide(again.fleet, again.quotas, ask)
    assert isinstance(other, placing.Chosen)
    assert [p.node for p in other.picks] == [p.node for p in chosen.picks]
    assert other == chosen


def test_what_an_agent_says_of_its_links_is_what_a_request_is_held_to() -> None:
    """From the probe's links to the grant: a machine of eight, as its agent reports it."""
    links = tuple(
        Link(f"GPU-{a}", f"GPU-{b}", "NV4")
        for first in (0, 4)
        for a, b in combinations(range(first, first + 4), 2)
    )
    seen = Observation(
        "nvidia",
        "t",
        tuple(Device(f"GPU-{at}", at, "nvidia", "A-80", 80 * 2**30) for at in range(8)),
        links=links,
        links_told=True,
        host=Host("n1", cpu_milli=64_000, memory_bytes=2**39),
    )
    told = report.inventory(
        report.Identity("n1", "boot-1"), (seen,), health={}, held=frozenset(),
        bounds=report.Bounds(), sequence=1, at_ms=1,
    )  # fmt: skip
    town = site(told)
    assert town.refused(cards=5, topology=ISLAND).verdict == "never_fits"
    assert {d.index // 4 for d in town.granted(cards=4, topology=ISLAND).devices} == {0}
    assert town.granted(cards=4, topology={"island": "preferred"}).not_met == ()


def test_operators_see_how_a_node_lies() -> None:
    town = site(node("n1", 4, islands=(2, 2), near=(2,), fabric="one", labels={"rack": "r1"}))
    fleet = views.fleet_view(town.state, FleetAsk(), now_ms=AT_MS, sequence=1)
    (seen,) = fleet.nodes
    assert (seen.fabric, seen.rack.rpartition("/")[2]) == ("nvlink:one", "r1")
    assert [(d.island, d.nics) for d in seen.devices] == [
        (0, ("ib0",)),
        (0, ("ib0",)),
        (1, ()),
        (1, ()),
    ]
    assert seen.topology is not None
    assert [len(island.devices) for island in seen.topology.islands or ()] == [2, 2]


# --- the sets themselves --------------------------------------------------------------------------


def test_a_device_of_no_island_is_one_by_itself() -> None:
    known = Lay(islands=(("a", "b"),))
    assert lay.islands_of(known, ["a", "b", "c"]) == 2
    assert lay.take(known, ["a", "b", "c"], 1) == ("c",)
    assert lay.take(known, ["a", "b", "c"], 2, island=True) == ("a", "b")
    assert lay.most(known, ["b", "c"], island=True, nic=False) == 1


def test_a_shared_interface_is_known_or_not() -> None:
    assert lay.shared_interface(Lay(), ["a"]) is None
    assert lay.shared_interface(Lay(near=(("a",), ("a", "b"))), ["a", "b"]) is True
    assert lay.shared_interface(Lay(near=(("a",), ("b",))), ["a", "b"]) is False
