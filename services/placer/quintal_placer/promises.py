"""The leader's acts: decide, append, bind, reply; renew, release, adopt, expire.

Every decision runs to its end without an await and is applied at once; what awaits is the append,
and then the agents. Whoever is not told yet has been promised nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from quintal.contracts import ledger, placement
from quintal.contracts.message import Refusal
from quintal.contracts.placement import LeaseDevice, PlaceAsk
from quintal.errors import Code, Owner
from quintal.units import PARTS
from quintal_placer import agents, asking, views
from quintal_placer.agents import Agents, Bound, NotBound, Unclear
from quintal_placer.announcer import Announcer
from quintal_placer.asking import Market, Terms
from quintal_placer.engine import placing
from quintal_placer.engine.asks import Ask, Offer
from quintal_placer.engine.fleet import Device
from quintal_placer.engine.leases import LIVE, State
from quintal_placer.engine.placing import Chosen
from quintal_placer.engine.why import why
from quintal_placer.ledger import LedgerWriter
from quintal_placer.settings import Settings
from quintal_placer.state import Lease, PlacerState, digest

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 3
"""Grants tried for one request whose binds have no answer."""

EXPLANATIONS_MAX: Final = 20_000
END_RETRY_MAX_S: Final = 10.0

Verdict = placement.Lease | placement.Pending | Refusal


class Promises:
    """All that gives, extends or takes back a lease. Made when this placer takes the lead."""

    def __init__(
        self,
        settings: Settings,
        state: PlacerState,
        writer: LedgerWriter,
        hands: Agents,
        announcer: Announcer,
    ) -> None:
        self._settings = settings
        self._state = state
        self._writer = writer
        self._agents = hands
        self._announcer = announcer
        self._market = Market.at(state.catalog, writer.now_ms())
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._binding: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[tuple[str, str], tuple[float, float]] = {}
        """(lease, node) -> (when to ask again, wait after that): monotonic seconds."""
        self._deadlines: list[tuple[int, str]] = []
        self._worked_at = -1
        self.explanations: OrderedDict[tuple[str, str], placement.Explanation] = OrderedDict()
        self.ledger_full = False

    # --- asking -------------------------------------------------------------------------------

    @property
    def market(self) -> Market:
        """The catalog as it stands now."""
        if not self._market.serves(self._state.catalog, self._writer.now_ms()):
            self._market = Market.at(self._state.catalog, self._writer.now_ms())
        return self._market

    async def place(self, tenant: str, ask: PlaceAsk) -> Verdict:
        """Devices and a lease, a place in the queue, or why not. The id decides (law 3)."""
        known = self._by_request(tenant, ask.request_id)
        if known is not None:
            if known.digest != digest(ask):
                return _conflict(ask.request_id)
            return await self._settled(known)
        decided = self._decide(tenant, ask)
        if isinstance(decided, Refusal):
            if ask.wait.mode == "queue" and decided.verdict == "not_now":
                return await self._enqueue(tenant, ask, decided)
            return decided
        lease, appended = self._grant(tenant, ask, decided)
        await appended
        return await self._settled(lease)

    def dry_run(self, tenant: str, ask: PlaceAsk) -> placement.Verdict:
        """What `place` would say: the same code, and nothing is kept (law 11)."""
        decided = self._decide(tenant, ask)
        if isinstance(decided, Refusal):
            return placement.Verdict(verdict=decided.verdict or "refused", refusal=decided)
        record = self._record("dry-run", 0, tenant, ask, decided)
        lease = Lease(
            lease="dry-run",
            tenant=tenant,
            request_id=ask.request_id,
            digest="",
            state=State.GRANTED,
            granted=record,
            devices=record.devices,
            ttl_ms=record.ttl_ms,
            deadline_ms=record.deadline_ms,
        )
        return placement.Verdict(verdict="placed", lease=self.view(lease))

    def _decide(
        self, tenant: str, ask: PlaceAsk, avoid: frozenset[tuple[str, str]] = frozenset()
    ) -> tuple[Ask, Terms, Chosen] | Refusal:
        """One decision, for real and dry runs alike; kept for `explain`."""
        decided = self._decided(tenant, ask, avoid)
        self._explain(tenant, ask, decided)
        return decided

    def _decided(
        self, tenant: str, ask: PlaceAsk, avoid: frozenset[tuple[str, str]]
    ) -> tuple[Ask, Terms, Chosen] | Refusal:
        if self.ledger_full or self._writer.full:
            return Refusal(
                code=Code.LEDGER_FULL,
                message="the ledger is nearly full: ends and releases go on, grants do not",
                owner=Owner.INFRASTRUCTURE,
            )
        translated = asking.translate(self.market, tenant, ask)
        if isinstance(translated, Refusal):
            return translated
        engine_ask, terms = translated
        if not self._state.quotas.defined(tenant, engine_ask.workload_class):
            return Refusal(
                code=Code.NO_QUOTA_DEFINED,
                message=f"{tenant} has no quota in class {engine_ask.workload_class}",
                owner=Owner.CATALOG,
            )
        engine_ask = replace(engine_ask, avoid=avoid)
        outcome = placing.decide(self._state.fleet, self._state.quotas, engine_ask)
        if isinstance(outcome, Chosen):
            return engine_ask, terms, outcome
        if outcome.excess is not None:
            return views.over_quota(outcome.excess)
        reasons = why(self._state.fleet, engine_ask)
        return views.refusal(reasons, engine_ask.closed_pools)

    # --- granting -----------------------------------------------------------------------------

    def _next(self) -> tuple[str, int]:
        """A lease id and a fencing token, both newer than any before."""
        self._count += 1
        epoch = self._state.epoch
        return f"l{epoch}-{self._count}", (epoch << 24) + self._count

    def _grant(
        self,
        tenant: str,
        ask: PlaceAsk,
        decided: tuple[Ask, Terms, Chosen],
        queued: str | None = None,
    ) -> tuple[Lease, asyncio.Future[int]]:
        name, token = self._next()
        record = self._record(queued or name, token, tenant, ask, decided)
        appended = self.commit([record])
        lease = self._state.leases[record.lease]
        heapq.heappush(self._deadlines, (lease.deadline_ms, lease.lease))
        if not record.bound:
            self._start_binding(lease, appended)
        return lease, appended

    def _record(
        self, name: str, token: int, tenant: str, ask: PlaceAsk, decided: tuple[Ask, Terms, Chosen]
    ) -> ledger.LeaseGranted:
        engine_ask, terms, chosen = decided
        at_ms = self._writer.now_ms()
        option = chosen.option
        names = [pick.node for pick in chosen.picks]
        return ledger.LeaseGranted(
            at_ms=at_ms,
            lease=name,
            token=token,
            tenant=tenant,
            project=terms.project,
            profile=terms.profile,
            workload_class=terms.workload_class,
            labels=ask.labels,
            request=ask,
            devices=_lease_devices(chosen),
            cpu_milli=self._cpu(engine_ask, chosen),
            memory_bytes=dict.fromkeys(names, engine_ask.memory_bytes),
            variant=option.variant,
            image=option.image or terms.image,
            args=option.args,
            precision=option.precision,
            billing=terms.billing,
            nominal_micro=terms.nominal_micro,
            fence=terms.fence,
            ttl_ms=terms.ttl_ms,
            deadline_ms=at_ms + terms.ttl_ms,
            bound=ask.bind == "none",
            catalog_revision=self._state.adopted[0],
        )

    def _cpu(self, ask: Ask, chosen: Chosen) -> dict[str, int]:
        """A CPU that is leased as a device takes the node's cores with it: counted once."""
        nodes = self._state.fleet.nodes
        whole = chosen.offer.kind == "cpu"
        return {
            pick.node: nodes[pick.node].cpu_milli if whole else ask.cpu_milli
            for pick in chosen.picks
        }

    # --- binding ------------------------------------------------------------------------------

    def _start_binding(self, lease: Lease, appended: asyncio.Future[int] | None) -> None:
        task = asyncio.create_task(self._bind(lease, appended))
        self._binding[lease.lease] = task
        self._keep(task)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the placer failed", exc_info=task.exception())

    async def _bind(self, lease: Lease, appended: asyncio.Future[int] | None) -> None:
        """Append, bind, and say `bound` with the next group; move or give up where it fails."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._settings.binding_s
        avoid: set[tuple[str, str]] = set()
        try:
            if appended is not None:
                await asyncio.shield(appended)
            while lease.state is State.GRANTED:
                token = lease.token
                results = await asyncio.gather(
                    *(self._agents.bind(n, agents.bound_lease(lease, n)) for n in lease.nodes)
                )
                if not _still(lease, token):
                    return
                if all(isinstance(result, Bound) for result in results):
                    self.commit([ledger.LeaseBound(at_ms=self._writer.now_ms(), lease=lease.lease)])
                    return
                moved = self._rebind(lease, results, avoid, late=loop.time() > until_s)
                if moved is None:
                    return
                await asyncio.shield(moved)
        finally:
            self._binding.pop(lease.lease, None)

    def _rebind(
        self,
        lease: Lease,
        results: Sequence[Bound | NotBound | Unclear],
        avoid: set[tuple[str, str]],
        *,
        late: bool,
    ) -> asyncio.Future[int] | None:
        """What follows a bind that failed: other devices (the future of that append), or an end."""
        at_ms = self._writer.now_ms()
        refused = [result for result in results if isinstance(result, NotBound)]
        disputes = [record for result in refused for record in self._disputes(lease, result, at_ms)]
        avoid.update((d.node, d.uuid) for r in refused for d in lease.devices if d.node == r.node)
        request = lease.granted.request if lease.granted else None
        assert request is not None
        if len(refused) < len(results):
            # Some agent holds it, or may: nothing is free before it has said so.
            self.commit(
                [
                    *disputes,
                    ledger.LeaseEnding(
                        at_ms=at_ms, lease=lease.lease, reason="bind_unknown", effective_ms=at_ms
                    ),
                ]
            )
            return None
        if disputes:
            self.commit(disputes)
        decided = None if late else self._elsewhere(lease, request, frozenset(avoid))
        if decided is None or isinstance(decided, Refusal):
            told = refused[0]
            self.commit(
                [
                    ledger.LeaseFailed(
                        at_ms=at_ms, lease=lease.lease, code=told.code, message=told.message
                    )
                ]
            )
            return None
        _, token = self._next()
        fresh = self._record(lease.lease, token, lease.tenant, request, decided)
        return self.commit(
            [
                ledger.LeaseMoved(
                    at_ms=self._writer.now_ms(),
                    lease=lease.lease,
                    token=token,
                    devices=fresh.devices,
                    cpu_milli=fresh.cpu_milli,
                    memory_bytes=fresh.memory_bytes,
                )
            ]
        )

    def _elsewhere(
        self, lease: Lease, request: PlaceAsk, avoid: frozenset[tuple[str, str]]
    ) -> tuple[Ask, Terms, Chosen] | Refusal:
        """Another place for a lease: its own hold on quota must not stand in its way."""
        holdings = self._state.holdings(lease)
        for holding in holdings:
            self._state.quotas.drop(holding)
        try:
            return self._decide(lease.tenant, request, avoid)
        finally:
            for holding in holdings:
                self._state.quotas.add(holding)

    def _disputes(self, lease: Lease, result: NotBound, at_ms: int) -> Iterable[ledger.AnyRecord]:
        """An agent that refuses a device has a reason: nobody is given it until it is cleared."""
        if not result.reached:
            return
        for device in lease.devices:
            if device.node == result.node and result.device in {"", device.uuid}:
                yield ledger.DisputeChanged(
                    at_ms=at_ms,
                    node=device.node,
                    uuid=device.uuid,
                    disputed=True,
                    reason=f"{result.code}: {result.message}"[:200],
                )

    async def _settled(self, lease: Lease) -> Verdict:
        """The answer for a request that has a lease, once its binding is over and durable."""
        for _ in range(ATTEMPTS_MAX):
            task = self._binding.get(lease.lease)
            if task is not None:
                await asyncio.wait({task})
            if lease.state is not State.ENDING or lease.reason != "bind_unknown":
                break
            again = self._again(lease)
            if again is None:
                break
            lease, appended = again
            await appended
        await self._writer.barrier()
        return self._answer(lease)

    def _again(self, lease: Lease) -> tuple[Lease, asyncio.Future[int]] | None:
        """Another grant for a request whose bind has no answer; its old devices stay held."""
        newest = self._by_request(lease.tenant, lease.request_id)
        if newest is not None and newest is not lease:
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            done.set_result(self._writer.sequence)
            return newest, done
        request = lease.granted.request if lease.granted else None
        if request is None:
            return None
        avoid = frozenset((d.node, d.uuid) for d in lease.devices)
        decided = self._decide(lease.tenant, request, avoid)
        if isinstance(decided, Refusal):
            return None
        return self._grant(lease.tenant, request, decided)

    def _answer(self, lease: Lease) -> Verdict:
        if lease.state is State.QUEUED:
            return placement.Pending(
                lease=lease.lease,
                request_id=lease.request_id,
                queue_place=self.view(lease).queue_place or 1,
                deadline_in_ms=max(0, lease.deadline_ms - self._writer.now_ms()),
            )
        if lease.state in {State.FAILED, State.REFUSED}:
            return Refusal(
                code=Code(lease.reason),
                message=lease.message,
                owner=Owner.INFRASTRUCTURE,
                verdict="not_now",
                details={"lease": lease.lease},
            )
        if lease.state is State.ENDING and lease.reason == "bind_unknown":
            return Refusal(
                code=Code.ADAPTER_ERROR,
                message="the agents of its nodes did not answer, and nothing else fits",
                owner=Owner.INFRASTRUCTURE,
                verdict="not_now",
                details={"lease": lease.lease},
            )
        return self.view(lease)

    # --- the queue ----------------------------------------------------------------------------

    async def _enqueue(self, tenant: str, ask: PlaceAsk, refusal: Refusal) -> Verdict:
        waiting = sum(lease.tenant == tenant for lease in self._state.queue.values())
        if waiting >= self._settings.queued_max:
            return Refusal(
                code=Code.OVERLOADED,
                message=f"{waiting} requests of {tenant} wait already",
                details={"retry_after_ms": 5_000},
            )
        name, _ = self._next()
        at_ms = self._writer.now_ms()
        await self.commit(
            [
                ledger.LeaseQueued(
                    at_ms=at_ms,
                    lease=name,
                    tenant=tenant,
                    request=ask,
                    deadline_ms=at_ms + ask.wait.deadline_ms,
                )
            ]
        )
        answer = self._answer(self._state.leases[name])
        if isinstance(answer, placement.Pending):
            return answer.model_copy(update={"reasons": refusal.reasons})
        return answer

    def work_queue(self) -> None:
        """Grant what waits and fits now, in order; refuse what met its deadline."""
        now_ms = self._writer.now_ms()
        for lease in [le for le in self._state.queue.values() if le.deadline_ms <= now_ms]:
            told = self.explanations.get((lease.tenant, lease.request_id))
            code = told.reasons[0].code if told and told.reasons else Code.NO_CAPACITY
            message = "it met its deadline in the queue"
            self.commit(
                [ledger.LeaseRefused(at_ms=now_ms, lease=lease.lease, code=code, message=message)]
            )
        if self._worked_at == self._state.fleet.version:
            return
        self._worked_at = self._state.fleet.version
        for name in views.queue_order(self._state):
            lease = self._state.queue[name]
            assert lease.queued is not None
            decided = self._decide(lease.tenant, lease.queued.request)
            if not isinstance(decided, Refusal):
                self._grant(lease.tenant, lease.queued.request, decided, queued=name)

    # --- the other verbs ----------------------------------------------------------------------

    async def renew(self, tenant: str, ask: placement.RenewAsk) -> placement.Lease | Refusal:
        """One ttl more from now; appended only where the ttl changes. Call it when sure to lead."""
        lease = self._own(tenant, ask.lease)
        if lease is None:
            return _no_lease(ask.lease)
        if lease.state not in LIVE:
            return _not_live(lease)
        lost = [n for n in lease.nodes if self._lost(n)]
        if lost:
            return Refusal(
                code=Code.NODE_SUSPECT,
                message=f"{', '.join(lost)} is lost: the lease stands until its deadline",
                owner=Owner.INFRASTRUCTURE,
            )
        now_ms = self._writer.now_ms()
        ttl_ms = ask.ttl_ms or lease.ttl_ms
        deadline_ms = max(lease.deadline_ms, now_ms + ttl_ms)
        if ttl_ms != lease.ttl_ms:
            await self.commit(
                [
                    ledger.LeaseTtlChanged(
                        at_ms=now_ms, lease=lease.lease, ttl_ms=ttl_ms, deadline_ms=deadline_ms
                    )
                ]
            )
        else:
            lease.deadline_ms = deadline_ms
            await self._writer.barrier()
        return self.view(lease)

    def _lost(self, node: str) -> bool:
        known = self._state.fleet.nodes.get(node)
        return known is None or known.liveness == "lost"

    async def release(self, tenant: str, ask: placement.ReleaseAsk) -> placement.Lease | Refusal:
        """Over, from now; doing it twice is doing it once."""
        lease = self._own(tenant, ask.lease)
        if lease is None:
            return _no_lease(ask.lease)
        if lease.adopted:
            return Refusal(
                code=Code.NOT_YOURS,
                message="an outside scheduler opened this lease: it ends it (ops end)",
            )
        if lease.state is State.QUEUED:
            return await self.cancel(tenant, placement.CancelAsk(request_id=lease.request_id))
        if lease.state in LIVE:
            self.end(lease, "released", self._writer.now_ms())
        await self._writer.barrier()
        return self.view(lease)

    def end(self, lease: Lease, reason: str, effective_ms: int) -> asyncio.Future[int]:
        """Begin a live lease's end; `bind: none` releases are themselves the acknowledgement."""
        at_ms = self._writer.now_ms()
        records: list[ledger.AnyRecord] = [
            ledger.LeaseEnding(
                at_ms=at_ms, lease=lease.lease, reason=reason, effective_ms=effective_ms
            )
        ]
        if lease.unbound and reason in {"released", "ended_outside"}:
            records += _acknowledged(lease, at_ms, "operator")
        return self.commit(records)

    async def cancel(self, tenant: str, ask: placement.CancelAsk) -> placement.Lease | Refusal:
        """Take a queued request back."""
        lease = self._by_request(tenant, ask.request_id)
        if lease is None:
            return Refusal(code=Code.NOT_FOUND, message=f"no request {ask.request_id}")
        if lease.state in LIVE:
            return Refusal(
                code=Code.CONFLICT,
                message=f"it was placed meanwhile: release {lease.lease}",
                details={"lease": lease.lease},
            )
        if lease.state is State.QUEUED:
            at_ms = self._writer.now_ms()
            self.commit([ledger.LeaseCancelled(at_ms=at_ms, lease=lease.lease)])
        await self._writer.barrier()
        return self.view(lease)

    async def adopt(self, ask: placement.AdoptAsk) -> placement.Lease | Refusal:
        """A lease on devices that an outside scheduler chose: no choice, and laws 1, 3, 8 hold."""
        known = self._by_request(ask.tenant, ask.request_id)
        if known is not None:
            if known.digest != digest(ask):
                return _conflict(ask.request_id)
            await self._writer.barrier()
            return self.view(known)
        record = self._adoption(ask)
        if isinstance(record, Refusal):
            return record
        await self.commit([record])
        lease = self._state.leases[record.lease]
        heapq.heappush(self._deadlines, (lease.deadline_ms, lease.lease))
        return self.view(lease)

    def _adoption(self, ask: placement.AdoptAsk) -> ledger.LeaseGranted | Refusal:
        catalog = self._state.catalog
        node = self._state.fleet.nodes.get(ask.node)
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
            taken = self._taken(device, name, ask.node, workload_class)
            if isinstance(taken, Refusal):
                return taken
            found.append(taken)
        if len({device.uuid for device in found}) < len(found):
            return Refusal(code=Code.INVALID_REQUEST, message="a device is named twice")
        lease, token = self._next()
        at_ms = self._writer.now_ms()
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
            ttl_ms=ask.ttl_ms,
            deadline_ms=at_ms + ask.ttl_ms,
            bound=True,
            catalog_revision=self._state.adopted[0],
        )
        return self._within_quota(ask, record)

    def _taken(
        self, device: Device | None, name: str, node: str, workload_class: str
    ) -> LeaseDevice | Refusal:
        if device is None:
            return Refusal(code=Code.NOT_FOUND, message=f"{node} has no device {name}")
        if device.holder is not None:
            return Refusal(
                code=Code.CONFLICT,
                message=f"{device.uuid} is held by lease {device.holder}",
                owner=Owner.INFRASTRUCTURE,
            )
        rating = self._state.catalog.rating(device.model or "", workload_class)
        if rating is None:
            return Refusal(
                code=Code.UNRATED,
                message=f"{device.model or device.name} has no rating in {workload_class}",
                owner=Owner.CATALOG,
            )
        micro = rating.micro * (device.cores if rating.per == "core" else 1)
        offer = Offer(device.model or "", "", device.kind, micro, rating.version, rating.provenance)
        return _lease_device(device, offer)

    def _within_quota(
        self, ask: placement.AdoptAsk, record: ledger.LeaseGranted
    ) -> ledger.LeaseGranted | Refusal:
        """Over-run is recorded, unless the Quota says that it refuses."""
        trial = Lease(record.lease, ask.tenant, "", "", State.GRANTED, granted=record)
        trial.devices = record.devices
        for holding in self._state.holdings(trial):
            excess = self._state.quotas.exceeded(holding)
            if excess is None:
                continue
            refusal = views.over_quota(excess)
            quota = self._state.catalog.quotas.get(ask.tenant)
            if quota is not None and quota.adopt == "refuse":
                return refusal
            over = {str(refusal.details["cap"]): str(refusal.details["over_by"])}
            return record.model_copy(update={"over_by": over})
        return record

    async def end_adopted(self, ask: placement.EndAdoptedAsk) -> placement.Lease | Refusal:
        """The outside scheduler's word that it is over; also after an expiry."""
        lease = self._state.leases.get(ask.lease)
        if lease is None or not lease.unbound:
            return Refusal(
                code=Code.NOT_FOUND,
                message=f"{ask.lease} is no lease that an outside scheduler holds",
            )
        if lease.state in LIVE:
            self.end(lease, "ended_outside", self._writer.now_ms())
        elif lease.state is State.ENDING:
            self.commit(list(_acknowledged(lease, self._writer.now_ms(), "operator")))
        await self._writer.barrier()
        return self.view(lease)

    # --- time ---------------------------------------------------------------------------------

    def watch_deadlines(self) -> None:
        """After a takeover: every live lease's deadline is watched from here on."""
        self._deadlines = [(le.deadline_ms, le.lease) for le in self._state.live.values()]
        heapq.heapify(self._deadlines)

    def expire(self) -> None:
        """End what met its deadline, as of the deadline and not of this moment."""
        now_ms = self._writer.now_ms()
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, name = heapq.heappop(self._deadlines)
            lease = self._state.live.get(name)
            if lease is None:
                continue
            if lease.deadline_ms > now_ms:
                heapq.heappush(self._deadlines, (lease.deadline_ms, name))
                continue
            self._expire(lease)

    def _expire(self, lease: Lease) -> None:
        begin_ms = lease.bound_ms if lease.bound_ms is not None else lease.granted_ms
        lost = [n for n in lease.nodes if self._lost(n)]
        heard = [node.heard_ms for n in lost if (node := self._state.fleet.nodes.get(n))]
        if lost:
            effective_ms = max(begin_ms, min([lease.deadline_ms, *heard]))
            self.end(lease, "node_lost", effective_ms)
        else:
            self.end(lease, "expired", max(begin_ms, lease.deadline_ms))

    def grace(self) -> None:
        """The placer was away (no bus, no append): nothing expires before one full ttl from now."""
        now_ms = self._writer.now_ms()
        for lease in self._state.live.values():
            lease.deadline_ms = max(lease.deadline_ms, now_ms + lease.ttl_ms)

    def resume(self) -> None:
        """After a takeover: bind what was granted (the same token again is the same bind)."""
        for lease in list(self._state.live.values()):
            if lease.state is State.GRANTED:
                self._start_binding(lease, None)

    def send_ends(self, now_s: float) -> None:
        """Ask agents, again and again, to acknowledge the leases that ended on their nodes."""
        for lease in self._state.ending.values():
            if lease.unbound:
                continue
            for name in lease.waiting:
                node = self._state.fleet.nodes.get(name)
                due_s, _ = self._ends.get((lease.lease, name), (0.0, 0.0))
                if node is not None and node.liveness == "ready" and due_s <= now_s:
                    _, wait_s = self._ends.get((lease.lease, name), (0.0, 0.5))
                    wait_s = min(END_RETRY_MAX_S, wait_s * 2)
                    self._ends[lease.lease, name] = (now_s + 2.5 + wait_s, wait_s)
                    self._keep(asyncio.create_task(self._end_on(lease, name)))

    async def _end_on(self, lease: Lease, node: str) -> None:
        await self._writer.barrier()
        if await self._agents.end(node, lease.lease, lease.token, lease.reason):
            self.acknowledged(lease.lease, node)

    def acknowledged(self, name: str, node: str) -> None:
        """An agent holds the lease no more."""
        lease = self._state.leases.get(name)
        if lease is None or lease.state is not State.ENDING or node not in lease.waiting:
            return
        at_ms = self._writer.now_ms()
        records: list[ledger.AnyRecord] = [
            ledger.NodeReleased(at_ms=at_ms, lease=name, node=node, by="agent")
        ]
        if lease.waiting == {node}:
            records.append(ledger.LeaseEnded(at_ms=at_ms, lease=name))
        self._ends.pop((name, node), None)
        self.commit(records)

    # --- looking ------------------------------------------------------------------------------

    def view(self, lease: Lease) -> placement.Lease:
        """The lease as its tenant sees it."""
        return views.lease_view(
            self._state,
            self.market,
            lease,
            now_ms=self._writer.now_ms(),
            sequence=self._writer.sequence,
        )

    def find(self, tenant: str, ask: placement.GetAsk) -> Lease | None:
        """By lease or by request id, of this tenant alone."""
        if ask.lease is not None:
            return self._own(tenant, ask.lease)
        return self._by_request(tenant, ask.request_id or "")

    def _own(self, tenant: str, name: str) -> Lease | None:
        lease = self._state.leases.get(name)
        return lease if lease is not None and lease.tenant == tenant else None

    def _by_request(self, tenant: str, request_id: str) -> Lease | None:
        name = self._state.by_request.get((tenant, request_id))
        return self._state.leases.get(name) if name is not None else None

    def _explain(
        self, tenant: str, ask: PlaceAsk, decided: tuple[Ask, Terms, Chosen] | Refusal
    ) -> None:
        key = (tenant, ask.request_id)
        self.explanations[key] = _explanation(
            ask.request_id, decided, self._writer.now_ms(), self._state.adopted[0]
        )
        self.explanations.move_to_end(key)
        while len(self.explanations) > EXPLANATIONS_MAX:
            self.explanations.popitem(last=False)

    # --- appending ----------------------------------------------------------------------------

    def commit(self, records: Sequence[ledger.AnyRecord]) -> asyncio.Future[int]:
        """Apply and append; the news goes out once it is durable."""
        appended = self._writer.propose(records)
        self._announcer.after(appended, self._state, records)
        return appended

    async def close(self) -> None:
        """Stop what is under way; what was appended is found again by whoever leads next."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)


def _still(lease: Lease, token: int) -> bool:
    """Nobody released or moved it while its agents were asked."""
    return lease.state is State.GRANTED and lease.token == token


def _lease_devices(chosen: Chosen) -> tuple[LeaseDevice, ...]:
    return tuple(
        _lease_device(
            device, replace(chosen.offer, rating_micro=placing.device_micro(chosen.offer, device))
        )
        for pick in chosen.picks
        for device in pick.devices
    )


def _lease_device(device: Device, offer: Offer) -> LeaseDevice:
    return LeaseDevice(
        node=device.node,
        uuid=device.uuid,
        index=device.index,
        vendor=device.vendor,
        model=device.model or "",
        pool=device.pool,
        parts=PARTS,
        rating_micro=offer.rating_micro,
        rating_version=offer.rating_version,
        provenance=offer.provenance,
        memory_bytes=device.memory_bytes,
    )


def _named(devices: Iterable[Device], name: str) -> Device | None:
    """By uuid; by display index only where that is the name's form."""
    for device in devices:
        if device.uuid == name or (name.isdecimal() and device.index == int(name)):
            return device
    return None


def _acknowledged(lease: Lease, at_ms: int, by: str) -> Iterable[ledger.AnyRecord]:
    for node in lease.nodes:
        yield ledger.NodeReleased(at_ms=at_ms, lease=lease.lease, node=node, by=by)
    yield ledger.LeaseEnded(at_ms=at_ms, lease=lease.lease)


def _explanation(
    request_id: str,
    decided: tuple[Ask, Terms, Chosen] | Refusal,
    at_ms: int,
    revision: int,
) -> placement.Explanation:
    if isinstance(decided, Refusal):
        return placement.Explanation(
            request_id=request_id,
            verdict=decided.verdict or "refused",
            at=views.iso(at_ms),
            catalog_revision=revision,
            summary=f"{decided.code}: {decided.message}",
            reasons=decided.reasons,
            details=decided.details,
        )
    ask, _, chosen = decided
    where = tuple(
        f"{pick.node}: {', '.join(str(device.index) for device in pick.devices)}"
        for pick in chosen.picks
    )
    return placement.Explanation(
        request_id=request_id,
        verdict="placed",
        at=views.iso(at_ms),
        catalog_revision=revision,
        chosen=where,
        summary=(
            f"{chosen.offer.model} in pool {chosen.pool}, by objective {ask.objective}, "
            f"of {chosen.candidates} that would do"
        ),
        details={
            "objective": ask.objective,
            "candidates": chosen.candidates,
            "units_micro": chosen.micro,
            "option": ask.options.index(chosen.option),
            "provenance": chosen.offer.provenance,
        },
    )


def _conflict(request_id: str) -> Refusal:
    return Refusal(
        code=Code.CONFLICT,
        message=f"request id {request_id} was used for other content: take a new id",
    )


def _no_lease(name: str) -> Refusal:
    return Refusal(code=Code.NOT_FOUND, message=f"no lease {name}")


def _not_live(lease: Lease) -> Refusal:
    return Refusal(
        code=Code.CONFLICT,
        message=f"{lease.lease} is {lease.state} ({lease.reason or 'not yet granted'})",
        details={"state": lease.state.value, "reason": lease.reason},
    )
