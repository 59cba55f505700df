"""Gangs that lost a node: what is kept for them, from whom, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from quintal.contracts import ledger
from quintal.contracts.message import Refusal
from quintal_placer import facts, repairing
from tests.laws.audit import restored
from tests.placer.site import AT_MS, Site, asked, inventory, models, quota
from tests.placer.test_engine import cards
from tests.placer.world import doc

TTL_MS = 300_000
GANG = {"cards": 2, "nodes": 3, "bind": "none"}
WAITS = {"wait": {"mode": "queue", "deadline_ms": 86_400_000}}


def town(nodes: int = 3) -> Site:
    high = doc("PriorityClass", "high", value=100)
    return Site(
        [*models(), *quota("ml"), *quota("bio"), high],
        *(inventory(f"n{i}", *cards(f"n{i}", "A-80", 2)) for i in range(nodes)),
    )


def broken(site: Site) -> ledger.LeaseGranted:
    """A gang of three whose node n1 boots anew, is away, and whose other nodes have let go."""
    gang = site.granted(**GANG)
    site.apply(*facts.reboot_records(site.state, "n1", AT_MS))
    for name in ("n0", "n2"):
        site.apply(ledger.NodeReleased(at_ms=AT_MS, lease=gang.lease, node=name, by="agent"))
    site.apply(ledger.LeaseEnded(at_ms=AT_MS, lease=gang.lease))
    away(site, "n1")
    return gang


def away(site: Site, name: str) -> None:
    site.apply(ledger.LivenessChanged(at_ms=AT_MS, node=name, liveness="suspect", heard_ms=AT_MS))


def back(site: Site, name: str) -> None:
    site.apply(ledger.LivenessChanged(at_ms=AT_MS, node=name, liveness="ready", heard_ms=AT_MS))


def waits(site: Site, tenant: str = "ml", **more: Any) -> ledger.LeaseQueued:
    """The request stands in line, as the queue would have it."""
    site._count += 1
    request = asked(site._count, **more, **WAITS)
    turn = site.desk.waiting.turn_now(tenant, request)
    name, _ = site.desk.next()
    record = ledger.LeaseQueued(
        at_ms=AT_MS, lease=name, tenant=tenant, request=request,
        deadline_ms=AT_MS + 86_400_000, since_ms=min(turn.since_ms, AT_MS),
    )  # fmt: skip
    site.apply(record)
    return record


def served(site: Site, waiting: ledger.LeaseQueued) -> bool:
    """Whether the one who waits would be granted now."""
    waiter = site.state.line.waiter(waiting.lease)
    assert waiter is not None
    return site.desk.fits(waiting.tenant, waiting.request, waiter.turn) is not None


def test_case_e04_a_gang_is_repaired_before_newcomers_when_its_node_returns() -> None:
    site = town()
    gang = broken(site)
    repair = waits(site, **GANG, repairs=gang.lease)
    assert not served(site, repair)
    newcomer = site.refused("bio", cards=2)
    assert newcomer.code == "no_capacity"
    assert "kept for a gang" in newcomer.message
    back(site, "n1")
    assert isinstance(site.ask("bio", cards=2), Refusal)
    assert served(site, repair)


def test_what_is_kept_is_free_and_nobody_has_it() -> None:
    site = town()
    broken(site)
    (row,) = site.state.census()
    assert (row.leased, row.free) == (0, 4_000_000)
    assert site.used("ml") == {}


def test_what_the_gang_did_not_hold_is_kept_from_nobody() -> None:
    site = town(nodes=4)
    broken(site)
    assert site.granted("bio", cards=2).devices[0].node == "n3"


def test_a_higher_priority_takes_what_is_kept() -> None:
    site = town()
    broken(site)
    site.granted("bio", cards=2, priority="high")


def test_it_is_kept_for_one_ttl_and_for_half_an_hour_once_the_repair_waits() -> None:
    site = town()
    gang = broken(site)
    site.writer.at_ms = AT_MS + TTL_MS - 1
    site.refused("bio", cards=2)
    repair = waits(site, **GANG, repairs=gang.lease)
    site.writer.at_ms = AT_MS + repairing.KEPT_MAX_MS - 1
    assert not served(site, repair)
    assert repairing.held(site.state, site.writer.at_ms)
    site.writer.at_ms = AT_MS + repairing.KEPT_MAX_MS
    assert not repairing.held(site.state, site.writer.at_ms)


def test_who_was_in_line_before_the_gang_was_granted_goes_before_it() -> None:
    site = town()
    early = waits(site, "bio", cards=2, constraints={"labels": {"rack": "r9"}})
    site.writer.at_ms = AT_MS + 1_000
    late = waits(site, "bio", cards=1, constraints={"labels": {"rack": "r9"}})
    gang = site.granted(**GANG)
    site.apply(*facts.reboot_records(site.state, "n1", AT_MS + 2_000))
    for record in (early, late):
        waiter = site.state.line.waiter(record.lease)
        assert waiter is not None
        assert not repairing.kept(site.state, "bio", waiter.turn, AT_MS)
    newcomer = site.desk.waiting.turn_now("bio", asked(99))
    assert {uuid for _, uuid in repairing.kept(site.state, "bio", newcomer, AT_MS)} == {
        device.uuid for device in gang.devices
    }
    assert not repairing.kept(site.state, "ml", newcomer, AT_MS)


def test_a_repaired_gang_keeps_nothing_more_and_is_repaired_once() -> None:
    site = town()
    gang = broken(site)
    back(site, "n1")
    whole = site.granted(**GANG, repairs=gang.lease)
    assert len({device.node for device in whole.devices}) == 3
    assert site.state.broken == {}
    refused = site.refused(**GANG, repairs=gang.lease)
    assert refused.code == "invalid_request"
    assert "not repaired" in refused.message


@pytest.mark.parametrize(
    ("tenant", "more", "said"),
    [
        ("bio", {}, "no gang of bio"),
        ("ml", {"repairs": "l9-9"}, "no gang of ml"),
        ("ml", {"nodes": 4}, "had 6 cards"),
    ],
)
def test_only_its_own_tenant_repairs_a_gang_and_asks_for_no_more(
    tenant: str, more: dict[str, Any], said: str
) -> None:
    site = town(nodes=5)
    gang = broken(site)
    refused = site.refused(tenant, **{**GANG, "repairs": gang.lease, **more})
    assert refused.code == "invalid_request"
    assert said in refused.message


def test_two_requests_do_not_repair_one_gang() -> None:
    site = town()
    gang = broken(site)
    waits(site, **GANG, repairs=gang.lease)
    assert "waits for that already" in site.refused(**GANG, repairs=gang.lease).message


def test_a_gang_that_its_tenant_ended_or_one_node_alone_is_not_broken() -> None:
    site = town()
    gang = site.granted(**GANG)
    site.over(gang)
    one = site.granted(cards=2, bind="none", constraints={"nodes": ["n1"]})
    site.apply(*facts.reboot_records(site.state, "n1", AT_MS))
    assert one.lease not in site.state.broken
    assert site.state.broken == {}


def test_a_replay_keeps_the_same_for_the_same() -> None:
    site = town()
    gang = broken(site)
    waits(site, **GANG, repairs=gang.lease)
    again = restored(site.state, 1)
    assert list(again.broken) == [gang.lease]
    turn = site.desk.waiting.turn_now("bio", asked(99))
    kept = repairing.kept(site.state, "bio", turn, AT_MS)
    assert len(kept) == 6
    assert repairing.kept(again, "bio", turn, AT_MS) == kept
    assert repairing.held(again, AT_MS + TTL_MS + 1)
