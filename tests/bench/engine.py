"""The engine alone: one decision and its grant, over fleets of 100, 1,000 and 10,000 nodes."""

from __future__ import annotations

import sys
import time
from collections import deque

from quintal_placer.engine.placing import Chosen, decide
from quintal_placer.engine.quota import Holding, Limit, Meter, Quotas
from tests.bench import fleets

ROUNDS = 20_000
BOUND_P50_US, BOUND_P99_US, BOUND_GROWTH = 100, 1_000, 2.0


def measure(nodes: int, seed: int) -> tuple[float, float, int]:
    """(p50, p99) of a decision in microseconds, and how many were placed; half of it stays held."""
    fleet, quotas = fleets.fleet(nodes), Quotas()
    for tenant in range(fleets.TENANTS):
        name = f"t{tenant}"
        quotas.limits[name] = (
            Limit(Meter(name, "train_llm", "class", ""), micro=10**12),
            Limit(Meter(name, "train_llm", "family", "h100"), micro=10**12),
            Limit(Meter(name, "", "model", "mi300x"), cards=10**6),
        )
    held: deque[tuple[Holding, list]] = deque()
    cards = placed = 0
    times = []
    for ask in fleets.asks(ROUNDS, seed):
        begin = time.perf_counter_ns()
        chosen = decide(fleet, quotas, ask)
        times.append(time.perf_counter_ns() - begin)
        if isinstance(chosen, Chosen):
            placed += 1
            devices = [device for pick in chosen.picks for device in pick.devices]
            holding = Holding(
                ask.tenant, ask.workload_class, chosen.offer.family, chosen.offer.model,
                sum(piece.parts for pick in chosen.picks for piece in pick.pieces), chosen.micro,
            )  # fmt: skip
            quotas.add(holding)
            for device in devices:
                device.holder = "x"
            fleet.touch(devices[0].node)
            held.append((holding, devices))
            cards += len(devices)
        while cards > nodes * 4:
            holding, devices = held.popleft()
            quotas.drop(holding)
            for device in devices:
                device.holder = None
            fleet.touch(devices[0].node)
            cards -= len(devices)
    times.sort()
    return times[len(times) // 2] / 1000, times[int(len(times) * 0.99)] / 1000, placed


def main(seed: int = 1) -> int:
    """Print each figure beside its bound."""
    print(f"engine alone, {ROUNDS} mixed requests, seed {seed}")
    p50s = {}
    for nodes in (100, 1_000, 10_000):
        p50, p99, placed = measure(nodes, seed)
        p50s[nodes] = p50
        print(
            f"  {nodes:>6} nodes: p50 {p50:7.1f} us (bound {BOUND_P50_US}), "
            f"p99 {p99:7.1f} us (bound {BOUND_P99_US}), placed {placed}"
        )
    growth = p50s[10_000] / p50s[100]
    print(f"  10,000 nodes / 100 nodes: {growth:.2f} (bound {BOUND_GROWTH})")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
