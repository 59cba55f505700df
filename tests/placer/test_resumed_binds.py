"""Agents that die or were just started, at the moment of a bind: no device is lost over it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quintal.contracts import placement, subjects
from quintal.contracts.message import Refusal
from quintal.errors import Code
from tests.placer.town import town
from tests.placer.world import cards, request, until
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.bus, pytest.mark.crash, pytest.mark.timeout(120)]


async def test_a_bind_that_a_dead_leader_sent_and_a_dead_agent_kept_holds_its_device(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """Nobody listens there any more, and still the device may be held: only its agent can say."""
    slow = {"QUINTAL_PLACER_BIND_S": "10"}
    async with town(
        fresh_nats, tmp_path, devices={"n1": cards("n1", "BIG-80", 1)}, placers=2, **slow
    ) as its:
        agent = its.agents["n1"]
        agent.deaf = True
        asking = asyncio.create_task(its.place(request("one")))

        async def kept() -> bool:
            return bool(agent.leases)

        await until(kept)
        await agent.stop()
        its.leader().kill()

        async def over() -> str | None:
            state = await its.audited()
            return next((le.reason for le in state.leases.values() if le.reason), None)

        assert await until(over, within_s=20) == "bind_unknown"
        (device,) = (await its.devices()).values()
        assert device.state == "releasing"
        asking.cancel()


async def test_an_agent_that_has_not_looked_yet_leaves_its_devices_undisputed(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with town(fresh_nats, tmp_path, devices={"n1": cards("n1", "BIG-80", 1)}) as its:
        its.agents["n1"].refuse = "inventory_missing"
        # Asked once: who asks again is told that the node is left alone, and binds again later.
        refused = await its.ml.request(subjects.PLACE, request("one"), timeout_s=20)
        assert isinstance(refused, Refusal)
        assert refused.code is Code.INVENTORY_MISSING
        its.agents["n1"].refuse = None

        async def bound() -> bool:
            """A refusal consumes no id; the node is left alone for a moment, and not disputed."""
            found = await its.place(request("one"))
            assert isinstance(found, placement.Lease) or found.code is Code.ADAPTER_ERROR, found
            return isinstance(found, placement.Lease)

        await until(bound)
        assert its.agents["n1"].binds == 2
