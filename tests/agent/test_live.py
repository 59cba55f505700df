"""The agent on a real bus: what it says, what it is told, and what an outage does to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from quintal.bus import Bus
from quintal.contracts import nodes, subjects
from quintal.contracts.message import Refusal
from quintal.contracts.subjects import Role
from quintal.errors import Code
from quintal.here import here
from quintal_agent.app import Agent
from quintal_agent.settings import Settings
from tests.agent.builders import GPU, Scripted, a_device, a_lease, reading, seen, settings
from tests.support.nats import NatsServer
from tests.support.wait import until

pytestmark = pytest.mark.bus


@dataclass
class Heard:
    """What a placer and a meter would have heard."""

    inventories: list[nodes.Inventory] = field(default_factory=list)
    beats: list[nodes.Heartbeat] = field(default_factory=list)
    health: list[nodes.HealthEvent] = field(default_factory=list)
    telemetry: list[nodes.Telemetry] = field(default_factory=list)


async def listening(nats: NatsServer) -> tuple[Bus, Bus, Heard]:
    heard = Heard()
    placer = await nats.bus("placer-1", Role.PLACER_BACK)
    meter = await nats.bus("metering", Role.METERING_BACK)
    await placer.hear(subjects.INVENTORY, lambda m, _: heard.inventories.append(m))
    await placer.hear(subjects.HEARTBEAT, lambda m, _: heard.beats.append(m))
    await placer.hear(subjects.HEALTH, lambda m, _: heard.health.append(m))
    await meter.hear(subjects.TELEMETRY, lambda m, _: heard.telemetry.append(m))
    await placer.flush()
    await meter.flush()
    return placer, meter, heard


@asynccontextmanager
async def running(agent: Agent) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(agent.run(stop))
    try:
        waiting = asyncio.create_task(agent.ready.wait())
        await asyncio.wait({task, waiting}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, 10)


def a_source() -> Scripted:
    return Scripted(
        seen(
            a_device(readings={"power_watts": reading(70.0)}),
            a_device("GPU-b", index=1),
            drivers={"nvidia": "570"},
            runtimes={"cuda": "12.8"},
        )
    )


def an_agent(own: Settings, source: Scripted, boot: str = "boot-1", sequence: int = 100) -> Agent:
    return Agent(own, [source], boot=boot, sequence=sequence)


async def test_an_agent_says_what_it_has_and_that_it_lives(
    nats: NatsServer, tmp_path: Path
) -> None:
    placer, meter, heard = await listening(nats)
    async with placer, meter:
        source = a_source()
        agent = an_agent(settings(nats.access("say-1", Role.AGENT), tmp_path), source)
        async with running(agent):
            await until(lambda: heard.inventories and len(heard.beats) > 2 and heard.telemetry)
        first = heard.inventories[0]
        assert (first.node, first.cluster, first.boot_id) == ("say-1", "north", "boot-1")
        assert [device.uuid for device in first.devices] == [GPU, "GPU-b"]
        beat = heard.beats[-1]
        assert beat.lease_version == nodes.lease_set_version({})
        assert beat.inventory_sequence == first.sequence
        assert heard.telemetry[0].columns["power_watts"] == (70.0, None)
        assert source.closed


async def test_a_lease_is_bound_told_to_the_workload_and_ended(
    nats: NatsServer, tmp_path: Path
) -> None:
    placer, meter, heard = await listening(nats)
    own = settings(nats.access("bind-1", Role.AGENT), tmp_path)
    async with placer, meter, running(an_agent(own, a_source())):
        ask = nodes.BindAsk(lease=a_lease("l-1", 7))
        done = await placer.ask(subjects.BIND, ask, node="bind-1")
        assert done.lease_version == nodes.lease_set_version({"l-1": 7})
        assert await placer.ask(subjects.BIND, ask, node="bind-1") == done
        await until(lambda: heard.beats[-1].lease_version == done.lease_version)
        found = here({}, own.lease_dir)
        assert (found.node, found.libraries["cuda"]) == ("bind-1", "12.8")
        ended = await placer.ask(subjects.END, nodes.EndAsk(lease="l-1", token=7), node="bind-1")
        assert ended.released == ("l-1",)
        assert not list(own.lease_dir.glob("*.json"))
        old = await placer.request(subjects.BIND, ask, node="bind-1")
        assert isinstance(old, Refusal)
        assert old.code is Code.CONFLICT


async def test_a_lease_and_its_fence_outlive_the_agents_process(
    nats: NatsServer, tmp_path: Path
) -> None:
    own = settings(nats.access("back-1", Role.AGENT), tmp_path)
    async with await nats.bus("placer-1", Role.PLACER_BACK) as placer:
        async with running(an_agent(own, a_source())):
            await placer.ask(subjects.BIND, nodes.BindAsk(lease=a_lease("l-1", 7)), node="back-1")
        agent = an_agent(own, a_source())
        async with running(agent):
            assert set(agent.keeper.state.leases) == {"l-1"}
            older = nodes.BindAsk(lease=a_lease("l-0", 6))
            answer = await placer.request(subjects.BIND, older, node="back-1")
            assert isinstance(answer, Refusal)
        rebooted = an_agent(own, a_source(), boot="boot-2")
        async with running(rebooted):
            assert not rebooted.keeper.state.leases
            answer = await placer.request(subjects.BIND, older, node="back-1")
            assert isinstance(answer, Refusal)
            assert not list(own.lease_dir.glob("*.json"))


async def test_the_placers_whole_set_becomes_the_nodes(nats: NatsServer, tmp_path: Path) -> None:
    placer, meter, heard = await listening(nats)
    own = settings(nats.access("set-1", Role.AGENT), tmp_path)
    async with placer, meter, running(an_agent(own, a_source())):
        await placer.ask(subjects.BIND, nodes.BindAsk(lease=a_lease("l-1", 7)), node="set-1")
        before = len(heard.inventories)
        ask = nodes.SetAsk(
            leases=(a_lease("l-2", 8, "GPU-b"),), ended=("l-1", "l-0"), inventory_wanted=True
        )
        done = await placer.ask(subjects.SET, ask, node="set-1")
        assert set(done.released) == {"l-1", "l-0"}
        assert done.lease_version == nodes.lease_set_version({"l-2": 8})
        await until(lambda: len(heard.inventories) > before)


async def test_case_h04_a_busy_card_is_refused_over_the_bus(
    nats: NatsServer, tmp_path: Path
) -> None:
    source = Scripted(seen(a_device(memory_bytes=80 * 2**30, busy_bytes=60 * 2**30)))
    own = settings(nats.access("busy-1", Role.AGENT), tmp_path)
    async with (
        await nats.bus("placer-1", Role.PLACER_BACK) as placer,
        running(an_agent(own, source)),
    ):
        answer = await placer.request(subjects.BIND, nodes.BindAsk(lease=a_lease()), node="busy-1")
        assert isinstance(answer, Refusal)
        assert (answer.code, answer.details["free_bytes"]) == (Code.FOREIGN_USE, 20 * 2**30)


async def test_lost_state_refuses_binds_until_someone_looked(
    nats: NatsServer, tmp_path: Path
) -> None:
    placer, meter, heard = await listening(nats)
    own = settings(nats.access("torn-1", Role.AGENT), tmp_path)
    own.state.mkdir()
    (own.state / "leases.json").write_bytes(b"\0\0\0")
    async with placer, meter, running(an_agent(own, a_source())):
        await until(lambda: heard.inventories)
        assert [p.code for p in heard.inventories[0].problems] == ["state_lost"]
        answer = await placer.request(subjects.BIND, nodes.BindAsk(lease=a_lease()), node="torn-1")
        assert isinstance(answer, Refusal)
        assert "delete the file" in answer.message
        await placer.ask(subjects.END, nodes.EndAsk(lease="l-1", token=1), node="torn-1")
    assert (own.state / "leases.json").read_bytes() == b"\0\0\0"


async def test_case_i03_a_device_that_fails_is_told_at_once_and_its_neighbour_stays(
    nats: NatsServer, tmp_path: Path
) -> None:
    placer, meter, heard = await listening(nats)
    source = a_source()
    own = settings(nats.access("sick-1", Role.AGENT), tmp_path)
    async with placer, meter, running(an_agent(own, source)):
        await until(lambda: heard.inventories)
        source.observation = seen(
            a_device(), a_device("GPU-b", index=1, health="failed", health_reason="lost")
        )
        await until(lambda: heard.health and len(heard.inventories) > 1)
        assert (heard.health[0].device, heard.health[0].code) == ("GPU-b", "lost")
        assert [d.health.value for d in heard.inventories[-1].devices] == ["ok", "failed"]
        bound = await placer.ask(subjects.BIND, nodes.BindAsk(lease=a_lease()), node="sick-1")
        assert bound.boot_id == "boot-1"


async def test_case_g06_an_outage_ends_no_lease_and_the_inventory_comes_again(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    own = settings(fresh_nats.access("cut-1", Role.AGENT), tmp_path)
    agent = an_agent(own, a_source())
    async with running(agent):
        async with await fresh_nats.bus("placer-1", Role.PLACER_BACK) as placer:
            await placer.ask(subjects.BIND, nodes.BindAsk(lease=a_lease("l-1", 7)), node="cut-1")
        fresh_nats.kill()
        await until(lambda: agent.spool.depth > 3, within_s=15)
        fresh_nats.start()
        placer, meter, heard = await listening(fresh_nats)
        async with placer, meter:
            await until(lambda: heard.beats, within_s=15)
            assert heard.beats[-1].lease_version == nodes.lease_set_version({"l-1": 7})
            assert set(agent.keeper.state.leases) == {"l-1"}
            while not await placer.read("INVENTORY", 1):  # bounded by the test's own time limit
                await asyncio.sleep(0.02)


async def test_readings_of_an_outage_come_later_in_order_under_their_own_times(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    own = settings(fresh_nats.access("cut-2", Role.AGENT), tmp_path)
    source = a_source()
    agent = an_agent(own, source)
    async with running(agent):
        fresh_nats.kill()
        await until(lambda: agent.spool.depth > 5, within_s=15)
        source.observation = seen(a_device(health="failed", health_reason="lost"))
        await until(lambda: agent.spool.waiting("health") > 1, within_s=15)
        fresh_nats.start()
        await until(lambda: agent.outbox.bus and agent.outbox.bus.connected, within_s=15)
        back_ms = agent.lookout.seen.at_ms
        await until(lambda: agent.spool.depth == 0, within_s=15)
    async with await fresh_nats.bus("metering", Role.METERING_BACK) as meter:
        stored = await meter.read("TELEMETRY", 1)
        said = [nodes.Telemetry.model_validate_json(one.data) for one in stored]
        events = [
            nodes.HealthEvent.model_validate_json(one.data) for one in await meter.read("HEALTH", 1)
        ]
    assert sum(message.at_ms < back_ms for message in said) > 5
    assert [m.sequence for m in said] == sorted(m.sequence for m in said)
    assert [m.at_ms for m in said] == sorted(m.at_ms for m in said)
    assert ("GPU-a", "lost") in {(event.device, event.code) for event in events}


async def test_a_reconnect_alone_brings_the_inventory_again(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    own = settings(fresh_nats.access("again-1", Role.AGENT), tmp_path, telemetry_s=600.0)

    async def stored(count: int) -> None:
        """Until the stream has had so many; bounded by the test's own time limit."""
        async with await fresh_nats.bus("placer-1", Role.PLACER_BACK) as placer:
            while (await placer.last("INVENTORY"))[1] < count:
                await asyncio.sleep(0.02)

    async with running(an_agent(own, a_source())):
        await stored(1)
        fresh_nats.kill()
        fresh_nats.start()
        await stored(2)


async def test_an_agent_waits_for_a_bus_that_comes_later(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    own = settings(fresh_nats.access("early-1", Role.AGENT), tmp_path)
    fresh_nats.kill()
    agent = an_agent(own, a_source())
    stop = asyncio.Event()
    task = asyncio.create_task(agent.run(stop))
    await until(lambda: agent.lookout.seen.devices)  # it looks although nobody hears it
    assert not task.done()
    fresh_nats.start()
    await asyncio.wait_for(agent.ready.wait(), 15)
    stop.set()
    await asyncio.wait_for(task, 10)
