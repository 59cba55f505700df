"""When a waiting request would be placed, if every lease ran to its standing deadline. Pure.

An estimate answers one question: were no lease that stands renewed, released or lost, and did its
agents let go at once, and came nobody else before it in the line, when would this request be
placed? Whoever stands before it is served first and is taken to hold for one ttl. It is no
promise: renewals make it later, releases earlier.

It is unknown, and none is given, where more than deadlines stand in the way (a lease whose agent
has yet to let go, a budget, a cordon), where parts of cards or an arrangement are asked for, where
somebody before it who wants the same has none, and beyond the first `PLACES_MAX` of the line.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quintal_placer.engine.asks import Ask, Offer, Option
from quintal_placer.engine.devices import Device, Node
from quintal_placer.engine.fleet import Fleet
from quintal_placer.engine.quota import Holding, Quotas, Usage
from quintal_placer.engine.turns import least, serves

PLACES_MAX: Final = 50
STEPS_MAX: Final = 100_000
"""Nodes looked at for one line; whoever comes after has no estimate."""

NEVER: Final = 2**62


class Waits(NamedTuple):
    """One who waits: under which name, for what, and how long it would hold it."""

    lease: str
    ask: Ask | None
    ttl_ms: int


class Stands(NamedTuple):
    """What a live lease holds beside its devices, and until when."""

    until_ms: int
    cpu_milli: dict[str, int]
    memory_bytes: dict[str, int]


@dataclass(slots=True)
class Ends:
    """What the leases that stand come to, by the names that devices know them under."""

    leases: dict[str, Stands]
    of_tenant: Callable[[str], list[tuple[int, list[Holding]]]]
    """(deadline, what it adds to the account) of each live lease of a tenant."""


@dataclass(slots=True)
class _Plan:
    fleet: Fleet
    quotas: Quotas
    ends: Ends
    now_ms: int
    steps: int = 0
    free_at: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    """(node, pool, model) -> when each of its usable devices is free, soonest first."""
    planned: dict[str, list[tuple[int, Holding]]] = field(default_factory=dict)
    """Tenant -> (until when, what) of those that stand before."""
    starts: list[tuple[frozenset[str], int]] = field(default_factory=list)
    """(models, start) of those that stand before."""


class _Found(NamedTuple):
    start_ms: int
    option: Option
    offer: Offer
    pool: str
    nodes: tuple[str, ...]


def estimates(
    fleet: Fleet, quotas: Quotas, line: Sequence[Waits], ends: Ends, now_ms: int
) -> dict[str, int]:
    """Lease -> milliseconds from now; whoever is not in it has none."""
    plan = _Plan(fleet, quotas, ends, now_ms)
    found: dict[str, int] = {}
    for waits in line[:PLACES_MAX]:
        models = _models(waits.ask)
        floor_ms = max((s for its, s in plan.starts if its & models), default=now_ms)
        best = _best(plan, waits.ask, floor_ms) if waits.ask and floor_ms < NEVER else None
        plan.starts.append((models, best.start_ms if best else NEVER))
        if best is not None and waits.ask is not None:
            found[waits.lease] = best.start_ms - now_ms
            _take(plan, waits, best)
        if plan.steps > STEPS_MAX:
            break
    return found


def _models(ask: Ask | None) -> frozenset[str]:
    groups = [group for option in ask.options for group in option.groups] if ask else []
    return frozenset(offer.model for group in groups for offer in group.offers)


def _best(plan: _Plan, ask: Ask, floor_ms: int) -> _Found | None:
    """The soonest of its options; none where it is not known."""
    if any(not o.plain or o.arranged or o.partition for o in ask.options):
        return None
    found = [
        candidate
        for option in ask.options
        for offer in option.offers
        if (capped_ms := _under_cap(plan, ask, option, offer)) < NEVER
        for candidate in _places(plan, ask, option, offer, max(floor_ms, capped_ms))
    ]
    return min(found, key=lambda f: (f.start_ms, f.pool, f.offer.model), default=None)


def _places(plan: _Plan, ask: Ask, option: Option, offer: Offer, floor_ms: int) -> Iterator[_Found]:
    """Per pool, when enough of its nodes are free for it."""
    ready: dict[str, list[tuple[int, str]]] = {}
    for names in plan.fleet.alike():
        first = plan.fleet.nodes[names[0]]
        if not serves(ask, option, first, named=False):
            continue
        pools = {d.pool for d in first.devices.values() if d.model == offer.model and d.usable}
        for name in names if not ask.nodes else [n for n in names if n in ask.nodes]:
            plan.steps += 1
            for pool in pools:
                at_ms = _ready(plan, ask, option, plan.fleet.nodes[name], (pool, offer.model))
                if at_ms < NEVER:
                    ready.setdefault(pool, []).append((at_ms, name))
    for pool, its in ready.items():
        soonest = heapq.nsmallest(option.nodes, its)
        if len(soonest) == option.nodes:
            start_ms = max(floor_ms, soonest[-1][0])
            yield _Found(start_ms, option, offer, pool, tuple(name for _, name in soonest))


def _ready(plan: _Plan, ask: Ask, option: Option, node: Node, pair: tuple[str, str]) -> int:
    key = (node.name, *pair)
    if key not in plan.free_at:
        plan.free_at[key] = sorted(
            _free_at(plan, device)
            for device in node.devices.values()
            if device.usable and not device.partitions and (device.pool, device.model) == pair
        )
    times = plan.free_at[key]
    if len(times) < option.cards:
        return NEVER
    return max(times[option.cards - 1], _room_at(plan, ask, node))


def _free_at(plan: _Plan, device: Device) -> int:
    stands = [plan.ends.leases.get(name) for name in device.holders]
    if not all(stands):
        return NEVER  # its agent has yet to let go: nobody knows when
    return max((its.until_ms for its in stands if its), default=plan.now_ms)


def _room_at(plan: _Plan, ask: Ask, node: Node) -> int:
    """When enough of the node's CPU and memory is free beside the devices."""
    cpu = node.cpu_milli - node.cpu_held - ask.cpu_milli
    memory = node.memory_bytes - node.memory_held - ask.memory_bytes
    if cpu >= 0 and memory >= 0:
        return plan.now_ms
    holders = {name for device in node.devices.values() for name in device.holders}
    stands = [its for name in holders if (its := plan.ends.leases.get(name)) is not None]
    for its in sorted(stands, key=lambda s: s.until_ms):
        cpu += its.cpu_milli.get(node.name, 0)
        memory += its.memory_bytes.get(node.name, 0)
        if cpu >= 0 and memory >= 0:
            return its.until_ms
    return NEVER


def _under_cap(plan: _Plan, ask: Ask, option: Option, offer: Offer) -> int:
    """When the tenant's own leases leave room under its caps; of its budget nothing is known."""
    wanted = least(ask, option, offer)
    if ask.micro_max is not None and wanted.micro > ask.micro_max:
        return NEVER
    used = {
        meter: Usage(usage.micro, usage.parts)
        for meter, usage in plan.quotas.used.items()
        if meter.tenant == ask.tenant
    }
    account = Quotas(used, {ask.tenant: plan.quotas.limits.get(ask.tenant, ())})
    before = plan.planned.get(ask.tenant, [])
    for _, holding in before:
        account.add(holding)
    if account.exceeded(wanted) is None:
        return plan.now_ms
    ends = [*plan.ends.of_tenant(ask.tenant), *((until, [its]) for until, its in before)]
    for until_ms, holdings in sorted(ends, key=lambda e: e[0]):
        for holding in holdings:
            account.drop(holding)
        if account.exceeded(wanted) is None:
            return until_ms
    return NEVER


def _take(plan: _Plan, waits: Waits, found: _Found) -> None:
    """It holds that for one ttl: whoever stands behind it comes after."""
    assert waits.ask is not None
    until_ms = found.start_ms + waits.ttl_ms
    for name in found.nodes:
        times = plan.free_at[name, found.pool, found.offer.model]
        rest = times[found.option.cards :]
        plan.free_at[name, found.pool, found.offer.model] = sorted(
            [*rest, *[until_ms] * found.option.cards]
        )
    its = least(waits.ask, found.option, found.offer)
    plan.planned.setdefault(waits.ask.tenant, []).append((until_ms, its))
