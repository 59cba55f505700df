"""Reads: by any placer that lives, with the sequence that they reflect, also after a takeover."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from quintal.client import Client
from quintal.contracts import ledger, placement, subjects
from quintal.contracts.message import Refusal
from quintal.contracts.subjects import Role
from quintal.errors import BusUnavailable
from quintal_placer.explaining import Explanations
from quintal_placer.sharing import mine
from tests.placer.town import Town, town
from tests.placer.world import cards, request, until
from tests.support.nats import NatsServer

pytestmark = pytest.mark.timeout(120)


def test_placers_that_hear_the_same_agree_on_who_answers_and_share_evenly() -> None:
    names = ("placer-1", "placer-2", "placer-3")
    counts: Counter[str] = Counter()
    for number in range(3_000):
        reply = f"_INBOX.ml.{number}"
        takes = [me for me in names if mine(me, [n for n in names if n != me], reply)]
        assert len(takes) == 1
        counts.update(takes)
    assert min(counts.values()) > 800
    assert mine("placer-1", [], "_INBOX.ml.x"), "who is alone answers all"


def test_a_refusal_that_another_leader_wrote_down_is_told_as_that_leader_told_it() -> None:
    kept = Explanations()
    refusal = Refusal(code="no_capacity", message="what would do is held by others")  # type: ignore[arg-type]
    record = ledger.DecisionRecord(
        at_ms=5, tenant="ml", request_id="r", verb="request", verdict="not_now", micros=1,
        refusal=refusal, request=request("r", cards=3),
    )  # fmt: skip
    kept.learn(record)
    kept.learn(record.model_copy(update={"at_ms": 4, "refusal": None}))
    found = kept.newest("ml", "r")
    assert found is not None
    assert found.decided == refusal
    assert found.asked == request("r", cards=3)
    kept.learn(record.model_copy(update={"at_ms": 3, "request_id": "r", "request": None}))
    assert kept.newest("ml", "r") == found, "an older record teaches nothing"


async def reads(its: Town, count: int) -> list[placement.Leases]:
    found = []
    for _ in range(count):
        answer = await its.ml.request(subjects.LIST, placement.ListAsk(by="any"), timeout_s=2)
        assert isinstance(answer, placement.Leases)
        found.append(answer)
    return found


@pytest.mark.bus
async def test_a_standby_answers_reads_as_fresh_as_the_leader_and_goes_on_when_it_is_stopped(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    devices = {"n1": cards("n1", "BIG-80", 8)}
    async with town(fresh_nats, tmp_path, devices=devices, placers=2) as its:
        client = Client(its.ml)
        both: set[bool] = set()
        for number in range(12):
            lease = await its.place(request(f"r{number % 6}"))
            ask = placement.GetAsk(lease=lease.lease, by="any", at_least_sequence=lease.sequence)
            found = await _got(its, ask)
            assert found.sequence >= lease.sequence, "one's own write is seen by the next read"
            assert found.state == "bound"
            both.add(found.expires_in_ms is None)
            by_leader = await client.get(lease.lease)
            assert by_leader.expires_in_ms, "the leader answers where it alone knows"
            listed = await client.leases()
            assert lease.lease in {one.lease for one in listed.leases}
            assert (await client.quota()).sequence >= lease.sequence
        assert both == {True, False}, "the leader answered, and the standby"
        assert await _only_the_leader_answers(its, lease, at_least=10**9)
        refused = await its.place(request("never", cards=8, nodes=9))
        assert isinstance(refused, Refusal)
        await until(lambda: _written_down(its, "never"))
        old = its.leader()
        assert old.process is not None
        os.kill(old.process.pid, signal.SIGSTOP)
        try:
            before = its.standby()
            await until(lambda: _answered(its), within_s=5)
            assert all(answer.leases for answer in await reads(its, 8))
            await until(lambda: _leads(its, before), within_s=10)
            # What the old leader refused, and what it granted, the new one explains.
            told = await client.explain("never")
            assert told.verdict == "never_fits"
            assert told.reasons == refused.reasons
            granted = await client.explain("r1")
            assert granted.verdict == "placed"
            assert granted.chosen
            assert "big-80" in granted.summary
        finally:
            os.kill(old.process.pid, signal.SIGCONT)


async def _only_the_leader_answers(its: Town, lease: placement.Lease, at_least: int) -> bool:
    """A standby that is behind what is asked for is silent; half of the questions are its."""
    ask = placement.GetAsk(lease=lease.lease, by="any", at_least_sequence=at_least)
    answers: list[placement.Lease] = []
    for _ in range(12):
        with contextlib.suppress(BusUnavailable):
            found = await its.ml.request(subjects.GET, ask, timeout_s=0.4)
            assert isinstance(found, placement.Lease)
            answers.append(found)
    return 0 < len(answers) < 12 and all(one.expires_in_ms for one in answers)


async def _got(its: Town, ask: placement.GetAsk) -> placement.Lease:
    async def got() -> Any:
        with contextlib.suppress(BusUnavailable):
            return await its.ml.request(subjects.GET, ask, timeout_s=1)
        return None

    found = await until(got)
    assert isinstance(found, placement.Lease)
    return found


async def _written_down(its: Town, request_id: str) -> bool:
    """It goes out after the answer, and nobody waits for it."""
    reader = await its.bus("metering", Role.METERING_BACK)
    found = [
        subjects.DECISIONS.message.validate_json(stored.data)
        async for stored in reader.read_all("DECISIONS")
    ]
    return request_id in {record.request_id for record in found}


async def _answered(its: Town) -> bool:
    try:
        await reads(its, 4)
    except BusUnavailable:
        return False
    return True


async def _leads(its: Town, placer: Any) -> bool:
    await asyncio.sleep(0)
    return its.leader() is placer


@pytest.mark.bus
async def test_an_operator_is_told_who_holds_it_and_a_tenant_that_others_do(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    devices = {"n1": cards("n1", "BIG-80", 3)}
    async with town(fresh_nats, tmp_path, devices=devices) as its:
        bio = await its.bus("bio", Role.TENANT)
        await its.place(request("mine"))
        theirs = await bio.ask(subjects.PLACE, request("theirs", cards=2))
        assert isinstance(theirs, placement.Lease)
        assert isinstance(await its.place(request("more")), Refusal)
        ask = placement.ExplainAsk(request_id="more")
        told = await its.ml.ask(subjects.EXPLAIN, ask)
        assert told.details["held_by"] == {"you": 1, "held_by_others": 2}
        assert "bio" not in told.model_dump_json()
        whole = await its.operator.ask(subjects.EXPLAIN_ANY, ask)
        assert whole.details["held_by"] == {"bio": 2, "ml": 1}
        unknown = placement.ExplainAsk(request_id="theirs")
        assert isinstance(await its.ml.request(subjects.EXPLAIN, unknown), Refusal)
        lease = placement.GetAsk(lease=theirs.lease)
        assert isinstance(await its.ml.request(subjects.GET, lease), Refusal)
