"""The placer's state: the ledger, folded. Pure; every change is a record, applied here.

The leader applies what it decides at once and replies after the append; a standby, a restart and
a replay apply the same records in the same order and come to the same state. What is *not* here
does not survive a takeover: renewals (a new leader gives every live lease one full ttl) and when
each node was last heard (counted from the takeover).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, ClassVar, Final

from quintal.contracts import ledger
from quintal.contracts.documents import AcceleratorModelSpec, Cap, Catalog
from quintal.contracts.nodes import DeviceHealth, RawDevice
from quintal.contracts.placement import AdoptAsk, LeaseDevice, PlaceAsk, Wait
from quintal.units import PARTS, to_micro
from quintal_placer import demand, laying, software
from quintal_placer.engine.budget import Spent, Stretch
from quintal_placer.engine.devices import Device, Node, Partition
from quintal_placer.engine.fleet import Fleet
from quintal_placer.engine.leases import LIVE, TABLE, State, follow
from quintal_placer.engine.line import Line, Stir
from quintal_placer.engine.quota import Holding, Limit, Meter, Quotas, Scope
from quintal_placer.slim import slim_device, slim_grant

KEPT_MS = 24 * 3_600_000
"""How long a request id decides after its lease's end."""


BREAKS: Final = frozenset({"rebooted", "node_lost", "retired", "device_gone"})
"""Ends that are the infrastructure's: a gang that ends so may be repaired."""


@dataclass(slots=True)
class Lease:
    """A lease or a queued request, as the ledger has it."""

    lease: str
    tenant: str
    request_id: str
    state: State
    granted: ledger.LeaseGranted | None = None
    queued: ledger.LeaseQueued | None = None
    token: int = 0
    devices: tuple[LeaseDevice, ...] = ()
    cpu_milli: dict[str, int] = field(default_factory=dict)
    memory_bytes: dict[str, int] = field(default_factory=dict)
    ttl_ms: int = 0
    deadline_ms: int = 0
    granted_ms: int = 0
    bound_ms: int | None = None
    ending_ms: int | None = None
    effective_ms: int | None = None
    closed_ms: int | None = None
    reason: str = ""
    message: str = ""
    notice: str = ""
    """Why it is renewed no more; empty: it is."""
    waiting: set[str] = field(default_factory=set)
    """Nodes whose agent has yet to acknowledge the end."""
    repairing: str = ""
    """Of a broken gang: the lease under which its repair was asked for last."""

    @property
    def asked(self) -> PlaceAsk | AdoptAsk | None:
        """What was asked, whole: the same id with anything else is another request (law 3)."""
        if self.granted is not None:
            return self.granted.request or self.granted.adopt
        return self.queued.request if self.queued is not None else None

    @property
    def adopted(self) -> bool:
        """Whether an outside scheduler opened it."""
        return self.granted is not None and self.granted.adopt is not None

    @property
    def request_key(self) -> str:
        """What its request id is kept under; see the function of this name."""
        asked = (self.granted.request or self.granted.adopt) if self.granted else None
        return request_key(asked) if asked else self.request_id

    @property
    def unbound(self) -> bool:
        """`bind: none`: no agent is asked; release is itself the acknowledgement."""
        if self.granted is None:
            return False
        request = self.granted.request
        return request is None or request.bind == "none"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes its devices are on, once each."""
        return tuple(dict.fromkeys(device.node for device in self.devices))


class PlacerState:
    """Fleet, leases, queue, quotas. `apply` is the only way to change it."""

    def __init__(self) -> None:  # noqa: PLR0915 - what a state is made of
        self.fleet = Fleet()
        self.quotas = Quotas()
        self.spent = Spent()
        """What leases used that are over, for budgets."""
        self.catalog = Catalog()
        self._shapes = demand.Shapes(self.catalog)
        self.leases: dict[str, Lease] = {}
        self.by_request: dict[tuple[str, str], str] = {}
        """(tenant, request key) -> the lease that it decided."""
        self.queue: dict[str, Lease] = {}
        """Waiting requests in order of arrival."""
        self.line = Line()
        """The same, in the order of their turns."""
        self.stir = Stir()
        """What has changed that could help them, until somebody looks."""
        self.live: dict[str, Lease] = {}
        """Granted and bound ones."""
        self.live_of: dict[str, dict[str, Lease]] = {}
        """Tenant -> its live ones."""
        self.ending: dict[str, Lease] = {}
        self.broken: dict[str, Lease] = {}
        """Gangs that lost a node and were not repaired since; see `repairing`."""
        self.on_node: dict[str, set[str]] = {}
        """Node -> leases that hold devices there, ending ones too."""
        self.raw: dict[tuple[str, str], RawDevice] = {}
        self.where: dict[str, set[str]] = {}
        """Device uuid -> nodes that report it; more than one is a dispute."""
        self.facts: dict[str, ledger.NodeChanged] = {}
        """Node -> what it said of itself last."""
        self.failed: set[tuple[str, str]] = set()
        """(node, uuid) of every device that has failed."""
        self.retired: dict[str, str] = {}
        """Retired node -> its boot id then: the same boot does not come back by reporting."""
        self.epoch = 0
        self.writer = ""
        self.writers: set[str] = set()
        """Who led, ever: whoever is among them may be a standby now."""
        self.at_ms = 0
        self.adopted: tuple[int, str] = (0, "")
        """Revision and digest that decisions use."""
        self.closed: list[str] = []
        """Ended leases, oldest first, until their ids are forgotten."""

    # --- the fold -----------------------------------------------------------------------------

    def apply(self, record: ledger.AnyRecord) -> None:
        """One transition. Raises AssertionError where the lease table does not allow it."""
        self.at_ms = max(self.at_ms, record.at_ms)
        self._APPLY[type(record)](self, record)

    def adopt_catalog(self, catalog: Catalog) -> None:
        """The documents behind the adopted revision: caps and ratings for what is decided next."""
        self.catalog = catalog
        self._shapes = demand.Shapes(catalog)
        self.quotas.limits = {
            tenant: tuple(_limit(tenant, cap) for cap in spec.caps)
            for tenant, spec in catalog.quotas.items()
        }
        self.quotas.used.clear()
        for lease in self.live.values():
            self._count(lease, self.quotas.add)
        self.line.rank_anew(lambda name: rank_of(catalog, name))
        self.stir.everything = True
        self.fleet.version += 1

    def forget(self, now_ms: int) -> None:
        """Drop what ended more than a day ago, and its request id with it."""
        self.spent.forget(now_ms)
        kept_from = now_ms - KEPT_MS
        gone = 0
        for name in self.closed:
            lease = self.leases[name]
            if (lease.closed_ms or 0) > kept_from:
                break
            gone += 1
            del self.leases[name]
            self.broken.pop(name, None)
            if self.by_request.get((lease.tenant, lease.request_key)) == name:
                del self.by_request[lease.tenant, lease.request_key]
        del self.closed[:gone]

    # --- leadership, catalog, time ------------------------------------------------------------

    def _epoch(self, record: ledger.EpochBegan) -> None:
        """Renewals are not in the ledger: whoever takes over gives each live lease a full ttl."""
        self.epoch, self.writer = record.epoch, record.writer
        self.writers.add(record.writer)
        for lease in self.live.values():
            lease.deadline_ms = max(lease.deadline_ms, record.at_ms + lease.ttl_ms)

    def _adopted(self, record: ledger.CatalogAdopted) -> None:
        self.adopted = (record.revision, record.digest)

    def _nothing(self, record: ledger.AnyRecord) -> None:
        """Ticks and censuses change nothing here."""

    # --- nodes and devices --------------------------------------------------------------------

    def _node(self, record: ledger.NodeChanged) -> None:
        node = self.fleet.nodes.setdefault(record.node, Node(record.node, liveness="ready"))
        node.boot_id = record.boot_id
        node.hostname = record.hostname
        node.cluster, node.location = record.cluster, record.location
        node.labels = dict(record.labels)
        node.cpu_milli, node.memory_bytes = record.cpu_milli, record.memory_bytes
        node.network_mbits = record.network_mbits
        node.inventory_sequence = record.inventory_sequence
        node.software = software.text_of(record.stack)
        node.fences = record.fences
        node.lay = laying.lay_of(record)
        node.heard_ms = max(node.heard_ms, record.at_ms)
        self.facts[record.node] = record
        self.retired.pop(record.node, None)
        self._stir(node)
        self.fleet.touch(record.node)

    def _liveness(self, record: ledger.LivenessChanged) -> None:
        node = self.fleet.nodes[record.node]
        node.liveness = record.liveness
        node.heard_ms = max(node.heard_ms, record.heard_ms)
        self._stir(node)
        self.fleet.touch(record.node)

    def _cordon(self, record: ledger.CordonChanged) -> None:
        node = self.fleet.nodes[record.node]
        node.drains.pop(record.by, None)
        if record.cordoned:
            node.cordons[record.by] = record.reason
            if record.drain_by_ms is not None:
                node.drains[record.by] = record.drain_by_ms
        else:
            node.cordons.pop(record.by, None)
        self._stir(node)
        self.fleet.touch(record.node)

    def _taint(self, record: ledger.TaintChanged) -> None:
        node = self.fleet.nodes[record.node]
        if record.present:
            node.taints[record.taint] = record.reason
        else:
            node.taints.pop(record.taint, None)
        self._stir(node)
        self.fleet.touch(record.node)

    def _retired(self, record: ledger.NodeRetired) -> None:
        node = self.fleet.nodes.pop(record.node)
        self._stir(node)
        for uuid in node.devices:
            self._unsee(record.node, uuid)
        self.facts.pop(record.node, None)
        self.retired[record.node] = node.boot_id
        self.fleet.touch(record.node)

    def _device(self, record: ledger.DeviceAppeared | ledger.DeviceChanged) -> None:
        node, raw = self.fleet.nodes[record.node], record.device
        known = node.devices.get(raw.uuid)
        spec = self.catalog.models.get(record.model or "")
        node.devices[raw.uuid] = Device(
            node=record.node,
            uuid=raw.uuid,
            index=raw.index,
            vendor=raw.vendor,
            name=raw.name,
            model=record.model,
            pool=record.pool,
            kind="cpu" if raw.vendor == "cpu" else "accelerator",
            memory_bytes=raw.memory_bytes or (spec.memory_bytes if spec else None),
            cores=raw.cores or 0,
            health=raw.health,
            health_reason=raw.health_reason,
            disputed=known.disputed if known else "",
            foreign_bytes=raw.foreign_bytes,
            smallest_parts=record.smallest_parts,
            together=record.together,
            partitions=_partitions(record),
        )
        self._held_again(node.devices[raw.uuid])
        slim_device(raw)
        self.raw[record.node, raw.uuid] = raw
        self._note_health(record.node, raw.uuid, raw.health)
        self.where.setdefault(raw.uuid, set()).add(record.node)
        self.stir.models.add(record.model or "")
        self.fleet.touch(record.node)

    def _device_gone(self, record: ledger.DeviceGone) -> None:
        self._stir(self.fleet.nodes[record.node])
        self.fleet.nodes[record.node].devices.pop(record.uuid, None)
        self._unsee(record.node, record.uuid)
        self.fleet.touch(record.node)

    def _unsee(self, node: str, uuid: str) -> None:
        self.raw.pop((node, uuid), None)
        self.failed.discard((node, uuid))
        nodes = self.where.get(uuid, set())
        nodes.discard(node)
        if not nodes:
            self.where.pop(uuid, None)

    def _held_again(self, device: Device) -> None:
        """Whose a device is that is known anew: a lease outlives its device's absence."""
        for name in sorted(self.on_node.get(device.node, ())):
            for held in self.leases[name].devices:
                if (held.node, held.uuid) == device.key:
                    device.hold(name, held.parts, held.partition)

    def _device_resolved(self, record: ledger.DeviceResolved) -> None:
        device = self.fleet.nodes[record.node].devices[record.uuid]
        device.model, device.pool = record.model, record.pool
        device.smallest_parts, device.together = record.smallest_parts, record.together
        device.holder = device.shares = None
        device.partitions = _partitions(record)
        self._held_again(device)
        self.stir.models.add(record.model or "")
        self.fleet.touch(record.node)

    def _note_health(self, node: str, uuid: str, health: str) -> None:
        note = self.failed.add if health == DeviceHealth.FAILED else self.failed.discard
        note((node, uuid))

    def _device_health(self, record: ledger.DeviceHealthChanged) -> None:
        device = self.fleet.nodes[record.node].devices[record.uuid]
        device.health, device.health_reason = record.health, record.reason
        self._note_health(record.node, record.uuid, record.health)
        key = (record.node, record.uuid)
        self.raw[key] = self.raw[key].model_copy(
            update={"health": record.health, "health_reason": record.reason}
        )
        self.stir.models.add(device.model or "")
        self.fleet.touch(record.node)

    def _dispute(self, record: ledger.DisputeChanged) -> None:
        device = self.fleet.nodes[record.node].devices[record.uuid]
        device.disputed = (record.reason or "disputed") if record.disputed else ""
        self.stir.models.add(device.model or "")
        self.fleet.touch(record.node)

    # --- leases -------------------------------------------------------------------------------

    def _queued(self, record: ledger.LeaseQueued) -> None:
        lease = Lease(
            lease=record.lease,
            tenant=record.tenant,
            request_id=record.request.request_id,
            state=State.QUEUED,
            queued=record,
            deadline_ms=record.deadline_ms,
        )
        self.leases[record.lease] = self.queue[record.lease] = lease
        if record.since_ms is None:
            self._saw(record.request)
        self.by_request[lease.tenant, lease.request_id] = record.lease
        if record.request.repairs in self.broken:
            self.broken[record.request.repairs].repairing = record.lease
        priority = record.request.priority or ""
        self.line.join(
            record.lease,
            (record.tenant, wish(record.request)),
            priority=priority,
            rank=rank_of(self.catalog, priority),
            since_ms=record.at_ms if record.since_ms is None else record.since_ms,
        )

    def _granted(self, record: ledger.LeaseGranted) -> None:
        lease = self.leases.get(record.lease)
        if lease is None:
            asked = record.request or record.adopt
            assert asked is not None
            lease = Lease(
                lease=record.lease,
                tenant=record.tenant,
                request_id=asked.request_id,
                state=State.QUEUED,
            )
            self.leases[record.lease] = lease
            self.by_request[lease.tenant, request_key(asked)] = record.lease
            if record.request is not None:
                self._saw(record.request)
        self.queue.pop(record.lease, None)
        self.line.leave(record.lease)
        lease.state = follow(lease.state, record.kind)
        slim_grant(record)
        lease.granted, lease.granted_ms = record, record.at_ms
        lease.ttl_ms, lease.deadline_ms = record.ttl_ms, record.deadline_ms
        self.live[record.lease] = lease
        self.live_of.setdefault(lease.tenant, {})[record.lease] = lease
        self._hold(lease, record)
        self._count(lease, self.quotas.add)
        if record.bound:
            lease.state = follow(lease.state, "bound")
            lease.bound_ms = record.at_ms
            self._mend(lease)

    def _mend(self, lease: Lease) -> None:
        """What it repairs is whole again: nothing is kept for it any more."""
        request = lease.granted.request if lease.granted is not None else None
        if request is not None and self.broken.pop(request.repairs or "", None) is not None:
            self.stir.everything = True

    def _saw(self, asked: PlaceAsk) -> None:
        """Into the history that packing looks ahead with."""
        shape = self._shapes.of(asked)
        if shape is not None:
            self.fleet.packing.demand.saw(shape)

    def _history(self, record: ledger.HistoryKept) -> None:
        demand.restore(self.fleet.packing.demand, record)

    def _bound(self, record: ledger.LeaseBound) -> None:
        lease = self.leases[record.lease]
        lease.state = follow(lease.state, record.kind)
        lease.bound_ms = record.at_ms
        self._mend(lease)

    def _moved(self, record: ledger.LeaseMoved) -> None:
        lease = self.leases[record.lease]
        lease.state = follow(lease.state, record.kind)
        self._count(lease, self.quotas.drop)
        self.stir.tenants.add(lease.tenant)
        for node in lease.nodes:
            self._let_go(lease, node)
        assert lease.granted is not None
        lease.granted = lease.granted.model_copy(
            update={name: getattr(record, name) for name in _MOVED}
        )
        self._hold(lease, record)
        self._count(lease, self.quotas.add)

    def _ttl(self, record: ledger.LeaseTtlChanged) -> None:
        lease = self.leases[record.lease]
        lease.state = follow(lease.state, record.kind)
        lease.ttl_ms = record.ttl_ms
        lease.deadline_ms = max(lease.deadline_ms, record.deadline_ms)

    def _noticed(self, record: ledger.LeaseNoticed) -> None:
        lease = self.leases[record.lease]
        lease.state = follow(lease.state, record.kind)
        lease.notice = (record.message or "notice") if record.until_ms is not None else ""
        lease.deadline_ms = max(lease.deadline_ms, record.until_ms or 0)

    def _ending(self, record: ledger.LeaseEnding) -> None:
        lease = self.leases[record.lease]
        lease.state = follow(lease.state, record.kind)
        lease.reason, lease.ending_ms = record.reason, record.at_ms
        lease.message = record.message
        lease.effective_ms = record.effective_ms
        lease.waiting = set(lease.nodes)
        self._count(lease, self.quotas.drop)
        self.fleet.version += 1  # an answer that was kept may be another now
        self.stir.tenants.add(lease.tenant)  # quota is free again: somebody may wait for just that
        self._leave(lease)
        if lease.bound_ms is not None:
            self._spend(lease, record.effective_ms)
            if record.reason in BREAKS and len(lease.nodes) > 1 and not lease.adopted:
                self.broken[record.lease] = lease
        self.ending[record.lease] = lease

    def _node_released(self, record: ledger.NodeReleased) -> None:
        lease = self.leases[record.lease]
        lease.state = follow(lease.state, record.kind)
        if record.message:
            lease.message = f"{lease.message or lease.reason}; {record.message}"
        lease.waiting.discard(record.node)
        self._let_go(lease, record.node)

    def _ended(self, record: ledger.LeaseEnded) -> None:
        lease = self.leases[record.lease]
        lease.state = follow(lease.state, record.kind)
        for node in lease.nodes:
            self._let_go(lease, node)
        lease.waiting.clear()
        del self.ending[record.lease]
        self._close(lease, record)

    def _failed(self, record: ledger.LeaseFailed) -> None:
        lease = self.leases[record.lease]
        lease.state = follow(lease.state, record.kind)
        self._count(lease, self.quotas.drop)
        self.stir.tenants.add(lease.tenant)
        for node in lease.nodes:
            self._let_go(lease, node)
        self._leave(lease)
        lease.reason, lease.message = record.code, record.message
        self._close(lease, record)

    def _unqueued(self, record: ledger.LeaseRefused | ledger.LeaseCancelled) -> None:
        lease = self.queue.pop(record.lease)
        self.line.leave(record.lease)
        lease.state = follow(lease.state, record.kind)
        if isinstance(record, ledger.LeaseRefused):
            lease.reason, lease.message = record.code, record.message
        self._close(lease, record)

    def _leave(self, lease: Lease) -> None:
        """It is live no more."""
        del self.live[lease.lease]
        its = self.live_of[lease.tenant]
        del its[lease.lease]
        if not its:
            del self.live_of[lease.tenant]

    def _spend(self, lease: Lease, effective_ms: int) -> None:
        assert lease.granted is not None
        assert lease.bound_ms is not None
        stretch = Stretch(micro_of(lease), lease.bound_ms, effective_ms)
        self.spent.add(lease.tenant, lease.granted.workload_class, stretch)

    def this_month(
        self,
        tenant: str,
        workload_class: str,
        at_ms: int,
        apart: str = "",
        *,
        renewed: bool = False,
    ) -> int:
        """Micro-units x ms of the calendar month of `at_ms`, live leases to their deadlines.

        `apart` is a lease that is not counted: one that is about to be given other devices. With
        `renewed` each is taken to last one ttl from now at least, as a takeover would give it.
        """
        live = (
            Stretch(
                micro_of(lease),
                lease.bound_ms or lease.granted_ms,
                max(lease.deadline_ms, at_ms + lease.ttl_ms) if renewed else lease.deadline_ms,
            )
            for lease in self.live_of.get(tenant, {}).values()
            if lease.granted is not None
            and lease.granted.workload_class == workload_class
            and lease.lease != apart
        )
        return self.spent.in_month(tenant, workload_class, at_ms, live)

    def _close(self, lease: Lease, record: ledger.AnyRecord) -> None:
        lease.closed_ms = record.at_ms
        self.closed.append(lease.lease)

    # --- holding ------------------------------------------------------------------------------

    def _hold(self, lease: Lease, record: ledger.LeaseGranted | ledger.LeaseMoved) -> None:
        lease.token, lease.devices = record.token, record.devices
        lease.cpu_milli, lease.memory_bytes = record.cpu_milli, record.memory_bytes
        for held in record.devices:
            node = self.fleet.nodes.get(held.node)
            device = node.devices.get(held.uuid) if node else None
            if device is not None:
                device.hold(lease.lease, held.parts, held.partition)  # law 1
        for name in lease.nodes:
            node = self.fleet.nodes.get(name)
            if node is not None:
                node.cpu_held += lease.cpu_milli.get(name, 0)
                node.memory_held += lease.memory_bytes.get(name, 0)
            self.on_node.setdefault(name, set()).add(lease.lease)
            self.fleet.reheld(name)

    def _let_go(self, lease: Lease, name: str) -> None:
        """The lease holds nothing on this node any more; doing it twice is doing it once."""
        if lease.lease not in self.on_node.get(name, set()):
            return
        self.on_node[name].discard(lease.lease)
        node = self.fleet.nodes.get(name)
        if node is None:
            return
        for uuid in {held.uuid for held in lease.devices if held.node == name}:
            if uuid in node.devices:
                node.devices[uuid].let_go(lease.lease)
        self._stir(node)
        node.cpu_held -= lease.cpu_milli.get(name, 0)
        node.memory_held -= lease.memory_bytes.get(name, 0)
        self.fleet.reheld(name)

    def _stir(self, node: Node) -> None:
        """Whoever waits for what this node has may look again."""
        if not len(self.line):
            return
        self.stir.models.update([device.model or "" for device in node.devices.values()])

    def _count(self, lease: Lease, how: Callable[[Holding], None]) -> None:
        for holding in self.holdings(lease):
            how(holding)

    def holdings(self, lease: Lease) -> list[Holding]:
        """What the lease adds to its tenant's account, families as adopted."""
        granted = lease.granted
        assert granted is not None
        sums: dict[str, list[int]] = {}
        for device in lease.devices:
            counted = sums.setdefault(device.model, [0, 0])
            counted[0] += device.parts
            counted[1] += device.units_micro
        families = {name: spec.family for name, spec in self._families(sums)}
        return [
            Holding(
                lease.tenant, granted.workload_class, families.get(model, ""), model, parts, micro
            )
            for model, (parts, micro) in sums.items()
        ]

    def _families(self, models: Iterable[str]) -> Iterator[tuple[str, AcceleratorModelSpec]]:
        for model in models:
            if model in self.catalog.models:
                yield model, self.catalog.models[model]

    # --- what it amounts to -------------------------------------------------------------------

    def census(self) -> tuple[ledger.CensusRow, ...]:
        """Parts per pool and model: leased, free, unavailable by reason. Sums to the total."""
        rows: dict[tuple[str, str], dict[str, int]] = {}
        for node in self.fleet.nodes.values():
            for device in node.devices.values():
                row = rows.setdefault((device.pool, device.model or ""), {})
                for what, parts in self.parts(node, device):
                    row[what] = row.get(what, 0) + parts
        return tuple(
            ledger.CensusRow(
                pool=pool,
                model=model,
                total=sum(row.values()),
                leased=row.get("leased", 0),
                free=row.get("free", 0),
                unavailable={k: v for k, v in sorted(row.items()) if k not in {"leased", "free"}},
            )
            for (pool, model), row in sorted(rows.items())
        )

    def held_as(self, lease: str) -> str:
        """What this lease makes of the parts that it holds, in the ledger's words."""
        return _HELD_AS[self.leases[lease].state]

    def parts(self, node: Node, device: Device) -> tuple[tuple[str, int], ...]:
        """What a device's parts are now, in the ledger's words; they sum to the whole."""
        base = node.unavailable(device) or "free"
        holders = device.holders
        if not holders and not device.partitions:
            return ((base, PARTS),)
        held: dict[str, int] = {}
        for name in holders:
            lease, what = self.leases[name], self.held_as(name)
            parts = sum(d.parts for d in lease.devices if (d.node, d.uuid) == device.key)
            held[what] = held.get(what, 0) + parts
        rest = PARTS - sum(held.values())
        if device.holder is None and not device.shares:
            free = sum(partition.parts for partition in device.free_partitions())
            left = {base: free, "partition_overhead": rest - free}
        elif device.shares and not device.partitions and rest >= device.smallest_parts:
            left = {base: rest}
        else:
            left = {"stranded": rest}
        return tuple((what, parts) for what, parts in {**held, **left}.items() if parts)

    _APPLY: ClassVar[dict[type[Any], Callable[[PlacerState, Any], None]]] = {
        ledger.EpochBegan: _epoch,
        ledger.CatalogAdopted: _adopted,
        ledger.Tick: _nothing,
        ledger.Census: _nothing,
        ledger.HistoryKept: _history,
        ledger.NodeChanged: _node,
        ledger.LivenessChanged: _liveness,
        ledger.CordonChanged: _cordon,
        ledger.TaintChanged: _taint,
        ledger.NodeRetired: _retired,
        ledger.DeviceAppeared: _device,
        ledger.DeviceChanged: _device,
        ledger.DeviceGone: _device_gone,
        ledger.DeviceResolved: _device_resolved,
        ledger.DeviceHealthChanged: _device_health,
        ledger.DisputeChanged: _dispute,
        ledger.LeaseQueued: _queued,
        ledger.LeaseGranted: _granted,
        ledger.LeaseBound: _bound,
        ledger.LeaseMoved: _moved,
        ledger.LeaseTtlChanged: _ttl,
        ledger.LeaseNoticed: _noticed,
        ledger.LeaseEnding: _ending,
        ledger.NodeReleased: _node_released,
        ledger.LeaseEnded: _ended,
        ledger.LeaseFailed: _failed,
        ledger.LeaseRefused: _unqueued,
        ledger.LeaseCancelled: _unqueued,
    }


_MOVED = (
    "token", "devices", "cpu_milli", "memory_bytes", "variant", "image", "args", "precision",
    "not_met",
)  # fmt: skip
"""What of a grant is other after a move."""

_HELD_AS = {State.BOUND: "leased", State.GRANTED: "binding", State.ENDING: "releasing"}

assert all(TABLE[state].holds_devices for state in _HELD_AS)
assert all(TABLE[state].holds_quota for state in LIVE)


def _partitions(record: ledger.Cut) -> dict[str, Partition] | None:
    return {
        fact.uuid: Partition(
            fact.uuid, fact.profile, fact.parts, fact.memory_bytes, fact.index, fact.missing
        )
        for fact in record.partitions
    } or None


def micro_of(lease: Lease) -> int:
    """Micro-units of its class that a lease delivers, all devices together."""
    return sum(device.units_micro for device in lease.devices)


def request_key(asked: PlaceAsk | AdoptAsk) -> str:
    """What a request's id is kept under: outside schedulers' ids are a space of their own.

    A tenant that asks under the id of a job to come must not keep that job from being adopted. No
    request id has a slash.
    """
    return f"adopt/{asked.request_id}" if isinstance(asked, AdoptAsk) else asked.request_id


def wish(asked: PlaceAsk) -> str:
    """What is asked for, without who asks, for which work, and how long it would wait."""
    update = {"request_id": "", "labels": {}, "requester": "", "wait": Wait(), "project": None}
    return digest(asked.model_copy(update=update))


def rank_of(catalog: Catalog, priority: str) -> int:
    """The rank in the line that a priority class gives, smaller first; of none the default's."""
    spec = catalog.priorities.get(priority)
    if spec is None:
        spec = next((s for s in catalog.priorities.values() if s.default), None)
    return -(spec.value if spec else 0)


def digest(asked: PlaceAsk | AdoptAsk) -> str:
    """What a request says, as one short text: same id and same digest is the same request."""
    return sha256(asked.model_dump_json().encode()).hexdigest()[:32]


def _limit(tenant: str, cap: Cap) -> Limit:
    scope: Scope = "family" if cap.family else "model" if cap.model else "class"
    meter = Meter(tenant, cap.workload_class or "", scope, cap.family or cap.model)
    if cap.units is not None:
        return Limit(meter, micro=to_micro(cap.units))
    return Limit(meter, cards=cap.cards)
