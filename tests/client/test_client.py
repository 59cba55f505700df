"""The SDK against a front on a real server: answers, refusals, silence, overload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintal.bus import Bus, Caller
from quintal.client import Client, SyncClient
from quintal.contracts import placement, subjects
from quintal.contracts.message import Refusal
from quintal.contracts.placement import Pending, PlaceAsk
from quintal.contracts.subjects import Role
from quintal.errors import BusUnavailable, Code, Owner, Refused
from tests.support.nats import NatsServer

pytestmark = pytest.mark.bus

ASK = PlaceAsk(request_id="r1", profile="p")
WAITS = Pending(lease="l1", request_id="r1", queue_place=1, deadline_in_ms=1)


class Placer:
    """Answers what stands on its list, one after the other; None is silence."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.answers: list[Pending | Refusal | None] = []
        self.heard: list[str] = []

    async def place(self, caller: Caller, ask: PlaceAsk) -> Pending | Refusal | None:
        self.heard.append(f"{caller.principal}:{ask.request_id}")
        return self.answers.pop(0)


@pytest.fixture
async def placer(nats: NatsServer) -> AsyncIterator[Placer]:
    async with await nats.bus("placer-1-front", Role.PLACER_FRONT) as bus:
        placer = Placer(bus)
        await bus.serve(subjects.PLACE, placer.place)  # type: ignore[arg-type]
        await bus.flush()
        yield placer


async def test_a_request_during_a_takeover_is_asked_again_under_the_same_id(
    nats: NatsServer, placer: Placer
) -> None:
    placer.answers = [None, WAITS]
    async with await Client.connect(nats.access("vision", Role.TENANT)) as client:
        assert await client.place(ASK) == WAITS
    assert placer.heard == ["vision:r1", "vision:r1"]


async def test_an_overloaded_service_is_asked_again_when_it_said(
    nats: NatsServer, placer: Placer
) -> None:
    busy = Refusal(
        code=Code.OVERLOADED, message="later", owner=Owner.INFRASTRUCTURE,
        details={"retry_after_ms": 300},
    )  # fmt: skip
    placer.answers = [busy, WAITS]
    loop = asyncio.get_running_loop()
    async with await Client.connect(nats.access("vision", Role.TENANT)) as client:
        began_s = loop.time()
        assert await client.place(ASK) == WAITS
        assert loop.time() - began_s >= 0.3


async def test_a_refusal_is_raised_with_code_owner_and_reasons(
    nats: NatsServer, placer: Placer
) -> None:
    placer.answers = [Refusal(code=Code.NEVER_FITS, message="none so large", owner=Owner.CATALOG)]
    async with await Client.connect(nats.access("vision", Role.TENANT)) as client:
        with pytest.raises(Refused, match="none so large") as caught:
            await client.place(ASK)
    assert (caught.value.code, caught.value.owner) == (Code.NEVER_FITS, Owner.CATALOG)
    assert caught.value.details["kind"] == "refused"


async def test_nobody_there_is_an_error_when_patience_is_over(nats: NatsServer) -> None:
    access = nats.access("vision", Role.TENANT)
    async with await Client.connect(access, patience_s=0.3) as client:
        with pytest.raises(BusUnavailable, match=r"placement\.vision\.list"):
            await client.leases()


async def test_a_script_without_a_loop_gets_the_same_answers(
    nats: NatsServer, placer: Placer
) -> None:
    placer.answers = [WAITS]

    def script() -> placement.Lease | Pending:
        with SyncClient(nats.access("vision", Role.TENANT)) as client:
            return client.place(ASK)

    assert await asyncio.to_thread(script) == WAITS
