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
from quintal_placer import budgets, views
from quintal_placer.desk import Desk, lease_device
from quintal_placer.engine.asks import Offer
from quintal_placer.engine.devices import Device
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
        device = _named(node.devices.values(), name)
        taken = (
            device
            if isinstance(device, Refusal)
            else _taken(desk, device, name, ask.node, workload_class)
        )
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
    if len({device.uuid for device in found}) < len(found):
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
    desk: Desk, device: Device | None, name: str, node: str, workload_class: str
) -> LeaseDevice | Refusal:
    if device is None:
        return Refusal(code=Code.NOT_FOUND, message=f"{node} has no device {name}")
    if device.holders:
        return Refusal(
            code=Code.CONFLICT,
            message=f"{device.uuid} is held by lease {', '.join(device.holders)}",
            owner=Owner.INFRASTRUCTURE,
        )
    rating = desk.state.catalog.rating(device.model or "", workload_class)
    if rating is None:
        return Refusal(
            code=Code.UNRATED,
            message=f"{device.model or device.name} has no rating in {workload_class}",
            owner=Owner.CATALOG,
        )
    offer = Offer(
        device.model or "", "", device.kind, rating.micro, rating.version, rating.provenance,
        per_core=rating.per == "core",
    )  # fmt: skip
    return lease_device(Piece(device, offer))


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


def _named(devices: Iterable[Device], name: str) -> Device | Refusal | None:
    """By uuid; by display index only where that is the name's form and one accelerator has it."""
    known = list(devices)
    by_uuid = next((device for device in known if device.uuid == name), None)
    if by_uuid is not None or not name.isdecimal():
        return by_uuid
    found = [d for d in known if d.index == int(name) and d.kind != "cpu"]
    if len(found) > 1:
        uuids = ", ".join(f"{device.vendor}: {device.uuid}" for device in found)
        return Refusal(
            code=Code.INVALID_REQUEST, message=f"index {name} is several devices ({uuids})"
        )
    return found[0] if found else None
