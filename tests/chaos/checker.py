"""The ledger, read raw and judged by itself and against what clients were told.

Nothing of the placer is used: the rules stand here once more, in the plainest form. `judge` gives
the faults as sentences; none means that no law was seen broken.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.journal import Entry, Journal
from tests.independent.recompute import connect, messages

WHOLE = 1_000_000

NEXT = {
    ("", "queued"): "queued",
    ("", "granted"): "granted",
    ("queued", "granted"): "granted",
    ("queued", "refused"): "refused",
    ("queued", "cancelled"): "cancelled",
    ("granted", "bound"): "bound",
    ("granted", "moved"): "granted",
    ("granted", "failed"): "failed",
    ("granted", "ttl"): "granted",
    ("bound", "ttl"): "bound",
    ("bound", "noticed"): "bound",
    ("granted", "ending"): "ending",
    ("bound", "ending"): "ending",
    ("ending", "node_released"): "ending",
    ("ending", "ended"): "ended",
}
LIVE = {"granted", "bound"}
STATES = {"pending", *NEXT.values()}
"""What an answer says of a lease; any other is a refusal."""


async def read_ledger(url: str, metering: Path) -> list[dict[str, Any]]:
    """Every group of the LEDGER stream; the first one has sequence 1."""
    client, _ = await connect(url, str(metering))
    try:
        reply = await client.request("$JS.API.STREAM.INFO.LEDGER", b"{}", timeout=10)
        last = json.loads(reply.data)["state"]["last_seq"]
        return [group async for group in messages(client, last)]
    finally:
        await client.close()


@dataclass(slots=True)
class Told:
    """A lease as the ledger tells it."""

    name: str
    tenant: str
    request_id: str
    state: str = ""
    since: dict[str, int] = field(default_factory=dict)
    """State -> the ledger's sequence that brought it first."""
    devices: list[dict[str, Any]] = field(default_factory=list)
    cpu_milli: dict[str, int] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    reason: str = ""
    effective_ms: int = 0
    bound: bool = False


class Ledger:
    """The stream, told from its first message; `faults` grows on the way."""

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        self.faults: list[str] = []
        self.leases: dict[str, Told] = {}
        self.epochs = 0
        self.kinds: Counter[str] = Counter()
        self._by_request: dict[tuple[str, str], list[Told]] = defaultdict(list)
        self._parts: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        self._cpu: dict[str, dict[str, int]] = defaultdict(dict)
        self._cores: dict[str, int] = {}
        self._at_ms = 0
        self._fence = (0, "", 0)
        for sequence, group in enumerate(groups, 1):
            self._group(sequence, group)
            for record in group["transitions"]:
                self._record(sequence, record)

    def _fault(self, sequence: int, text: str) -> None:
        self.faults.append(f"at {sequence}: {text}")

    def _group(self, sequence: int, group: dict[str, Any]) -> None:
        """The fence: each knew what was last, each epoch follows the one before, each group too."""
        if group["expected"] != sequence - 1:
            self._fault(sequence, f"expected {group['expected']} as the last before it")
        epoch, writer, number = self._fence
        begins = group["transitions"][0]["kind"] == "epoch"
        if begins:
            right = (epoch + 1, group["writer"], 0)
            self.epochs += 1
        else:
            right = (epoch, writer, number + 1)
        found = (group["epoch"], group["writer"], group["group"])
        if found != right:
            self._fault(sequence, f"epoch, writer, group are {found}, not {right}")
        self._fence = found

    def _record(self, sequence: int, record: dict[str, Any]) -> None:
        kind, at_ms = record["kind"], record["at_ms"]
        self.kinds[kind] += 1
        if at_ms < self._at_ms:
            self._fault(sequence, f"{kind} at {at_ms}, after {self._at_ms}")
        self._at_ms = max(self._at_ms, at_ms)
        if kind == "node":
            self._cores[record["node"]] = record["cpu_milli"]
        if "lease" in record:
            self._lease(sequence, record)

    def _lease(self, sequence: int, record: dict[str, Any]) -> None:
        kind, name = record["kind"], record["lease"]
        lease = self.leases.get(name)
        if lease is None:
            asked = record.get("request") or record.get("adopt") or {"request_id": "?"}
            lease = Told(name, record.get("tenant", "?"), asked["request_id"])
            self.leases[name] = lease
            self._by_request[lease.tenant, lease.request_id].append(lease)
        after = NEXT.get((lease.state, kind))
        if after is None:
            self._fault(sequence, f"{name} is {lease.state or 'unknown'}, and then {kind}")
            return
        lease.state = after
        lease.since.setdefault(after, sequence)
        if kind in {"granted", "moved"}:
            self._let_go(lease, {device["node"] for device in lease.devices})
            self._hold(sequence, lease, record)
            self._decided_once(sequence, lease)
        if kind == "bound" or record.get("bound"):
            lease.state, lease.bound = "bound", True
            lease.since.setdefault("bound", sequence)
        elif kind == "ending":
            lease.reason, lease.effective_ms = record["reason"], record["effective_ms"]
            lease.waiting = {device["node"] for device in lease.devices}
            if record["effective_ms"] > record["at_ms"]:
                self._fault(sequence, f"{name} ends in the future")
        elif kind == "node_released":
            lease.waiting.discard(record["node"])
            self._let_go(lease, {record["node"]})
        elif kind in {"ended", "failed"}:
            if lease.waiting:
                self._fault(sequence, f"{name} ended before {sorted(lease.waiting)} said so")
            self._let_go(lease, {device["node"] for device in lease.devices})

    def _hold(self, sequence: int, lease: Told, record: dict[str, Any]) -> None:
        """Law 1: parts never exceed the whole, nor cores the node's."""
        lease.devices, lease.cpu_milli = record["devices"], record["cpu_milli"]
        for device in lease.devices:
            held = self._parts[device["node"], device["uuid"]]
            held[lease.name] = held.get(lease.name, 0) + device["parts"]
            if sum(held.values()) > WHOLE:
                self._fault(sequence, f"{device['uuid']} of {device['node']} is held by {held}")
        for node, milli in lease.cpu_milli.items():
            self._cpu[node][lease.name] = milli
            used = sum(self._cpu[node].values())
            if used > self._cores.get(node, 0):
                self._fault(sequence, f"{used} of {self._cores.get(node)} on {node} are held")

    def _let_go(self, lease: Told, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._cpu[node].pop(lease.name, None)
            for device in lease.devices:
                if device["node"] == node:
                    self._parts[node, device["uuid"]].pop(lease.name, None)

    def _decided_once(self, sequence: int, lease: Told) -> None:
        """Law 3: one lease to a request id; another only where the first never became anybody's."""
        for other in self._by_request[lease.tenant, lease.request_id]:
            if other is not lease and (other.bound or other.state in LIVE):
                self._fault(
                    sequence,
                    f"{lease.request_id} has {lease.name}, and {other.name} is {other.state}",
                )

    def held(self) -> dict[tuple[str, str], list[str]]:
        """Devices that some lease holds at the end."""
        return {key: sorted(names) for key, names in self._parts.items() if names}


def judge(ledger: Ledger, journal: Journal, ours: str) -> list[str]:
    """All faults of the ledger, and between it and the journal of those whose ids begin so."""
    told = {n: le for n, le in ledger.leases.items() if le.request_id.startswith(ours)}
    return [
        *ledger.faults,
        *journal.complaints,
        *_kept(told, journal.entries),
        *_known(told, journal.entries),
        *(fault for lease in told.values() for fault in _end(lease, journal)),
        *(
            f"{lease.name} of {lease.request_id} was ended by an outage: {lease.reason}"
            for lease in ledger.leases.values()
            if lease.reason in {"node_lost", "rebooted", "retired", "device_gone"}
        ),
    ]


def _kept(told: dict[str, Told], entries: Iterable[Entry]) -> Iterable[str]:
    """Law 2: the reply came after the append, so the ledger up to the reply's sequence has it."""
    for entry in entries:
        if entry.answer not in STATES:
            continue
        lease = told.get(entry.lease)
        if lease is None:
            yield f"{entry.lease} was told to {entry.request_id}, and the ledger has it not"
            continue
        if (lease.tenant, lease.request_id) != (entry.tenant, entry.request_id):
            yield f"{entry.lease} was told to {entry.request_id}, and is {lease.request_id}'s"
        state = "queued" if entry.answer == "pending" else entry.answer
        since = lease.since.get(state)
        if since is None:
            yield f"{entry.lease} was told to be {state}, and never was"
        elif entry.sequence and since > entry.sequence:
            yield f"{entry.lease} was told {state} at {entry.sequence}, and is so since {since}"


def _known(told: dict[str, Told], entries: Sequence[Entry]) -> Iterable[str]:
    """Both ways: whatever was bound somebody was told of, and whatever was decided was asked."""
    asked = {(e.tenant, e.request_id) for e in entries if e.verb.startswith("place")}
    acknowledged = {entry.lease for entry in entries if entry.holds}
    bound = {name for name, lease in told.items() if lease.bound}
    over = {e.lease for e in entries if e.answer in {"ending", "ended"}}
    for name in sorted(bound - acknowledged - over):
        yield f"{name} of {told[name].request_id} was bound, and nobody was told"
    for name in sorted(acknowledged - bound):
        yield f"{name} was given out, and never bound"
    for lease in told.values():
        if (lease.tenant, lease.request_id) not in asked:
            yield f"{lease.name} is {lease.request_id}'s, which nobody asked"
    leases_of: dict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in entries:
        if entry.holds:
            leases_of[entry.tenant, entry.request_id].add(entry.lease)
    for (_, request_id), names in leases_of.items():
        if len(names) > 1:
            yield f"{request_id} was given {sorted(names)}"


def _end(lease: Told, journal: Journal) -> Iterable[str]:
    """No lease was ended but by its client's word or by its client's silence, and never early."""
    if not lease.reason:
        return
    mine = [e for e in journal.entries if e.lease == lease.name]
    acknowledged_ms = max((e.sent_ms + e.expires_in_ms for e in mine if e.holds), default=0)
    if lease.reason == "released":
        if not any(e.verb in {"release", "cancel"} for e in mine):
            yield f"{lease.name} was released, and not by its client"
    elif lease.reason == "expired":
        if lease.name not in journal.abandoned:
            yield f"{lease.name} expired while its client was renewing it"
        if lease.effective_ms < acknowledged_ms:
            early = acknowledged_ms - lease.effective_ms
            yield f"{lease.name} expired {early} ms before its acknowledged deadline"
    elif lease.reason == "bind_unknown":
        if acknowledged_ms:
            yield f"{lease.name} was acknowledged, and then ended: bind_unknown"
    else:
        yield f"{lease.name} was ended: {lease.reason}"
