"""From what agents say to what the ledger must record. Pure: state and message in, records out.

Telemetry never comes here: readings can change no allocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypedDict
from weakref import WeakKeyDictionary

from quintal import identity
from quintal.contracts import ledger
from quintal.contracts.documents import Catalog
from quintal.contracts.nodes import DeviceHealth, HealthEvent, Inventory, RawDevice
from quintal.units import PARTS
from quintal_placer.engine.devices import Device, Node, Partition
from quintal_placer.engine.leases import LIVE
from quintal_placer.state import Lease, PlacerState

DUPLICATE = "duplicate_device"

MISSING = "missing from the inventory"


def inventory_records(
    state: PlacerState, inventory: Inventory, at_ms: int
) -> list[ledger.AnyRecord]:
    """What this inventory changes; nothing if it says what is known.

    A device that a lease holds does not leave the inventory with its report: it becomes failed,
    stays counted, and goes when the lease has let it go.
    """
    if state.retired.get(inventory.node) == inventory.boot_id:
        return []
    known = state.fleet.nodes.get(inventory.node)
    records: list[ledger.AnyRecord] = []
    if known is not None and known.boot_id != inventory.boot_id:
        records += reboot_records(state, inventory.node, at_ms)
    changed = _node_record(state, inventory, at_ms)
    if changed is not None:
        records.append(changed)
    reported = {device.uuid for device in inventory.devices}
    for raw in inventory.devices:
        records += _device_records(state, known, inventory, raw, at_ms)
    for device in list(known.devices.values()) if known else []:
        if device.uuid in reported:
            continue
        if all(_lets_go(records, lease, inventory.node) for lease in device.holders):
            records.append(ledger.DeviceGone(at_ms=at_ms, node=inventory.node, uuid=device.uuid))
            records += _no_duplicate(state, inventory.node, device.uuid, at_ms)
        elif device.health_reason != MISSING:
            records.append(
                ledger.DeviceHealthChanged(
                    at_ms=at_ms,
                    node=inventory.node,
                    uuid=device.uuid,
                    health=DeviceHealth.FAILED,
                    reason=MISSING,
                )
            )
    return records


def _lets_go(records: list[ledger.AnyRecord], lease: str, node: str) -> bool:
    return any(
        isinstance(record, ledger.NodeReleased) and (record.lease, record.node) == (lease, node)
        for record in records
    )


def _node_record(state: PlacerState, inventory: Inventory, at_ms: int) -> ledger.NodeChanged | None:
    record = ledger.NodeChanged(
        at_ms=at_ms,
        node=inventory.node,
        boot_id=inventory.boot_id,
        hostname=inventory.hostname,
        cluster=inventory.cluster,
        location=inventory.location,
        labels=inventory.labels,
        cpu_milli=inventory.cpu_milli,
        memory_bytes=inventory.memory_bytes,
        network_mbits=max((n.speed_mbits or 0 for n in inventory.networks), default=0),
        stack=inventory.stack,
        topology=inventory.topology,
        inventory_sequence=inventory.sequence,
        fences="fence" in (inventory.tasks or ()),
    )
    before = state.facts.get(inventory.node)
    same = {"at_ms": 0, "inventory_sequence": 0}
    if before is not None and before.model_copy(update=same) == record.model_copy(update=same):
        return None
    return record


def _device_records(
    state: PlacerState, node: Node | None, inventory: Inventory, raw: RawDevice, at_ms: int
) -> Iterator[ledger.AnyRecord]:
    name = inventory.node
    model, pool = _resolve(state.catalog, inventory, raw)
    known = node.devices.get(raw.uuid) if node else None
    its = cut(state.catalog, raw, model, known)
    if known is None:
        yield ledger.DeviceAppeared(
            at_ms=at_ms, node=name, device=raw, model=model, pool=pool,
            **its,
        )  # fmt: skip
        yield from _duplicates(state, name, raw.uuid, at_ms)
        return
    before = state.raw[name, raw.uuid]
    health = {"health": before.health, "health_reason": before.health_reason}
    same = before == raw.model_copy(update=health) and _same(known, model, pool, its)
    if not same:
        yield ledger.DeviceChanged(
            at_ms=at_ms, node=name, device=raw, model=model, pool=pool,
            **its,
        )  # fmt: skip
    elif (before.health, before.health_reason) != (raw.health, raw.health_reason):
        yield ledger.DeviceHealthChanged(
            at_ms=at_ms, node=name, uuid=raw.uuid, health=raw.health, reason=raw.health_reason
        )


class CutFacts(TypedDict):
    """The fields of `ledger.Cut`."""

    smallest_parts: int
    together: int
    partitions: tuple[ledger.PartitionFact, ...]


def cut(catalog: Catalog, raw: RawDevice, model: str | None, known: Device | None) -> CutFacts:
    """How the device is had apart: its smallest legal share, its set, its partitions.

    A partition that a lease holds stays what it was when it was granted, also where its agent
    reports it no more; the others share what that leaves of the whole. One that no document
    knows, or that there is no room for, has no parts: it is not granted.
    """
    spec = catalog.models.get(model or "")
    smallest = spec.shares.smallest_milli * 1000 if spec and spec.shares else PARTS
    together = spec.together if spec else 1
    if not raw.partitions and (known is None or not known.partitions):
        return {"smallest_parts": smallest, "together": together, "partitions": ()}
    kept = {p.uuid: p for p in (known.partitions or {}).values() if p.holder} if known else {}
    reported = {part.uuid for part in raw.partitions}
    facts = [partition_fact(p, missing=p.uuid not in reported) for p in kept.values()]
    left = PARTS - sum(fact.parts for fact in facts)
    for part, profile in identity.partitions(raw, model, spec):
        if part.uuid in kept:
            continue
        parts = profile.parts if profile is not None and profile.parts <= left else 0
        left -= parts
        facts.append(
            ledger.PartitionFact(
                uuid=part.uuid,
                profile=profile.name if profile else part.profile,
                parts=parts,
                memory_bytes=part.memory_bytes or (profile.memory_bytes if profile else None),
                index=part.index,
            )
        )
    ordered = tuple(sorted(facts, key=lambda fact: fact.uuid))
    return {"smallest_parts": smallest, "together": together, "partitions": ordered}


def partition_fact(partition: Partition, *, missing: bool) -> ledger.PartitionFact:
    """A partition as the ledger names it."""
    return ledger.PartitionFact(
        uuid=partition.uuid,
        profile=partition.profile,
        parts=partition.parts,
        memory_bytes=partition.memory_bytes,
        index=partition.index,
        missing=missing,
    )


def cut_facts(device: Device) -> CutFacts:
    """How the device is had apart, as the ledger names it."""
    cuts: Mapping[str, Partition] = device.partitions or {}
    return {
        "smallest_parts": device.smallest_parts,
        "together": device.together,
        "partitions": tuple(partition_fact(p, missing=p.missing) for _, p in sorted(cuts.items())),
    }


def _same(device: Device, model: str | None, pool: str, its: CutFacts) -> bool:
    known: CutFacts = cut_facts(device)
    return (device.model, device.pool) == (model, pool) and known == its


def duplicate_records(state: PlacerState, name: str, at_ms: int) -> list[ledger.AnyRecord]:
    """A node is heard again: what was reported elsewhere meanwhile is nobody's until cleared."""
    uuids = sorted(state.fleet.nodes[name].devices)
    return [record for uuid in uuids for record in _duplicates(state, name, uuid, at_ms)]


def _duplicates(state: PlacerState, name: str, uuid: str, at_ms: int) -> Iterator[ledger.AnyRecord]:
    """One uuid on two live nodes makes both of them disputed."""
    others = [n for n in sorted(state.where.get(uuid, ())) if n != name and _live(state, n)]
    for other in [*others, name] if others else []:
        node = state.fleet.nodes.get(other)
        known = node.devices.get(uuid) if node else None
        if known is None or not known.disputed:
            yield ledger.DisputeChanged(
                at_ms=at_ms, node=other, uuid=uuid, disputed=True, reason=DUPLICATE
            )


def _no_duplicate(
    state: PlacerState, gone: str, uuid: str, at_ms: int
) -> Iterator[ledger.AnyRecord]:
    """Whoever alone still reports a device had it in truth: its copy is withdrawn."""
    left = state.where.get(uuid, set()) - {gone}
    for name in left if len(left) == 1 else ():
        if state.fleet.nodes[name].devices[uuid].disputed == DUPLICATE:
            yield ledger.DisputeChanged(
                at_ms=at_ms, node=name, uuid=uuid, disputed=False, reason="its copy is gone"
            )


def _live(state: PlacerState, node: str) -> bool:
    known = state.fleet.nodes.get(node)
    return known is not None and known.liveness != "lost"


def _resolve(
    catalog: Catalog, where: Inventory | ledger.NodeChanged, raw: RawDevice
) -> tuple[str | None, str]:
    model = _model(catalog, raw)
    pool = identity.pool_of(
        catalog,
        model=model,
        vendor=raw.vendor,
        node=where.node,
        cluster=where.cluster,
        location=where.location,
        labels=where.labels,
    )
    return model, pool


def _model(catalog: Catalog, raw: RawDevice) -> str | None:
    """Devices of one kind say the same: a fleet of thousands has a few such answers."""
    said = (raw.vendor, raw.name, raw.memory_bytes, raw.pci_id, raw.pci_subsystem, raw.architecture)
    known = _MODELS.get(catalog)
    if known is None:
        known = _MODELS[catalog] = {}
    if said not in known:
        known[said] = identity.resolve(raw, catalog.models)
    return known[said]


_MODELS: WeakKeyDictionary[Catalog, dict[tuple[object, ...], str | None]] = WeakKeyDictionary()


def adoption_records(state: PlacerState, catalog: Catalog, at_ms: int) -> list[ledger.AnyRecord]:
    """The adoption itself, then every device that another catalog gives another model or pool."""
    records: list[ledger.AnyRecord] = [
        ledger.CatalogAdopted(at_ms=at_ms, revision=catalog.revision, digest=catalog.digest)
    ]
    for (node, uuid), raw in sorted(state.raw.items()):
        device = state.fleet.nodes[node].devices[uuid]
        model, pool = _resolve(catalog, state.facts[node], raw)
        its = cut(catalog, raw, model, device)
        if not _same(device, model, pool, its):
            records.append(
                ledger.DeviceResolved(
                    at_ms=at_ms,
                    node=node,
                    uuid=uuid,
                    model=model,
                    pool=pool,
                    **its,
                )
            )
    return records


def health_records(state: PlacerState, event: HealthEvent, at_ms: int) -> list[ledger.AnyRecord]:
    """A health transition of a known device; vendor events are metering's to keep."""
    node = state.fleet.nodes.get(event.node)
    device = node.devices.get(event.device) if node else None
    if node is None or device is None or event.kind != "transition" or event.after is None:
        return []
    if event.boot_id != node.boot_id or (device.health, device.health_reason) == (
        event.after,
        event.message,
    ):
        return []
    return [
        ledger.DeviceHealthChanged(
            at_ms=at_ms,
            node=event.node,
            uuid=event.device,
            health=event.after,
            reason=event.message,
        )
    ]


def reboot_records(state: PlacerState, name: str, at_ms: int) -> list[ledger.AnyRecord]:
    """A new boot id: whatever ran there is over since the node was last heard."""
    heard_ms = state.fleet.nodes[name].heard_ms
    records: list[ledger.AnyRecord] = []
    for lease in _leases_on(state, name):
        records += _over(lease, name, at_ms, ("rebooted", "boot"), heard_ms)
    return records


def retire_records(
    state: PlacerState, name: str, at_ms: int, by: str, reason: str
) -> list[ledger.AnyRecord]:
    """The node is gone for good, and with it whatever was held there."""
    node = state.fleet.nodes[name]
    effective_ms = node.heard_ms if node.liveness == "lost" else at_ms
    records: list[ledger.AnyRecord] = []
    for lease in _leases_on(state, name):
        records += _over(lease, name, at_ms, ("retired", "retire"), effective_ms)
    records.append(ledger.NodeRetired(at_ms=at_ms, node=name, by=by, reason=reason))
    for uuid in node.devices:
        records += _no_duplicate(state, name, uuid, at_ms)
    return records


def _leases_on(state: PlacerState, name: str) -> list[Lease]:
    return [state.leases[lease] for lease in sorted(state.on_node.get(name, ()))]


def _over(
    lease: Lease, node: str, at_ms: int, why: tuple[str, str], effective_ms: int
) -> Iterator[ledger.AnyRecord]:
    """End a lease as of `effective_ms` (not before its begin), and its hold on one node."""
    reason, by = why
    if lease.state in LIVE:
        begin_ms = lease.bound_ms if lease.bound_ms is not None else lease.granted_ms
        yield ledger.LeaseEnding(
            at_ms=at_ms,
            lease=lease.lease,
            reason=reason,
            effective_ms=min(at_ms, lease.deadline_ms, max(begin_ms, effective_ms)),
        )
    waiting = lease.waiting or set(lease.nodes)
    yield ledger.NodeReleased(at_ms=at_ms, lease=lease.lease, node=node, by=by)
    if waiting <= {node}:
        yield ledger.LeaseEnded(at_ms=at_ms, lease=lease.lease)
