"""Case H01, hammered: many clients at once for few devices, while placers are killed and stopped.

Never more devices are held than there are, none twice, every acknowledged lease is found again, and
every request is decided once. The ledger is judged raw, by a checker that shares nothing with the
placer, against what the clients wrote down. In CI 100 clients for 24 devices, for three seconds;
under QUINTAL_PROOF=1 1,000 for 100, for minutes. QUINTAL_HAMMER_SECONDS, _CLIENTS, _SEED.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from quintal.bus import Bus
from quintal.contracts import placement, subjects
from quintal.contracts.message import Refusal
from quintal.contracts.subjects import Role
from quintal.errors import BusUnavailable
from tests.chaos.checker import Ledger, judge, read_ledger
from tests.chaos.journal import Entry, Journal, now_ms
from tests.placer.town import Town, town
from tests.placer.world import cards, request, until
from tests.support.nats import NatsServer

PROOF = os.environ.get("QUINTAL_PROOF") == "1"
SECONDS = float(os.environ.get("QUINTAL_HAMMER_SECONDS", "180" if PROOF else "3"))
CLIENTS = int(os.environ.get("QUINTAL_HAMMER_CLIENTS", "1000" if PROOF else "100"))
DEVICES = 100 if CLIENTS >= 1_000 else 24
SEED = os.environ.get("QUINTAL_HAMMER_SEED") or str(random.SystemRandom().randrange(10**9))
CONNECTIONS = max(4, CLIENTS // 20)
TRY_S = 1.0

WIDE = {"QUINTAL_PLACER_RATE_PER_S": "100000", "QUINTAL_PLACER_IN_FLIGHT_MAX": "5000"}
"""One tenant asks for all: its own limits are not what is tried here."""

pytestmark = [pytest.mark.bus, pytest.mark.crash, pytest.mark.timeout(SECONDS * 3 + 180)]


@dataclass
class Hammer:
    """Clients over a few connections, and what they were told."""

    its: Town
    until_s: float
    buses: list[Bus] = field(default_factory=list)
    journal: Journal = field(default_factory=Journal)
    kept: dict[str, placement.Lease] = field(default_factory=dict)
    """Request id -> the lease that its client still has at the end."""

    async def come(self) -> None:
        self.buses = [await self.its.bus("ml", Role.TENANT) for _ in range(CONNECTIONS)]

    async def client(self, number: int) -> None:
        """Ask, hold for a moment, ask again under the same id, let go; a new id; to the end."""
        chance = random.Random(f"{SEED}-{number}")
        bus = self.buses[number % len(self.buses)]
        count = 0
        while time.monotonic() < self.until_s:
            count += 1
            ask = request(f"hammer-{number}-{count}", bind=chance.choice(("none", "wait")))
            lease = await self.placed(bus, ask)
            if lease is None:
                await asyncio.sleep(chance.uniform(0.2, 2.0))
                continue
            await asyncio.sleep(chance.uniform(0, 1.5))
            if chance.random() < 0.4:
                again = await self.placed(bus, ask)
                if again is None or again.lease != lease.lease:
                    self.journal.complaints.append(f"{ask.request_id}: {lease}, then {again}")
            if time.monotonic() >= self.until_s:
                self.kept[ask.request_id] = lease
                return
            await self.released(bus, lease)

    async def placed(self, bus: Bus, ask: placement.PlaceAsk) -> placement.Lease | None:
        sent_ms = now_ms()
        answer = await self.answered(bus, subjects.PLACE, ask)
        self.write_down(sent_ms, ask.request_id, "place", answer)
        return answer if isinstance(answer, placement.Lease) else None

    async def released(self, bus: Bus, lease: placement.Lease) -> None:
        sent_ms = now_ms()
        ask = placement.ReleaseAsk(lease=lease.lease)
        answer = await self.answered(bus, subjects.RELEASE, ask)
        self.write_down(sent_ms, lease.request_id, "release", answer)

    @staticmethod
    async def answered(bus: Bus, what: object, ask: object) -> object:
        """As a client that will have an answer."""
        while True:
            with contextlib.suppress(BusUnavailable):
                found = await bus.request(what, ask, timeout_s=TRY_S)  # type: ignore[arg-type]
                again = isinstance(found, Refusal) and found.code in {"overloaded", "internal"}
                if not again:
                    return found
            await asyncio.sleep(0.1)

    def write_down(self, sent_ms: int, request_id: str, verb: str, answer: object) -> None:
        lease = answer if isinstance(answer, placement.Lease) else None
        said = lease.state if lease else str(getattr(answer, "code", "pending"))
        self.journal.append(
            Entry(
                sent_ms, now_ms(), "ml", request_id, verb, said,
                lease=lease.lease if lease else "",
                expires_in_ms=(lease.expires_in_ms or 0) if lease else 0,
                sequence=lease.sequence if lease else 0,
            )
        )  # fmt: skip


async def strike(its: Town, until_s: float, seen: Counter[str]) -> None:
    """Kill or stop one of the placers at random moments; both come back."""
    chance = random.Random(f"{SEED}-killer")
    while time.monotonic() < until_s:
        await asyncio.sleep(chance.uniform(0.6, 2.0))
        victim = its.leader() if chance.random() < 0.7 else its.standby()
        victim.revive()
        assert victim.process is not None
        if chance.random() < 0.5:
            victim.kill()
            seen["killed"] += 1
            await asyncio.sleep(chance.uniform(0.2, 1.5))
        else:
            os.kill(victim.process.pid, signal.SIGSTOP)
            seen["stopped"] += 1
            await asyncio.sleep(chance.uniform(0.3, 3.0))
            os.kill(victim.process.pid, signal.SIGCONT)
        for placer in its.placers:
            placer.revive()


async def test_case_h01_a_thousand_clients_for_a_hundred_devices_while_placers_die(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    print(f"QUINTAL_HAMMER_SEED={SEED}, {CLIENTS} clients, {DEVICES} devices, {SECONDS:.0f} s")
    sizes = [8] * (DEVICES // 8) + ([DEVICES % 8] if DEVICES % 8 else [])
    devices = {f"n{i}": cards(f"n{i}", "BIG-80", count) for i, count in enumerate(sizes)}
    seen: Counter[str] = Counter()
    async with town(fresh_nats, tmp_path, devices=devices, placers=2, **WIDE) as its:
        until_s = time.monotonic() + SECONDS
        hammer = Hammer(its, until_s)
        await hammer.come()
        async with asyncio.TaskGroup() as group:
            group.create_task(strike(its, until_s, seen))
            for number in range(CLIENTS):
                group.create_task(hammer.client(number))
        for placer in its.placers:
            placer.revive()
        await until(its.fleet, within_s=20)

        access = fresh_nats.access("metering", Role.METERING_BACK)
        ledger = Ledger(await read_ledger(fresh_nats.url, access.credentials))
        faults = judge(ledger, hammer.journal, "hammer-")
        assert not faults, "\n".join(faults[:20])
        assert len(ledger.held()) <= DEVICES
        for request_id, lease in hammer.kept.items():
            told = ledger.leases[lease.lease]
            assert told.request_id == request_id
            assert told.state == "bound"
        some = random.Random(SEED).sample(sorted(hammer.kept), min(len(hammer.kept), 30))
        for request_id in some:
            found = await its.lease(hammer.kept[request_id].lease)
            assert found.devices == hammer.kept[request_id].devices
        answers = Counter(entry.answer for entry in hammer.journal.entries)
        print(
            f"hammer: {dict(seen)}, {ledger.epochs - 1} takeovers, "
            f"{ledger.kinds['granted']} grants, answers {dict(answers.most_common())}, "
            f"{len(hammer.kept)} held at the end"
        )
        assert seen.total() >= SECONDS // 4
        assert answers["bound"] > DEVICES
        await its.audited()
