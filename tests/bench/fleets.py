"""Seeded fleets and requests for the benchmarks: six models of three vendors, eight a node."""

from __future__ import annotations

import random

from quintal_placer.engine.asks import Ask, Offer, Option
from quintal_placer.engine.fleet import Device, Fleet, Node

MODELS = (
    ("h100", "nvidia", 1_000_000, 80),
    ("a100", "nvidia", 315_000, 80),
    ("l40s", "nvidia", 151_000, 48),
    ("h200", "nvidia", 1_092_000, 141),
    ("mi300x", "amd", 818_000, 192),
    ("gaudi3", "intel", 1_346_000, 128),
)
ZONES = ("a", "b", "c", "d")
TENANTS = 200


def fleet(nodes: int) -> Fleet:
    """So many nodes of eight cards, models and zones in turn."""
    made = Fleet()
    for number in range(nodes):
        model, vendor, _, gib = MODELS[number % len(MODELS)]
        name = f"n{number:05d}"
        node = Node(name, location=ZONES[number % 4], cpu_milli=128_000, memory_bytes=2**40)
        for index in range(8):
            node.devices[f"{name}-{index}"] = Device(
                name, f"{name}-{index}", index, vendor, model, model, vendor,
                memory_bytes=gib * 2**30,
            )  # fmt: skip
        made.nodes[name] = node
        made.touch(name)
    return made


def asks(count: int, seed: int) -> list[Ask]:
    """1, 2, 4 or 8 cards on one node (50/20/15/15 %), 40 % one model, 60 % by memory.

    Equal ones are of one shape, as those are that the placer translates.
    """
    chance = random.Random(seed)
    offers = {
        model: Offer(model, model, "accelerator", micro, price_nano=micro * 3, milliwatts=700_000)
        for model, _, micro, _ in MODELS
    }
    shapes: dict[object, object] = {}
    made = []
    for number in range(count):
        cards = chance.choices((1, 2, 4, 8), (50, 20, 15, 15))[0]
        if chance.random() < 0.4:
            chosen = (offers[chance.choice(MODELS)[0]],)
        else:
            least = chance.choice((40, 80, 128))
            chosen = tuple(offers[m] for m, _, _, gib in MODELS if gib >= least)
        objective = chance.choice(("pack", "cheapest", "fastest"))
        shape = shapes.setdefault((chosen, cards, objective), object())
        made.append(
            Ask(f"t{number % TENANTS}", "train_llm", (Option(chosen, cards),),
                objective=objective, shape=shape)
        )  # fmt: skip
    return made
