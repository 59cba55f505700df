"""The placer among ten thousand agents that answer and beat: binds, heartbeats, a failover.

The floor of a bind is a durable echo and one echo more, of the same bytes, interleaved. Heartbeats
are counted in the placer's own time, with and without them. A failover is the time from the kill
of a leader to the first answer of its standby, as a client that asks again sees it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from tests.bench import floor
from tests.bench.placement import ROUND, Load, placer_cpu_s, quantile
from tests.bench.world import CARDS, TENANTS, World

QUIET_S = 20.0
SETTLED_S = 25.0
"""Until a new standby has held every inventory against the ledger, on a machine that is shared."""


class BindingLoad(Load):
    """The same requests, each bound by its agents before the reply."""

    bind = "wait"

    async def echo(self) -> float:
        """A durable echo, then one that is not: what a bind cannot do without."""
        durable = await super().echo()
        data = json.dumps(next(self.asks)[1]).encode()
        begin = time.perf_counter()
        await self.world.floor_asker.ask(floor.PLAIN_SUBJECT, data, TENANTS[0])
        return durable + time.perf_counter() - begin


async def binds(load: Load, samples: int) -> None:
    """One client, `bind: wait`."""
    echoes: list[float] = []
    bound: list[float] = []
    while len(bound) < samples:
        echoes += [await load.echo() for _ in range(ROUND)]
        bound += [await load.one() for _ in range(ROUND)]
        await load.thin()
    for share in (0.5, 0.99):
        low, high = quantile(echoes, share) * 1e3, quantile(bound, share) * 1e3
        limit = " (bound 2.0)" if share == 0.5 else ""
        print(
            f"  bind: wait p{int(share * 100)}: {high:.2f} ms, durable echo and echo {low:.2f} ms, "
            f"ratio {high / low:.2f}{limit}",
            flush=True,
        )


async def beats(world: World, count: int) -> None:
    """What the heartbeats cost the placer."""
    begin, before_s = time.monotonic(), placer_cpu_s(world)
    await asyncio.sleep(QUIET_S)
    spent_s = placer_cpu_s(world) - before_s
    share = spent_s / (time.monotonic() - begin)
    print(
        f"  {count / 5:.0f} heartbeats a second and nothing else: {share:.1%} of a core,"
        f" {spent_s / QUIET_S / (count / 5) * 1e6:.0f} us each",
        flush=True,
    )


async def failovers(load: Load, times: int) -> None:
    """Kill the leader, ask until somebody answers; the killed one is the next standby."""
    world = load.world
    leader, standby = world.placer, world.process(2)
    took: list[float] = []
    for _ in range(times):
        standby.start()
        await world.until_follows(standby)
        await asyncio.sleep(SETTLED_S)
        number, ask = next(load.asks)
        data = json.dumps({**ask, "bind": "none"}).encode()
        leader.kill()
        begin = time.monotonic()
        while True:
            try:
                await world.asker.ask(
                    f"quintal.v1.placement.{TENANTS[number % 200]}.request",
                    data, TENANTS[number % 200], 0.1,
                )  # fmt: skip
                break
            except TimeoutError:
                assert time.monotonic() - begin < 60, standby.log()[-3000:]
        took.append(time.monotonic() - begin)
        leader, standby = standby, leader
    told = ", ".join(f"{seconds:.2f}" for seconds in took)
    print(f"  failover: {told} s from the kill to an answer (bound 2)", flush=True)


async def run(nodes: int, samples: int, seed: int) -> None:
    """Everything at one size of fleet."""
    with tempfile.TemporaryDirectory(prefix="quintal-bench-") as directory:
        begin = time.monotonic()
        async with World(Path(directory), nodes, hands=True) as world:
            print(f"{nodes} nodes x {CARDS} (known after {time.monotonic() - begin:.0f} s)")
            await beats(world, nodes)
            load = BindingLoad(world, seed)
            for _ in range(ROUND):
                await load.echo()
                await load.one()
            if samples:
                await binds(load, samples)
            await failovers(load, 4)
            print(f"  verdicts {load.verdicts}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Print each figure beside its bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(argv)
    uvloop.run(run(given.nodes, given.samples, given.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
