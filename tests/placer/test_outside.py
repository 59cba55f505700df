"""Leases that no agent binds: its node is told of them all the same, and only told."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintal.contracts import placement, subjects
from tests.placer.town import town
from tests.placer.world import cards, request
from tests.support.nats import NatsServer
from tests.support.wait import until

pytestmark = [pytest.mark.bus, pytest.mark.timeout(90)]


async def test_a_node_is_told_of_a_lease_that_it_does_not_bind_and_of_its_end(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with town(fresh_nats, tmp_path, devices={"n1": cards("n1", "BIG-80", 2)}) as its:
        agent = its.agents["n1"]
        bound = await its.place(request("one"))
        told = await its.place(request("two", bind="none"))
        assert (bound.state, told.state) == ("bound", "bound")
        await until(lambda: set(agent.outside) == {told.lease}, within_s=20)
        assert agent.binds == 1, "nobody asked the agent for it"
        assert set(agent.leases) == {bound.lease}
        assert agent.outside[told.lease].bind == "none"
        await its.ml.ask(subjects.RELEASE, placement.ReleaseAsk(lease=told.lease))
        await until(lambda: not agent.outside, within_s=20)
        assert set(agent.leases) == {bound.lease}
