"""What the placer shows of its state, to whom. Pure.

All is made whole here, as an operator sees it; what a tenant may see of it is `redaction`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from quintal import pricing
from quintal.contracts import placement
from quintal.contracts.message import Reason, Refusal
from quintal.contracts.placement import LeaseDevice
from quintal.errors import Code, Owner
from quintal.units import PARTS, from_micro, unit_name
from quintal_placer import budgets, environment, health, laying, room
from quintal_placer.asking import Market
from quintal_placer.engine.fleet import Device, Node
from quintal_placer.engine.quota import Excess, Limit
from quintal_placer.engine.why import NAMES_MAX, Cause, Why
from quintal_placer.slim import made
from quintal_placer.state import Lease, PlacerState

_OWNERS = {
    "never_fits": Owner.SUBMITTER,
    "unrated": Owner.CATALOG,
    "no_quota_defined": Owner.CATALOG,
    "quota_exceeded": Owner.SUBMITTER,
    "family_quota_exceeded": Owner.SUBMITTER,
    "model_quota_exceeded": Owner.SUBMITTER,
}
"""Whose move a code is; infrastructure's where it is not here."""


UNTOLD = {"bind_refused"}
"""Ends whose message is an agent's own words: they stay in the ledger."""


def iso(at_ms: int) -> str:
    """UTC, for display."""
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")


def lease_view(
    state: PlacerState,
    market: Market,
    lease: Lease,
    *,
    now_ms: int,
    sequence: int,
    leads: bool = True,
) -> placement.Lease:
    """A lease as its tenant sees it; who does not lead does not know when it was renewed."""
    granted = lease.granted
    known: dict[str, Any] = {
        "lease": lease.lease,
        "token": lease.token,
        "request_id": lease.request_id,
        "tenant": lease.tenant,
        "state": lease.state.value,
        "reason": lease.reason if lease.reason in UNTOLD else lease.message or lease.reason,
        "sequence": sequence,
        "labels": {},
        "environment": {},
        "over_by": {},
    }
    if lease.lease in state.queue:
        known["queue_place"] = state.line.place(lease.lease)
    live = lease.closed_ms is None and lease.ending_ms is None
    if live and (leads or granted is None):
        known["expires_at"] = iso(lease.deadline_ms)
        known["expires_in_ms"] = max(0, lease.deadline_ms - now_ms)
    if live and granted is not None and (lease.notice or state.failed):
        known["unhealthy"] = bad = health.failed(state, lease)
        known["reason"] = lease.notice or health.told(bad)
        if lease.notice and leads:
            known["notice_in_ms"] = known["expires_in_ms"]
    if granted is None:
        request = lease.queued.request if lease.queued else None
        if request is not None:
            known["project"] = request.project or ""
            known["profile"] = request.profile or ""
            known["labels"] = request.labels
        return made(placement.Lease, **known)
    known["price_per_hour"], known["currency"] = market.quote(terms_of(lease))
    known |= {
        "project": granted.project,
        "profile": granted.profile,
        "workload_class": granted.workload_class,
        "devices": lease.devices,
        "variant": granted.variant,
        "image": granted.image,
        "args": granted.args,
        "environment": environment.environment(lease.devices),
        "cdi": environment.cdi(lease.devices),
        "units_micro": units_micro(lease.devices),
        "delivered_micro": delivered_micro(lease.devices),
        "not_met": granted.not_met,
        "ttl_ms": lease.ttl_ms,
        "bind": "none" if lease.unbound else "wait",
        "adopted": lease.adopted,
        "labels": granted.labels,
        "catalog_revision": granted.catalog_revision,
        "over_by": granted.over_by,
    }
    return made(placement.Lease, **known)


def delivered_micro(devices: Sequence[LeaseDevice]) -> int | None:
    """Of devices of several models: as many times the slowest; none where they are all alike."""
    if len({device.model for device in devices}) < 2:  # noqa: PLR2004 - two models differ
        return None
    return len(devices) * min(units_micro([device]) for device in devices)


def units_micro(devices: Iterable[LeaseDevice]) -> int:
    """What these deliver together, in micro-units of their lease's class."""
    return sum(device.units_micro for device in devices)


def terms_of(lease: Lease) -> list[pricing.Terms]:
    """What the lease's price depends on, a line per pool and model."""
    granted = lease.granted
    assert granted is not None
    counts: dict[tuple[str, str, int, int, int | None], int] = {}
    nominal = granted.nominal_micro if granted.billing == "nominal" else None
    for device in lease.devices:
        micro = device.rating_micro if nominal is None else nominal
        key = (device.pool, device.model, micro, device.parts, device.charged_parts)
        counts[key] = counts.get(key, 0) + 1
    return [
        pricing.Terms(
            tenant=lease.tenant,
            profile=granted.profile,
            pool=pool,
            model=model,
            workload_class=granted.workload_class,
            devices=devices,
            parts=parts,
            charged_micro=micro,
            charged_parts=charged,
        )
        for (pool, model, micro, parts, charged), devices in counts.items()
    ]


def reasons(causes: Iterable[Cause]) -> tuple[Reason, ...]:
    """Causes on the wire, whole; what a tenant may see of them `redaction` says."""
    return tuple(
        Reason(
            code=Code(cause.code),
            message=cause.message,
            owner=_owner(cause),
            count=cause.count,
            pool=cause.pool,
            names=cause.names,
        )
        for cause in causes
    )


def _owner(cause: Cause) -> Owner:
    if cause.owner:
        return Owner(cause.owner)
    return _OWNERS.get(cause.code, Owner.INFRASTRUCTURE)


def refusal(why: Why) -> Refusal:
    """A refusal, whole: an operator's."""
    leading = next((cause for cause in why.causes if cause.code == why.code), None)
    return Refusal(
        code=Code(why.code),
        message=why.message,
        owner=_owner(leading) if leading else _OWNERS.get(why.code, Owner.INFRASTRUCTURE),
        verdict="never_fits" if why.never else "not_now",
        reasons=reasons(why.causes),
    )


def with_missing(refusal: Refusal, nodes: Sequence[str]) -> Refusal:
    """Nodes that are heard, and whose inventory nobody knows: what they have may yet fit.

    They are in no pool that is known, so that no tenant is told their names.
    """
    if not nodes:
        return refusal
    reason = Reason(
        code=Code.INVENTORY_MISSING,
        message="nodes that are heard have not said what they have",
        count=len(nodes),
        names=tuple(sorted(nodes)[:NAMES_MAX]),
    )
    update: dict[str, object] = {"reasons": (reason, *refusal.reasons)}
    if refusal.verdict == "never_fits":
        update |= {
            "code": Code.INVENTORY_MISSING,
            "message": f"{reason.message}; {refusal.message}",
            "owner": Owner.INFRASTRUCTURE,
            "verdict": "not_now",
        }
    return refusal.model_copy(update=update)


def over_quota(excess: Excess) -> Refusal:
    """A cap bars it."""
    codes = {
        "class": Code.QUOTA_EXCEEDED,
        "family": Code.FAMILY_QUOTA_EXCEEDED,
        "model": Code.MODEL_QUOTA_EXCEEDED,
    }
    limit = excess.limit
    top = limit.micro if limit.micro is not None else (limit.cards or 0) * PARTS
    used, wanted, over = (_amount(n) for n in (excess.used, excess.wanted, excess.over))
    return Refusal(
        code=codes[limit.meter.scope],
        message=(
            f"{cap_name(limit)}: {used} held, {wanted} asked, the cap is {_amount(top)}: "
            f"over by {over}"
        ),
        owner=Owner.SUBMITTER,
        verdict="not_now",
        details={
            "cap": cap_name(limit),
            "limit": _amount(top),
            "used": used,
            "wanted": wanted,
            "over_by": over,
        },
    )


def cap_name(limit: Limit) -> str:
    """A cap as a person names it: `STU`, `STU of family nvidia-h100`, `cards of model x`."""
    meter = limit.meter
    what = "cards" if limit.cards is not None else unit_name(meter.workload_class)
    return what if meter.scope == "class" else f"{what} of {meter.scope} {meter.name}"


def _amount(amount: int) -> str:
    """Units, or cards: micro-units and parts of cards are both millionths."""
    return f"{from_micro(amount).normalize():f}"


def quota_view(
    state: PlacerState, tenant: str | None, at_ms: int, *, leads: bool = True
) -> placement.QuotaView:
    """Caps and budgets, and what is held of them; `over_by` where there is more than that."""
    rows = []
    for name, limits in sorted(state.quotas.limits.items()):
        if tenant not in {None, name}:
            continue
        for limit in limits:
            usage = state.quotas.usage(limit.meter)
            used, top = (
                (usage.micro, limit.micro)
                if limit.micro is not None
                else (usage.parts, (limit.cards or 0) * PARTS)
            )
            over = _amount(used - top) if used > top else None
            rows.append(
                placement.QuotaRow(
                    tenant=name,
                    cap=cap_name(limit),
                    limit=_amount(top),
                    used=_amount(used),
                    over_by=over,
                )
            )
        rows += budgets.rows(state, name, at_ms, renewed=not leads)
    return placement.QuotaView(rows=tuple(rows))


def queue_view(
    state: PlacerState, tenant: str | None, estimates: Mapping[str, int], ask: placement.QueueAsk,
    now_ms: int,
) -> placement.QueueView:  # fmt: skip
    """Who waits, in order, with the place of each in the whole line."""
    rows: list[placement.QueueRow] = []
    for place, name in enumerate(state.line, start=1):
        lease = state.queue[name]
        if tenant in {None, lease.tenant} and len(rows) < ask.limit:
            rows.append(_queue_row(lease, place, estimates.get(name), now_ms))
    return placement.QueueView(rows=tuple(rows), waiting=len(state.line))


def _queue_row(
    lease: Lease, place: int, estimate_ms: int | None, now_ms: int
) -> placement.QueueRow:
    queued = lease.queued
    assert queued is not None
    request = queued.request
    since_ms = queued.at_ms if queued.since_ms is None else queued.since_ms
    return placement.QueueRow(
        place=place,
        lease=lease.lease,
        request_id=lease.request_id,
        tenant=lease.tenant,
        project=request.project or "",
        priority=request.priority or "",
        profile=request.profile or "",
        workload=request.workload or "",
        workload_class=request.workload_class or "",
        cards=request.cards,
        nodes=request.nodes,
        waits_ms=max(0, now_ms - since_ms),
        deadline_in_ms=max(0, lease.deadline_ms - now_ms),
        estimate_ms=estimate_ms,
        labels=request.labels,
    )


def device_view(state: PlacerState, node: Node, device: Device) -> placement.DeviceView:
    """A device and what became of it, for an operator."""
    lease = state.leases[device.holders[0]] if device.holders else None
    parts = dict(state.parts(node, device))
    return placement.DeviceView(
        node=node.name,
        uuid=device.uuid,
        index=device.index,
        vendor=device.vendor,
        name=device.name,
        model=device.model,
        pool=device.pool,
        memory_bytes=device.memory_bytes,
        state=next(iter(parts)),
        lease=lease.lease if lease else None,
        tenant=lease.tenant if lease else None,
        health=device.health,
        health_reason=device.health_reason,
        ratings=ratings(state, device),
        island=laying.island_of(node.lay, device.uuid),
        nics=laying.nearest_nics(state.facts.get(node.name), device.uuid),
        parts=parts,
        shares=tuple(
            _part_view(state, lease, parts=held) for lease, held in (device.shares or {}).items()
        ),
        partitions=tuple(_partitions(state, node, device)),
    )


def _part_view(state: PlacerState, lease: str, *, parts: int) -> placement.PartView:
    its = state.leases[lease]
    return placement.PartView(
        parts=parts, state=state.held_as(lease), lease=lease, tenant=its.tenant
    )


def _partitions(state: PlacerState, node: Node, device: Device) -> Iterator[placement.PartView]:
    """What the device is cut into: held, free, or why neither."""
    free = {partition.uuid for partition in device.free_partitions()}
    for partition in (device.partitions or {}).values():
        lease = partition.holder
        if lease is not None:
            word = state.held_as(lease)
        elif partition.uuid in free:
            word = node.unavailable(device) or "free"
        else:
            word = "stranded" if device.holders else "unresolved"
        yield placement.PartView(
            parts=partition.parts,
            state=word,
            lease=lease,
            tenant=state.leases[lease].tenant if lease else None,
            partition=partition.uuid,
            profile=partition.profile,
            memory_bytes=partition.memory_bytes,
            index=partition.index,
        )


def ratings(state: PlacerState, device: Device) -> dict[str, str]:
    """Class -> units of the whole device, where it is rated for any precision."""
    spec = state.catalog.models.get(device.model or "")
    if spec is None:
        return {}
    found: dict[str, str] = {}
    for workload_class in sorted({r.workload_class for r in spec.ratings}):
        rating = state.catalog.rating(device.model or "", workload_class)
        if rating is not None:
            micro = rating.micro * (device.cores if rating.per == "core" else 1)
            found[workload_class] = f"{from_micro(micro).normalize():f}"
    return found


def fleet_view(
    state: PlacerState, ask: placement.FleetAsk, *, now_ms: int | None, sequence: int
) -> placement.Fleet:
    """Nodes with the devices that meet the filters; a node with none only if none were set.

    Without `now_ms` nobody says how long a node is silent: only the leader listens.
    """
    nodes = []
    filtered = ask.vendor or ask.model or ask.pool
    for name, node in sorted(state.fleet.nodes.items()):
        if ask.node not in {None, name}:
            continue
        devices = tuple(
            device_view(state, node, device)
            for device in sorted(node.devices.values(), key=lambda d: (d.vendor, d.index, d.uuid))
            if ask.vendor in {None, device.vendor}
            and ask.model in {None, device.model}
            and ask.pool in {None, device.pool}
        )
        if filtered and not devices:
            continue
        nodes.append(_node_view(state, node, devices, now_ms))
        if len(nodes) == ask.limit:
            break
    return placement.Fleet(nodes=tuple(nodes), sequence=sequence, catalog_revision=state.adopted[0])


def _node_view(
    state: PlacerState, node: Node, devices: tuple[placement.DeviceView, ...], now_ms: int | None
) -> placement.NodeView:
    fact = state.facts.get(node.name)
    return placement.NodeView(
        node=node.name,
        hostname=node.hostname,
        cluster=node.cluster,
        location=node.location,
        liveness=node.liveness,
        cordoned_by=", ".join(sorted(node.cordons)) or None,
        cordon_reason="; ".join(reason for _, reason in sorted(node.cordons.items()) if reason),
        taints=tuple(sorted(node.taints)),
        cpu_milli=node.cpu_milli,
        memory_bytes=node.memory_bytes,
        drivers=dict(fact.stack.drivers) if fact else {},
        labels=node.labels,
        topology=fact.topology if fact else None,
        fabric=node.lay.fabric,
        rack=node.lay.rack,
        silent_ms=None if now_ms is None else max(0, now_ms - node.heard_ms),
        devices=devices,
    )


def capacity_view(state: PlacerState, ask: placement.FleetAsk, sequence: int) -> placement.Capacity:
    """The fleet in standard units, a row per pool and model."""
    sums: dict[tuple[str, str, str], list[tuple[Node, Device]]] = {}
    for node in state.fleet.nodes.values():
        for device in node.devices.values():
            if (
                ask.vendor in {None, device.vendor}
                and ask.model in {None, device.model}
                and ask.pool in {None, device.pool}
                and ask.node in {None, node.name}
            ):
                key = (device.vendor, device.model or f"? {device.name}", device.pool)
                sums.setdefault(key, []).append((node, device))
    rows = tuple(_capacity_row(state, key, members) for key, members in sorted(sums.items()))
    return placement.Capacity(
        rows=rows,
        shapes=room.rooms(state, ask.pool) if ask.shapes else (),
        fragments=room.fragments(state, ask.pool) if ask.shapes else (),
        sequence=sequence,
    )


def _capacity_row(
    state: PlacerState, key: tuple[str, str, str], members: list[tuple[Node, Device]]
) -> placement.CapacityRow:
    vendor, model, pool = key
    units: dict[str, int] = {}
    free_units: dict[str, int] = {}
    words: dict[str, int] = {}
    estimated: dict[str, bool] = {}
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    spec = state.catalog.models.get(model)
    classes = sorted({r.workload_class for r in spec.ratings}) if spec else []
    for node, device in members:
        parts = dict(state.parts(node, device))
        word = next(iter(parts))
        words[word] = words.get(word, 0) + 1
        for workload_class in classes:
            rating = state.catalog.rating(model, workload_class)
            if rating is None:
                continue
            count = device.cores if rating.per == "core" else 1
            micro = rating.micro * count
            units[workload_class] = units.get(workload_class, 0) + micro
            low[workload_class] = low.get(workload_class, 0) + rating.low_micro * count
            high[workload_class] = high.get(workload_class, 0) + rating.high_micro * count
            if free := parts.get("free", 0):
                known = free_units.get(workload_class, 0)
                free_units[workload_class] = known + micro * free // PARTS
            estimated[workload_class] = rating.estimated
    return placement.CapacityRow(
        pool=pool,
        model=model,
        vendor=vendor,
        devices=len(members),
        leased=words.pop("leased", 0),
        free=words.pop("free", 0),
        unavailable=words,
        units=_texts(units),
        free_units=_texts(free_units),
        estimated=estimated,
        low80=_texts(low),
        high80=_texts(high),
    )


def _texts(by_class: dict[str, int]) -> dict[str, str]:
    return {name: f"{from_micro(micro).normalize():f}" for name, micro in by_class.items()}
