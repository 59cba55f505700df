"""The leader's acts as outsiders know them: request, renew, release, cancel, adopt, end.

Each looks at the state, decides at the desk, and replies after the append (and, for a request,
after its agents have answered).
"""

from __future__ import annotations

from quintal.contracts import ledger, placement
from quintal.contracts.documents import Budget
from quintal.contracts.message import Refusal
from quintal.contracts.placement import PlaceAsk
from quintal.errors import Code, Owner
from quintal_placer import budgets, operations, redaction, replay
from quintal_placer.adoption import adoption_record
from quintal_placer.agents import Agents
from quintal_placer.announcer import Announcer
from quintal_placer.binding import Binding
from quintal_placer.desk import Desk
from quintal_placer.ends import Deadlines, Ends, acknowledged_records
from quintal_placer.engine.leases import LIVE, State
from quintal_placer.explaining import Explanations
from quintal_placer.ledger import LedgerWriter
from quintal_placer.queue import LOOK_BESIDE_S, TRIES_BESIDE, Queue
from quintal_placer.recutting import Recutting
from quintal_placer.settings import Settings
from quintal_placer.state import Lease, PlacerState, request_key

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
        self.ends = Ends(self.desk, hands, deadlines)
        self.binding = Binding(self.desk, hands, deadlines, self.ends)
        self.queue = Queue(self.desk, self.binding, _refused)
        self.recutting = Recutting(self.desk, hands)
        self._deadlines = deadlines
        self._state = state
        self._writer = writer

    def resume(self) -> None:
        """After a takeover: watch every deadline, and bind what was granted.

        Each live lease has a full ttl from *now*: the claim may have been long under way, and the
        leader before us renewed until it was stored.
        """
        self.ends.grace()
        self._deadlines.watch_all()
        self.ends.judge_all()
        self.binding.resume()

    async def close(self) -> None:
        """Stop what is under way."""
        await self.recutting.close()
        await self.queue.close()
        await self.binding.close()
        await self.ends.close()

    async def place(self, tenant: str, ask: PlaceAsk) -> Verdict:
        """Devices and a lease, a place in the queue, or why not. The id decides (law 3).

        A refusal consumes no id, also one that came after a grant that no agent took.
        """
        known = self.desk.by_request(tenant, ask.request_id)
        if known is not None and not _refused(known):
            if known.asked != ask:
                return _conflict(ask.request_id)
            _, answer = await self._outcome(tenant, ask, known)
            return answer
        self.queue.work(TRIES_BESIDE, LOOK_BESIDE_S)
        decided = self.desk.decide(tenant, ask)
        if isinstance(decided, Refusal):
            return await self._or_wait(tenant, ask, decided)
        lease, appended = self.binding.grant(tenant, ask, decided)
        if lease.unbound:  # all that is to be said of it is in this one append
            return await self.desk.told(self.desk.view(lease), appended)
        await appended
        found, answer = await self._outcome(tenant, ask, lease)
        if isinstance(answer, Refusal) and self.desk.by_request(tenant, ask.request_id) is found:
            return await self._or_wait(tenant, ask, answer)
        return answer

    async def _outcome(self, tenant: str, ask: PlaceAsk, lease: Lease) -> tuple[Lease, Verdict]:
        """What the request id came to, durable, and the lease that says so.

        A lease may be over (its node retired) while its bind is still asked for. Who asks then
        under the same id is decided anew; whoever waited for the old one is told the new (law 3).
        """
        while True:
            found = await self.binding.settled(lease)
            answer = await self._told(found)
            newest = self.desk.by_request(tenant, ask.request_id)
            if not isinstance(answer, Refusal) or newest is None or newest is found:
                return found, answer
            if newest.asked != ask:
                return found, _conflict(ask.request_id)
            lease = newest

    async def _or_wait(self, tenant: str, ask: PlaceAsk, refusal: Refusal) -> Verdict:
        """The refusal; or a place in the queue, where that is asked for and could help."""
        if ask.wait.mode != "queue" or refusal.verdict != "not_now":
            return refusal
        entered = await self.queue.enter(tenant, ask)
        if isinstance(entered, Refusal):
            return entered
        answer = await self._told(entered)
        if isinstance(answer, placement.Pending):
            return answer.model_copy(update={"reasons": refusal.reasons})
        return answer

    def dry_run(self, tenant: str, ask: PlaceAsk) -> placement.Verdict:
        """What `place` would say: the same code, and nothing is kept (law 11)."""
        self.queue.work(TRIES_BESIDE, LOOK_BESIDE_S)
        decided = self.desk.decide(tenant, ask)
        known = {
            "decision": replay.hash_of(decided),
            "at_ms": self.desk.writer.now_ms(),
            "sequence": self.desk.writer.sequence,
        }
        if isinstance(decided, Refusal):
            verdict = placement.Verdict(verdict=decided.verdict or "refused", refusal=decided)
            return verdict.model_copy(update=known)
        record = self.desk.record("dry-run", 0, tenant, ask, decided)
        lease = Lease(
            lease="dry-run",
            tenant=tenant,
            request_id=ask.request_id,
            state=State.GRANTED,
            granted=record,
            devices=record.devices,
            ttl_ms=record.ttl_ms,
            deadline_ms=record.deadline_ms,
        )
        verdict = placement.Verdict(verdict="placed", lease=self.desk.view(lease))
        return verdict.model_copy(update=known)

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
                queue_place=self._state.line.place(lease.lease) or 1,
                estimate_ms=self.queue.estimates().get(lease.lease),
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
            told = {
                "bind_unknown": "the agents of its nodes did not answer, and nothing else fits",
                "bind_refused": redaction.AN_AGENT_REFUSED,
            }
            over = f"it was over before it was bound: {lease.reason}"
            return Refusal(
                code=Code.ADAPTER_ERROR,
                message=told.get(lease.reason, over),
                owner=Owner.INFRASTRUCTURE,
                verdict="not_now",
                details={"lease": lease.lease},
            )
        return self.desk.view(lease)

    def work_queue(self) -> None:
        """Refuse what met its deadline; grant what waits and fits now, in order."""
        self.queue.refuse_late()
        self.queue.work()

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
        if lease.notice:
            return Refusal(
                code=Code.DEVICE_UNHEALTHY,
                message=lease.notice,
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
            self.queue.leave(lease, ledger.LeaseCancelled(at_ms=at_ms, lease=lease.lease))
        return await self.desk.told(self.desk.view(lease))

    async def adopt(self, ask: placement.AdoptAsk) -> placement.Lease | Refusal:
        """A lease on devices that an outside scheduler chose: no choice, and laws 1, 3, 8 hold."""
        known = self.desk.by_request(ask.tenant, request_key(ask))
        if known is not None:
            if known.asked != ask:
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
