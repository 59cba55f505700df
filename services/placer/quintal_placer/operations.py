"""What operators do to nodes: cordon, taint, retire, clear a dispute. Pure: records, or why not."""

from __future__ import annotations

from collections.abc import Iterable

from quintal.contracts import ledger, placement
from quintal.contracts.message import Refusal
from quintal.errors import Code
from quintal_placer import facts
from quintal_placer.state import Lease, PlacerState

Records = list[ledger.AnyRecord]


def cordon(
    state: PlacerState, ask: placement.CordonAsk, *, by: str, at_ms: int, on: bool
) -> Records | Refusal:
    """Each principal's cordon is its own: taking back takes one's own, and leaves foreign ones."""
    missing = _missing(state, ask.nodes)
    if missing is not None:
        return missing
    records: Records = []
    for name in dict.fromkeys(ask.nodes):
        has = by in state.fleet.nodes[name].cordons
        if on != has:
            records.append(
                ledger.CordonChanged(at_ms=at_ms, node=name, cordoned=on, by=by, reason=ask.reason)
            )
    return records


def drain(state: PlacerState, ask: placement.DrainAsk, *, by: str, at_ms: int) -> Records | Refusal:
    """A cordon with an end to what runs there; without a deadline one that stands is kept."""
    missing = _missing(state, ask.nodes)
    if missing is not None:
        return missing
    records: Records = []
    for name in dict.fromkeys(ask.nodes):
        node = state.fleet.nodes[name]
        known = node.drains.get(by)
        until = known if ask.deadline_ms is None else at_ms + ask.deadline_ms
        if by not in node.cordons or until != known:
            records.append(
                ledger.CordonChanged(
                    at_ms=at_ms,
                    node=name,
                    cordoned=True,
                    by=by,
                    reason=ask.reason or node.cordons.get(by, ""),
                    drain_by_ms=until,
                )
            )
    return records


def progress(state: PlacerState, nodes: Iterable[str], at_ms: int) -> placement.Done:
    """What still runs on nodes that are drained, and how long it may."""
    names = tuple(dict.fromkeys(nodes))
    leases = {lease for name in names for lease in state.on_node.get(name, ())}
    held = sum(
        bool(device.holders)
        for name in names
        if name in state.fleet.nodes
        for device in state.fleet.nodes[name].devices.values()
    )
    ends = [
        until
        for name in names
        if name in state.fleet.nodes
        for until in state.fleet.nodes[name].drains.values()
    ]
    details: dict[str, object] = {
        "drained": not leases,
        "leases": sorted(leases)[:1000],
        "devices_held": held,
    }
    if ends:
        details["deadline_in_ms"] = max(0, max(ends) - at_ms)
    told = f"{len(leases)} leases hold {held} devices there" if leases else "drained"
    return placement.Done(message=told, nodes=names, details=details)


def drained_at(state: PlacerState, lease: Lease) -> int | None:
    """When the first of its nodes must be empty; none where none is drained by a deadline."""
    ends = [
        until
        for name in lease.nodes
        if name in state.fleet.nodes
        for until in state.fleet.nodes[name].drains.values()
    ]
    return min(ends, default=None)


def taint(state: PlacerState, ask: placement.TaintAsk, *, by: str, at_ms: int) -> Records | Refusal:
    """Put a taint on, or take it off."""
    missing = _missing(state, ask.nodes)
    if missing is not None:
        return missing
    return [
        ledger.TaintChanged(
            at_ms=at_ms,
            node=name,
            taint=ask.taint,
            present=not ask.remove,
            by=by,
            reason=ask.reason,
        )
        for name in dict.fromkeys(ask.nodes)
        if (ask.taint in state.fleet.nodes[name].taints) == ask.remove
    ]


def retire(
    state: PlacerState, ask: placement.RetireAsk, *, by: str, at_ms: int
) -> Records | Refusal:
    """Gone for good; what was held there ends with it."""
    missing = _missing(state, ask.nodes)
    if missing is not None:
        return missing
    if len(set(ask.nodes)) > 1:
        return Refusal(
            code=Code.INVALID_REQUEST,
            message="one node at a time: a gang over two retired nodes would end twice",
        )
    return facts.retire_records(state, ask.nodes[0], at_ms, by, ask.reason)


def clear_dispute(
    state: PlacerState, ask: placement.ClearDisputeAsk, *, at_ms: int
) -> Records | Refusal:
    """The device was looked at."""
    node = state.fleet.nodes.get(ask.node)
    device = node.devices.get(ask.uuid) if node else None
    if device is None:
        return Refusal(code=Code.NOT_FOUND, message=f"{ask.node} has no device {ask.uuid}")
    if not device.disputed:
        return []
    return [
        ledger.DisputeChanged(
            at_ms=at_ms, node=ask.node, uuid=ask.uuid, disputed=False, reason=ask.reason
        )
    ]


def _missing(state: PlacerState, names: Iterable[str]) -> Refusal | None:
    missing = [name for name in names if name not in state.fleet.nodes]
    if not missing:
        return None
    return Refusal(
        code=Code.NOT_FOUND,
        message=f"no such node: {', '.join(missing[:20])}",
        details={"missing": missing[:1000]},
    )
