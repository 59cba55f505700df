"""Snapshots of the placer's state, as the records that rebuild it, in an object-store bucket.

A snapshot is the shortest ledger that leads to the same state: one way to apply, one way to read.
Three are kept, named by the sequence they reflect; the hash is checked on load, and one that does
not check is passed over for the one before.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import nats.errors
import nats.js.errors
from pydantic import TypeAdapter

from quintal.bus import Bus
from quintal.contracts import ledger
from quintal.contracts.streams import SNAPSHOT_BUCKET
from quintal.errors import BusUnavailable
from quintal_placer import demand
from quintal_placer.engine.devices import Device
from quintal_placer.engine.leases import State
from quintal_placer.facts import cut_facts
from quintal_placer.state import Lease, PlacerState

log = logging.getLogger(__name__)

KEPT: Final = 3
VERSION: Final = 1
TOKEN_BITS: Final = 32
"""Grants of one epoch have room below the next epoch's: a newer token is always the greater."""
_NAME: Final = re.compile(r"l(\d+)-(\d+)")
_RECORDS: Final[TypeAdapter[list[ledger.Transition]]] = TypeAdapter(list[ledger.Transition])


def records_of(state: PlacerState) -> Iterator[ledger.AnyRecord]:
    """The records that rebuild `state`, in an order that the lease table allows."""
    at_ms = state.at_ms
    for name, fact in sorted(state.facts.items()):
        node = state.fleet.nodes[name]
        yield fact
        yield ledger.LivenessChanged(
            at_ms=fact.at_ms, node=name, liveness=node.liveness, heard_ms=node.heard_ms
        )
        for by, reason in sorted(node.cordons.items()):
            yield ledger.CordonChanged(
                at_ms=fact.at_ms,
                node=name,
                cordoned=True,
                by=by,
                reason=reason,
                drain_by_ms=node.drains.get(by),
            )
        for taint, reason in sorted(node.taints.items()):
            yield ledger.TaintChanged(
                at_ms=fact.at_ms, node=name, taint=taint, present=True, by="", reason=reason
            )
        for uuid, device in sorted(node.devices.items()):
            yield _appeared(state, device)
            if device.disputed:
                yield ledger.DisputeChanged(
                    at_ms=at_ms, node=name, uuid=uuid, disputed=True, reason=device.disputed
                )
    for lease in sorted(state.leases.values(), key=_made):
        yield from _lease_records(lease)
    for name in sorted(state.facts):
        for _, device in sorted(state.fleet.nodes[name].devices.items()):
            # What is gone goes with the first lease that lets go of it: it is held by a later one.
            if any(part.missing for part in (device.partitions or {}).values()):
                yield _appeared(state, device)
    yield demand.kept(state.fleet.packing.demand, at_ms)
    yield ledger.Tick(at_ms=at_ms)


def _appeared(state: PlacerState, device: Device) -> ledger.DeviceAppeared:
    return ledger.DeviceAppeared(
        at_ms=state.facts[device.node].at_ms, node=device.node, device=state.raw[device.key],
        model=device.model, pool=device.pool, **cut_facts(device),
    )  # fmt: skip


def _made(lease: Lease) -> int:
    """By token: the order in which devices were taken.

    So none is taken before its last holder has let it go, and of two leases under one request id
    the newer one comes last. One that has no token yet was numbered by the count that tokens are
    made from.
    """
    numbers = _NAME.fullmatch(lease.lease)
    if lease.token or numbers is None:
        return lease.token
    return (int(numbers[1]) << TOKEN_BITS) + int(numbers[2])


def _lease_records(lease: Lease) -> Iterator[ledger.AnyRecord]:
    if lease.queued is not None:
        yield lease.queued
    if lease.granted is not None:
        yield lease.granted
        name = lease.lease
        if lease.bound_ms is not None and not lease.granted.bound:
            yield ledger.LeaseBound(at_ms=lease.bound_ms, lease=name)
        over = lease.state in {State.ENDED, State.FAILED, State.ENDING}
        # Of a lease that is over the deadline is nothing any more; for its ttl a repair is awaited.
        later = lease.deadline_ms != lease.granted.deadline_ms and not over
        if later or lease.ttl_ms != lease.granted.ttl_ms:
            yield ledger.LeaseTtlChanged(
                at_ms=lease.granted_ms,
                lease=name,
                ttl_ms=lease.ttl_ms,
                deadline_ms=lease.deadline_ms,
            )
        if lease.notice and lease.state is State.BOUND:
            yield ledger.LeaseNoticed(
                at_ms=lease.bound_ms or lease.granted_ms,
                lease=name,
                until_ms=lease.deadline_ms,
                message=lease.notice,
            )
        yield from _end_records(lease)
    yield from _closing(lease)


def _end_records(lease: Lease) -> Iterator[ledger.AnyRecord]:
    if lease.ending_ms is None:
        return
    yield ledger.LeaseEnding(
        at_ms=lease.ending_ms,
        lease=lease.lease,
        reason=lease.reason,
        effective_ms=lease.effective_ms or lease.ending_ms,
        message=lease.message,
    )
    for node in lease.nodes:
        if node not in lease.waiting and lease.state is State.ENDING:
            yield ledger.NodeReleased(
                at_ms=lease.ending_ms, lease=lease.lease, node=node, by="agent"
            )


def _closing(lease: Lease) -> Iterator[ledger.AnyRecord]:
    if lease.closed_ms is None:
        return
    at_ms, name = lease.closed_ms, lease.lease
    match lease.state:
        case State.ENDED:
            yield ledger.LeaseEnded(at_ms=at_ms, lease=name)
        case State.FAILED:
            yield ledger.LeaseFailed(
                at_ms=at_ms, lease=name, code=lease.reason, message=lease.message
            )
        case State.REFUSED:
            yield ledger.LeaseRefused(
                at_ms=at_ms, lease=name, code=lease.reason, message=lease.message
            )
        case State.CANCELLED:
            yield ledger.LeaseCancelled(at_ms=at_ms, lease=name)
        case _:
            raise AssertionError(f"{name} is closed and {lease.state}")


def dump(state: PlacerState, sequence: int) -> bytes:
    """The snapshot as stored: a line of header with the body's hash, then the body."""
    body = gzip.compress(_RECORDS.dump_json(list(records_of(state))), compresslevel=1, mtime=0)
    header = {
        "version": VERSION,
        "sequence": sequence,
        "at_ms": state.at_ms,
        "epoch": state.epoch,
        "writer": state.writer,
        "writers": sorted(state.writers),
        "adopted": list(state.adopted),
        "retired": state.retired,
        "spent": [
            [tenant, its, month, str(amount)]
            for (tenant, its), months in sorted(state.spent.used.items())
            for month, amount in sorted(months.items())
        ],
        "sha256": sha256(body).hexdigest(),
    }
    return json.dumps(header).encode() + b"\n" + body


def header_of(data: bytes) -> dict[str, Any]:
    """The header. Raises ValueError where the body's hash is another."""
    head, _, body = data.partition(b"\n")
    header: dict[str, Any] = json.loads(head)
    if header.get("version") != VERSION:
        raise ValueError(f"snapshot version {header.get('version')} is not {VERSION}")
    if sha256(body).hexdigest() != header["sha256"]:
        raise ValueError("the snapshot's hash does not match its body")
    return header


def fill(state: PlacerState, data: bytes) -> None:
    """Bring an empty state, whose catalog is the adopted one, to what the snapshot says."""
    header = header_of(data)
    body = data.partition(b"\n")[2]
    with state.fleet.reading():
        for record in _RECORDS.validate_json(gzip.decompress(body)):
            state.apply(record)
    state.epoch, state.writer = header["epoch"], header["writer"]
    state.writers = set(header.get("writers", ()))
    state.adopted = (header["adopted"][0], header["adopted"][1])
    state.retired = dict(header["retired"])
    if "spent" in header:
        # Leases that are forgotten are in it too, so that it stands for what the records bring.
        state.spent.used.clear()
        for tenant, its, month, amount in header["spent"]:
            state.spent.used.setdefault((tenant, its), {})[month] = int(amount)
    state.closed.sort(key=lambda name: state.leases[name].closed_ms or 0)


async def save(bus: Bus, data: bytes, sequence: int) -> None:
    """Put it into the bucket and let go of all but the newest three."""
    try:
        store = await bus.client.jetstream().object_store(SNAPSHOT_BUCKET)
        await store.put(_name(sequence), data)
        for name in (await _names(bus))[KEPT:]:
            await store.delete(name)
    except (nats.errors.Error, TimeoutError) as exc:
        raise BusUnavailable(f"saving snapshot {sequence}") from exc


async def newest(bus: Bus, *, at_most: int) -> bytes | None:
    """The newest snapshot that checks and reflects at most `at_most`; none if there is none."""
    try:
        store = await bus.client.jetstream().object_store(SNAPSHOT_BUCKET)
        for name in await _names(bus):
            if int(name.removeprefix(_PREFIX)) > at_most:
                log.error("snapshot %s is ahead of the ledger (%d): passed over", name, at_most)
                continue
            data = (await store.get(name)).data or b""
            try:
                header_of(data)
            except (ValueError, KeyError) as exc:
                log.error("snapshot %s does not check: %s", name, exc)  # noqa: TRY400
                continue
            return data
    except (nats.errors.Error, TimeoutError) as exc:
        raise BusUnavailable("loading a snapshot") from exc
    return None


async def verified(bus: Bus) -> list[int]:
    """Sequences of the snapshots that check, newest first."""
    found = []
    try:
        store = await bus.client.jetstream().object_store(SNAPSHOT_BUCKET)
        for name in await _names(bus):
            try:
                header = header_of((await store.get(name)).data or b"")
            except (ValueError, KeyError) as exc:
                log.error("snapshot %s does not check: %s", name, exc)  # noqa: TRY400
            else:
                found.append(int(header["sequence"]))
    except (nats.errors.Error, TimeoutError) as exc:
        raise BusUnavailable("checking the snapshots") from exc
    return found


_PREFIX: Final = "snapshot-"


def _name(sequence: int) -> str:
    return f"{_PREFIX}{sequence:016d}"


async def _names(bus: Bus) -> list[str]:
    """Names in the bucket, newest first."""
    store = await bus.client.jetstream().object_store(SNAPSHOT_BUCKET)
    try:
        entries = await store.list(ignore_deletes=True)
    except nats.js.errors.NotFoundError:
        return []
    return sorted((e.name for e in entries if e.name and e.name.startswith(_PREFIX)), reverse=True)
