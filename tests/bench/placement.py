"""The placer beside its floor: one client, sixty-four in flight, a flood. Interleaved in one run.

The floor is `tests/bench/floor.py` on a server of its own; both sides run uvloop, both servers
sync every append. Explain is on (it is always on); 200 tenants have caps on three levels; the
catalog is the starter's. At most half of the fleet is held: the oldest lease goes when more is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import psutil
import uvloop

from tests.bench import floor
from tests.bench.world import CARDS, TENANTS, World, requests

ROUND = 250
"""Samples of one side before the other has its turn."""


def quantile(times: list[float], share: float) -> float:
    """Of a list that is sorted here."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def placer_cpu_s(world: World) -> float:
    """Seconds of a core that the placer has used so far: what the noise of a machine leaves be."""
    assert world.placer.process is not None
    used = psutil.Process(world.placer.process.pid).cpu_times()
    return used.user + used.system


class Load:
    """Requests and what they hold."""

    bind = "none"

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.asks = requests(seed)
        self.held: deque[tuple[str, str, int]] = deque()
        self.cards = 0
        self.verdicts: dict[str, int] = {}

    async def one(self) -> float:
        """Seconds that one request took."""
        number, ask = next(self.asks)
        tenant = TENANTS[number % len(TENANTS)]
        data = json.dumps({**ask, "bind": self.bind}).encode()
        begin = time.perf_counter()
        answer = await self.world.asker.place(tenant, data)
        took = time.perf_counter() - begin
        told = json.loads(answer)
        what = told.get("code") or told["kind"]
        self.verdicts[what] = self.verdicts.get(what, 0) + 1
        if told["kind"] == "lease":
            self.held.append((tenant, told["lease"], ask["cards"]))
            self.cards += ask["cards"]
        return took

    async def thin(self, share: float = 0.5) -> None:
        """Release the oldest until at most this share of the fleet is held; nobody times it."""
        bound = int(self.world.nodes * CARDS * share)
        while self.cards > bound:
            some = [self.held.popleft() for _ in range(min(32, len(self.held)))]
            await asyncio.gather(*(self.world.asker.release(t, le) for t, le, _ in some))
            self.cards -= sum(cards for *_, cards in some)

    async def echo(self) -> float:
        """Seconds that one durable echo of the same bytes took."""
        number, ask = next(self.asks)
        data = json.dumps(ask).encode()
        begin = time.perf_counter()
        await self.world.floor_asker.ask(floor.SUBJECT, data, TENANTS[number % len(TENANTS)])
        return time.perf_counter() - begin


async def single(load: Load, samples: int) -> None:
    """One client: p50 and p99 of a placement beside a durable echo's."""
    echoes: list[float] = []
    placements: list[float] = []
    while len(placements) < samples:
        echoes += [await load.echo() for _ in range(ROUND)]
        placements += [await load.one() for _ in range(ROUND)]
        await load.thin()
    for share, bound in ((0.5, 2.0), (0.99, 2.0)):
        low, high = quantile(echoes, share) * 1e3, quantile(placements, share) * 1e3
        print(
            f"  1 client p{int(share * 100)}: placement {high:.2f} ms, durable echo {low:.2f} ms, "
            f"ratio {high / low:.2f} (bound {bound})"
        )


async def crowd(load: Load, seconds: float, rounds: int, in_flight: int = 64) -> None:
    """So many in flight: decisions a second beside the floor's echoes a second."""
    rates: dict[str, list[float]] = {"floor": [], "placer": []}
    counts = {"floor": 0, "placer": 0}
    spent_s = placer_cpu_s(load.world)
    for _ in range(rounds):
        for name, act in (("floor", load.echo), ("placer", load.one)):
            count = 0
            begin = time.perf_counter()

            async def worker(act=act, begin=begin) -> None:  # noqa: ANN001
                nonlocal count
                while time.perf_counter() - begin < seconds:
                    await act()
                    count += 1

            await asyncio.gather(*(worker() for _ in range(in_flight)))
            counts[name] += count
            rates[name].append(count / (time.perf_counter() - begin))
            before_s = placer_cpu_s(load.world)
            await load.thin(0.25)
            spent_s += placer_cpu_s(load.world) - before_s
    low, high = (sorted(rates[name])[len(rates[name]) // 2] for name in ("floor", "placer"))
    cpu = (placer_cpu_s(load.world) - spent_s) / max(1, counts["placer"])
    print(f"  the placer's own time: {cpu * 1e3:.2f} ms of a core for each of these decisions")
    print(
        f"  {in_flight} in flight: placer {high:,.0f}/s, floor {low:,.0f}/s, "
        f"ratio {high / low:.2f} (bound 0.6)"
    )


async def flood(load: Load, samples: int, rate: int = 500) -> None:
    """Tenant A asks for the impossible, so often a second; what B notices of it."""
    impossible = json.dumps(
        {"request_id": "never", "profile": "training-standard", "cards": 8,
         "accelerator": {"memory": "180GB.."}, "constraints": {"locations": ["nowhere"]}}
    ).encode()  # fmt: skip
    times: dict[bool, list[float]] = {False: [], True: []}
    answered = 0
    for _ in range(max(1, samples // (2 * ROUND))):
        for flooded in (False, True):
            stop = asyncio.Event()

            async def pour(stop=stop) -> None:  # noqa: ANN001
                nonlocal answered
                tasks: set[asyncio.Task[bytes]] = set()
                begin, sent = time.perf_counter(), 0
                while not stop.is_set():
                    due = int((time.perf_counter() - begin) * rate)
                    for _ in range(due - sent):
                        task = asyncio.create_task(load.world.asker.place(TENANTS[0], impossible))
                        tasks.add(task)
                    sent = max(sent, due)
                    await asyncio.sleep(0.004)
                for answer in await asyncio.gather(*tasks, return_exceptions=True):
                    answered += isinstance(answer, bytes)

            pouring = asyncio.create_task(pour()) if flooded else None
            times[flooded] += [await load.one() for _ in range(ROUND)]
            stop.set()
            if pouring is not None:
                await pouring
            await load.thin()
    alone, beside = (quantile(times[key], 0.99) * 1e3 for key in (False, True))
    print(
        f"  flood of {rate}/s ({answered} answered): B's p99 {beside:.2f} ms, alone {alone:.2f} ms,"
        f" ratio {beside / alone:.2f} (bound 2.0)"
    )


async def run(nodes: int, samples: int, seed: int, *, profile: str = "") -> None:
    """Everything at one size of fleet."""
    with tempfile.TemporaryDirectory(prefix="quintal-bench-") as directory:
        begin = time.monotonic()
        async with World(Path(directory), nodes) as world:
            print(f"{nodes} nodes x {CARDS} (known after {time.monotonic() - begin:.0f} s)")
            load = Load(world, seed)
            for _ in range(ROUND):
                await load.echo()
                await load.one()
            print(f"  pid {world.placer.process.pid if world.placer.process else 0}", flush=True)
            await single(load, samples)
            sys.stdout.flush()
            await crowd(load, 1.5, max(2, samples // 2000))
            sys.stdout.flush()
            await flood(load, samples)
            print(f"  verdicts {load.verdicts}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Print each figure beside its bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="*", default=[100, 1_000, 10_000])
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(argv)
    for nodes in given.nodes:
        uvloop.run(run(nodes, given.samples, given.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
