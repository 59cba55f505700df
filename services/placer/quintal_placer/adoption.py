"""Leases that an outside scheduler opens on devices of its own choice. Pure.

Choice, cordon, taint and foreign use are skipped; no device twice (law 1), the id decides (law 3),
and every millisecond is metered (law 8). A cap or a budget that is over-run is recorded, unless
the Quota says that it refuses.
"""

from __future__ import annotations

from collections.abc import Iterable

from quintal.contracts import ledger, placement
from quintal.contracts.message import Refusal
from quintal.contracts.placement import LeaseDevice
from quintal.errors import Code, Owner
from quintal.units import from_micro
from quintal_placer import asking, budgets, views
from quintal_placer.desk import Desk, lease_device
from quintal_placer.engine.asks import PARTS
from quintal_placer.engine.devices import Device, Partition
from quintal_placer.engine.leases import State
from quintal_placer.engine.pieces import Piece
from quintal_placer.state import Lease, micro_of


def adoption_record(desk: Desk, ask: placement.AdoptAsk) -> ledger.LeaseGranted | Refusal:
    """The grant that adopts, or why it cannot be."""
    catalog = desk.state.catalog
    node = desk.state.fleet.nodes.get(ask.node)
    if node is None:
        return Refusal(code=Code.NOT_FOUND, message=f"no node {ask.node}")
    tenant = catalog.tenants.get(ask.tenant)
    if tenant is None:
        return Refusal(code=Code.NOT_FOUND, message=f"no tenant {ask.tenant}")
    if ask.project is not None and ask.project not in tenant.projects:
        return Refusal(code=Code.INVALID_REQUEST, message=f"no project {ask.project}")
    profile = catalog.profiles.get(ask.profile or "")
    if ask.profile is not None and profile is None:
        return Refusal(code=Code.INVALID_REQUEST, message=f"no profile {ask.profile}")
    workload_class = profile.workload_class if profile else ask.workload_class
    assert workload_class is not None
    found: list[LeaseDevice] = []
    for name in dict.fromkeys(ask.devices):
        named = _named(node.devices.values(), name)
        taken = named if isinstance(named, Refusal) else _taken(desk, ask, named, workload_class)
        if isinstance(taken, Refusal):
            return taken
        found.append(taken)
    cpu = any(node.devices[device.uuid].kind == "cpu" for device in found)
    if cpu and node.cpu_held:
        return Refusal(
            code=Code.CONFLICT,
            message=f"leases hold {node.cpu_held} milli of the CPU of {ask.node}",
            owner=Owner.INFRASTRUCTURE,
        )
    if len({(device.uuid, device.partition) for device in found}) < len(found):
        return Refusal(code=Code.INVALID_REQUEST, message="a device is named twice")
    lease, token = desk.next()
    at_ms = desk.writer.now_ms()
    record = ledger.LeaseGranted(
        at_ms=at_ms,
        lease=lease,
        token=token,
        tenant=ask.tenant,
        project=ask.project or "",
        profile=ask.profile or "",
        workload_class=workload_class,
        labels=ask.labels,
        adopt=ask,
        devices=tuple(found),
        cpu_milli={ask.node: node.cpu_milli} if cpu else {},
        ttl_ms=ask.ttl_ms,
        deadline_ms=at_ms + ask.ttl_ms,
        bound=True,
        catalog_revision=desk.state.adopted[0],
    )
    return _within_quota(desk, ask, record)


def _taken(
    desk: Desk,
    ask: placement.AdoptAsk,
    named: tuple[Device, Partition | None],
    workload_class: str,
) -> LeaseDevice | Refusal:
    """What of a device the lease has: all of it, a share, a partition; where that is nobody's."""
    device, part = named
    share = asking.share_of(ask.share)
    if part is not None and share is not None:
        return Refusal(code=Code.INVALID_REQUEST, message=f"{part.uuid}: no share of a partition")
    parts = PARTS if share is None else share.of(device.memory_bytes)
    what = part.uuid if part is not None else device.uuid
    if part is not None:
        free, parts = part.free and not (device.holder or device.shares), part.parts
    elif share is not None:
        free = parts is not None and parts <= device.free_parts
    else:
        free = not device.holders
    if not free or parts is None:
        by = (part.holder if part is not None else None) or ", ".join(device.holders)
        told = f"{what} is held by lease {by}" if by else f"{what} has no room for that"
        return Refusal(code=Code.CONFLICT, message=told, owner=Owner.INFRASTRUCTURE)
    offer = desk.market.offer(device.model or "", workload_class, part.profile if part else "")
    if offer is None:
        return Refusal(
            code=Code.UNRATED,
            message=f"{device.model or device.name} has no rating in {workload_class}",
            owner=Owner.CATALOG,
        )
    charged = PARTS if part is not None and offer.charged == PARTS else parts
    return lease_device(Piece(device, offer, parts, charged, part))


def _within_quota(
    desk: Desk, ask: placement.AdoptAsk, record: ledger.LeaseGranted
) -> ledger.LeaseGranted | Refusal:
    """What passes a cap or a budget is recorded, unless the Quota says that it refuses."""
    state, its = desk.state, record.workload_class
    quota = state.catalog.quotas.get(ask.tenant)
    refuses = quota is not None and quota.adopt == "refuse"
    trial = Lease(record.lease, ask.tenant, "", State.GRANTED, granted=record)
    trial.devices = record.devices
    over: dict[str, str] = {}
    if not state.quotas.defined(ask.tenant, its):
        if refuses:
            return desk.no_quota(ask.tenant, its)
        over[f"no quota in {its}"] = f"{from_micro(micro_of(trial)).normalize():f}"
    holdings = state.holdings(trial)
    narrowest = state.quotas.exceeded(*holdings)
    if narrowest is not None and refuses:
        return views.over_quota(narrowest)
    for excess in state.quotas.excesses(*holdings):
        told = views.over_quota(excess).details
        over[str(told["cap"])] = str(told["over_by"])
    what = {"micro": micro_of(trial), "ttl_ms": ask.ttl_ms, "at_ms": record.at_ms}
    beyond = budgets.over(state, ask.tenant, its, **what)
    budget = budgets.budget_of(state, ask.tenant, its)
    if beyond and refuses and budget is not None and budget.on_exceed == "refuse":
        return budgets.refusal(state, ask.tenant, its, **what)
    return record.model_copy(update={"over_by": {**over, **beyond}})


def _named(devices: Iterable[Device], name: str) -> tuple[Device, Partition | None] | Refusal:
    """By uuid, its own or a partition's; by display index only where one accelerator has it."""
    known = list(devices)
    for device in known:
        if device.uuid == name:
            return device, None
        if name in (device.partitions or {}):
            return device, (device.partitions or {})[name]
    found = [d for d in known if name.isdecimal() and d.index == int(name) and d.kind != "cpu"]
    if len(found) > 1:
        uuids = ", ".join(f"{device.vendor}: {device.uuid}" for device in found)
        return Refusal(
            code=Code.INVALID_REQUEST, message=f"index {name} is several devices ({uuids})"
        )
    if not found:
        return Refusal(code=Code.NOT_FOUND, message=f"the node has no device {name}")
    return found[0], None
