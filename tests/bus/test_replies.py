"""A server checks the subject one publishes to, not the reply one names: so the service does.

A tenant that names the ledger, an agent's bind, JetStream's API or another's inbox as its reply
gets no answer anywhere: nothing is stored, nothing is delivered, and it is counted.
"""

from __future__ import annotations

import asyncio

import pytest

from quintal.bus import Caller
from quintal.contracts import placement, subjects
from quintal.contracts.message import Refusal
from quintal.contracts.subjects import Role
from tests.support.nats import NatsServer
from tests.support.wait import until

pytestmark = pytest.mark.bus

FORGED = (
    subjects.LEDGER.subject(),
    subjects.BIND.subject(node="n1"),
    subjects.INVENTORY.subject(node="n1"),
    "$JS.API.STREAM.PURGE.LEDGER",
    "$KV.CATALOG.head",
    "_INBOX.language.a.b",
    "_INBOX.vision",
    "_INBOX.vision2.a",
    "_INBOX.placer-1.a.b",
    "",
)


async def test_a_forged_reply_gets_nothing_anywhere(fresh_nats: NatsServer) -> None:
    asked: list[str] = []
    heard: list[str] = []

    async def place(caller: Caller, ask: placement.PlaceAsk) -> placement.Pending:
        asked.append(caller.principal)
        return placement.Pending(
            lease="l1", request_id=ask.request_id, queue_place=1, deadline_in_ms=1
        )

    async def on_message(msg: object) -> None:
        heard.append(msg.subject)  # type: ignore[attr-defined]

    async with (
        await fresh_nats.bus("placer-1-front", Role.PLACER_FRONT) as front,
        await fresh_nats.bus("placer-1", Role.PLACER_BACK) as back,
        await fresh_nats.bus("vision", Role.TENANT) as vision,
        await fresh_nats.bus("language", Role.TENANT) as language,
        await fresh_nats.bus("n1", Role.AGENT) as agent,
    ):
        await front.serve(subjects.PLACE, place)
        await language.client.subscribe("_INBOX.language.>", cb=on_message)
        await agent.client.subscribe(subjects.BIND.subject(node="n1"), cb=on_message)
        await back.client.subscribe("_INBOX.placer-1.>", cb=on_message)
        await back.append(subjects.LEDGER.subject(), b"{}", 0)
        for bus in (front, back, language, agent):
            await bus.flush()
        heard.clear()

        ask = placement.PlaceAsk(request_id="r1", profile="p")
        subject = subjects.PLACE.subject(tenant="vision")
        for reply in FORGED:
            await vision.client.publish(subject, subjects.PLACE.ask.dump_json(ask), reply=reply)
        await vision.flush()
        await until(lambda: front.counts.replies_dropped == len(FORGED))
        assert asked == []
        assert heard == []
        assert await back.last("LEDGER") == (1, 1)
        assert await back.last("INVENTORY") == (0, 0)
        assert await back.last("KV_CATALOG") == (0, 0)

        # The control: the same request, with a reply of its own, is answered.
        answer = await vision.ask(subjects.PLACE, ask)
        assert answer.kind == "pending"
        assert asked == ["vision"]
        assert front.counts.replies_dropped == len(FORGED)


async def test_an_agents_report_is_not_acknowledged_into_the_ledger(
    fresh_nats: NatsServer,
) -> None:
    async with (
        await fresh_nats.bus("placer-1", Role.PLACER_BACK) as back,
        await fresh_nats.bus("n1", Role.AGENT) as agent,
    ):
        for publication in (subjects.INVENTORY, subjects.TELEMETRY, subjects.HEALTH):
            await agent.client.publish(
                publication.subject(node="n1"), b"{}", reply=subjects.LEDGER.subject()
            )
        await agent.flush()
        for stream in ("INVENTORY", "TELEMETRY", "HEALTH"):
            assert await back.last(stream) == (1, 1), "the control: it is stored"
        assert await back.last("LEDGER") == (0, 0)


async def test_a_flood_of_one_caller_leaves_room_for_another(fresh_nats: NatsServer) -> None:
    gate = asyncio.Event()

    async def place(caller: Caller, ask: placement.PlaceAsk) -> placement.Pending:
        if caller.principal == "vision":
            await gate.wait()
        return placement.Pending(
            lease="l1", request_id=ask.request_id, queue_place=1, deadline_in_ms=1
        )

    async with (
        await fresh_nats.bus("placer-1-front", Role.PLACER_FRONT) as front,
        await fresh_nats.bus("vision", Role.TENANT) as vision,
        await fresh_nats.bus("language", Role.TENANT) as language,
    ):
        await front.serve(subjects.PLACE, place, each_max=2)
        await front.flush()
        ask = placement.PlaceAsk(request_id="r1", profile="p")
        held = [asyncio.create_task(vision.request(subjects.PLACE, ask)) for _ in range(2)]
        await until(lambda: front.counts.requests == 2)
        refused = await vision.request(subjects.PLACE, ask)
        assert isinstance(refused, Refusal)
        assert refused.code == "overloaded"
        assert (await language.ask(subjects.PLACE, ask)).kind == "pending"
        gate.set()
        await asyncio.gather(*held)
        assert (await vision.ask(subjects.PLACE, ask)).kind == "pending"
