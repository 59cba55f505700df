"""Whom a grant would hurt: the rule by which the line is kept. Pure.

Who waits for devices that others hold has a claim on every device that could serve it: one of its
models, in a pool that is open to it, on a node that would do if it were empty. A grant to somebody
who came later must not take such a device, or those who want little would keep those who want
much waiting for ever. It hurts nobody who

- waits for something else: another model, another pool, nodes of another kind;
- waits for its own cap or budget: that holds back only what counts against the same cap;
- waits for more than leases' ends: for a cordon, an unhealthy device, a node that is silent.

So a waiter has a claim only while the ends of leases alone could serve it.
"""

from __future__ import annotations

from dataclasses import replace

from quintal_placer.engine import placing
from quintal_placer.engine.asks import PARTS, Ask, Group, Offer, Option
from quintal_placer.engine.devices import Device, Node, Shelf
from quintal_placer.engine.fleet import Fleet
from quintal_placer.engine.lay import most
from quintal_placer.engine.placing import Chosen
from quintal_placer.engine.quota import Holding, Meter, Quotas, counts
from quintal_placer.engine.rooms import Rooms

Pair = tuple[str, str]
"""Pool and model."""

NOBODY: frozenset[Pair] = frozenset()


def hurts(fleet: Fleet, quotas: Quotas, waiter: Ask, ask: Ask, chosen: Chosen) -> frozenset[Pair]:
    """Of what pairs granting `chosen` to `ask` would take what `waiter` waits for; none: it may."""
    found: set[Pair] = set()
    counts_too = free_to_have = False
    for option in waiter.options:
        open_to_it = False
        for offer in option.offers:
            its = least(waiter, option, offer)
            over = quotas.exceeded(its)
            dear = waiter.micro_max is not None and its.micro > waiter.micro_max
            if over is None and not dear:
                open_to_it = free_to_have = True
            else:
                same = over is not None and _counts_too(over.limit.meter, ask, chosen)
                counts_too = counts_too or same or (dear and _same_purse(waiter, ask))
        if open_to_it:
            found |= _taken(fleet, waiter, option, chosen)
    if counts_too and not free_to_have:
        return frozenset(_pair(device) for pick in chosen.picks for device in pick.devices)
    return frozenset(found)


def capped(quotas: Quotas, waiter: Ask) -> bool:
    """Whether its tenant's caps bar all that it wants: then it holds back no other tenant."""
    return all(
        quotas.exceeded(least(waiter, option, offer)) is not None
        for option in waiter.options
        for offer in option.offers
    )


def least(waiter: Ask, option: Option, offer: Offer) -> Holding:
    """The least that a wish would add to its tenant's account."""
    count = option.total
    parts = option.share.parts if option.share else offer.parts
    charged = option.share.parts if option.share else offer.charged
    micro = offer.rating_micro * charged // PARTS * count
    return Holding(
        waiter.tenant, waiter.workload_class, offer.family, offer.model, parts * count, micro
    )


def _counts_too(meter: Meter, ask: Ask, chosen: Chosen) -> bool:
    """Whether what was chosen counts under a meter."""
    if meter.tenant != ask.tenant:
        return False
    offers = {piece.offer for pick in chosen.picks for piece in pick.pieces}
    return any(
        counts(meter, Holding(ask.tenant, ask.workload_class, offer.family, offer.model, 0, 0))
        for offer in offers
    )


def _same_purse(waiter: Ask, ask: Ask) -> bool:
    return (waiter.tenant, waiter.workload_class) == (ask.tenant, ask.workload_class)


def _pair(device: Device) -> Pair:
    return device.pool, device.model or ""


def _taken(fleet: Fleet, waiter: Ask, option: Option, chosen: Chosen) -> frozenset[Pair]:
    """The pairs of what was chosen on nodes that could serve the waiter, were they empty."""
    models = {offer.model for group in option.groups for offer in group.offers}
    pairs = {
        _pair(device)
        for pick in chosen.picks
        if any(device.model in models for device in pick.devices)
        and serves(waiter, option, fleet.nodes[pick.node])
        for device in pick.devices
        if device.model in models and admits(waiter, fleet.nodes[pick.node], device.pool)
    }
    if option.arranged:
        return frozenset(pairs) & _reach(fleet, waiter, option, chosen)
    if not pairs or (option.nodes > 1 and not enough(fleet, waiter, option)):
        return NOBODY
    return frozenset(pairs)


def _reach(fleet: Fleet, waiter: Ask, option: Option, chosen: Chosen) -> frozenset[Pair]:
    """Of what was chosen, what lies where all members of the waiter could be had together."""
    place = waiter.options.index(option)
    who = replace(
        waiter, tenant="", micro_max=None, avoid=frozenset(), left=frozenset(), shape=None
    )
    able = fleet.lasting((who, place), lambda: _able(fleet, waiter, place))
    needs = option.arrangement
    found: set[Pair] = set()
    for pick in chosen.picks:
        node = fleet.nodes[pick.node]
        domain = node.lay.domain(needs.over) if needs and needs.domain == "required" else ""
        for device in pick.devices:
            pair = ("", "") if option.mixed else _pair(device)
            if (pair, domain) in able:
                found.add(_pair(device))
    return frozenset(found)


def _able(fleet: Fleet, waiter: Ask, place: int) -> frozenset[tuple[Pair, str]]:
    """(pair, domain) that could hold all members, were they empty."""
    rooms = Rooms(fleet, waiter)
    for names in fleet.alike():
        inside = [n for n in names if n in waiter.nodes] if waiter.nodes else names
        node = fleet.nodes[names[0]]
        if inside and _beside(waiter, node):
            sizes = _sizes(waiter, waiter.options[place], node)
            rooms.add(inside, [((place, pair[1], pair[0]), n) for pair, n in sizes.items()])
    return frozenset(((pool, model), domain) for (_, model, pool), domain in rooms.able())


def _sizes(waiter: Ask, option: Option, node: Node) -> dict[Pair, int]:
    """How much one member could have of an empty node, lying as it must."""
    barred = {bar.model for bar in option.bars if bar.software == node.software}
    shut = {pool for pool, _ in option.unapproved}
    models = {
        offer.model
        for offer in option.offers
        if offer.model not in barred
        and (not offer.legal_counts or all(n in offer.legal_counts for n, _ in option.seats))
    }
    found: dict[Pair, list[str]] = {}
    for device in node.devices.values():
        if device.usable and device.model in models and device.pool not in shut:
            found.setdefault(_pair(device), []).append(device.uuid)
    needs = option.arrangement
    lying = {
        "island": needs is not None and needs.island == "required",
        "nic": needs is not None and needs.nic == "required",
    }
    sizes = {
        pair: most(node.lay, uuids, **lying) if any(lying.values()) else len(uuids)
        for pair, uuids in found.items()
        if admits(waiter, node, pair[0])
    }
    return {pair: size for pair, size in sizes.items() if size >= option.least}


def enough(fleet: Fleet, waiter: Ask, option: Option) -> bool:
    """Whether the fleet has as many nodes as the waiter needs that could serve it."""
    found = 0
    for names in fleet.alike():
        if serves(waiter, option, fleet.nodes[names[0]], named=False):
            found += len([n for n in names if n in waiter.nodes] if waiter.nodes else names)
            if found >= option.nodes:
                return True
    return False


def admits(waiter: Ask, node: Node, pool: str) -> bool:
    """Whether the waiter may go to what is in this pool of the node."""
    return placing.admits(waiter, Shelf(pool, "", node.stack))


def serves(waiter: Ask, option: Option, node: Node, *, named: bool = True) -> bool:
    """Whether an empty node would do for its share of one of the waiter's options."""
    if named and waiter.nodes and node.name not in waiter.nodes:
        return False
    if not _beside(waiter, node):
        return False
    if option.arranged:
        return bool(_sizes(waiter, option, node))
    return all(_has(waiter, option, group, node) for group in option.groups)


def _beside(waiter: Ask, node: Node) -> bool:
    """Whether it is open, and has in all what is asked beside its devices."""
    if (
        not node.open
        or node.cpu_milli < waiter.cpu_milli
        or node.memory_bytes < waiter.memory_bytes
    ):
        return False
    return node.network_mbits >= waiter.network_mbits


def _has(waiter: Ask, option: Option, group: Group, node: Node) -> bool:
    """Whether the node has as many usable devices of one model and pool as a group asks for."""
    barred = {bar.model for bar in option.bars if bar.software == node.software}
    shut = {pool for pool, _ in option.unapproved}
    models = {
        offer.model
        for offer in group.offers
        if offer.model not in barred
        and (not offer.legal_counts or group.cards in offer.legal_counts)
    }
    counts: dict[Pair, int] = {}
    for device in node.devices.values():
        if device.usable and device.model in models and device.pool not in shut:
            pair = _pair(device)
            counts[pair] = counts.get(pair, 0) + pieces_of(device, group)
    return any(
        count >= group.cards and admits(waiter, node, pool) for (pool, _), count in counts.items()
    )


def pieces_of(device: Device, group: Group) -> int:
    """How many of a group's pieces an empty device comes to."""
    parts = (device.partitions or {}).values()
    if group.partition:
        return sum(p.profile == group.partition and not p.missing for p in parts)
    return 0 if device.partitions else 1
