"""From a message to an act and back: translation, and who may ask. No decision stands here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from quintal.bus import Caller
from quintal.contracts import ledger, placement
from quintal.contracts.message import Message, Refusal
from quintal_placer import operations, redaction
from quintal_placer.lead import Placer
from quintal_placer.limits import TenantLimits
from quintal_placer.promises import Promises
from quintal_placer.slim import made

A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)


class Handlers:
    """One method per verb that changes something. A placer that does not lead is silent."""

    def __init__(self, placer: Placer, limits: TenantLimits) -> None:
        self._placer = placer
        self._state = placer.state
        self._limits = limits

    # --- placement ----------------------------------------------------------------------------

    async def place(
        self, caller: Caller, ask: placement.PlaceAsk
    ) -> placement.Lease | placement.Pending | Refusal | None:
        """Ask for devices."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()

        answer = await self._within_limits(caller, lambda p: p.place(caller.principal, ask))
        if answer is None:
            return None
        self._record(caller, ask, answer, int((loop.time() - begin_s) * 1e6))
        return self._redacted(caller, answer)

    async def dry_run(
        self, caller: Caller, ask: placement.PlaceAsk
    ) -> placement.Verdict | Refusal | None:
        """What a request would get."""

        async def act(promises: Promises) -> placement.Verdict:
            return promises.dry_run(caller.principal, ask)

        return self._redacted(caller, await self._within_limits(caller, act))

    async def renew(
        self, caller: Caller, ask: placement.RenewAsk
    ) -> placement.Lease | Refusal | None:
        """One ttl more."""
        answer = await self._within_limits(caller, lambda p: p.renew(caller.principal, ask))
        return self._redacted(caller, answer)

    async def release(
        self, caller: Caller, ask: placement.ReleaseAsk
    ) -> placement.Lease | Refusal | None:
        """Over."""
        answer = await self._within_limits(caller, lambda p: p.release(caller.principal, ask))
        return self._redacted(caller, answer)

    async def cancel(
        self, caller: Caller, ask: placement.CancelAsk
    ) -> placement.Lease | Refusal | None:
        """Take a queued request back."""
        answer = await self._within_limits(caller, lambda p: p.cancel(caller.principal, ask))
        return self._redacted(caller, answer)

    # --- operations ---------------------------------------------------------------------------

    async def cordon(
        self, caller: Caller, ask: placement.CordonAsk
    ) -> placement.Done | Refusal | None:
        """No new grants on these nodes."""
        return await self._operate(
            lambda at_ms: operations.cordon(
                self._state, ask, by=caller.principal, at_ms=at_ms, on=True
            ),
            ask.nodes,
        )

    async def uncordon(
        self, caller: Caller, ask: placement.CordonAsk
    ) -> placement.Done | Refusal | None:
        """Take one's own cordon back."""
        return await self._operate(
            lambda at_ms: operations.cordon(
                self._state, ask, by=caller.principal, at_ms=at_ms, on=False
            ),
            ask.nodes,
        )

    async def drain(
        self, caller: Caller, ask: placement.DrainAsk
    ) -> placement.Done | Refusal | None:
        """Cordon, and be rid of what runs there; asked again, how far that is."""
        answer = await self._operate(
            lambda at_ms: operations.drain(self._state, ask, by=caller.principal, at_ms=at_ms),
            ask.nodes,
        )
        if isinstance(answer, placement.Done):
            told = operations.progress(self._state, ask.nodes, self._now_ms())
            return told.model_copy(update={"sequence": answer.sequence})
        return answer

    async def taint(
        self, caller: Caller, ask: placement.TaintAsk
    ) -> placement.Done | Refusal | None:
        """Only requests that tolerate it go there."""
        return await self._operate(
            lambda at_ms: operations.taint(self._state, ask, by=caller.principal, at_ms=at_ms),
            ask.nodes,
        )

    async def retire(
        self, caller: Caller, ask: placement.RetireAsk
    ) -> placement.Done | Refusal | None:
        """Gone for good."""
        return await self._operate(
            lambda at_ms: operations.retire(self._state, ask, by=caller.principal, at_ms=at_ms),
            ask.nodes,
        )

    async def clear_dispute(
        self, _: Caller, ask: placement.ClearDisputeAsk
    ) -> placement.Done | Refusal | None:
        """A disputed device was looked at."""
        return await self._operate(
            lambda at_ms: operations.clear_dispute(self._state, ask, at_ms=at_ms), (ask.node,)
        )

    async def partition(
        self, _: Caller, ask: placement.PartitionAsk
    ) -> placement.Done | Refusal | None:
        """Cut a device that nobody holds, or say what that would be."""
        promises = await self._placer.confirm()
        return None if promises is None else await promises.recutting.partition(ask)

    async def adopt(self, _: Caller, ask: placement.AdoptAsk) -> placement.Lease | Refusal | None:
        """A lease on devices that an outside scheduler chose."""
        promises = await self._placer.confirm()
        return None if promises is None else await promises.adopt(ask)

    async def end(
        self, _: Caller, ask: placement.EndAdoptedAsk
    ) -> placement.Lease | Refusal | None:
        """An outside scheduler's lease is over."""
        promises = await self._placer.confirm()
        return None if promises is None else await promises.end_adopted(ask)

    async def snapshot(
        self, _: Caller, __: placement.SnapshotAsk
    ) -> placement.Done | Refusal | None:
        """A census, then a snapshot."""
        promises = await self._placer.confirm()
        if promises is None:
            return None
        sequence = await self._placer.census("snapshot", promises)
        written = await self._placer.snapshot()
        message = f"census at {sequence}; " + (
            f"snapshot of {written}" if written else "busy: the standby will write the snapshot"
        )
        return placement.Done(message=message, sequence=sequence)

    # --- what they share ----------------------------------------------------------------------

    async def _within_limits(
        self, caller: Caller, act: Callable[[Promises], Awaitable[R]]
    ) -> R | Refusal | None:
        promises = await self._placer.confirm()
        if promises is None:
            return None
        tenant = caller.principal
        refused = self._limits.refusal(tenant, asyncio.get_running_loop().time())
        if refused is not None:
            return refused
        try:
            answer = await act(promises)
        finally:
            self._limits.leave(tenant)
        return answer

    def _redacted(self, caller: Caller, answer: R | None) -> R | Refusal | None:
        """Nothing of another's is in it (law 13)."""
        if answer is None:
            return None
        return redaction.for_tenant(self._state.catalog, caller.principal, answer)

    async def _operate(
        self,
        decide: Callable[[int], operations.Records | Refusal],
        nodes: tuple[str, ...],
    ) -> placement.Done | Refusal | None:
        promises = await self._placer.confirm()
        if promises is None:
            return None
        records = decide(self._now_ms())
        if isinstance(records, Refusal):
            return records
        if records:
            sequence = await promises.desk.commit(records)
        else:
            sequence = await self._durable()
        message = "done" if records else "it was so already"
        return placement.Done(message=message, nodes=nodes, sequence=sequence)

    async def _durable(self) -> int:
        """Wait until what a reader is shown is in the ledger; gives its sequence."""
        writer = self._placer.writer
        return await writer.barrier() if writer is not None else self._placer.position

    def _now_ms(self) -> int:
        writer = self._placer.writer
        return writer.now_ms() if writer is not None else self._state.at_ms

    def _record(
        self,
        caller: Caller,
        ask: placement.PlaceAsk,
        answer: placement.Lease | placement.Pending | Refusal,
        micros: int,
    ) -> None:
        refusal = answer if isinstance(answer, Refusal) else None
        verdicts = {"lease": "placed", "pending": "queued", "refused": "refused"}
        verdict = (refusal.verdict if refusal else None) or verdicts[answer.kind]
        self._placer.tally.placed(verdict, micros / 1e6)
        self._placer.announcer.decision(
            made(
                ledger.DecisionRecord,
                at_ms=self._now_ms(),
                tenant=caller.principal,
                request_id=ask.request_id,
                verb="request",
                verdict=verdict,
                code=refusal.code if refusal else "",
                lease="" if isinstance(answer, Refusal) else answer.lease,
                micros=micros,
                reasons={r.code.value: r.count for r in refusal.reasons} if refusal else {},
                catalog_revision=self._state.adopted[0],
                refusal=refusal,
                request=ask if refusal else None,
            )
        )
