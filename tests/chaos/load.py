"""Job submitters under chaos: they ask, hold, renew, give back, and never give up on an answer.

A call that has no answer is made again under the same request id until it has one. What a submitter
holds it renews every few seconds, unless it abandons the lease on purpose: then it must expire.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from quintal.client import Client
from quintal.contracts.placement import Lease, Pending, PlaceAsk, Wait
from quintal.errors import BusUnavailable, Code, ProtocolError, Refused
from tests.chaos.journal import NO_ANSWER, Entry, Journal, now_ms

RENEW_AFTER_MS: Final = 6_000
TTL_MS: Final = 30_000
"""The shortest that there is."""
HELD_MAX: Final = 4
SEVERAL_CARDS: Final = {"inference-large", "training-standard", "scientific"}
DEAD: Final = {"ending", "ended", "failed", "refused", "cancelled"}

Answer = Lease | Pending


@dataclass(slots=True)
class Submitter:
    """One of a tenant's: a few leases at a time."""

    client: Client
    journal: Journal
    chance: random.Random
    profiles: list[str]
    name: str
    count: int = 0
    unanswered: dict[str, PlaceAsk] = field(default_factory=dict)
    waiting: dict[str, PlaceAsk] = field(default_factory=dict)
    """Queued ones, and those that are being bound, by request id."""
    dropped: list[str] = field(default_factory=list)
    """Abandoned ones."""
    held: dict[str, int] = field(default_factory=dict)
    """Lease -> when it was renewed last."""
    leaving: set[str] = field(default_factory=set)
    """Leases whose release has no answer yet."""
    decided: dict[str, tuple[PlaceAsk, str]] = field(default_factory=dict)
    """Request id -> what it asked, and the lease it got."""
    request_of: dict[str, str] = field(default_factory=dict)

    @property
    def tenant(self) -> str:
        return self.client.bus.principal

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.step()
            await asyncio.sleep(self.chance.uniform(0.1, 0.7))

    async def step(self) -> None:
        """The most urgent thing: hold on, hear the answers that are due, then something new."""
        stale = now_ms() - RENEW_AFTER_MS
        due = [lease for lease, since in self.held.items() if since < stale]
        if due:
            await self._renew(due[0])
        elif self.leaving:
            await self._release(next(iter(self.leaving)))
        elif self.unanswered and self.chance.random() < 0.8:
            await self._place(next(iter(self.unanswered.values())), "place again")
        elif self.waiting and self.chance.random() < 0.5:
            await self._look(self.chance.choice(list(self.waiting)))
        else:
            await self._anything()

    async def _anything(self) -> None:
        busy = len(self.held) + len(self.waiting) + len(self.unanswered)
        what = self.chance.random()
        if busy < HELD_MAX and what < 0.5:
            await self._place(self._new(), "place")
        elif self.held and what < 0.75:
            await self._release(self.chance.choice(list(self.held)))
        elif self.held and what < 0.78:
            lease = self.chance.choice(list(self.held))
            self.journal.abandoned[lease] = now_ms()
            self.dropped.append(lease)
            del self.held[lease]
        elif self.decided and what < 0.9:
            await self._repeat(self.chance.choice(list(self.decided)))
        elif self.held:
            await self._renew(self.chance.choice(list(self.held)))

    def _new(self) -> PlaceAsk:
        self.count += 1
        queue = self.chance.random() < 0.35
        profile = self.chance.choice(self.profiles)
        return PlaceAsk(
            request_id=f"chaos-{self.name}-{self.count}",
            profile=profile,
            cards=self.chance.choice((1, 2, 4, 8)) if profile in SEVERAL_CARDS else None,
            nodes=self.chance.choice((1, 2)) if profile == "training-large" else None,
            ttl_ms=TTL_MS,
            wait=Wait(mode="queue", deadline_ms=20_000) if queue else Wait(),
            bind="none" if self.chance.random() < 0.15 else "wait",
            requester=self.name,
        )

    # --- verbs --------------------------------------------------------------------------------

    async def _place(self, ask: PlaceAsk, verb: str) -> None:
        self.unanswered[ask.request_id] = ask
        answer, code = await self._call(verb, ask.request_id, "", lambda: self.client.place(ask))
        if code == NO_ANSWER:
            return
        del self.unanswered[ask.request_id]
        if answer is None:
            self._complain_if(code == Code.CONFLICT, f"{ask.request_id} is a conflict with itself")
            if code in {Code.NODE_SUSPECT, Code.ADAPTER_ERROR} and self.chance.random() < 0.7:
                self.unanswered[ask.request_id] = ask  # a refusal consumes no id
            return
        self.request_of[answer.lease] = ask.request_id
        if isinstance(answer, Pending) or answer.state == "granted":
            self.waiting[ask.request_id] = ask
        elif answer.state in DEAD:
            self.journal.complaints.append(
                f"{ask.request_id} was answered by {answer.lease}, {answer.state}: {answer.reason}"
            )
        else:
            self._got(ask, answer)

    def _got(self, ask: PlaceAsk, lease: Lease) -> None:
        self.held[lease.lease] = now_ms()
        self.decided[ask.request_id] = (ask, lease.lease)

    async def _look(self, request_id: str) -> None:
        """What became of a queued request; sometimes it is taken back."""
        if self.chance.random() < 0.15:
            await self._cancel(request_id)
            return
        ask = self.waiting[request_id]
        answer, code = await self._call(
            "get", request_id, "", lambda: self.client.get(request_id=request_id)
        )
        if isinstance(answer, Lease) and answer.state not in {"queued", "granted"}:
            del self.waiting[request_id]
            self.request_of[answer.lease] = request_id
            if answer.state not in DEAD:
                self._got(ask, answer)
        self._complain_if(
            answer is None and code != NO_ANSWER, f"a queued request {request_id} is {code}"
        )

    async def _cancel(self, request_id: str) -> None:
        answer, code = await self._call(
            "cancel", request_id, "", lambda: self.client.cancel(request_id)
        )
        if answer is not None:
            del self.waiting[request_id]
        self._complain_if(
            code not in DEAD | {NO_ANSWER, Code.CONFLICT},
            f"cancelling {request_id}: {code}",
        )

    async def _renew(self, lease: str) -> None:
        answer, code = await self._call("renew", "", lease, lambda: self.client.renew(lease))
        if answer is not None:
            self.held[lease] = now_ms()
        elif code not in {NO_ANSWER, Code.NODE_SUSPECT}:
            del self.held[lease]
            self.journal.complaints.append(f"{lease} was being renewed, and is gone: {code}")

    async def _release(self, lease: str) -> None:
        self.leaving.add(lease)
        self.held.pop(lease, None)
        answer, code = await self._call("release", "", lease, lambda: self.client.release(lease))
        if code != NO_ANSWER:
            self.leaving.discard(lease)
        self._complain_if(
            answer is None and code != NO_ANSWER, f"the release of {lease} was refused: {code}"
        )

    async def _repeat(self, request_id: str) -> None:
        """The same id again: the same lease, or, with other content, a conflict."""
        ask, lease = self.decided[request_id]
        if self.chance.random() < 0.5:
            answer, _ = await self._call("repeat", request_id, "", lambda: self.client.place(ask))
            wrong = answer is not None and answer.lease != lease
            self._complain_if(wrong, f"{request_id} had {lease}, and has {answer and answer.lease}")
            return
        other = ask.model_copy(update={"requester": "somebody else"})
        _, code = await self._call("misuse", request_id, "", lambda: self.client.place(other))
        self._complain_if(code not in {Code.CONFLICT, NO_ANSWER}, f"misuse of {request_id}: {code}")

    async def _call(
        self, verb: str, request_id: str, lease: str, call: Callable[[], Awaitable[Answer]]
    ) -> tuple[Answer | None, str]:
        """Make it, and write down what came; the answer, and it in one word."""
        sent_ms = now_ms()
        answer: Answer | None = None
        note = ""
        try:
            answer = await call()
            code = answer.state if isinstance(answer, Lease) else answer.kind
            lease = answer.lease
            note = answer.reason if isinstance(answer, Lease) else ""
        except Refused as exc:
            code, note = str(exc.code), str(exc)
        except BusUnavailable as exc:
            code, note = NO_ANSWER, str(exc)
        except ProtocolError as exc:
            code, note = NO_ANSWER, str(exc)
            self.journal.complaints.append(f"{verb} {request_id}{lease}: {exc}")
        self.journal.append(
            Entry(
                sent_ms=sent_ms,
                answered_ms=now_ms(),
                tenant=self.tenant,
                request_id=request_id or self.request_of.get(lease, ""),
                verb=verb,
                answer=code,
                lease=lease,
                expires_in_ms=(answer.expires_in_ms or 0) if isinstance(answer, Lease) else 0,
                sequence=answer.sequence if isinstance(answer, Lease) else 0,
                note=note,
            )
        )
        return answer, code

    def _complain_if(self, wrong: bool, text: str) -> None:
        if wrong:
            self.journal.complaints.append(text)

    # --- the end ------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Hear every answer that is due, take back what waits, give back what is held.

        What was abandoned and did not expire yet is given back too: nobody waits for a ttl.
        """
        while self.unanswered:
            await self._place(next(iter(self.unanswered.values())), "place again")
        for request_id in list(self.waiting):
            while request_id in self.waiting:
                await self._cancel(request_id)
                if request_id in self.waiting:
                    await self._look(request_id)
                    await asyncio.sleep(0.1)
        for lease in [*self.held, *self.leaving, *self.dropped]:
            await self._release(lease)
        while self.leaving:
            await self._release(next(iter(self.leaving)))
