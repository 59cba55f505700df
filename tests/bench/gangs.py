"""The engine alone on gangs: 64 nodes of 8 cards in one fabric, over 10,000 nodes.

A hundred nodes make a fabric, four cards an island. On half of the nodes some card is held, the
others change hands as gangs come and go, so that which fabrics have room changes all the time. The
floor is the same gang without topology: the tightest 64 nodes.
"""

from __future__ import annotations

import random
import sys
import time
from collections import deque
from dataclasses import replace

from quintal_placer.engine.asks import Arrangement, Ask, Offer, Option
from quintal_placer.engine.fleet import Device, Fleet
from quintal_placer.engine.lay import Lay
from quintal_placer.engine.placing import Chosen, decide
from quintal_placer.engine.quota import Limit, Meter, Quotas
from tests.bench import fleets

NODES, FABRIC, MEMBERS, CARDS = 10_000, 100, 64, 8
ROUNDS = 400
HELD_GANGS = 20
BOUND_P99_MS = 25


def fleet(seed: int) -> Fleet:
    """One model, fabrics of a hundred; on two nodes of a hundred a card is held."""
    chance = random.Random(seed)
    made = fleets.fleet(NODES)
    for number, (name, node) in enumerate(made.nodes.items()):
        uuids = tuple(node.devices)
        node.lay = Lay(islands=(uuids[:4], uuids[4:]), fabric=f"f{number // FABRIC:03d}")
        for device in node.devices.values():
            device.model = device.pool = "h100"
        if chance.random() < 0.3:
            node.devices[uuids[0]].holder = "somebody"
        made.touch(name)
    return made


def measure(arrangement: Arrangement | None, seed: int) -> tuple[list[float], list[float], int]:
    """Times of a decision in ms, by the wall and of the processor; how many gangs were placed."""
    made, quotas = fleet(seed), Quotas()
    quotas.limits["t"] = (Limit(Meter("t", "train_llm", "class", ""), micro=10**15),)
    offer = Offer("h100", "h100", "accelerator", 1_000_000)
    option = Option((offer,), CARDS, nodes=MEMBERS, arrangement=arrangement)
    ask = Ask("t", "train_llm", (option,), shape=object())
    held: deque[list[Device]] = deque()
    times: list[int] = []
    worked: list[int] = []
    placed = 0
    for _ in range(ROUNDS):
        begin, busy = time.perf_counter_ns(), time.thread_time_ns()
        chosen = decide(made, quotas, ask)
        times.append(time.perf_counter_ns() - begin)
        worked.append(time.thread_time_ns() - busy)
        if isinstance(chosen, Chosen):
            placed += 1
            devices = [device for pick in chosen.picks for device in pick.devices]
            give(made, devices, "x")
            held.append(devices)
        if len(held) > HELD_GANGS or not isinstance(chosen, Chosen):
            give(made, held.popleft(), None)
    return sorted(ns / 1e6 for ns in times), sorted(ns / 1e6 for ns in worked), placed


def give(made: Fleet, devices: list[Device], holder: str | None) -> None:
    for device in devices:
        device.holder = holder
    for name in dict.fromkeys(device.node for device in devices):
        made.touch(name)


def main(seed: int = 1) -> int:
    """Print each figure beside its bound."""
    print(f"gangs of {MEMBERS} nodes x {CARDS} cards, {NODES} nodes, {ROUNDS} each, seed {seed}")
    fabric = Arrangement(domain="required")
    sorts = (
        ("anywhere", None),
        ("in one fabric", fabric),
        ("in one fabric, islands preferred", replace(fabric, island="preferred")),
    )
    for words, arrangement in sorts:
        times, worked, placed = measure(arrangement, seed)
        at = int(ROUNDS * 0.99)
        print(
            f"  {words:<34} p50 {times[ROUNDS // 2]:5.2f} ms, p99 {times[at]:6.2f} ms "
            f"(bound {BOUND_P99_MS}), of the processor {worked[at]:6.2f} ms; the slowest, which "
            f"makes the index, {worked[-1]:6.2f} ms; placed {placed}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
