"""Cases of leaks and of lists: an end lets go of all, and both vendors show."""

from __future__ import annotations

import pytest

from quintal.contracts import ledger, placement
from quintal.contracts.nodes import Telemetry
from quintal.units import PARTS
from quintal_placer import explaining, views
from quintal_placer.adoption import adoption_record
from quintal_placer.state import request_key
from quintal_placer.watch import Watch
from tests.placer.site import AT_MS, Site, asked, inventory, models, only, quota
from tests.placer.world import cards, doc


def a_site() -> Site:
    documents = [*models(), *quota("ml", *UNITS)]
    return Site(
        documents,
        inventory("n1", *cards("n1", "A-80", 8)),
        inventory("n2", *cards("n2", "RED-192", 8, "amd")),
    )


UNITS = ({"class": "train_llm", "units": "1000"}, {"class": "llm_large", "units": "1000"})


def held(site: Site) -> tuple[int, int, int]:
    """Devices held, micro-units counted against quota, parts that the census has as leased."""
    devices = [d for n in site.state.fleet.nodes.values() for d in n.devices.values()]
    return (
        sum(device.holder is not None for device in devices),
        sum(
            usage.micro for meter, usage in site.state.quotas.used.items() if meter.scope == "class"
        ),
        sum(row.leased for row in site.state.census()),
    )


def test_case_a16_a_fleet_of_two_vendors_is_listed_whole() -> None:
    site = a_site()
    fleet = views.fleet_view(site.state, placement.FleetAsk(), now_ms=AT_MS, sequence=1)
    assert {d.vendor for n in fleet.nodes for d in n.devices} == {"nvidia", "amd"}
    rows = views.capacity_view(site.state, placement.FleetAsk(), 1).rows
    assert {(row.vendor, row.devices) for row in rows} == {("nvidia", 8), ("amd", 8)}


def test_case_g01_a_lease_whose_end_was_never_told_expires_whole() -> None:
    """Devices, quota and meter together: nothing is left of it once its agent has let go."""
    site = a_site()
    lease = site.granted(cards=4, accelerator=only("a-80")).lease
    site.apply(ledger.LeaseBound(at_ms=AT_MS, lease=lease))
    devices, micro, leased = held(site)
    assert devices == 4
    assert micro > 0
    assert leased == 4_000_000
    at_ms = AT_MS + 300_000
    site.apply(ledger.LeaseEnding(at_ms=at_ms, lease=lease, reason="expired", effective_ms=at_ms))
    assert held(site) == (4, 0, 0), "quota and meter at once; devices when the agent says so"
    site.apply(
        ledger.NodeReleased(at_ms=at_ms, lease=lease, node="n1", by="agent"),
        ledger.LeaseEnded(at_ms=at_ms, lease=lease),
    )
    assert held(site) == (0, 0, 0)


def test_case_g05_the_debit_follows_the_live_set() -> None:
    """Give back and take again, over and over: what is counted is what is held."""
    site = a_site()
    for count in (8, 3, 5, 8, 1):
        lease = site.granted(cards=count, accelerator=only("a-80")).lease
        counted = {meter.scope: usage for meter, usage in site.state.quotas.used.items()}
        assert counted["class"].parts == count * PARTS
        site.apply(
            ledger.LeaseEnding(at_ms=AT_MS, lease=lease, reason="released", effective_ms=AT_MS),
            ledger.NodeReleased(at_ms=AT_MS, lease=lease, node="n1", by="agent"),
            ledger.LeaseEnded(at_ms=AT_MS, lease=lease),
        )
    assert not site.state.quotas.used


def test_case_g08_telemetry_never_reaches_what_allocates() -> None:
    """There is no way from a reading to the state: the watch hears no telemetry at all."""
    heard = [name for name in vars(Watch) if "telemetry" in name.lower()]
    assert heard == []
    from quintal.contracts import subjects
    from quintal.contracts.subjects import Role

    assert Role.PLACER_BACK not in subjects.TELEMETRY.hearers
    assert "lease" not in Telemetry.model_fields


def test_a_copied_uuid_is_disputed_only_while_it_is_copied() -> None:
    site = a_site()
    copied = cards("n1", "A-80", 8)[:1]
    site.report(inventory("liar", *copied))
    device = site.state.fleet.nodes["n1"].devices[copied[0].uuid]
    assert device.disputed
    site.report(inventory("liar"))
    assert not device.disputed


def test_a_private_profile_is_unknown_to_a_tenant() -> None:
    site = a_site()
    hidden = doc("Profile", "secret-plan", **{"class": "train_llm", "public": False})
    site.adopt([*models(), *quota("ml", *UNITS), hidden], 2)
    for name in ("secret-plan", "secret-plam"):
        told = site.refused(profile=name)
        assert told.code == "invalid_request"
        assert "did you mean" not in told.message


def test_case_a11_a_quota_holds_for_every_vendor_alike() -> None:
    for name in ("a-80", "red-192"):
        documents = [*models(), *quota("ml", {"class": "train_llm", "units": "1.5"})]
        site = Site(
            documents,
            inventory("n1", *cards("n1", "A-80", 8)),
            inventory("n2", *cards("n2", "RED-192", 8, "amd")),
        )
        assert site.refused(cards=2, accelerator=only(name)).code == "quota_exceeded"


def test_case_a18_one_request_path_over_pools_of_two_vendors() -> None:
    site = a_site()
    found = [site.granted(cards=8) for _ in range(2)]
    assert {device.vendor for record in found for device in record.devices} == {"nvidia", "amd"}


def test_case_g03_a_silent_node_is_lost_and_given_nothing() -> None:
    site = a_site()
    for liveness in ("suspect", "lost"):
        site.apply(
            ledger.LivenessChanged(at_ms=AT_MS, node="n1", liveness=liveness, heard_ms=AT_MS)
        )
        assert site.refused(accelerator=only("a-80")).code == "node_suspect"
    rows = {row.model: row for row in site.state.census()}
    assert rows["a-80"].unavailable == {"lost": 8_000_000}


def test_a_tenants_request_id_does_not_keep_a_job_of_that_name_from_being_adopted() -> None:
    site = a_site()
    mine = site.granted().lease
    job = placement.AdoptAsk(
        request_id="r1", tenant="ml", node="n1", devices=("7",), workload_class="train_llm"
    )
    record = adoption_record(site.desk, job)
    assert isinstance(record, ledger.LeaseGranted)
    site.apply(record)
    assert site.desk.by_request("ml", "r1").lease == mine
    assert site.desk.by_request("ml", request_key(job)).lease == record.lease


def test_nobody_evicts_what_another_tenant_asked_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "EXPLANATIONS_MAX", 3)
    site = a_site()
    site.desk.decide("bio", asked(0))
    for number in range(10):
        site.desk.decide("ml", asked(number))
    assert site.desk.explanation("bio", "r0") is not None
    assert site.desk.explanation("ml", "r0") is None
    assert site.desk.explanation("ml", "r9") is not None
