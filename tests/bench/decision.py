"""What a decision costs the placer itself: its whole way through the code, without any server.

One process, one loop: the bytes of a request go in where the driver would hand them over, the
bytes of the reply come out where it would take them. The bus is a stand-in that acknowledges an
append a moment later. So the figure is time of a core, and the noise of a machine leaves it be;
`--profile` says where it goes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import uvloop

from quintal.bus import Bus
from quintal.clock import SteadyClock, SystemClock
from quintal.contracts import subjects
from quintal.contracts.documents import Catalog
from quintal.settings import Access
from quintal_placer import facts
from quintal_placer.handlers import Handlers
from quintal_placer.lead import Placer, _settle
from quintal_placer.ledger import LedgerWriter
from quintal_placer.limits import TenantLimits
from quintal_placer.promises import Promises
from quintal_placer.settings import Settings
from tests.bench import world

APPEND_S: Final = 0.0003
BOUND_US: Final = 200


@dataclass(slots=True)
class Said:
    """A message as the driver hands it over."""

    subject: str
    data: bytes
    reply: str = ""
    headers: dict[str, str] | None = None


class Driver:
    """Stands in for the driver: hands over what is asked, takes what is said."""

    is_connected = True
    is_closed = False
    max_payload = 2**20

    def __init__(self) -> None:
        self.served: dict[str, Any] = {}
        self.waiting: dict[str, asyncio.Future[bytes]] = {}
        self.sequence = 0
        self.appends = 0
        self.published = 0

    async def subscribe(self, subject: str, cb: Any) -> Any:
        """Who answers."""
        self.served[subject] = cb
        return SimpleNamespace()

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """A reply, or news that nobody hears."""
        self.published += 1
        future = self.waiting.pop(subject, None)
        if future is not None:
            future.set_result(data)

    async def request(self, subject: str, data: bytes, **_: Any) -> Said:
        """An append: durable after a moment."""
        await asyncio.sleep(APPEND_S)
        self.sequence += 1
        self.appends += 1
        return Said(subject, b'{"stream":"LEDGER","seq":%d}' % self.sequence)


class Alone:
    """A leading placer without a bus."""

    def __init__(self, nodes: int) -> None:
        access = Access("", Path("creds"), "placer-1")
        self.driver = Driver()
        self.bus = Bus(self.driver, access)  # type: ignore[arg-type]
        settings = Settings(access, access, Path("state"), rate_per_s=1e9, in_flight_max=10**6)
        self.placer = Placer(settings, self.bus, SystemClock())
        self.placer.state.adopt_catalog(Catalog(tuple(world.documents()), revision=1))
        self.placer.state.adopted = (1, "digest")
        clock = SteadyClock(SystemClock(), 0)
        for number in range(nodes):
            found = world.inventory(number)
            for record in facts.inventory_records(self.placer.state, found, clock.now_ms()):
                self.placer.state.apply(record)
        self.writer = LedgerWriter(self.bus, self.placer.state, clock, writer="w", sequence=0)

    async def lead(self) -> None:
        """From here on it answers."""
        placer = self.placer
        placer.writer = self.writer
        placer.promises = Promises(
            placer.settings, placer.state, self.writer, placer._agents, placer.announcer
        )
        placer._assurance.sent(1, time.monotonic() + 1e9)
        placer._assurance.came_back(1, time.monotonic())
        placer.writer.proved_s = time.monotonic() + 1e9
        self.tasks = [
            asyncio.create_task(self.writer.run()),
            asyncio.create_task(placer.announcer.run()),
        ]
        limits = TenantLimits(placer.settings.rate_per_s, placer.settings.in_flight_max)
        handlers = Handlers(placer, limits)
        for request, act in (
            (subjects.PLACE, handlers.place), (subjects.RELEASE, handlers.release),
        ):  # fmt: skip
            await self.bus.serve(request, act, bytes_max=65_536)  # type: ignore[arg-type]
        _settle()

    def close(self) -> None:
        """No more."""
        for task in self.tasks:
            task.cancel()


class Crowd:
    """So many requests in flight, for any number of tenants."""

    def __init__(self, alone: Alone, seed: int, bind: str = "none") -> None:
        self.driver = alone.driver
        self._bound = len(alone.placer.state.fleet.nodes) * world.CARDS // 2
        self._asks = world.requests(seed)
        self._held: deque[tuple[str, str, int]] = deque()
        self._cards = 0
        self._count = 0
        self.verdicts: dict[str, int] = {}

    async def ask(self, subject: str, data: bytes, who: str) -> bytes:
        """One request and its answer."""
        self._count += 1
        reply = f"_INBOX.{who}.b.{self._count}"
        future = asyncio.get_running_loop().create_future()
        self.driver.waiting[reply] = future
        pattern = subject.split(".")
        pattern[3] = "*"
        await self.driver.served[".".join(pattern)](Said(subject, data, reply))
        return await future

    async def place(self, tenant: str, data: bytes, cards: int) -> None:
        """One placement; what it gave is remembered."""
        answer = await self.ask(subjects.PLACE.subject(tenant=tenant), data, tenant)
        self._said.append((tenant, answer, cards))

    async def round(self, count: int, in_flight: int) -> float:
        """Seconds of a core for so many placements."""
        wanted = []
        for _ in range(count):
            number, ask = next(self._asks)
            tenant = world.TENANTS[number % len(world.TENANTS)]
            wanted.append((tenant, json.dumps(ask).encode(), ask["cards"]))
        todo = iter(wanted)
        self._said: list[tuple[str, bytes, int]] = []

        async def worker() -> None:
            for one in todo:
                await self.place(*one)

        begin = time.process_time()
        await asyncio.gather(*(worker() for _ in range(in_flight)))
        spent = time.process_time() - begin
        for tenant, answer, cards in self._said:
            told = json.loads(answer)
            what = told.get("code") or told["kind"]
            self.verdicts[what] = self.verdicts.get(what, 0) + 1
            if told["kind"] == "lease":
                self._held.append((tenant, told["lease"], cards))
                self._cards += cards
        return spent

    async def thin(self) -> float:
        """Release the oldest until half is free; seconds of a core for one release."""
        begin, count = time.process_time(), 0
        while self._cards > self._bound:
            some = [self._held.popleft() for _ in range(min(64, len(self._held)))]
            await asyncio.gather(
                *(
                    self.ask(subjects.RELEASE.subject(tenant=t), b'{"lease":"%s"}' % le.encode(), t)
                    for t, le, _ in some
                )
            )
            self._cards -= sum(cards for *_, cards in some)
            count += len(some)
        return (time.process_time() - begin) / max(1, count)


def yardstick() -> float:
    """Seconds of a core for a fixed piece of work: a machine that is shared slows both alike."""
    begin = time.process_time()
    for number in range(3_000):
        json.loads(json.dumps({"number": number, "words": ["a", "b", str(number)]}))
    return time.process_time() - begin


async def measure(nodes: int, count: int, seed: int, in_flight: int, *, profile: bool) -> None:
    """Print what one placement costs, and one release."""
    alone = Alone(nodes)
    await alone.lead()
    crowd = Crowd(alone, seed)
    while crowd._cards <= crowd._bound:
        await crowd.round(500, in_flight)
    profiler = cProfile.Profile()
    spent, released, yards = [], [], []
    appends = alone.driver.appends
    for _ in range(max(1, count // 500)):
        if profile:
            profiler.enable()
        yards.append(yardstick())
        spent.append(await crowd.round(500, in_flight) / 500 * 1e6)
        yards[-1] = (yards[-1] + yardstick()) / 2
        profiler.disable()
        released.append(await crowd.thin() * 1e6)
    gc.collect()
    quiet = sorted(took / yard for took, yard in zip(spent, yards, strict=True))
    steady = quiet[len(quiet) // 2] * min(yards)
    spent.sort()
    released.sort()
    print(
        f"  {nodes} nodes, {in_flight} in flight: {spent[len(spent) // 2]:.0f} us of a core for a"
        f" placement (best {spent[0]:.0f}, by the yardstick {steady:.0f}; aim {BOUND_US}),"
        f" {released[len(released) // 2]:.0f} us for a release;"
        f" {alone.driver.appends - appends} appends; {crowd.verdicts}"
    )
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
    alone.close()


def main(argv: list[str] | None = None) -> int:
    """Print the figure beside its aim."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--in-flight", type=int, nargs="*", default=[64, 1])
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args(argv)
    for in_flight in given.in_flight:
        uvloop.run(
            measure(given.nodes, given.samples, given.seed, in_flight, profile=given.profile)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
