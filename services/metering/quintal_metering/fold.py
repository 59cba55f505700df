"""The fold of the ledger: state and a transition in, state and rows out.

Pure: the same ledger gives the same rows, in whatever batches it is read, wherever a checkpoint
was taken, and however often it is read again. Nothing but the ledger and the immutable documents
of the adopted revisions enters. Time is the transitions' own `at_ms`: an hour closes with the
first transition at or past its end.

The state is changed in place and handed back, since a copy of a large fleet a transition would
cost more than all the rest; the caller gives its state away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from quintal.contracts import ledger
from quintal.contracts.ledger import AnyRecord, device_key
from quintal.contracts.placement import LeaseDevice
from quintal.units import MS_PER_HOUR
from quintal_metering import billing, capacity
from quintal_metering.census import compared
from quintal_metering.facts import Card, Device, Hold, Lease, Node, State, hour_of
from quintal_metering.rows import Row
from quintal_metering.turn import Prices, Turn


def fold_group(
    state: State, sequence: int, group: ledger.Group, prices: Prices
) -> tuple[State, list[Row]]:
    """Fold one message of the ledger; one that was folded already changes nothing."""
    rows: list[Row] = []
    if sequence <= state.sequence:
        return state, rows
    unbroken = sequence == state.sequence + 1
    holder, unread = (state.epoch, state.writer), state.unread
    state.unread = False
    if unbroken and not ledger.follows(group, sequence, holder, unread=unread):
        state.sequence, state.index = sequence, -1
        turn = Turn(state, prices, sequence, -1, state.at_ms)
        turn.fault(
            "foreign_group", f"epoch {group.epoch} of {group.writer} does not have the ledger"
        )
        return state, turn.rows
    state.epoch, state.writer = group.epoch, group.writer
    for transition in group.transitions:
        state, more = fold(state, sequence, transition, prices)
        rows.extend(more)
    if state.sequence != sequence:
        state.sequence, state.index = sequence, -1
    return state, rows


def pass_over(state: State, sequence: int) -> State:
    """A message that cannot be read: nothing comes of it, and it may have begun an epoch."""
    state.sequence, state.index, state.unread = sequence, -1, True
    return state


def fold(
    state: State, sequence: int, transition: AnyRecord, prices: Prices
) -> tuple[State, list[Row]]:
    """Fold one transition. `prices` holds every revision adopted so far, this one included."""
    index = state.index + 1 if sequence == state.sequence else 0
    state.sequence, state.index = sequence, index
    turn = Turn(state, prices, sequence, index, max(transition.at_ms, state.at_ms))
    if transition.at_ms < state.at_ms:
        turn.fault("time_went_back", f"{transition.at_ms} after {state.at_ms}")
    _advance(turn)
    _HOW[type(transition)](turn, transition)
    capacity.adjustments(turn)
    return state, turn.rows


def _advance(turn: Turn) -> None:
    """Move the watermark; close each hour that it reaches the end of."""
    state = turn.state
    if state.hour_ms is None:
        state.hour_ms = hour_of(turn.at_ms)
    while state.hour_ms + MS_PER_HOUR <= turn.at_ms:
        end = state.hour_ms + MS_PER_HOUR
        for lease in state.leases.values():
            if lease.state == "bound":
                billing.bill(turn, lease, end)
        capacity.close_hour(turn, state.hour_ms)
        state.hour_ms = end
    state.at_ms = turn.at_ms


def _nothing(_turn: Turn, _record: AnyRecord) -> None:
    """Time passes, or a request waits: no device and no lease is another one for it."""


def _compare(turn: Turn, record: ledger.Census) -> None:
    turn.say([compared(turn, record)])


def _adopt(turn: Turn, record: ledger.CatalogAdopted) -> None:
    turn.state.revision = record.revision
    for lease in turn.state.leases.values():
        if lease.state == "bound":
            billing.reshape(turn, lease)


# --- nodes ------------------------------------------------------------------------------------


def _apply_to_node(
    turn: Turn,
    record: ledger.NodeChanged
    | ledger.LivenessChanged
    | ledger.CordonChanged
    | ledger.TaintChanged
    | ledger.NodeRetired,
) -> None:
    node = turn.state.nodes.setdefault(record.node, Node())
    if isinstance(record, ledger.NodeChanged):
        return
    devices = [turn.state.devices[device_key(record.node, uuid)] for uuid in node.devices]
    for device in devices:
        capacity.take_out(turn, device)
    match record:
        case ledger.LivenessChanged():
            node.liveness = record.liveness
        case ledger.CordonChanged():
            (node.cordons.add if record.cordoned else node.cordons.discard)(record.by)
        case ledger.TaintChanged():
            (node.taints.add if record.present else node.taints.discard)(record.taint)
        case ledger.NodeRetired():
            del turn.state.nodes[record.node]
            for device in devices:
                device.present = False
    for device in devices:
        capacity.put_in(turn, device)
    if isinstance(record, ledger.NodeRetired):
        _reshape_holders(turn, devices)


# --- devices ----------------------------------------------------------------------------------


def _apply_to_device(
    turn: Turn,
    record: ledger.DeviceAppeared
    | ledger.DeviceChanged
    | ledger.DeviceGone
    | ledger.DeviceResolved
    | ledger.DeviceHealthChanged
    | ledger.DisputeChanged,
) -> None:
    joins = isinstance(record, (ledger.DeviceAppeared, ledger.DeviceChanged))
    uuid = record.device.uuid if joins else record.uuid  # type: ignore[union-attr]
    key = device_key(record.node, uuid)
    device = turn.state.devices.get(key)
    if not isinstance(record, ledger.DeviceAppeared) and (device is None or not device.present):
        turn.fault("unmatched", f"{record.kind} of {key}, which is not in the inventory")
        return
    if device is None:
        device = turn.state.devices[key] = Device(record.node, uuid)
    capacity.take_out(turn, device)
    _set_device(turn, device, record)
    capacity.put_in(turn, device)
    _reshape_holders(turn, [device])


def _set_device(turn: Turn, device: Device, record: AnyRecord) -> None:
    match record:
        case ledger.DeviceAppeared():
            _set_cut(device, record)
            if not device.present:
                device.present, device.disputed = True, False
                turn.state.nodes.setdefault(device.node, Node()).devices[device.uuid] = True
            device.model, device.pool = record.model, record.pool
            device.health = record.device.health
        case ledger.DeviceChanged():
            _set_cut(device, record)
            device.model, device.pool = record.model, record.pool
            device.health = record.device.health
        case ledger.DeviceGone():
            device.present = False
            turn.state.nodes[device.node].devices.pop(device.uuid, None)
        case ledger.DeviceResolved():
            _set_cut(device, record)
            device.model, device.pool = record.model, record.pool
        case ledger.DeviceHealthChanged():
            device.health = record.health
        case ledger.DisputeChanged():
            device.disputed = record.disputed
        case _:
            raise AssertionError(record.kind)


def _set_cut(device: Device, cut: ledger.Cut) -> None:
    """A partition that is missing is its holder's alone: it goes with the hold."""
    device.smallest_parts = cut.smallest_parts
    device.partitions = tuple((p.uuid, p.parts) for p in cut.partitions if not p.missing)


def _reshape_holders(turn: Turn, devices: Iterable[Device]) -> None:
    names = {hold.lease: True for device in devices for hold in device.holds.values()}
    for name in names:
        lease = turn.state.leases[name]
        if lease.state == "bound":
            billing.reshape(turn, lease)


# --- leases -----------------------------------------------------------------------------------


def _apply_to_lease(
    turn: Turn,
    record: ledger.LeaseBound
    | ledger.LeaseMoved
    | ledger.LeaseEnding
    | ledger.NodeReleased
    | ledger.LeaseEnded
    | ledger.LeaseFailed,
) -> None:
    lease = turn.state.leases.get(record.lease)
    if lease is None:
        turn.fault("unmatched", f"{record.kind} of lease {record.lease}, which holds nothing")
        return
    match record:
        case ledger.LeaseBound():
            _bind(turn, lease)
        case ledger.LeaseMoved():
            _move(turn, lease, record.devices)
        case ledger.LeaseEnding():
            _end(turn, lease, record.effective_ms)
        case ledger.NodeReleased():
            _release_node(turn, lease, record.node)
        case ledger.LeaseEnded() | ledger.LeaseFailed():
            _drop(turn, lease, record.kind)


def _grant(turn: Turn, record: ledger.LeaseGranted) -> None:
    lease = Lease(
        record.lease,
        record.tenant,
        record.project,
        record.profile,
        record.workload_class,
        dict(record.labels),
        record.nominal_micro if record.billing == "nominal" else None,
        tuple(_card(device) for device in record.devices),
    )
    known = turn.state.leases.get(lease.id)
    if known is not None:
        same = (known.tenant, known.cards) == (lease.tenant, lease.cards)
        if not same:
            turn.fault("conflict", f"lease {lease.id} was granted before, as something else")
        return
    turn.state.leases[lease.id] = lease
    if record.bound:
        _bind(turn, lease)
    else:
        _hold(turn, lease)


def _bind(turn: Turn, lease: Lease) -> None:
    if lease.state == "bound":
        return
    if lease.state == "ending":
        turn.fault("unmatched", f"lease {lease.id} is bound, but was ending")
        return
    billing.begin(turn, lease)
    _hold(turn, lease)


def _move(turn: Turn, lease: Lease, devices: tuple[LeaseDevice, ...]) -> None:
    if lease.state == "bound":
        billing.held(turn, lease, turn.at_ms)
    _let_go(turn, lease, lease.cards)
    lease.cards = tuple(_card(device) for device in devices)
    _hold(turn, lease)
    if lease.state == "bound":
        lease.held_ms = turn.at_ms
        billing.held(turn, lease)
        billing.reshape(turn, lease)


def _end(turn: Turn, lease: Lease, effective_ms: int) -> None:
    if lease.state == "ending":
        turn.fault("unmatched", f"lease {lease.id} ends a second time")
        return
    if lease.state == "bound":
        over = min(max(effective_ms, lease.bound_ms), turn.at_ms)
        if over < turn.at_ms:
            for device in _devices(turn, lease.cards):
                capacity.restate(turn, device, lease.id, over)
        billing.finish(turn, lease, over)
    lease.state = "ending"
    _hold(turn, lease)


def _release_node(turn: Turn, lease: Lease, node: str) -> None:
    if lease.state == "bound":
        turn.fault("unmatched", f"node {node} released lease {lease.id}, which is bound")
        return
    _let_go(turn, lease, tuple(card for card in lease.cards if card.node == node))


def _drop(turn: Turn, lease: Lease, kind: str) -> None:
    if lease.state == "bound":
        turn.fault("unmatched", f"lease {lease.id} is {kind}, but was bound")
        billing.finish(turn, lease, turn.at_ms)
    _let_go(turn, lease, lease.cards)
    del turn.state.leases[lease.id]


def _hold(turn: Turn, lease: Lease) -> None:
    """Make the lease's holds on its devices what the lease now is."""
    parts: dict[tuple[str, str], int] = {}
    cuts: dict[tuple[str, str], tuple[str, ...]] = {}
    for card in lease.cards:
        parts[card[:2]] = parts.get(card[:2], 0) + card.parts
        if card.partition:
            cuts[card[:2]] = (*cuts.get(card[:2], ()), card.partition)
    for (node, uuid), number in parts.items():
        key = device_key(node, uuid)
        device = turn.state.devices.get(key)
        if device is None:
            turn.fault("unmatched", f"lease {lease.id} holds {key}, which is not in the inventory")
            device = turn.state.devices[key] = Device(node, uuid)
        if lease.state == "ending" and lease.id not in device.holds:
            continue
        its = Hold(lease.id, lease.state, number, cuts.get((node, uuid), ()))
        capacity.hold(turn, device, lease.id, its)


def _let_go(turn: Turn, lease: Lease, cards: tuple[Card, ...]) -> None:
    for device in _devices(turn, cards):
        if lease.id in device.holds:
            capacity.hold(turn, device, lease.id, None)


def _devices(turn: Turn, cards: tuple[Card, ...]) -> list[Device]:
    found = (turn.state.devices.get(device_key(card.node, card.uuid)) for card in cards)
    return [device for device in found if device is not None]


def _card(device: LeaseDevice) -> Card:
    return Card(
        device.node,
        device.uuid,
        device.vendor,
        device.model,
        device.pool,
        device.parts,
        device.rating_micro,
        device.rating_version,
        device.provenance,
        device.charged,
        device.partition or "",
        device.partition_profile,
    )


_HOW: Final[dict[type[ledger.Record], Callable[[Turn, Any], None]]] = {
    ledger.Tick: _nothing,
    ledger.EpochBegan: _nothing,
    ledger.LeaseQueued: _nothing,
    ledger.LeaseRefused: _nothing,
    ledger.LeaseCancelled: _nothing,
    ledger.LeaseTtlChanged: _nothing,
    ledger.LeaseNoticed: _nothing,
    ledger.Census: _compare,
    ledger.HistoryKept: _nothing,
    ledger.CatalogAdopted: _adopt,
    ledger.NodeChanged: _apply_to_node,
    ledger.LivenessChanged: _apply_to_node,
    ledger.CordonChanged: _apply_to_node,
    ledger.TaintChanged: _apply_to_node,
    ledger.NodeRetired: _apply_to_node,
    ledger.DeviceAppeared: _apply_to_device,
    ledger.DeviceChanged: _apply_to_device,
    ledger.DeviceGone: _apply_to_device,
    ledger.DeviceResolved: _apply_to_device,
    ledger.DeviceHealthChanged: _apply_to_device,
    ledger.DisputeChanged: _apply_to_device,
    ledger.LeaseGranted: _grant,
    ledger.LeaseBound: _apply_to_lease,
    ledger.LeaseMoved: _apply_to_lease,
    ledger.LeaseEnding: _apply_to_lease,
    ledger.NodeReleased: _apply_to_lease,
    ledger.LeaseEnded: _apply_to_lease,
    ledger.LeaseFailed: _apply_to_lease,
}
"""How each sort of record is folded: all of them, which a test holds against the contract."""
