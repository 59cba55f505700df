"""The pass: what is chosen among unlike cards, and what is not, and how it says why."""

from __future__ import annotations

from collections import Counter

from quintal.contracts import ledger
from quintal.contracts.message import Refusal
from quintal.contracts.nodes import DeviceHealth
from quintal_placer import redaction
from tests.placer.site import AT_MS, Site, inventory, models, only, quota
from tests.placer.world import cards, doc, model


def both() -> Site:
    """Four of each model, a node each."""
    return Site(
        [*models(), *quota("ml")],
        inventory("n1", *cards("n1", "A-80", 4)),
        inventory("n2", *cards("n2", "A-40", 4)),
        inventory("n3", *cards("n3", "B-24", 4)),
        inventory("n4", *cards("n4", "RED-192", 4, "amd")),
    )


def alternatives() -> dict[str, object]:
    return {
        "alternatives": [
            {"accelerator": only("a-80"), "cards": 1, "variant": "big", "image": "big:1"},
            {"accelerator": only("a-40"), "cards": 2, "variant": "mid", "image": "mid:1"},
            {"accelerator": only("b-24"), "cards": 4, "variant": "small", "args": ["--tp", "4"]},
        ]
    }


def reasons(refusal: Refusal) -> dict[str, int]:
    found: Counter[str] = Counter()
    for reason in refusal.reasons:
        found[reason.code.value] += reason.count
    return dict(found)


# --- alternatives and objectives --------------------------------------------------------------


def test_case_a04_of_one_big_two_middle_or_four_small_what_is_free_is_granted_and_debited() -> None:
    site = both()
    site.granted(cards=4, accelerator=only("a-80"))
    site.granted(cards=4, accelerator=only("a-40"))
    found = site.granted(**alternatives())
    assert [d.model for d in found.devices] == ["b-24"] * 4
    assert site.used()["b-24"] == (4, 4 * 200_000)


def test_case_a05_cheapest_and_ordered_choose_otherwise_from_one_list() -> None:
    prices = doc(
        "PriceList",
        "list",
        currency="USD",
        prices=[
            {"amount": "9", "per": "card_hour", "model": "a-80"},
            {"amount": "1", "per": "card_hour", "model": "b-24"},
            {"amount": "5", "per": "card_hour"},
        ],
    )
    site = both()
    site.adopt([*models(), *quota("ml"), prices], 2)
    names = {"accelerator": only("a-80", "a-40", "b-24")}
    chosen = {
        objective: site.decide(objective=objective, **names)[2].offer.model
        for objective in ("ordered", "cheapest", "fastest", "pack")
    }
    assert chosen == {"ordered": "a-80", "cheapest": "b-24", "fastest": "a-80", "pack": "b-24"}
    told = site.desk.explanation("ml", "r0")
    assert told is not None
    assert "by objective pack" in told.summary


def test_case_a06_the_lease_names_the_variant_that_it_runs() -> None:
    site = both()
    assert site.granted(**alternatives()).variant == "big"
    site.granted(cards=3, accelerator=only("a-80"))
    found = site.granted(**alternatives())
    assert (found.variant, found.image) == ("mid", "mid:1")


def test_efficient_means_units_per_watt() -> None:
    documents = [
        model("hot-1", memory=80, train_llm="1"),
        model("cool-1", memory=80, train_llm="0.9").model_copy(),
        *models()[4:],
        *quota("ml"),
    ]
    cool = documents[1].spec.model_copy(update={"tdp_watts": documents[1].spec.tdp_watts / 2})
    documents[1] = documents[1].model_copy(update={"spec": cool})
    site = Site(
        documents,
        inventory("n1", *cards("n1", "HOT-1", 1)),
        inventory("n2", *cards("n2", "COOL-1", 1)),
    )
    assert site.granted(objective="efficient").devices[0].model == "cool-1"


def test_pack_fills_the_fullest_node_that_fits_and_spread_the_emptiest() -> None:
    """Case E12: small jobs fill used nodes; a whole-node request still fits."""

    def fleet() -> Site:
        site = Site(
            [*models(), *quota("ml")],
            inventory("n1", *cards("n1", "A-80", 4)),
            inventory("n2", *cards("n2", "A-80", 4)),
        )
        site.granted(constraints={"nodes": ["n2"]})
        return site

    packed, spread = fleet(), fleet()
    assert packed.granted(objective="pack").devices[0].node == "n2"
    assert len(packed.granted(cards=4).devices) == 4
    assert spread.granted(objective="spread").devices[0].node == "n1"
    assert spread.refused(cards=4).code == "fragmented"


def test_case_a07_one_name_within_another_never_matches() -> None:
    documents = [
        model("h20", memory=96, train_llm="0.2"),
        model("h200", memory=141, train_llm="1.2"),
        *models()[4:],
        *quota("ml"),
    ]
    site = Site(documents, inventory("n1", *cards("n1", "H200", 8)))
    found = site.refused(accelerator=only("h20"))
    assert found.verdict == "never_fits"
    assert [d.model for d in site.granted(accelerator=only("h200")).devices] == ["h200"]


def test_case_a15_above_inventory_is_never_fits_and_not_a_matter_of_quota() -> None:
    site = Site([*models(), *quota("ml", {"model": "a-80", "cards": 100})],
                inventory("n1", *cards("n1", "A-80", 4)))  # fmt: skip
    assert site.refused(cards=5, accelerator=only("a-80")).code == "never_fits"


def test_a_count_that_is_not_legal_for_the_model_never_fits() -> None:
    """Cases E09 and E11: pairs and shapes; nothing is rounded up (E10)."""
    documents = [*models(), *quota("ml")]
    pairs = documents[0].model_copy(
        update={"spec": documents[0].spec.model_copy(update={"legal_counts": (2, 4)})}
    )
    site = Site([pairs, *documents[1:]], inventory("n1", *cards("n1", "A-80", 4)))
    odd = site.refused(cards=3)
    assert odd.verdict == "never_fits"
    assert "2, 4 cards only" in odd.message
    assert len(site.granted(cards=2).devices) == 2


def test_a_request_needs_cpu_and_memory_beside_its_cards() -> None:
    site = Site(
        [*models(), *quota("ml")], inventory("n1", *cards("n1", "A-80", 4), cpu_milli=8_000)
    )
    site.granted(node={"cpu_milli": 6_000})
    refused = site.refused(node={"cpu_milli": 4_000})
    assert refused.code == "no_capacity"
    assert "CPU" in refused.reasons[0].message
    assert site.refused(node={"cpu_milli": 9_000}).verdict == "never_fits"
    site.granted(node={"cpu_milli": 2_000})


def test_a_node_behind_many_full_ones_is_found() -> None:
    """Seventy nodes have cards and no CPU; the next one has both."""
    crowded = [
        inventory(f"n{i:03}", *cards(f"n{i:03}", "A-80", 2), cpu_milli=1_000) for i in range(70)
    ]
    site = Site([*models(), *quota("ml")], *crowded, inventory("z", *cards("z", "A-80", 8)))
    assert site.granted(node={"cpu_milli": 4_000}).devices[0].node == "z"


def test_labels_clusters_and_locations_are_kept_to() -> None:
    site = Site(
        [*models(), *quota("ml")],
        inventory("n1", *cards("n1", "A-80", 1), labels={"rack": "1"}, cluster="east"),
        inventory("n2", *cards("n2", "A-80", 1), labels={"rack": "2"}, location="cellar"),
    )
    assert site.refused(constraints={"labels": {"rack": "3"}}).verdict == "never_fits"
    assert site.granted(constraints={"labels": {"rack": "2"}}).devices[0].node == "n2"
    assert site.refused(constraints={"locations": ["cellar"]}).code == "no_capacity"
    assert site.granted(constraints={"clusters": ["east"]}).devices[0].node == "n1"


def test_a_taint_of_node_or_pool_bars_who_does_not_tolerate_it() -> None:
    pool = doc("Pool", "p", selector={"nodes": ["n2"]}, taints=["lab"])
    site = Site(
        [*models(), *quota("ml"), pool],
        inventory("n1", *cards("n1", "A-80", 1)),
        inventory("n2", *cards("n2", "A-80", 1)),
    )
    site.apply(ledger.TaintChanged(at_ms=AT_MS, node="n1", taint="new", present=True, by="op"))
    refused = site.refused()
    assert refused.code == "tainted"
    assert reasons(refused) == {"tainted": 2}
    assert site.granted(constraints={"tolerations": ["lab"]}).devices[0].node == "n2"
    assert site.granted(constraints={"tolerations": ["new"]}).devices[0].node == "n1"


def test_a_closed_pool_is_used_by_its_tenants_and_named_to_nobody_else() -> None:
    pool = doc("Pool", "secret", selector={"nodes": ["n1"]}, tenants=["bio"])
    site = Site(
        [*models(), *quota("ml"), *quota("bio"), pool], inventory("n1", *cards("n1", "A-80", 1))
    )
    refused = site.refused("ml")
    assert refused.verdict == "never_fits"
    assert refused.reasons[0].names == ("n1",), "an operator sees all"
    said = redaction.for_tenant(site.state.catalog, "ml", refused).model_dump_json()
    assert "secret" not in said
    assert "n1" not in said
    assert site.granted("bio").devices[0].node == "n1"
    said = redaction.for_tenant(site.state.catalog, "ml", site.refused("ml")).model_dump_json()
    assert "bio" not in said


def test_no_profile_for_cards_falls_back_to_the_cpu() -> None:
    """Case B05, law 6."""
    from quintal.contracts.nodes import RawDevice

    cpu_model = doc(
        "AcceleratorModel", "epyc", vendor="cpu", family="epyc", kind="cpu",
        match=[{"vendor": "cpu", "names": ["EPYC"]}],
        ratings=[{"class": "train_llm", "value": "0.01", "provenance": "roofline", "per": "core"}],
    )  # fmt: skip
    cpu = RawDevice(uuid="CPU-1", index=0, vendor="cpu", name="EPYC", cores=32)
    site = Site([*models(), cpu_model, *quota("ml")], inventory("n1", cpu))
    assert site.refused().verdict == "never_fits"
    cores = site.granted(profile=None, accelerator={"kind": "cpu"}, **{"class": "train_llm"})
    assert cores.devices[0].rating_micro == 32 * 10_000
    assert cores.cpu_milli == {"n1": 64_000}


# --- never, not now, and why ------------------------------------------------------------------


def test_case_d01_every_nodes_reason_is_kept_also_where_one_fits_but_for_a_cap() -> None:
    site = Site(
        [*models(), *quota("ml", {"model": "a-80", "cards": 0})],
        inventory("n1", *cards("n1", "A-80", 2)),
        inventory("n2", *cards("n2", "A-80", 1)),
        inventory("n3", *cards("n3", "A-80", 2)),
    )
    site.apply(ledger.CordonChanged(at_ms=AT_MS, node="n3", cordoned=True, by="op"))
    refused = site.refused(cards=2, accelerator=only("a-80"))
    assert refused.code == "model_quota_exceeded"
    assert reasons(refused) == {"model_quota_exceeded": 1, "never_fits": 1, "cordoned": 1}
    told = site.desk.explanation("ml", "r1")
    assert told is not None
    assert told.reasons == refused.reasons


def test_case_d02_a_refusal_names_the_row_of_the_quota_that_bars() -> None:
    site = Site(
        [*models(), *quota("ml", {"model": "a-40", "cards": 0})],
        inventory("n1", *cards("n1", "A-40", 2)),
    )
    refused = site.refused()
    assert refused.code == "model_quota_exceeded"
    assert "a-40" in str(refused.details["cap"])


def test_case_d05_a_node_that_is_heard_and_has_said_nothing_is_no_no_match() -> None:
    site = Site([*models(), *quota("ml")])
    assert site.refused().code == "never_fits"
    site.desk.without_inventory = lambda: ["n9"]
    refused = site.refused()
    assert (refused.code.value, refused.verdict) == ("inventory_missing", "not_now")
    assert reasons(refused)["inventory_missing"] == 1


def test_a_node_that_nobody_knows_is_said_to_be_none_and_the_one_that_was_meant_is_named() -> None:
    closed = doc("Pool", "secret", selector={"nodes": ["gpu-02"]}, tenants=["bio"])
    site = Site(
        [*models(), *quota("ml"), *quota("bio"), closed],
        inventory("gpu-01", *cards("gpu-01", "A-80", 2)),
        inventory("gpu-02", *cards("gpu-02", "A-80", 2)),
    )
    refused = site.refused(constraints={"nodes": ["gpu-1"]})
    assert (refused.code.value, refused.verdict) == ("never_fits", "never_fits")
    assert refused.message == "there is no node gpu-1; did you mean 'gpu-01'?"
    assert refused.reasons == (), "what other nodes lack is not why"
    refused = site.refused(constraints={"nodes": ["gpu-022"]})
    assert "gpu-02'" not in refused.message, "it is in a pool that is closed to the asker"
    site.desk.without_inventory = lambda: ["gpu-1"]
    assert site.refused(constraints={"nodes": ["gpu-1"]}).code == "inventory_missing"


def test_case_d07_quota_that_is_free_is_no_capacity_and_stays_untouched() -> None:
    site = Site([*models(), *quota("ml"), *quota("bio")], inventory("n1", *cards("n1", "A-80", 1)))
    site.granted("bio")
    assert site.refused("ml").code == "no_capacity"
    assert site.used("ml") == {}


def test_configuration_is_told_before_capacity() -> None:
    site = Site(
        [*models(), *quota("ml")],
        inventory("n1", *cards("n1", "A-80", 1)),
        inventory("n2", *cards("n2", "A-80", 1)),
        inventory("n3", *cards("n3", "A-80", 1)),
    )
    site.granted(constraints={"nodes": ["n3"]})
    site.apply(
        ledger.CordonChanged(at_ms=AT_MS, node="n1", cordoned=True, by="op"),
        ledger.LivenessChanged(at_ms=AT_MS, node="n2", liveness="suspect", heard_ms=AT_MS),
    )
    refused = site.refused()
    assert [r.code.value for r in refused.reasons] == ["cordoned", "node_suspect", "no_capacity"]
    assert refused.verdict == "not_now"


def test_case_g07_of_a_suspect_node_nothing_is_granted() -> None:
    site = Site([*models(), *quota("ml")], inventory("n1", *cards("n1", "A-80", 1)))
    site.apply(ledger.LivenessChanged(at_ms=AT_MS, node="n1", liveness="suspect", heard_ms=AT_MS))
    assert site.refused().code == "node_suspect"


def test_case_h04_a_card_that_somebody_else_uses_is_not_granted() -> None:
    used = cards("n1", "A-80", 1)[0].model_copy(update={"foreign_bytes": 60 * 2**30})
    site = Site([*models(), *quota("ml")], inventory("n1", used))
    assert site.refused().code == "foreign_use"


def test_case_i03_one_bad_card_leaves_its_siblings_grantable() -> None:
    good = cards("n1", "A-80", 4)
    bad = good[3].model_copy(update={"health": DeviceHealth.FAILED, "health_reason": "lost"})
    site = Site([*models(), *quota("ml")], inventory("n1", *good[:3], bad))
    assert site.refused(cards=4).code == "device_unhealthy"
    assert {d.index for d in site.granted(cards=3).devices} == {0, 1, 2}


# --- gangs ------------------------------------------------------------------------------------


def test_case_e01_of_two_gangs_that_need_all_one_is_whole_and_one_holds_nothing() -> None:
    site = Site(
        [*models(), *quota("ml"), *quota("bio")],
        *(inventory(f"n{i}", *cards(f"n{i}", "A-80", 2)) for i in range(4)),
    )
    one = site.granted(cards=2, nodes=4)
    assert len({d.node for d in one.devices}) == 4
    assert site.refused("bio", cards=2, nodes=4).verdict == "not_now"
    assert site.used("bio") == {}
    site.over(one)
    assert len(site.granted("bio", cards=2, nodes=4).devices) == 8


def test_case_e02_enough_in_sum_but_not_in_pieces_is_fragmented_and_holds_nothing() -> None:
    """Twelve members need twelve nodes: ten of six cards could never do, and say so; where the
    nodes are there and some are half taken, it is fragmentation.
    """
    ten = [inventory(f"n{i:02}", *cards(f"n{i:02}", "A-80", 6)) for i in range(10)]
    more = [inventory(f"n{i:02}", *cards(f"n{i:02}", "A-80", 6)) for i in range(10, 12)]
    site = Site([*models(), *quota("ml"), *quota("bio")], *ten)
    assert site.refused(cards=4, nodes=12).verdict == "never_fits"
    for one in more:
        site.report(one)
        site.granted("bio", cards=4, constraints={"nodes": [one.node]})
    refused = site.refused(cards=4, nodes=12)
    assert (refused.code.value, refused.verdict) == ("fragmented", "not_now")
    assert site.used("ml") == {}


def test_case_e03_what_fits_is_placed_whatever_the_order_of_nodes() -> None:
    """Thirty and fifty on nodes of fifty-three and thirty-one."""
    for order in ((0, 1), (1, 0)):
        nodes = [
            inventory("n1", *cards("n1", "A-80", 53)),
            inventory("n2", *cards("n2", "A-80", 31)),
        ]
        site = Site([*models(), *quota("ml")], *(nodes[i] for i in order))
        placed = [site.granted(cards=count).devices[0].node for count in (30, 50)]
        assert placed == ["n2", "n1"]


def test_a_gang_may_spread_over_node_classes_but_is_of_one_model_and_pool() -> None:
    site = Site(
        [*models(), *quota("ml")],
        inventory("n1", *cards("n1", "A-80", 1), labels={"rack": "1"}),
        inventory("n2", *cards("n2", "A-80", 1), labels={"rack": "2"}),
        inventory("n3", *cards("n3", "A-40", 1)),
    )
    assert {d.node for d in site.granted(nodes=2).devices} == {"n1", "n2"}
    assert site.refused(nodes=2).verdict == "not_now"


# --- quota ------------------------------------------------------------------------------------


def test_case_a01_a_cap_per_model_bars_that_model_alone() -> None:
    site = Site(
        [*models(), *quota("ml", {"model": "a-80", "cards": 1}, {"model": "a-40", "cards": 1})],
        inventory("n1", *cards("n1", "A-80", 4)),
        inventory("n2", *cards("n2", "A-40", 4)),
    )
    site.granted(accelerator=only("a-80"))
    assert site.refused(accelerator=only("a-80")).code == "model_quota_exceeded"
    site.granted(accelerator=only("a-40"))


def test_case_a03_a_cap_per_model_and_one_in_units_hold_in_one_request() -> None:
    """Over two pools of two vendors, asked on one path (A11, A18)."""
    caps = ({"class": "train_llm", "units": "2"}, {"model": "a-80", "cards": 1})
    pools = [
        doc("Pool", "green", selector={"vendors": ["nvidia"]}),
        doc("Pool", "red", selector={"vendors": ["amd"]}),
    ]
    site = Site(
        [*models(), *quota("ml", *caps), *pools],
        inventory("n1", *cards("n1", "A-80", 4)),
        inventory("n2", *cards("n2", "RED-192", 4, "amd")),
    )
    site.granted(accelerator=only("a-80"))
    assert site.refused(accelerator=only("a-80")).code == "model_quota_exceeded"
    site.granted(accelerator=only("red-192"))
    assert site.refused(accelerator=only("red-192")).code == "quota_exceeded"


def test_case_a09_two_cards_count_twice() -> None:
    site = both()
    site.granted(cards=2, accelerator=only("a-40"))
    assert site.used() == {"a-40": (2, 1_000_000)}


def test_case_a13_a_family_cap_and_one_of_its_variants_hold_together() -> None:
    caps = ({"family": "a", "cards": 8}, {"model": "a-80", "cards": 6})
    site = Site(
        [*models(), *quota("ml", *caps)],
        inventory("n1", *cards("n1", "A-80", 10)),
        inventory("n2", *cards("n2", "A-40", 10)),
    )
    site.granted(cards=6, accelerator=only("a-80"))
    assert site.refused(accelerator=only("a-80")).code == "model_quota_exceeded"
    site.granted(cards=2, accelerator=only("a-40"))
    assert site.refused(accelerator=only("a-40")).code == "family_quota_exceeded"


def test_case_a14_without_a_quota_in_the_class_nothing_is_granted() -> None:
    documents = [*models(), doc("Tenant", "ml"), doc("Quota", "ml", tenant="ml", caps=[])]
    site = Site(documents, inventory("n1", *cards("n1", "A-80", 1)))
    assert site.refused().code == "no_quota_defined"
    assert site.refused("stranger").code == "no_quota_defined"


def test_case_g04_every_way_out_leaves_no_quota_behind() -> None:
    site = both()
    leases = [site.granted() for _ in range(3)]
    site.end(leases[0])
    site.over(leases[1])
    site.apply(ledger.LeaseFailed(at_ms=AT_MS, lease=leases[2].lease, code="adapter_error"))
    assert site.used() == {}
    assert not site.state.quotas.used


def test_case_l04_two_pools_race_for_a_tenants_last_unit_and_one_wins() -> None:
    pools = [doc("Pool", f"p{i}", selector={"nodes": [f"n{i}"]}) for i in (1, 2)]
    site = Site(
        [*models(), *quota("ml", {"class": "train_llm", "units": "1"}), *pools],
        inventory("n1", *cards("n1", "A-80", 1)),
        inventory("n2", *cards("n2", "A-80", 1)),
    )
    site.granted(constraints={"pools": ["p1"]})
    assert site.refused(constraints={"pools": ["p2"]}).code == "quota_exceeded"


def test_a_lowered_quota_leaves_what_runs_and_refuses_what_is_new() -> None:
    site = both()
    running = site.granted(cards=4, accelerator=only("a-80"))
    lowered = [*models(), *quota("ml", {"class": "train_llm", "units": "2"})]
    site.adopt(lowered, 2)
    assert site.used() == {"a-80": (4, 4_000_000)}
    assert site.refused().code == "quota_exceeded"
    site.over(running)
    site.granted(cards=2, accelerator=only("a-80"))


def test_a_model_that_leaves_the_catalog_leaves_its_leases_as_they_are() -> None:
    site = both()
    running = site.granted(accelerator=only("a-80"))
    site.adopt([*models()[1:], *quota("ml")], 2)
    assert site.state.leases[running.lease].devices == running.devices
    assert site.used() == {"a-80": (1, 1_000_000)}
    assert site.decide(objective="fastest")[2].offer.model == "red-192"
    site.over(running)
    assert site.used() == {}
