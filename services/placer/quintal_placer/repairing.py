"""Gangs that lost a member to the infrastructure, and what is kept for their repair. Pure.

A gang is one promise: with one of its nodes its lease is over. Its tenant asks again and says what
it repairs. That request has the turn of the broken lease, so that it stands before all who came
after it with equal priority; and what the gang held is kept for it, also while the lost node is
away: else newcomers would take the nodes that are left, and the node that returns alone would mend
nothing. What is kept is free: nobody pays for it and no quota counts it; its own tenant, and
whoever has a higher priority or an earlier turn, may have it.

It is kept for one ttl, the time in which a tenant that lives asks again; once that request waits in
the queue, for half an hour from the break at most.
"""

from __future__ import annotations

from typing import Final

from quintal.contracts.placement import PlaceAsk
from quintal_placer.engine.asks import Ask
from quintal_placer.engine.line import Turn
from quintal_placer.state import Lease, PlacerState, rank_of

KEPT_MAX_MS: Final = 1_800_000

DeviceKey = tuple[str, str]


def turn_of(state: PlacerState, lease: Lease) -> Turn:
    """The turn of a broken gang: as if it had waited since it was granted."""
    request = lease.granted.request if lease.granted is not None else None
    priority = request.priority if request is not None else None
    return Turn(rank_of(state.catalog, priority or ""), lease.granted_ms, 0)


def repaired(state: PlacerState, tenant: str, ask: PlaceAsk) -> Lease | None:
    """The broken gang that a request repairs; none where there is none such of this tenant."""
    lease = state.broken.get(ask.repairs or "")
    return lease if lease is not None and lease.tenant == tenant else None


def fault(state: PlacerState, tenant: str, ask: PlaceAsk, asked: Ask) -> str:
    """Why the request is no repair; empty where it is one."""
    lease = repaired(state, tenant, ask)
    if lease is None:
        return f"repairs {ask.repairs}: no gang of {tenant} that lost a node and is not repaired"
    waiting = state.queue.get(lease.repairing)
    if waiting is not None and waiting.request_id != ask.request_id:
        return f"repairs {ask.repairs}: request {waiting.request_id} waits for that already"
    if any(option.total > len(lease.devices) for option in asked.options):
        return (
            f"repairs {ask.repairs}: that gang had {len(lease.devices)} cards, and this asks more"
        )
    return ""


def kept(state: PlacerState, tenant: str, turn: Turn | None, at_ms: int) -> frozenset[DeviceKey]:
    """What a request of this turn must leave to gangs of others that are to be repaired."""
    if turn is None or not state.broken:
        return frozenset()
    return frozenset(
        (device.node, device.uuid)
        for lease in held(state, at_ms)
        if lease.tenant != tenant and turn_of(state, lease) < turn
        for device in lease.devices
    )


def held(state: PlacerState, at_ms: int) -> list[Lease]:
    """The broken gangs for which something is kept now."""
    return [lease for lease in state.broken.values() if at_ms < _until_ms(state, lease)]


def _until_ms(state: PlacerState, lease: Lease) -> int:
    waits = lease.repairing in state.queue
    return (lease.ending_ms or 0) + (KEPT_MAX_MS if waits else min(lease.ttl_ms, KEPT_MAX_MS))
