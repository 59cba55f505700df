"""The rooms beside the engine: lease table, limits, environments, adoption, facts, snapshots."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from quintal.contracts import ledger, placement
from quintal.contracts.message import Refusal
from quintal.contracts.placement import LeaseDevice
from quintal_placer import environment, facts, snapshots
from quintal_placer.adoption import adoption_record
from quintal_placer.engine.leases import TABLE, TERMINAL, IllegalMove, State, follow
from quintal_placer.limits import TenantLimits
from quintal_placer.operations import retire
from tests.laws.audit import check_state, restored
from tests.placer.site import AT_MS, Site, inventory, models, only, quota
from tests.placer.world import cards, doc

# --- the lease table --------------------------------------------------------------------------


def test_every_state_has_its_row_and_only_four_are_terminal() -> None:
    assert set(TABLE) == set(State)
    assert {"ended", "failed", "refused", "cancelled"} == TERMINAL
    assert all(not TABLE[state].holds_quota for state in (State.ENDING, *TERMINAL))
    assert [s for s in State if TABLE[s].paid_by == "tenant"] == [State.BOUND]


@pytest.mark.parametrize("state", list(State))
def test_a_record_that_the_table_does_not_allow_is_a_fault(state: State) -> None:
    kinds = {kind for row in TABLE.values() for kind in row.leaves_by}
    for kind in kinds:
        if kind in TABLE[state].leaves_by:
            assert follow(state, kind) in TABLE
        else:
            with pytest.raises(IllegalMove):
                follow(state, kind)


def test_the_table_has_a_record_for_each_of_its_kinds() -> None:
    kinds = {kind for row in TABLE.values() for kind in row.leaves_by}
    records = {
        record.model_fields["kind"].default
        for record in vars(ledger).values()
        if isinstance(record, type) and issubclass(record, ledger.Record)
        and "kind" in record.model_fields
    }  # fmt: skip
    assert kinds <= records


# --- limits -----------------------------------------------------------------------------------


def test_a_tenant_has_its_rate_and_so_many_at_once_and_costs_nobody_else() -> None:
    limits = TenantLimits(rate_per_s=10, in_flight_max=3)
    assert [limits.enter("a", 0.0) for _ in range(4)] == [None, None, None, 100]
    assert limits.enter("b", 0.0) is None
    for _ in range(7):
        limits.leave("a")
        assert limits.enter("a", 0.0) is None
    limits.leave("a")
    assert limits.enter("a", 0.0) == 100  # the burst is used up: a tenth of a second
    assert limits.enter("a", 0.11) is None


# --- environments -----------------------------------------------------------------------------


def device(vendor: str, index: int, uuid: str = "", model: str = "m") -> LeaseDevice:
    return LeaseDevice(
        node="n1", uuid=uuid or f"{vendor}-{index}", index=index, vendor=vendor, model=model,
        pool="p", rating_micro=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (("nvidia", "GPU-1"), {"CUDA_VISIBLE_DEVICES": "GPU-1"}),
        (("nvidia", ""), {"CUDA_VISIBLE_DEVICES": "3"}),
        (("amd", "GPU-abc"), {"ROCR_VISIBLE_DEVICES": "GPU-abc"}),
        (("huawei", ""), {"ASCEND_RT_VISIBLE_DEVICES": "3"}),
        (("intel", ""), {"ZE_AFFINITY_MASK": "3"}),
        (("aws", ""), {}),
        (("nvidia", "GPU-1", "MIG-7"), {"CUDA_VISIBLE_DEVICES": "MIG-7"}),
        (("huawei", "", "vnpu-1"), {"ASCEND_RT_VISIBLE_DEVICES": "3"}),
        (("cpu", ""), {}),
    ],
)
def test_a_process_is_told_its_devices_in_its_vendors_way(
    devices: tuple[str, ...], expected: dict[str, str]
) -> None:
    vendor, uuid, *partition = devices
    its = device(vendor, 3, uuid).model_copy(update={"partition": next(iter(partition), None)})
    found = environment.environment([its]).get("n1", {})
    assert found == expected


def test_gaudi_is_intels_by_name_and_habanas_by_software() -> None:
    gaudi = device("intel", 2, model="intel-gaudi3")
    assert environment.environment([gaudi]) == {"n1": {"HABANA_VISIBLE_DEVICES": "2"}}
    assert environment.cdi([gaudi]) == ("intel.com/gaudi=2",)


def test_two_cards_are_one_list() -> None:
    both = [device("nvidia", 0, "GPU-a"), device("nvidia", 1, "GPU-b")]
    assert environment.environment(both) == {"n1": {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}}
    assert environment.cdi(both) == ("nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b")


# --- adoption ---------------------------------------------------------------------------------


def adopting(number: int = 1, **more: Any) -> placement.AdoptAsk:
    fields = {"request_id": f"a{number}", "tenant": "ml", "node": "n1", "devices": ["0"]}
    return placement.AdoptAsk.model_validate({**fields, "class": "train_llm", **more})


def adopted(site: Site, **more: Any) -> ledger.LeaseGranted:
    record = adoption_record(site.desk, adopting(**more))
    assert isinstance(record, ledger.LeaseGranted), record
    site.apply(record)
    return record


def a_site(*documents: Any) -> Site:
    return Site([*models(), *(documents or quota("ml"))], inventory("n1", *cards("n1", "A-80", 4)))


def test_adoption_skips_cordon_taint_and_foreign_use_and_is_bound_at_once() -> None:
    site = a_site()
    site.apply(
        ledger.CordonChanged(at_ms=AT_MS, node="n1", cordoned=True, by="op"),
        ledger.TaintChanged(at_ms=AT_MS, node="n1", taint="t", present=True, by="op"),
    )
    record = adopted(site)
    lease = site.state.leases[record.lease]
    assert (lease.state, lease.adopted, lease.unbound) == (State.BOUND, True, True)
    assert site.used() == {"a-80": (1, 1_000_000)}


def test_adoption_of_a_held_device_is_a_conflict() -> None:
    site = a_site()
    record = adopted(site)
    again = adoption_record(site.desk, adopting(2))
    assert isinstance(again, Refusal)
    assert again.code == "conflict"
    assert record.lease in again.message


def test_adoption_over_quota_is_recorded_unless_the_quota_refuses_it() -> None:
    cap = {"class": "train_llm", "units": "1"}
    site = a_site(*quota("ml", cap))
    assert adopted(site).over_by == {}
    over = adopted(site, number=2, devices=["1"])
    assert list(over.over_by.values()) == ["1"]
    assert site.refused().code == "quota_exceeded"
    strict = a_site(*quota("ml", cap, adopt="refuse"))
    adopted(strict)
    refused = adoption_record(strict.desk, adopting(2, devices=["1"]))
    assert isinstance(refused, Refusal)
    assert refused.code == "quota_exceeded"


def test_adoption_where_no_quota_is_defined_says_so() -> None:
    """Case A14, for who cannot be refused: the card is in use already."""
    site = a_site(doc("Tenant", "ml"))
    assert adopted(site).over_by == {"no quota in train_llm": "1"}
    empty = doc("Quota", "ml", tenant="ml", caps=[], adopt="refuse")
    refused = adoption_record(a_site(doc("Tenant", "ml"), empty).desk, adopting())
    assert isinstance(refused, Refusal)
    assert refused.code == "no_quota_defined"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"node": "n9"}, "not_found"),
        ({"tenant": "nobody"}, "not_found"),
        ({"devices": ["9"]}, "not_found"),
        ({"devices": ["0", "GPU-n1-A-80-0"]}, "invalid_request"),
        ({"project": "other"}, "invalid_request"),
        ({"class": "vision"}, "unrated"),
    ],
)
def test_adoption_of_what_is_not_there_is_refused(more: dict[str, Any], code: str) -> None:
    refused = adoption_record(a_site().desk, adopting(**more))
    assert isinstance(refused, Refusal)
    assert refused.code == code


# --- facts ------------------------------------------------------------------------------------


def test_a_restart_without_change_says_nothing() -> None:
    site = a_site()
    again = inventory("n1", *cards("n1", "A-80", 4)).model_copy(update={"sequence": 7})
    assert site.report(again) == []


def test_a_held_device_that_vanishes_stays_counted_as_failed_until_its_lease_lets_go() -> None:
    site = a_site()
    held = site.granted(cards=4)
    rest = inventory("n1", *cards("n1", "A-80", 4)[1:])
    assert [record.kind for record in site.report(rest)] == ["device_health"]
    check_state(site.state)
    site.over(held)
    assert [record.kind for record in site.report(rest)] == ["device_gone"]
    assert site.report(rest) == []


def test_one_card_seen_on_two_nodes_is_nobodys() -> None:
    site = a_site()
    site.report(inventory("n2", *cards("n1", "A-80", 1)))
    uuid = cards("n1", "A-80", 1)[0].uuid
    for name in ("n1", "n2"):
        assert site.state.fleet.nodes[name].devices[uuid].disputed == "duplicate_device"
    assert len(site.granted(cards=3).devices) == 3


def test_a_copied_uuid_stops_new_grants_of_that_card_and_nothing_else() -> None:
    site = a_site()
    held = site.granted(cards=1, bind="none")
    (device,) = held.devices
    copied = next(c for c in cards("n1", "A-80", 4) if c.uuid == device.uuid)
    site.report(inventory("n2", copied))
    assert site.state.leases[held.lease].state is State.BOUND
    (row,) = [row for row in site.state.census() if row.model == "a-80"]
    assert (row.leased, row.unavailable) == (1_000_000, {"disputed": 1_000_000})
    site.apply(ledger.LivenessChanged(at_ms=AT_MS, node="n2", liveness="lost", heard_ms=AT_MS))
    assert site.state.fleet.nodes["n1"].devices[device.uuid].disputed == "duplicate_device"
    site.over(held)
    assert device.uuid not in {d.uuid for d in site.granted(cards=3).devices}
    site.report(inventory("n2"))
    assert not site.state.fleet.nodes["n1"].devices[device.uuid].disputed


def gang(site: Site) -> ledger.LeaseGranted:
    return site.granted(cards=2, nodes=2, accelerator=only("a-80"))


def two_nodes() -> Site:
    return Site(
        [*models(), *quota("ml")],
        inventory("n1", *cards("n1", "A-80", 2)),
        inventory("n2", *cards("n2", "A-80", 2)),
    )


def test_a_reboot_of_one_node_ends_the_gang_and_frees_that_node_alone() -> None:
    site = two_nodes()
    held = gang(site)
    site.writer.at_ms += 5_000
    site.report(inventory("n1", *cards("n1", "A-80", 2)).model_copy(update={"boot_id": "boot-2"}))
    lease = site.state.leases[held.lease]
    assert (lease.state, lease.reason, lease.waiting) == (State.ENDING, "rebooted", {"n2"})
    assert {d.node for d in site.granted(cards=2).devices} == {"n1"}
    check_state(site.state)
    site.apply(*facts.reboot_records(site.state, "n2", site.writer.at_ms))
    assert lease.state is State.ENDED
    check_state(site.state)


def test_a_retired_node_ends_the_gang_and_leaves_the_inventory() -> None:
    site = two_nodes()
    held = gang(site)
    records = retire(
        site.state, placement.RetireAsk(nodes=("n1",)), by="op", at_ms=site.writer.at_ms
    )
    assert isinstance(records, list)
    site.apply(*records)
    lease = site.state.leases[held.lease]
    assert (lease.state, lease.waiting) == (State.ENDING, {"n2"})
    assert set(site.state.fleet.nodes) == {"n2"}
    check_state(site.state)
    assert site.report(inventory("n1", *cards("n1", "A-80", 2))) == []  # the same boot
    check_state(restored(site.state, 1))


def test_another_catalog_gives_devices_other_models_and_pools() -> None:
    site = Site(quota("ml"), inventory("n1", *cards("n1", "A-80", 1)))
    known = site.state.fleet.nodes["n1"].devices.values()
    assert [(d.model, d.pool) for d in known] == [(None, "unassigned")]
    site.adopt([*models(), *quota("ml"), doc("Pool", "p", selector={"nodes": ["n1"]})], 2)
    assert [(d.model, d.pool) for d in known] == [("a-80", "p")]


# --- snapshots --------------------------------------------------------------------------------


def test_a_snapshot_whose_body_was_changed_does_not_check() -> None:
    data = bytearray(snapshots.dump(a_site().state, 3))
    snapshots.header_of(bytes(data))
    data[-1] ^= 1
    with pytest.raises(ValueError, match="hash"):
        snapshots.header_of(bytes(data))


def test_a_request_id_decides_for_a_day_after_the_end_and_no_longer() -> None:
    site = a_site()
    held = site.granted()
    site.over(held, AT_MS + 1_000)
    site.state.forget(AT_MS + 24 * 3_600_000)
    assert site.state.by_request == {("ml", "r1"): held.lease}
    site.state.forget(AT_MS + 1_000 + 24 * 3_600_000)
    assert (site.state.by_request, site.state.leases) == ({}, {})


def test_no_room_of_the_engine_knows_wire_or_time() -> None:
    folder = Path(snapshots.__file__).parent / "engine"
    world = re.compile(r"^(import|from) (asyncio|time|quintal\.(?!months))", re.MULTILINE)
    assert not [file for file in folder.glob("*.py") if world.search(file.read_text())]
