"""A server that is killed and comes back: same port, same streams, same credentials."""

from __future__ import annotations

import pytest

from quintal.bus import Appended, Conflict
from quintal.contracts import subjects
from quintal.contracts.subjects import Role
from tests.support.nats import NatsServer
from tests.support.wait import until

pytestmark = [pytest.mark.bus, pytest.mark.crash]


async def test_what_was_acknowledged_before_a_kill_is_there_after_it(
    fresh_nats: NatsServer,
) -> None:
    async with await fresh_nats.bus("placer-1", Role.PLACER_BACK) as bus:
        assert await bus.append(subjects.LEDGER.subject(), b"one", 0) == Appended(1)
        assert await bus.append(subjects.LEDGER.subject(), b"two", 0) == Conflict()
        url = fresh_nats.url
        fresh_nats.kill()
        fresh_nats.start()
        assert fresh_nats.url == url
        await until(bus.reconnected.is_set)
        assert [stored.data for stored in await bus.read("LEDGER", 1)] == [b"one"]


async def test_streams_are_declared_as_often_as_one_likes(fresh_nats: NatsServer) -> None:
    fresh_nats.declare()
    async with await fresh_nats.bus("placer-1", Role.PLACER_BACK) as bus:
        config = (await bus.stream_info("LEDGER"))["config"]
        assert config["discard"] == "new"
        assert (await bus.stream_info("TELEMETRY"))["config"]["persist_mode"] == "async"
