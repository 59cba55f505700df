"""One placer, a real server, agents that answer, refuse, are silent or reboot."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintal.contracts import nodes, placement, subjects
from quintal.contracts.message import Refusal
from tests.placer.town import town
from tests.placer.world import cards, request, until
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.bus, pytest.mark.timeout(90)]

QUICK = {"QUINTAL_PLACER_SUSPECT_MS": "1500", "QUINTAL_PLACER_LOST_MS": "3000",
         "QUINTAL_PLACER_FLAP_MS": "500", "QUINTAL_PLACER_BIND_S": "0.7"}  # fmt: skip


async def test_a_lease_is_placed_renewed_and_released(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    devices = {"n1": cards("n1", "BIG-80", 4), "n2": cards("n2", "RED-192", 2, "amd")}
    async with town(fresh_nats, tmp_path, devices=devices) as its:
        dry = await its.ml.request(subjects.DRY_RUN, request("one", cards=2))
        assert isinstance(dry, placement.Verdict)
        assert dry.lease is not None
        lease = await its.place(request("one", cards=2))
        assert (lease.kind, lease.state) == ("lease", "bound")
        assert lease.devices == dry.lease.devices
        node = lease.devices[0].node
        assert set(its.agents[node].leases) == {lease.lease}
        assert (await its.place(request("one", cards=2))).lease == lease.lease
        other = await its.place(request("one", cards=3))
        assert isinstance(other, Refusal)
        assert other.code == "conflict"

        renewed = await its.ml.ask(subjects.RENEW, placement.RenewAsk(lease=lease.lease))
        assert 299_000 < renewed.expires_in_ms <= 300_000
        longer = placement.RenewAsk(lease=lease.lease, ttl_ms=600_000)
        assert (await its.ml.ask(subjects.RENEW, longer)).ttl_ms == 600_000

        await its.ml.ask(subjects.RELEASE, placement.ReleaseAsk(lease=lease.lease))
        await its.state_is(lease.lease, "ended")
        assert not its.agents[node].leases
        assert {device.state for device in (await its.devices()).values()} == {"free"}

        refused = await its.place(request("big", cards=5))
        assert isinstance(refused, Refusal)
        told = await its.ml.ask(subjects.EXPLAIN, placement.ExplainAsk(request_id="big"))
        assert told.verdict == refused.verdict == "never_fits"
        assert told.reasons
        check = await its.audited()
        assert check.leases[lease.lease].effective_ms is not None


async def test_case_g09_a_refused_bind_goes_elsewhere_and_marks_the_devices(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    devices = {"n1": cards("n1", "BIG-80", 1), "n2": cards("n2", "BIG-80", 1)}
    async with town(fresh_nats, tmp_path, devices=devices, **QUICK) as its:
        its.agents["n1"].refuse = "foreign_use"
        lease = await its.place(request("one"))
        assert [device.node for device in lease.devices] == ["n2"]
        assert its.agents["n1"].binds == 1  # not again and again
        state = await its.devices()
        assert [d.state for d in state.values() if d.node == "n1"] == ["disputed"]
        refused = await its.place(request("two"))
        assert isinstance(refused, Refusal)
        assert refused.code == "disputed"

        its.agents["n1"].refuse = None
        uuid = its.agents["n1"].devices[0].uuid
        await its.operator.ask(
            subjects.CLEAR_DISPUTE, placement.ClearDisputeAsk(node="n1", uuid=uuid)
        )
        again = await its.place(request("two"))
        assert [device.node for device in again.devices] == ["n1"]
        await its.audited()


async def test_a_bind_without_an_answer_holds_its_device_until_the_agent_speaks(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    devices = {"n1": cards("n1", "BIG-80", 1), "n2": cards("n2", "BIG-80", 1)}
    async with town(fresh_nats, tmp_path, devices=devices, **QUICK) as its:
        its.agents["n1"].deaf = True
        lease = await its.place(request("one"))
        assert [device.node for device in lease.devices] == ["n2"]
        held = await its.ml.ask(subjects.LIST, placement.ListAsk(states=("ending",)))
        assert [(le.reason, le.devices[0].node) for le in held.leases] == [("bind_unknown", "n1")]
        assert isinstance(await its.place(request("two")), Refusal)

        its.agents["n1"].deaf = False
        await its.state_is(held.leases[0].lease, "ended")
        assert not its.agents["n1"].leases
        again = await its.place(request("two"))
        assert [device.node for device in again.devices] == ["n1"]
        await its.audited()


async def test_case_g02_g03_g07_a_silent_node_is_granted_nothing_and_comes_back_by_itself(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """And case G06: its lease survives, and is there again."""
    async with town(fresh_nats, tmp_path, devices={"n1": cards("n1", "BIG-80", 2)}, **QUICK) as its:
        lease = await its.place(request("one"))
        its.agents["n1"].silent = True

        async def liveness() -> str:
            fleet = await until(its.fleet)
            return fleet.nodes[0].liveness

        async def lost() -> bool:
            return await liveness() == "lost"

        await until(lost)
        refused = await its.place(request("two"))
        assert isinstance(refused, Refusal)
        assert refused.code == "node_suspect"
        renew = placement.RenewAsk(lease=lease.lease)
        assert isinstance(await its.ml.request(subjects.RENEW, renew), Refusal)

        its.agents["n1"].silent = False

        async def ready() -> bool:
            return await liveness() == "ready"

        await until(ready)
        assert (await its.lease(lease.lease)).state == "bound"
        assert isinstance(await its.ml.request(subjects.RENEW, renew), placement.Lease)
        assert isinstance(await its.place(request("two")), placement.Lease)


async def test_a_reboot_ends_the_leases_of_its_node_and_frees_its_devices(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with town(fresh_nats, tmp_path, devices={"n1": cards("n1", "BIG-80", 1)}) as its:
        lease = await its.place(request("one"))
        its.agents["n1"].reboot("boot-2")
        ended = await its.state_is(lease.lease, "ended")
        assert ended.reason == "rebooted"
        await its.agents["n1"].report()
        again = await its.place(request("two"))
        assert again.devices[0].uuid == lease.devices[0].uuid
        await its.audited()


async def test_law_13_an_agent_speaks_for_its_own_node_whatever_its_fields_say(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    devices = {"n1": cards("n1", "BIG-80", 1), "n2": cards("n2", "RED-192", 1, "amd")}
    async with town(fresh_nats, tmp_path, devices=devices) as its:
        lease = await its.place(request("one", accelerator={"vendors": ["nvidia"]}))
        liar = its.agents["n2"].bus
        beat = nodes.Heartbeat(node="n1", boot_id="forged", sequence=1, at_ms=1)
        for name in ("n1", "n9"):
            said = nodes.Inventory(node=name, boot_id="forged", sequence=1, at_ms=1)
            await liar.publish(subjects.INVENTORY, said, node="n2")
        await liar.publish(subjects.HEARTBEAT, beat, node="n2")
        await liar.flush()
        assert isinstance(await its.place(request("two", cards=9)), Refusal)  # after all of that
        got = await its.ml.ask(subjects.GET, placement.GetAsk(lease=lease.lease))
        assert got.state == "bound"
        fleet = await its.fleet()
        assert fleet is not None
        assert {(n.node, len(n.devices)) for n in fleet.nodes} == {("n1", 1), ("n2", 1)}


async def test_an_inventory_that_says_nothing_new_is_not_asked_for_again_and_again(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """Its sequence is a new one; the ledger has no record of it, and needs none."""
    async with town(fresh_nats, tmp_path, devices={"n1": cards("n1", "BIG-80", 1)}) as its:
        agent = its.agents["n1"]
        await agent.report()
        before = agent.sequence
        await its.state_is((await its.place(request("one"))).lease, "bound")
        import asyncio

        await asyncio.sleep(4)
        assert agent.sequence == before


async def test_a_placer_without_catalog_answers_and_begins_when_one_comes(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    from quintal.contracts.subjects import Role
    from tests.placer.town import Town
    from tests.placer.world import small_catalog, write_catalog

    its = Town(fresh_nats, tmp_path)
    try:
        store = await its.bus("catalog", Role.CATALOG_BACK)
        await its.add_agent("n1", cards("n1", "BIG-80", 1))
        its.add_placer(QUINTAL_PLACER_CATALOG_POLL_S="0.5")
        await its.ready()
        refused = await its.place(request("one"))
        assert isinstance(refused, Refusal)
        assert refused.code == "no_quota_defined"
        assert [d.model for d in (await its.devices()).values()] == [None]
        await write_catalog(store, small_catalog())

        async def known() -> bool:
            return [d.model for d in (await its.devices()).values()] == ["big-80"]

        await until(known)
        assert isinstance(await its.place(request("one")), placement.Lease)
        await its.audited()
    finally:
        await its.close()


async def test_a_snapshot_by_the_leader_is_what_the_next_start_begins_from(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with town(fresh_nats, tmp_path, devices={"n1": cards("n1", "BIG-80", 2)}) as its:
        lease = await its.place(request("one"))
        done = await its.operator.ask(subjects.SNAPSHOT, placement.SnapshotAsk(), timeout_s=10)
        assert "snapshot of" in done.message
        assert its.placers[0].stop() == 0
        its.placers[0].start()
        assert (await its.lease(lease.lease)).state == "bound"
        assert "1 leases" in its.placers[0].log()
        assert (await its.place(request("one"))).lease == lease.lease
