"""The auditor: the ledger folded as it is stored, and every law held against it.

It knows nothing of a placer's memory. What it finds is what a takeover, a restart or a replay
would find.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quintal.contracts import ledger
from quintal.contracts.documents import Catalog
from quintal.contracts.message import Refusal
from quintal.contracts.placement import LeaseDevice
from quintal.settings import Access
from quintal.units import PARTS
from quintal_placer import snapshots
from quintal_placer.desk import Desk
from quintal_placer.engine.devices import Device
from quintal_placer.engine.leases import LIVE, TABLE, State
from quintal_placer.engine.quota import Quotas
from quintal_placer.settings import Settings
from quintal_placer.state import Lease, PlacerState
from tests.laws.memory import MemoryAgent

Broken = AssertionError


class Still:
    """What a desk needs of a writer in order to decide and never to write."""

    full = False
    sequence = 0

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms

    def now_ms(self) -> int:
        return self._at_ms


class Auditor:
    """Every stored message, applied and judged. `state` is what the ledger alone says."""

    def __init__(
        self,
        catalogs: dict[int, Catalog],
        agents: dict[str, MemoryAgent],
        now_s: Callable[[], float],
    ) -> None:
        self.state = PlacerState()
        self.groups: list[ledger.Group] = []
        self.ended_at_s: dict[str, float] = {}
        """Lease -> loop time at which its end was stored."""
        self._fitted: list[Lease] = []
        self._catalogs = catalogs
        self._agents = agents
        self._now_s = now_s

    def hear(self, sequence: int, data: bytes) -> None:
        group = ledger.GROUP.validate_json(data)
        assert group.expected == sequence - 1
        if group.group == 0:
            assert group.epoch == self.state.epoch + 1, "an epoch begins out of turn"
        else:
            mine = (self.state.epoch, self.state.writer)
            assert (group.epoch, group.writer) == mine, "a deposed placer wrote (the fence)"
        for record in group.transitions:
            assert record.at_ms >= self.state.at_ms, f"{record.kind} goes back in time"
            self._before(record)
            if isinstance(record, ledger.CatalogAdopted):
                self.state.adopt_catalog(self._catalogs[record.revision])
            self.state.apply(record)
            self._after(record)
        self.groups.append(group)

    # --- judging one record -------------------------------------------------------------------

    def _before(self, record: ledger.AnyRecord) -> None:
        self._fitted = []
        if isinstance(record, ledger.LeaseGranted) and record.request is not None:
            self._fitted = [le for le in self._ahead(record) if self._fits(le)]
        if isinstance(record, ledger.LeaseGranted | ledger.LeaseMoved):
            lease = self.state.leases.get(record.lease)
            adopted = isinstance(record, ledger.LeaseGranted) and record.adopt is not None
            tenant = record.tenant if isinstance(record, ledger.LeaseGranted) else lease.tenant  # type: ignore[union-attr]
            for held in record.devices:
                self._may_be_granted(held, record.lease, tenant, adopted=adopted)
        if isinstance(record, ledger.NodeReleased) and record.by == "agent":
            assert record.lease not in self._agents[record.node].leases, (
                f"{record.node} was said to have acknowledged {record.lease}, and runs it"
            )

    def _ahead(self, record: ledger.LeaseGranted) -> list[Lease]:
        """Who waits before this one, by priority and then by arrival, counted anew.

        One whose agents would not have it had its turn, and is only given another place.
        """
        assert record.request is not None
        known = self.state.by_request.get((record.tenant, record.request.request_id))
        if known is not None and self.state.leases[known].state is not State.QUEUED:
            return []

        def value(name: str | None) -> int:
            spec = self.state.catalog.priorities.get(name or "")
            return spec.value if spec else 0

        def since(queued: ledger.LeaseQueued) -> int:
            return queued.at_ms if queued.since_ms is None else queued.since_ms

        mine = self.state.queue.get(record.lease)
        waiting = [le for le in self.state.queue.values() if le is not mine]
        order = list(self.state.queue)
        found = []
        for lease in waiting:
            assert lease.queued is not None
            theirs = value(lease.queued.request.priority)
            ours = value(record.request.priority)
            if mine is None or mine.queued is None:
                before = theirs >= ours
            else:
                keys = [
                    (since(le.queued), order.index(le.lease)) for le in (lease, mine) if le.queued
                ]
                before = theirs > ours or (theirs == ours and keys[0] < keys[1])
            if before:
                found.append(lease)
        return found

    def _fits(self, lease: Lease) -> bool:
        """Whether this waiting request could be granted now, whoever stands before it."""
        access = Access("", Path(), "audit")
        nowhere: Any = None
        writer: Any = Still(self.state.at_ms)
        desk = Desk(Settings(access, access, Path()), self.state, writer, nowhere)
        assert lease.queued is not None
        found = desk.decide(lease.tenant, lease.queued.request, in_turn=True)
        return not isinstance(found, Refusal)

    def _may_be_granted(self, held: LeaseDevice, lease: str, tenant: str, *, adopted: bool) -> None:
        """Law 6, at the grant; and law 1: nobody has it, not even one that is ending."""
        name, uuid = held.node, held.uuid
        node = self.state.fleet.nodes[name]
        device = node.devices[uuid]
        self._has_room(held, lease)
        if lease in device.holders:
            assert self.state.leases[lease].state is State.GRANTED
        if adopted:
            return
        assert node.open, f"law 6: {name} is {node.liveness}, cordoned by {node.cordons}"
        assert device.usable, f"law 6: {uuid} is {device.health}, {device.disputed}"
        assert not node.taints, "law 6: tainted"
        pool = self.state.catalog.pools.get(device.pool)
        assert pool is None or not pool.tenants or tenant in pool.tenants, "law 6: a closed pool"
        assert self.state.catalog.rating(device.model or "", "train_llm"), "law 6: unrated"

    def _has_room(self, held: LeaseDevice, lease: str) -> None:
        """Law 1, from the leases alone: of what others have of the device, this leaves it all."""
        others = [
            its
            for other in (*self.state.live.values(), *self.state.ending.values())
            if other.lease != lease and other.lease in self.state.on_node.get(held.node, ())
            for its in other.devices
            if (its.node, its.uuid) == (held.node, held.uuid)
        ]
        assert sum(its.parts for its in others) + held.parts <= PARTS, (
            f"law 1: {held.uuid} beyond the whole"
        )
        for its in others:
            assert (its.partition is None) == (held.partition is None), (
                f"law 1: {held.uuid} beside its partition"
            )
            assert held.partition is None or its.partition != held.partition, (
                f"law 1: {held.partition} twice"
            )

    def _after(self, record: ledger.AnyRecord) -> None:
        for lease in self._fitted:
            if lease.state is State.QUEUED:
                assert self._fits(lease), f"{record.lease} overtook {lease.lease}"  # type: ignore[union-attr]
        match record:
            case ledger.LeaseGranted(adopt=None) | ledger.LeaseMoved():
                lease = self.state.leases[record.lease]
                self._quota_holds(lease.lease)
                self._gang_is_whole(lease.lease)
            case ledger.LeaseEnding() | ledger.LeaseFailed():
                self.ended_at_s[record.lease] = self._now_s()

    def _quota_holds(self, name: str) -> None:
        """Law 4: a grant passes no cap, whatever was adopted or lowered before."""
        lease = self.state.leases[name]
        quotas = self.state.quotas
        for holding in self.state.holdings(lease):
            quotas.drop(holding)
            excess = quotas.exceeded(holding)
            quotas.add(holding)
            assert excess is None, f"law 4: {name} passes {excess}"
            assert quotas.defined(lease.tenant, holding.workload_class), "law 4: no quota"

    def _gang_is_whole(self, name: str) -> None:
        """Law 5."""
        lease = self.state.leases[name]
        assert lease.granted is not None
        request = lease.granted.request
        assert request is not None
        counts = Counter(device.node for device in lease.devices)
        self._lies_as_it_must(lease)
        if request.members:
            wanted = sorted(m.cards for m in request.members for _ in range(m.nodes))
            assert sorted(counts.values()) == wanted, f"law 5: {name} has {counts}"
            return
        beside = sum(group.cards for group in request.groups)
        shapes = {(request.nodes or 1, (request.cards or 1) + beside)}
        shapes = {(each.nodes, each.cards) for each in request.alternatives} or shapes
        found = {(len(counts), count) for count in counts.values()}
        assert found <= shapes, f"law 5: {name} has {counts}"

    def _lies_as_it_must(self, lease: Lease) -> None:
        """What the request requires of topology, by what the nodes themselves said."""
        assert lease.granted is not None
        assert lease.granted.request is not None
        need = lease.granted.request.topology
        if need is None:
            return
        fabrics = set()
        for name in lease.nodes:
            told = self.state.facts[name].topology
            its = {device.uuid for device in lease.devices if device.node == name}
            if need.island == "required" and len(its) > 1:
                islands = (told.islands if told else None) or ()
                assert any(its <= set(island.devices) for island in islands), f"{its}: no island"
            fabrics.update(f.domain for f in (told.fabrics if told else None) or ())
        if need.domain == "required":
            assert len(fabrics) == 1, f"{lease.lease} lies in {fabrics}"


def check_state(state: PlacerState) -> None:
    """What holds of any state, at any instant."""
    _nobody_shares(state)
    _quota_is_recounted(state)
    _live_leases_are_whole(state)
    _census_sums(state)
    for lease in state.leases.values():
        if not TABLE[lease.state].holds_devices:
            assert all(lease.lease not in held for held in state.on_node.values())


def _nobody_shares(state: PlacerState) -> None:
    """Law 1: parts, holders and CPU recounted from the leases alone."""
    parts: Counter[tuple[str, str]] = Counter()
    holders: dict[tuple[str, str], set[str]] = {}
    pieces: dict[tuple[str, str], list[str | None]] = {}
    cpu: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for lease in [*state.live.values(), *state.ending.values()]:
        held_on = [n for n in lease.nodes if lease.lease in state.on_node.get(n, ())]
        if lease.state is State.ENDING:
            assert set(held_on) >= lease.waiting, f"{lease.lease} let go before its agent did"
        for name in held_on:
            cpu[name] += lease.cpu_milli.get(name, 0)
            memory[name] += lease.memory_bytes.get(name, 0)
        for device in lease.devices:
            if device.node in held_on:
                key = (device.node, device.uuid)
                parts[key] += device.parts
                holders.setdefault(key, set()).add(lease.lease)
                pieces.setdefault(key, []).append(device.partition)
    assert all(count <= PARTS for count in parts.values()), f"law 1: {parts}"
    for name, node in state.fleet.nodes.items():
        assert node.cpu_held == cpu[name], f"{name}: {node.cpu_held} of CPU held, {cpu[name]} due"
        assert node.cpu_held <= node.cpu_milli, f"law 1: CPU of {name} counted twice"
        assert node.memory_held == memory[name] <= node.memory_bytes
        for device in node.devices.values():
            due = holders.get(device.key, set())
            assert set(device.holders) == due, f"{device.key}: {device.holders}, {due} due"
            _one_sort_of_hold(device, pieces.get(device.key, []))
            if device.kind == "cpu" and device.holder is not None:
                assert node.cpu_held == node.cpu_milli, f"law 1: {name}'s CPU is free and leased"
    for leases in state.on_node.values():
        assert all(TABLE[state.leases[name].state].holds_devices for name in leases)


def _one_sort_of_hold(device: Device, pieces: list[str | None]) -> None:
    """Law 1: whole by one lease, or shared, or by its partitions; never two of these."""
    cut = [uuid for uuid in pieces if uuid is not None]
    assert not cut or len(cut) == len(pieces), f"law 1: {device.uuid} beside its partitions"
    assert len(set(cut)) == len(cut), f"law 1: a partition of {device.uuid} twice"
    sorts = (device.holder is not None, bool(device.shares), bool(cut))
    assert sum(sorts) <= 1, f"law 1: {device.uuid} is held in two ways"
    assert sum(sorts) == bool(pieces)
    assert sum(p.parts for p in (device.partitions or {}).values()) <= PARTS


def _quota_is_recounted(state: PlacerState) -> None:
    """Law 4: the counters are what the live leases hold, and nothing of those that end."""
    fresh = Quotas()
    for lease in state.leases.values():
        if lease.state in LIVE:
            for holding in state.holdings(lease):
                fresh.add(holding)
    found = {meter: (usage.micro, usage.parts) for meter, usage in state.quotas.used.items()}
    due = {meter: (usage.micro, usage.parts) for meter, usage in fresh.used.items()}
    assert found == due, f"law 4: counted {found}, held {due}"


def _live_leases_are_whole(state: PlacerState) -> None:
    """Law 5: a live lease holds all of its devices."""
    for lease in state.live.values():
        for device in lease.devices:
            node = state.fleet.nodes.get(device.node)
            known = node.devices.get(device.uuid) if node else None
            assert known is not None, f"law 5: {lease.lease} has lost {device.uuid}"
            assert lease.lease in known.holders


def _census_sums(state: PlacerState) -> None:
    """Law 9, from here: every part is somewhere, once."""
    rows = state.census()
    devices = sum(len(node.devices) for node in state.fleet.nodes.values())
    assert sum(row.total for row in rows) == devices * PARTS
    for row in rows:
        away = row.unavailable.values()
        assert row.total == row.leased + row.free + sum(away), f"law 9: {row}"
        assert min([row.leased, row.free, *away]) >= 0


def restored(state: PlacerState, sequence: int) -> PlacerState:
    """What a snapshot of `state` gives back."""
    again = PlacerState()
    if state.adopted[0]:
        again.adopt_catalog(state.catalog)
    snapshots.fill(again, snapshots.dump(state, sequence))
    return again
