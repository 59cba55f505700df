"""What preemption would bring a request that came with a priority; none is ever done here. Pure.

Leases of lower priority are counted as victims that could be: how many devices they hold of what
would do, and whether the request would fit if all of them ended. It is said where somebody asks
why, so that nobody takes a high priority for a claim on what others hold.
"""

from __future__ import annotations

from quintal.contracts.message import Reason
from quintal.errors import Code, Owner
from quintal_placer.engine.asks import Ask, Group, Option
from quintal_placer.engine.devices import Device, Node
from quintal_placer.engine.turns import admits, pieces_of
from quintal_placer.state import PlacerState, rank_of


def reason(state: PlacerState, ask: Ask, priority: str) -> Reason:
    """Why those of lower priority keep what they have, and whether they would suffice."""
    rank = rank_of(state.catalog, priority)
    lower = {
        name
        for name, lease in state.live.items()
        if rank_of(state.catalog, _priority(state, name)) > rank and not lease.unbound
    }
    held = sum(
        bool(device.holders) and lower.issuperset(device.holders) and _wanted(ask, node, device)
        for node in state.fleet.nodes.values()
        for device in node.devices.values()
    )
    missing, nodes = min((o.nodes - _nodes(state, ask, o, lower), o.nodes) for o in ask.options)
    if not held:
        message = "nothing that would do is held by leases of lower priority: there is no victim"
    elif missing <= 0:
        message = "held by leases of lower priority; to end them would do, and is not enabled"
    else:
        message = (
            "held by leases of lower priority; to end them all would not do: "
            f"{missing} of its {nodes} nodes would still be missing"
        )
    return Reason(code=Code.NOT_ENABLED, message=message, owner=Owner.INFRASTRUCTURE, count=held)


def _priority(state: PlacerState, name: str) -> str:
    granted = state.live[name].granted
    request = granted.request if granted is not None else None
    return (request.priority if request is not None else None) or ""


def _wanted(ask: Ask, node: Node, device: Device) -> bool:
    models = {offer.model for o in ask.options for group in o.groups for offer in group.offers}
    return device.model in models and device.usable and node.open and admits(ask, node, device.pool)


def _nodes(state: PlacerState, ask: Ask, option: Option, lower: set[str]) -> int:
    """How many nodes would do, were all leases of lower priority over."""
    return sum(
        (not ask.nodes or node.name in ask.nodes)
        and node.open
        and all(_would_do(ask, group, option, node, lower) for group in option.groups)
        for node in state.fleet.nodes.values()
    )


def _would_do(ask: Ask, group: Group, option: Option, node: Node, lower: set[str]) -> bool:
    models = {offer.model for offer in group.offers}
    counts: dict[tuple[str, str], int] = {}
    for device in node.devices.values():
        free = device.usable and lower.issuperset(device.holders)
        if free and device.model in models and admits(ask, node, device.pool):
            pair = (device.pool, device.model or "")
            counts[pair] = counts.get(pair, 0) + pieces_of(device, group)
    cards = option.least if group.offers == option.offers else group.cards
    return max(counts.values(), default=0) >= cards
