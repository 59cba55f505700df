"""`events`: what the ledger has of leases and nodes, and the same words as they come."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from quintal.cli.__main__ import run
from quintal.client import Client
from quintal.contracts import ledger, placement, subjects
from quintal.contracts.placement import EventsAsk
from quintal.contracts.subjects import Role
from quintal_placer import news
from tests.placer.town import town
from tests.placer.world import cards, request, until
from tests.support.nats import NatsServer


def test_a_nodes_transition_is_told_with_whoever_did_it_and_why() -> None:
    record = ledger.CordonChanged(at_ms=5, node="n1", cordoned=True, by="op", reason="fan")
    told = news.of_node(record, 7)
    assert told == placement.News(at=5, what="cordon", sequence=7, node="n1", reason="by op: fan")
    back = news.of_node(record.model_copy(update={"cordoned": False, "reason": ""}), 8)
    assert back is not None
    assert (back.what, back.reason) == ("uncordon", "by op")
    assert news.of_node(ledger.Tick(at_ms=1), 1) is None


def test_of_a_bind_that_failed_the_code_is_told_and_nothing_that_an_agent_said() -> None:
    failed = ledger.LeaseFailed(at_ms=1, lease="l1-1", code="conflict", message="held by zq")
    told = news.of_lease(failed, 3, "ml")
    assert (told.what, told.reason, told.tenant) == ("failed", "conflict", "ml")
    assert "zq" not in told.model_dump_json()


@pytest.mark.bus
@pytest.mark.timeout(120)
async def test_events_are_read_back_filtered_and_a_tenant_is_told_its_own(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    devices = {"n1": cards("n1", "BIG-80", 4)}
    async with town(fresh_nats, tmp_path, devices=devices, placers=2) as its:
        bio = await its.bus("bio", Role.TENANT)
        mine, operator = Client(its.ml), Client(its.operator)
        lease = await its.place(request("mine"))
        theirs = await bio.ask(subjects.PLACE, request("theirs"))
        assert isinstance(theirs, placement.Lease)
        await operator.cordon(("n1",), "fan")
        await mine.release(lease.lease)
        await its.state_is(lease.lease, "ended")

        own = await mine.events()
        assert [it.what for it in own.events] == [
            "granted", "bound", "ending", "node_released", "ended",
        ]  # fmt: skip
        assert {(it.lease, it.tenant) for it in own.events} == {(lease.lease, "ml")}
        assert own.events[2].reason == "released"
        everything = await operator.all_events()
        whats = {it.what for it in everything.events}
        assert {"node", "device_appeared", "cordon", "granted"} <= whats
        assert [it.sequence for it in everything.events] == sorted(
            it.sequence for it in everything.events
        )
        cordons = [it for it in everything.events if it.what == "cordon"]
        assert [(it.node, it.reason) for it in cordons] == [("n1", "by operator: fan")]
        of_bio = await operator.all_events(EventsAsk(tenant="bio"))
        assert {it.lease for it in of_bio.events} == {theirs.lease}
        of_node = await operator.all_events(EventsAsk(node="n1"))
        assert {it.node for it in of_node.events} == {"n1"}
        newest = await operator.all_events(EventsAsk(limit=2))
        assert newest.events == everything.events[-2:]
        assert newest.more
        late = await operator.all_events(EventsAsk(since_ms=own.events[-1].at + 60_000))
        assert late.events == ()
        assert (await mine.events(EventsAsk(lease=theirs.lease))).events == ()


@pytest.mark.bus
@pytest.mark.timeout(120)
async def test_watching_tells_the_past_then_what_comes_each_once(
    fresh_nats: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    devices = {"n1": cards("n1", "BIG-80", 4)}
    async with town(fresh_nats, tmp_path, devices=devices) as its:
        before = await its.place(request("before"))
        access = fresh_nats.access("ml", Role.TENANT)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("QUINTAL_URL", access.url)
        monkeypatch.setenv("QUINTAL_CREDENTIALS", str(access.credentials))
        command = ["events", "--watch", "--for", "3s", "-o", "json"]
        watching = asyncio.create_task(asyncio.to_thread(run, command))
        seen: list[dict[str, Any]] = []

        async def told(what: str, lease: str) -> bool:
            lines = capfd.readouterr().out.splitlines()
            seen.extend(json.loads(line) for line in lines if line.startswith("{"))
            return any((it["what"], it["lease"]) == (what, lease) for it in seen)

        await until(lambda: told("bound", before.lease))
        after = await its.place(request("after"))
        await until(lambda: told("bound", after.lease))
        assert await watching == 0
        keys = [(it["what"], it["lease"]) for it in seen]
        assert len(keys) == len(set(keys)), "each once"
        assert {it["tenant"] for it in seen} == {"ml"}
