"""Case E01 over the bus: two gangs that each need every node ask in one moment, again and again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from quintal.bus import Bus
from quintal.contracts import placement, subjects
from quintal.contracts.subjects import Role
from tests.placer.town import Town, town
from tests.placer.world import cards, request
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.bus, pytest.mark.laws, pytest.mark.timeout(900)]

ROUNDS = 1_000 if os.environ.get("QUINTAL_PROOF") else 10
NODES = 4


def gang(number: int, tenant: str) -> placement.PlaceAsk:
    waits = {"mode": "queue", "deadline_ms": 600_000}
    return request(f"{tenant}-{number}", cards=2, nodes=NODES, bind="none", wait=waits)


async def test_case_e01_of_two_gangs_at_once_one_is_whole_and_one_waits_with_nothing(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    devices = {f"n{at}": cards(f"n{at}", "BIG-80", 2) for at in range(NODES)}
    async with town(fresh_nats, tmp_path, devices=devices) as its:
        buses = {"ml": its.ml, "bio": await its.bus("bio", Role.TENANT)}
        won = dict.fromkeys(buses, 0)
        for number in range(ROUNDS):
            won[await one_round(its, buses, number)] += 1
        assert all(won.values()) or ROUNDS < 10, won
        await its.audited()


async def one_round(its: Town, buses: dict[str, Bus], number: int) -> str:
    """Who was whole first; the other was next, and both have let go again."""
    order = list(buses)[:: -1 if number % 2 else 1]
    answers = await asyncio.gather(*(asked(buses[name], gang(number, name)) for name in order))
    by_tenant = dict(zip(order, answers, strict=True))
    (first,) = [name for name, said in by_tenant.items() if isinstance(said, placement.Lease)]
    (second,) = [name for name, said in by_tenant.items() if isinstance(said, placement.Pending)]
    assert len({device.node for device in by_tenant[first].devices}) == NODES
    waiting = await buses[second].request(
        subjects.GET, placement.GetAsk(request_id=f"{second}-{number}"), timeout_s=5
    )
    assert isinstance(waiting, placement.Lease)
    assert (waiting.state, waiting.devices) == ("queued", ())
    await let_go(buses[first], by_tenant[first].lease)
    whole = await its_turn(buses[second], f"{second}-{number}")
    assert len({device.node for device in whole.devices}) == NODES
    await let_go(buses[second], whole.lease)
    return first


async def asked(bus: Bus, ask: placement.PlaceAsk) -> Any:
    return await bus.request(subjects.PLACE, ask, timeout_s=10)


async def let_go(bus: Bus, lease: str) -> None:
    await bus.request(subjects.RELEASE, placement.ReleaseAsk(lease=lease), timeout_s=10)


async def its_turn(bus: Bus, request_id: str) -> placement.Lease:
    for _ in range(500):
        found = await bus.request(
            subjects.GET, placement.GetAsk(request_id=request_id), timeout_s=10
        )
        assert isinstance(found, placement.Lease)
        if found.state == "bound":
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"{request_id} waits for ever")
