"""Parts of cards through a real server: shares, a partition, a card that is cut anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintal.bus import Caller
from quintal.contracts import nodes, placement, subjects
from quintal.contracts.message import Refusal
from tests.laws.house import HALVES, cut
from tests.placer.cut import card, cut_model, slice_model
from tests.placer.town import town
from tests.placer.world import request, small_catalog, until
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.bus, pytest.mark.timeout(90)]

SHARE = {"accelerator": {"models": ["cut-80"], "share": {"compute_milli": 400}}}
SLICE = {"accelerator": {"partition": "1g.10gb"}}


async def test_shares_and_partitions_are_bound_held_apart_and_released(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """And case H06: a card is cut by its node's task once nobody holds it, and not before."""
    documents = [*small_catalog(), cut_model(), slice_model()]
    devices = {"n1": (card("n1", 0), card("n1", 1, *["1g.10gb"] * 7))}
    async with town(fresh_nats, tmp_path, devices=devices, documents=documents) as its:
        agent = its.agents["n1"]
        one = await its.place(request("one", **SHARE))
        two = await its.place(request("two", **SHARE))
        part = await its.place(request("part", **SLICE))
        assert [lease.state for lease in (one, two, part)] == ["bound"] * 3
        assert {lease.devices[0].uuid for lease in (one, two)} == {"GPU-n1-0"}
        shown = part.environment["n1"]["CUDA_VISIBLE_DEVICES"]
        assert shown == part.devices[0].partition == "MIG-n1-1-0"
        assert set(agent.leases) == {one.lease, two.lease, part.lease}
        whole = await its.place(request("whole", accelerator={"models": ["cut-80"]}))
        assert isinstance(whole, Refusal)
        assert whole.code == "no_capacity"
        views = await its.devices()
        assert views["GPU-n1-0"].parts == {"leased": 800_000, "free": 200_000}
        assert [(v.parts, v.lease) for v in views["GPU-n1-0"].shares] == [
            (400_000, one.lease),
            (400_000, two.lease),
        ]
        assert sum(v.state == "free" for v in views["GPU-n1-1"].partitions) == 6

        ran: list[str] = []

        async def task(_: Caller, ask: nodes.TaskAsk) -> nodes.TaskDone:
            ran.append(ask.name)
            first, *rest = agent.devices
            agent.devices = (cut(first, tuple("3g.40gb" for _ in HALVES), 1), *rest)
            await agent.report()
            return nodes.TaskDone(name=ask.name, exit_status=0)

        await agent.bus.serve(subjects.TASK, task)
        await agent.bus.flush()
        ask = placement.PartitionAsk(node="n1", device="0", layout="2x3g.40gb", run=True)
        held = await its.operator.request(subjects.PARTITION, ask)
        assert isinstance(held, Refusal)
        assert (held.code, ran) == ("conflict", [])
        for lease in (one, two):
            await its.ml.ask(subjects.RELEASE, placement.ReleaseAsk(lease=lease.lease))
            await its.state_is(lease.lease, "ended")
        done = await its.operator.request(subjects.PARTITION, ask)
        assert isinstance(done, placement.Done), done
        assert ran == ["partition-0-2x3g.40gb"]

        async def is_back() -> bool:
            view = (await its.devices())["GPU-n1-0"]
            return view.state == "free" and len(view.partitions) == 2

        await until(is_back)
        half = await its.place(request("half", accelerator={"partition": "3g.40gb"}))
        assert half.units_micro == 500_000
        await its.audited()
