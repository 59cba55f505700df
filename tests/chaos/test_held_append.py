"""A network that holds the leader's append, or the answer to it, while a standby takes over.

Both placers speak through a proxy, which stalls the one connection that sent the append. During it
the leader is as good as dead to everybody and knows nothing of it; afterwards its append arrives at
a ledger that has moved on, or its answer at a leader that is no longer one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quintal.client import Client
from quintal.contracts.subjects import Role
from tests.chaos.checker import Ledger, judge, read_ledger
from tests.chaos.journal import Journal
from tests.chaos.load import Submitter
from tests.placer.world import PlacerProcess, ScriptedAgent, cards, small_catalog, write_catalog
from tests.support.nats import NatsServer
from tests.support.proxy import Proxy

SEED = os.environ.get("QUINTAL_CHAOS_SEED") or str(random.SystemRandom().randrange(10**9))
PROOF = os.environ.get("QUINTAL_PROOF") == "1"
HELD_S = 3.0
TENANTS = ("ml", "bio")
NODES = ("n1", "n2", "n3")

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.crash,
    pytest.mark.bus,
    pytest.mark.timeout(240 if PROOF else 90),
]


@contextlib.asynccontextmanager
async def fleet(nats: NatsServer) -> AsyncIterator[None]:
    """The catalog, and three nodes of eight cards whose agents answer at once."""
    async with await nats.bus("catalog", Role.CATALOG_BACK) as bus:
        await write_catalog(bus, small_catalog())
    agents = []
    for node in NODES:
        bus = await nats.bus(node, Role.AGENT)
        agents.append(ScriptedAgent(bus, node, cards(node, "BIG-80")))
        await agents[-1].start()
    try:
        yield
    finally:
        for agent in agents:
            await agent.stop()


@contextlib.asynccontextmanager
async def submitters(nats: NatsServer, journal: Journal) -> AsyncIterator[list[Submitter]]:
    clients, found = [], []
    for tenant in TENANTS:
        client = await Client.connect(nats.access(tenant, Role.TENANT), patience_s=0.5)
        clients.append(client)
        for number in range(4):
            name = f"{tenant}-{number}"
            found.append(
                Submitter(client, journal, random.Random(f"{SEED}-{name}"), ["train"], name)
            )
    try:
        yield found
    finally:
        for client in clients:
            await client.close()


async def keep_up(placers: tuple[PlacerProcess, ...], stop: asyncio.Event) -> None:
    """As a supervisor: who was deposed ends, and is started again."""
    while not stop.is_set():
        for placer in placers:
            placer.revive()
        await asyncio.sleep(0.1)


async def led(nats: NatsServer, metering: Path) -> Ledger:
    return Ledger(await read_ledger(nats.url, metering))


@pytest.mark.parametrize(
    ("what", "seconds"), [("append", HELD_S), ("answer", HELD_S), ("append", 1.1)]
)
async def test_what_is_held_and_comes_late_breaks_no_law(
    fresh_nats: NatsServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    what: str,
    seconds: float,
) -> None:
    metering = fresh_nats.access("metering", Role.METERING_BACK).credentials
    journal, stop = Journal(), asyncio.Event()
    port = int(fresh_nats.url.rpartition(":")[2])
    async with fleet(fresh_nats), Proxy(port) as proxy, submitters(fresh_nats, journal) as people:
        placers = tuple(
            PlacerProcess(fresh_nats, number, tmp_path, QUINTAL_URL=proxy.url) for number in (1, 2)
        )
        try:
            placers[0].start()
            while not (await led(fresh_nats, metering)).epochs:
                await asyncio.sleep(0.1)
            keeping = asyncio.create_task(keep_up(placers, stop))
            working = [asyncio.create_task(one.run(stop)) for one in people]
            for _ in range(5 if PROOF else 1):
                await asyncio.sleep(3)
                proxy.hold(what, seconds)  # type: ignore[arg-type]
                await asyncio.sleep(seconds + 3)
            stop.set()
            await asyncio.gather(keeping, *working)
            placers[0].revive()
            await asyncio.gather(*(one.finish() for one in people))
            ledger = await led(fresh_nats, metering)
        finally:
            stop.set()
            for placer in placers:
                placer.kill()
    with capsys.disabled():
        print(
            f"\n{what} held {seconds} s, seed {SEED}: {ledger.kinds['granted']} grants,"
            f" {ledger.epochs - 1} failovers, {len(journal.entries)} requests {journal.verbs()}"
        )
    assert proxy.held >= 1
    assert proxy.delivered == proxy.held
    assert ledger.epochs >= 2 or seconds < HELD_S, "a standby took over"
    faults = judge(ledger, journal, "chaos-")
    assert not faults, "\n".join([*faults, *(placer.log()[-2000:] for placer in placers)])
