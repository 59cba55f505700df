"""The whole system under load, while any of its processes is killed at any moment.

QUINTAL_CHAOS_SECONDS says for how long (a minute; twenty under QUINTAL_PROOF=1), QUINTAL_CHAOS_SEED
repeats a run's choices. Clients keep a journal of what they asked and were told; the ledger is
read raw; `tests/independent/recompute.py` recomputes the usage. All of it must agree, and be there
unchanged after a clean stop and another start.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from quintal.client import Client
from quintal.contracts.catalog import DocumentsAsk
from quintal.contracts.placement import Lease, ListAsk, PlaceAsk
from quintal.errors import QuintalError
from quintal.up.layout import TENANTS
from tests.chaos.checker import Ledger, judge, read_ledger
from tests.chaos.journal import Journal, now_ms
from tests.chaos.killing import Killer
from tests.chaos.load import Submitter
from tests.chaos.system import MORTALS, System

PROOF = os.environ.get("QUINTAL_PROOF") == "1"
SECONDS = float(os.environ.get("QUINTAL_CHAOS_SECONDS", "1200" if PROOF else "60"))
SEED = os.environ.get("QUINTAL_CHAOS_SEED") or str(random.SystemRandom().randrange(10**9))
SUBMITTERS = 3
"""For each tenant."""
PATIENCE_S = 0.5
"""One try: what has no answer, the submitter itself asks again."""
SETTLE_S = 60.0
RECOMPUTE = Path(__file__).parent.parent / "independent" / "recompute.py"
LOOKED_AT = 300
"""Leases that are compared before and after the second start."""

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.crash,
    pytest.mark.bus,
    pytest.mark.engine,
    pytest.mark.timeout(SECONDS + 240),
]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    installation = System(tmp_path / "data")
    yield installation
    installation.destroy()
    print(installation.tails())  # shown where the test failed


@dataclass
class People:
    """Who asks: three tenants' submitters, and an operator who looks."""

    system: System
    journal: Journal = field(default_factory=Journal)
    tenants: dict[str, Client] = field(default_factory=dict)
    submitters: list[Submitter] = field(default_factory=list)

    async def come(self) -> None:
        for tenant in TENANTS:
            client = await self.system.client(tenant, patience_s=PATIENCE_S)
            self.tenants[tenant] = client
            rows = (await client.document_list(DocumentsAsk(kind="Profile"))).rows
            profiles = sorted(row.name for row in rows)
            for number in range(SUBMITTERS):
                name = f"{tenant}-{number}"
                chance = random.Random(f"{SEED}-{name}")
                self.submitters.append(Submitter(client, self.journal, chance, profiles, name))

    async def work(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for submitter in self.submitters:
                group.create_task(submitter.run(stop))

    async def finish(self) -> None:
        async with asyncio.timeout(SETTLE_S), asyncio.TaskGroup() as group:
            for submitter in self.submitters:
                group.create_task(submitter.finish())

    async def remembered(self) -> list[tuple[Any, ...]]:
        """What is told of the leases of the journal, or of as many as one likes to wait for."""
        known = sorted({(e.tenant, e.lease) for e in self.journal.entries if e.holds})
        found = []
        for tenant, name in random.Random(SEED).sample(known, min(len(known), LOOKED_AT)):
            lease = await self.tenants[tenant].get(name)
            devices = [device.uuid for device in lease.devices]
            found.append((name, lease.request_id, lease.state, lease.reason, devices))
        return found

    async def leave(self) -> None:
        for client in self.tenants.values():
            await client.close()


async def quiet(system: System, operator: Client) -> None:
    """Every process runs, every service answers, and metering has seen all that is."""
    give_up = time.monotonic() + SETTLE_S
    while True:
        try:
            assert all(system.pid(name) for name in MORTALS), "some process is down"
            names = Counter(str(said["name"]) for said in await operator.bus.ping())
            assert sum("placer" in name for name in names.elements()) == 2, names
            assert any("catalog" in name for name in names), names
            fleet = await operator.fleet()
            silent = [node.node for node in fleet.nodes if node.liveness != "ready"]
            assert not silent, f"{silent} are silent"
            await operator.document_list()
            done = await operator.snapshot()
            while (await operator.usage()).sequence < done.sequence:
                assert time.monotonic() < give_up, "metering does not catch up"
                await asyncio.sleep(0.3)
        except (QuintalError, AssertionError):
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(0.5)
        else:
            return


async def all_given_back(system: System, operator: Client) -> tuple[list[dict[str, Any]], Ledger]:
    """The ledger, once no lease of the submitters holds anything.

    One that no agent was asked to bind waits, after it expired, for an operator's word.
    """
    give_up = time.monotonic() + SETTLE_S
    for lease in (await operator.all_leases(ListAsk(states=("ending",)))).leases:
        if lease.bind == "none":
            await operator.end_adopted(lease.lease, "nobody works there")
    while True:
        groups = await read_ledger(system.url, system.credentials("metering"))
        ledger = Ledger(groups)
        names = {name for names in ledger.held().values() for name in names}
        left = [ledger.leases[name] for name in sorted(names)]
        left = [lease for lease in left if lease.request_id.startswith("chaos-")]
        if not left:
            return groups, ledger
        assert time.monotonic() < give_up, left
        await asyncio.sleep(1)


async def all_is_equal(system: System, operator: Client) -> None:
    """Usage as metering has it is what a script that shares nothing with it finds; verify too."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(RECOMPUTE), system.url, str(system.credentials("metering")),
         str(system.credentials("finance"))],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    verified = await operator.verify()
    assert verified.ok, verified.differences
    assert verified.censuses > 0


def account(killer: Killer, people: People, ledger: Ledger, began_ms: int, ended_ms: int) -> str:
    """What happened, for people."""
    journal = people.journal
    silent = sum(not entry.answered for entry in journal.entries)
    answers = Counter(entry.answer for entry in journal.entries)
    reasons = Counter(lease.reason for lease in ledger.leases.values() if lease.reason)
    ends = f"ends {dict(reasons)}, {ledger.kinds['dispute']} disputes"
    return "\n".join(
        (
            "",
            f"chaos: seed {SEED}, {(ended_ms - began_ms) / 1000:.0f} s",
            f"  {killer.account()}",
            f"  {len(journal.entries)} requests {journal.verbs()}, {silent} without an answer",
            f"  answers {dict(answers.most_common())}",
            f"  ledger: {ledger.kinds['granted']} grants, {ledger.epochs - 1} failovers, {ends}",
            f"  longest gap between two answers {journal.longest_gap_ms(began_ms, ended_ms)} ms",
        )
    )


async def test_whoever_dies_under_load_no_law_is_broken_and_all_is_there_afterwards(
    system: System, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\nQUINTAL_CHAOS_SEED={SEED}, {SECONDS:.0f} s, {system.data}")
    await system.start()
    people = People(system)
    await people.come()
    operator = await system.client("operator")
    killer = Killer(system, random.Random(f"{SEED}-killer"))
    stop = asyncio.Event()
    began_ms = now_ms()
    working = asyncio.create_task(people.work(stop))
    try:
        await killer.run(SECONDS)
    finally:
        stop.set()
        await working
    ended_ms = now_ms()
    await people.finish()
    kept = [await hold(client) for client in people.tenants.values()]
    await quiet(system, operator)

    groups, ledger = await all_given_back(system, operator)
    with capsys.disabled():
        print(account(killer, people, ledger, began_ms, ended_ms))
    faults = judge(ledger, people.journal, "chaos-")
    assert not faults, "\n".join(faults)
    await all_is_equal(system, operator)

    before = await people.remembered()
    assert await system.stop() == 0
    await system.start()
    await quiet(system, operator)
    again = await read_ledger(system.url, system.credentials("metering"))
    assert again[: len(groups)] == groups, "the ledger stands"
    after = Ledger(again)
    assert not after.faults
    assert await people.remembered() == before
    for client, lease in zip(people.tenants.values(), kept, strict=True):
        assert (await hold(client)).lease == lease.lease, "the same id, the same lease"
        assert (await client.release(lease.lease)).state in {"ending", "ended"}
    await quiet(system, operator)
    await all_is_equal(system, operator)
    await people.leave()
    await operator.close()
    assert await system.stop() == 0


async def hold(client: Client) -> Lease:
    """A lease that outlasts a stop; asked again it is the same."""
    ask = PlaceAsk(request_id="kept", profile="inference-small", ttl_ms=600_000)
    answer = await client.place(ask)
    assert isinstance(answer, Lease)
    assert answer.state == "bound"
    return answer
