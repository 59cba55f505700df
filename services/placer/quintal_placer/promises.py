"""The leader's acts as outsiders know them: request, renew, release, cancel, adopt, end.

Each looks at the state, decides at the desk, and replies after the append (and, for a request,
after its agents have answered).
"""

from __future__ import annotations

import asyncio

from quintal.contracts import ledger, placement
from quintal.contracts.documents import Budget
from quintal.contracts.message import Refusal
from quintal.contracts.placement import PlaceAsk
from quintal.errors import Code, Owner
from quintal_placer import budgets, operations, redaction, views
from quintal_placer.adoption import adoption_record
from quintal_placer.agents import Agents
from quintal_placer.announcer import Announcer
from quintal_placer.binding import Binding
from quintal_placer.desk import Desk
from quintal_placer.ends import Deadlines, Ends, acknowledged_records
from quintal_placer.engine.leases import LIVE, State
from quintal_placer.explaining import Explanations
from quintal_placer.ledger import LedgerWriter
from quintal_placer.settings import Settings
from quintal_placer.state import Lease, PlacerState, digest, request_key
from quintal_placer.tasks import report

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
        explanations: Explanations | None = None,
    ) -> None:
        self.desk = Desk(settings, state, writer, announcer, explanations)
        deadlines = Deadlines(self.desk)
        self.binding = Binding(self.desk, hands, deadlines)
        self.ends = Ends(self.desk, hands, deadlines)
        self._deadlines = deadlines
        self._settings = settings
        self._state = state
        self._writer = writer
        self._worked_at = -1
        self._tasks: set[asyncio.Task[None]] = set()

    def resume(self) -> None:
        """After a takeover: watch every deadline, and bind what was granted.

        Each live lease has a full ttl from *now*: the claim may have been long under way, and the
        leader before us renewed until it was stored.
        """
        self.ends.grace()
        self._deadlines.watch_all()
        self.binding.resume()

    async def close(self) -> None:
        """Stop what is under way."""
        for task in self._tasks:
            task.cancel()
        await self.binding.close()
        await self.ends.close()

    async def place(self, tenant: str, ask: PlaceAsk) -> Verdict:
        """Devices and a lease, a place in the queue, or why not. The id decides (law 3).

        A refusal consumes no id, also one that came after a grant that no agent took.
        """
        known = self.desk.by_request(tenant, ask.request_id)
        if known is not None and not _refused(known):
            if known.digest != digest(ask):
                return _conflict(ask.request_id)
            return await self._told(await self.binding.settled(known))
        decided = self.desk.decide(tenant, ask)
        if isinstance(decided, Refusal):
            if ask.wait.mode == "queue" and decided.verdict == "not_now":
                return await self._enqueue(tenant, ask, decided)
            return decided
        lease, appended = self.binding.grant(tenant, ask, decided)
        if lease.unbound:  # all that is to be said of it is in this one append
            return await self.desk.told(self.desk.view(lease), appended)
        await appended
        return await self._told(await self.binding.settled(lease))

    def dry_run(self, tenant: str, ask: PlaceAsk) -> placement.Verdict:
        """What `place` would say: the same code, and nothing is kept (law 11)."""
        decided = self.desk.decide(tenant, ask)
        if isinstance(decided, Refusal):
            return placement.Verdict(verdict=decided.verdict or "refused", refusal=decided)
        record = self.desk.record("dry-run", 0, tenant, ask, decided)
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
        return placement.Verdict(verdict="placed", lease=self.desk.view(lease))

    async def _told(self, lease: Lease) -> Verdict:
        """What became of a request, once that is durable."""
        answer = self._answer(lease)
        if isinstance(answer, placement.Lease):
            return await self.desk.told(answer)
        await self._writer.barrier()
        return answer

    def _answer(self, lease: Lease) -> Verdict:
        if lease.state is State.QUEUED:
            return placement.Pending(
                lease=lease.lease,
                request_id=lease.request_id,
                queue_place=self.desk.view(lease).queue_place or 1,
                deadline_in_ms=max(0, lease.deadline_ms - self._writer.now_ms()),
            )
        if lease.state is State.FAILED:
            # What an agent says is an operator's to read: it may name whoever holds the device.
            return Refusal(
                code=Code(lease.reason),
                message=redaction.AN_AGENT_REFUSED,
                owner=Owner.INFRASTRUCTURE,
                verdict="not_now",
                details={"lease": lease.lease},
            )
        if lease.state is State.REFUSED:
            return Refusal(
                code=Code(lease.reason),
                message=lease.message,
                owner=Owner.INFRASTRUCTURE,
                verdict="not_now",
                details={"lease": lease.lease},
            )
        if _refused(lease):
            unknown = "the agents of its nodes did not answer, and nothing else fits"
            over = f"it was over before it was bound: {lease.reason}"
            return Refusal(
                code=Code.ADAPTER_ERROR,
                message=unknown if lease.reason == "bind_unknown" else over,
                owner=Owner.INFRASTRUCTURE,
                verdict="not_now",
                details={"lease": lease.lease},
            )
        return self.desk.view(lease)

    # --- the queue ----------------------------------------------------------------------------

    async def _enqueue(self, tenant: str, ask: PlaceAsk, refusal: Refusal) -> Verdict:
        waiting = sum(lease.tenant == tenant for lease in self._state.queue.values())
        if waiting >= self._settings.queued_max:
            return Refusal(
                code=Code.OVERLOADED,
                message=f"{waiting} requests of {tenant} wait already",
                details={"retry_after_ms": 5_000},
            )
        name, _ = self.desk.next()
        at_ms = self._writer.now_ms()
        await self.desk.commit(
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
        answer = await self._told(await self.binding.settled(self._state.leases[name]))
        if isinstance(answer, placement.Pending):
            return answer.model_copy(update={"reasons": refusal.reasons})
        return answer

    def work_queue(self) -> None:
        """Grant what waits and fits now, in order; refuse what met its deadline."""
        now_ms = self._writer.now_ms()
        for lease in [le for le in self._state.queue.values() if le.deadline_ms <= now_ms]:
            told = self.desk.explanation(lease.tenant, lease.request_id)
            code = told.reasons[0].code if told and told.reasons else Code.NO_CAPACITY
            message = "it met its deadline in the queue"
            self.desk.commit(
                [ledger.LeaseRefused(at_ms=now_ms, lease=lease.lease, code=code, message=message)]
            )
        if self._worked_at == self._state.fleet.version:
            return
        self._worked_at = self._state.fleet.version
        for name in views.queue_order(self._state):
            lease = self._state.queue[name]
            assert lease.queued is not None
            decided = self.desk.fits(lease.tenant, lease.queued.request)
            if decided is not None:
                self.binding.grant(lease.tenant, lease.queued.request, decided, queued=name)
                self._see_through(lease)

    def _see_through(self, lease: Lease) -> None:
        """Nobody waits for the bind of what was queued: somebody must, to try again elsewhere."""
        task = asyncio.create_task(self._bound(lease))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(report)

    async def _bound(self, lease: Lease) -> None:
        await self.binding.settled(lease)

    # --- the other verbs ----------------------------------------------------------------------

    async def renew(self, tenant: str, ask: placement.RenewAsk) -> placement.Lease | Refusal:
        """One ttl more from now; appended only where the ttl changes. Call it when sure to lead."""
        lease = self.desk.own(tenant, ask.lease)
        if lease is None:
            return _no_lease(ask.lease)
        if lease.state not in LIVE:
            return _not_live(lease)
        lost = [n for n in lease.nodes if self.ends.lost(n)]
        if lost:
            return Refusal(
                code=Code.NODE_SUSPECT,
                message=f"{', '.join(lost)} is lost: the lease stands until its deadline",
                owner=Owner.INFRASTRUCTURE,
            )
        now_ms = self._writer.now_ms()
        ttl_ms = ask.ttl_ms or lease.ttl_ms
        drained_ms = operations.drained_at(self._state, lease)
        wanted_ms = now_ms + ttl_ms
        if drained_ms is not None:
            wanted_ms = min(wanted_ms, drained_ms)
        deadline_ms = max(lease.deadline_ms, wanted_ms)
        beyond = budgets.renewal_over(self._state, lease, deadline_ms, now_ms)
        if beyond is not None and beyond[0].on_exceed == "refuse":
            return _over_budget(beyond)
        if ttl_ms != lease.ttl_ms:
            await self.desk.commit(
                [
                    ledger.LeaseTtlChanged(
                        at_ms=now_ms, lease=lease.lease, ttl_ms=ttl_ms, deadline_ms=deadline_ms
                    )
                ]
            )
        else:
            lease.deadline_ms = deadline_ms
        view = self.desk.view(lease)
        if beyond is not None:
            view = view.model_copy(update={"over_by": {**view.over_by, **beyond[1]}})
        return await self.desk.told(view)

    async def release(self, tenant: str, ask: placement.ReleaseAsk) -> placement.Lease | Refusal:
        """Over, from now; doing it twice is doing it once."""
        lease = self.desk.own(tenant, ask.lease)
        if lease is None:
            return _no_lease(ask.lease)
        if lease.adopted:
            return Refusal(
                code=Code.NOT_YOURS,
                message="an outside scheduler opened this lease: it ends it (ops end)",
            )
        if lease.state is State.QUEUED:
            return await self.cancel(tenant, placement.CancelAsk(request_id=lease.request_id))
        ended = None
        if lease.state in LIVE:
            ended = self.ends.end(lease, "released", self._writer.now_ms())
        return await self.desk.told(self.desk.view(lease), ended)

    async def cancel(self, tenant: str, ask: placement.CancelAsk) -> placement.Lease | Refusal:
        """Take a queued request back."""
        lease = self.desk.by_request(tenant, ask.request_id)
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
            self.desk.commit([ledger.LeaseCancelled(at_ms=at_ms, lease=lease.lease)])
        return await self.desk.told(self.desk.view(lease))

    async def adopt(self, ask: placement.AdoptAsk) -> placement.Lease | Refusal:
        """A lease on devices that an outside scheduler chose: no choice, and laws 1, 3, 8 hold."""
        known = self.desk.by_request(ask.tenant, request_key(ask))
        if known is not None:
            if known.digest != digest(ask):
                return _conflict(ask.request_id)
            return await self.desk.told(self.desk.view(known))
        record = adoption_record(self.desk, ask)
        if isinstance(record, Refusal):
            return record
        await self.desk.commit([record])
        lease = self._state.leases[record.lease]
        self._deadlines.watch(lease)
        return await self.desk.told(self.desk.view(lease))

    async def end_adopted(self, ask: placement.EndAdoptedAsk) -> placement.Lease | Refusal:
        """The outside scheduler's word that it is over; also after an expiry."""
        lease = self._state.leases.get(ask.lease)
        if lease is None or not lease.unbound:
            return Refusal(
                code=Code.NOT_FOUND,
                message=f"{ask.lease} is no lease that an outside scheduler holds",
            )
        if lease.state in LIVE:
            self.ends.end(lease, "ended_outside", self._writer.now_ms())
        elif lease.state is State.ENDING:
            self.desk.commit(list(acknowledged_records(lease, self._writer.now_ms(), "operator")))
        return await self.desk.told(self.desk.view(lease))


def _over_budget(beyond: tuple[Budget, dict[str, str]]) -> Refusal:
    (name, excess), *_ = beyond[1].items()
    return Refusal(
        code=Code.BUDGET_EXCEEDED,
        message=f"{name}: over by {excess}; the lease stands until its deadline",
        verdict="not_now",
        details={"cap": name, "over_by": excess},
    )


def _refused(lease: Lease) -> bool:
    """Whether it ended before anybody was given anything, and not by its tenant's word.

    That is a refusal, and a refusal consumes no id (law 3): the next try is a new decision.
    """
    if lease.state in {State.FAILED, State.REFUSED}:
        return True
    over = lease.state in {State.ENDING, State.ENDED}
    return over and lease.bound_ms is None and lease.reason != "released"


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
