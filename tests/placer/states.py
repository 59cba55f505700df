"""States and requests that chance makes: what properties are tried on."""

from __future__ import annotations

import random
from typing import Any

from quintal.contracts import ledger
from quintal.contracts.documents import Document
from quintal.contracts.message import Refusal
from quintal.contracts.nodes import DeviceHealth
from tests.placer.site import AT_MS, Site, inventory, models, quota
from tests.placer.world import cards, doc

MODELS = ("a-80", "a-40", "b-24", "red-192")
TENANTS = ("ml", "bio")


def random_documents(chance: random.Random) -> list[Document]:
    """The models, caps of any size at once, a budget, a pool that is closed or tainted."""
    caps: list[dict[str, Any]] = []
    for _ in range(chance.randrange(3)):
        where: dict[str, Any] = chance.choice(
            ({"model": chance.choice(MODELS)}, {"family": "a", "class": "train_llm"})
        )
        much = {"cards": chance.randrange(6)} if "model" in where else {"units": "2"}
        caps.append({**where, **much})
    caps.append({"class": "train_llm", "units": str(chance.choice((2, 8, 1_000)))})
    budgets = [{"class": "train_llm", "unit_hours": chance.choice(("0.05", "0.5"))}]
    more = {"budgets": budgets} if chance.random() < 0.3 else {}
    pool = {"selector": {"nodes": ["n1", "n2"]}}
    if chance.random() < 0.3:
        pool["tenants"] = ["bio"]  # type: ignore[assignment]
    if chance.random() < 0.3:
        pool["taints"] = ["lab"]  # type: ignore[assignment]
    return [
        *models(),
        *quota("ml", *caps, **more),
        *quota("bio"),
        doc("Pool", "first", order=1, **pool),
        doc("PriceList", "list", currency="USD", prices=[{"amount": "2", "per": "unit_hour"}]),
    ]


def random_site(chance: random.Random) -> Site:
    """A few nodes of some models, in any condition, some of it held."""
    site = Site(random_documents(chance))
    for number in range(1, chance.randint(2, 5)):
        name, model = f"n{number}", chance.choice(MODELS)
        vendor = "amd" if model.startswith("red") else "nvidia"
        has = cards(name, model.upper(), chance.choice((2, 4, 8)), vendor)
        site.report(inventory(name, *has, cpu_milli=chance.choice((4_000, 64_000))))
    for name, node in sorted(site.state.fleet.nodes.items()):
        site.apply(*_condition(chance, name, sorted(node.devices)))
    for _ in range(chance.randrange(6)):
        tenant = chance.choice(TENANTS)
        site.ask(tenant, **random_shape(chance))
    return site


def _condition(chance: random.Random, name: str, uuids: list[str]) -> list[ledger.AnyRecord]:
    what = chance.randrange(8)
    if what == 0:
        return [ledger.CordonChanged(at_ms=AT_MS, node=name, cordoned=True, by="op")]
    if what == 1:
        return [ledger.TaintChanged(at_ms=AT_MS, node=name, taint="new", present=True, by="op")]
    if what == 2:
        return [ledger.LivenessChanged(at_ms=AT_MS, node=name, liveness="suspect", heard_ms=AT_MS)]
    if what == 3:
        failed = DeviceHealth.FAILED
        return [ledger.DeviceHealthChanged(at_ms=AT_MS, node=name, uuid=uuids[0], health=failed)]
    return []


def random_shape(chance: random.Random) -> dict[str, Any]:
    """What is asked: counts, models, constraints, objective, ttl."""
    shape: dict[str, Any] = {"bind": "none"}
    if chance.random() < 0.7:
        shape["cards"] = chance.choice((1, 1, 1, 2, 2, 3, 4, 8))
    if chance.random() < 0.1:
        shape["nodes"] = chance.choice((2, 3))
    if chance.random() < 0.4:
        shape["accelerator"] = chance.choice(
            (
                {"models": [chance.choice(MODELS)]},
                {"models": chance.sample(MODELS, 2)},
                {"vendors": ["amd"]},
                {"families": ["a"]},
                {"memory": "60GB.."},
            )
        )
    if chance.random() < 0.15:
        shape["constraints"] = chance.choice(
            (
                {"nodes": [f"n{chance.randint(1, 5)}"]},
                {"pools": ["first"]},
                {"labels": {"zone": "b"}},
                {"tolerations": ["lab"]},
            )
        )
    if chance.random() < 0.2:
        shape["node"] = {"cpu_milli": chance.choice((2_000, 8_000, 80_000))}
    if chance.random() < 0.5:
        shape["objective"] = chance.choice(("pack", "spread", "fastest", "cheapest", "ordered"))
    if chance.random() < 0.5:
        shape["ttl_ms"] = chance.choice((30_000, 300_000, 3_600_000))
    if chance.random() < 0.15:
        shape["wait"] = {"mode": "queue", "deadline_ms": 60_000}
    return shape


def refused_at(site: Site, chance: random.Random) -> tuple[dict[str, Any], Refusal] | None:
    """A shape that this site refuses, if a few tries find one."""
    for _ in range(4):
        shape = random_shape(chance)
        refused = site.decide(**shape)
        if isinstance(refused, Refusal):
            return shape, refused
    return None
