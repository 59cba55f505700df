"""The SDK: one method per request, typed, in the name of whoever's credentials are given.

    async with await Client.connect(access) as client:
        lease = await client.place(PlaceAsk(request_id="job-1", profile="llm-inference"))

A refusal is raised as `Refused`: its code, owner and details are the service's own. A request is
asked again, under the same request id, until `patience_s` is over: while nobody answers (a placer
takes over in about two seconds) and while a service says `overloaded`. Every request may be asked
twice: the id decides, or the state that it asks for is reached already.

Reads are answered by any placer, each saying the sequence of the ledger that it reflects; a client
never reads behind what it has seen, its own writes least of all.

`SyncClient` is the same for code that knows no event loop.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Coroutine
from typing import Any, Final, Self, TypeVar

from quintal.bus import RETRY_AFTER_MS, Bus
from quintal.contracts import (
    bills,
    catalog,
    placement,
    portability as portable,
    reports,
    subjects,
    usage as metered,
)
from quintal.contracts.message import Message
from quintal.contracts.subjects import Request, Role
from quintal.errors import BusUnavailable, Code, Refused
from quintal.here import Here, here
from quintal.settings import Access, access as access_from, environment

__all__ = ["Client", "Here", "SyncClient", "here"]

PATIENCE_S: Final = 15.0
"""How long one request is tried: more than a takeover, or a restart of the server."""

_AGAIN_S: Final = 0.25
_FIRST_TRY_S: Final = 1.0

A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)
T = TypeVar("T")


class Client:
    """One principal's connection. Methods raise Refused, BusUnavailable, ProtocolError."""

    def __init__(self, bus: Bus, *, patience_s: float = PATIENCE_S) -> None:
        self.bus = bus
        self._patience_s = patience_s
        self._seen = 0
        """The newest sequence of the ledger that an answer reflected: no read goes back of it."""

    @classmethod
    async def connect(
        cls, access: Access | None = None, *, patience_s: float = PATIENCE_S, wait_s: float = 10.0
    ) -> Self:
        """Connect as `access` says; without it, as QUINTAL_URL and QUINTAL_CREDENTIALS say."""
        bus = await Bus.connect(access or access_from(environment()), wait_s=wait_s)
        return cls(bus, patience_s=patience_s)

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self.bus.close()

    async def _ask(self, request: Request[A, R], ask: A, *, timeout_s: float = 5.0) -> R:
        """Ask until it is answered or patience is over; one try waits up to `timeout_s`.

        A placer that does not lead hears the request and is silent, so a request that arrives
        during a takeover is never answered: the first tries are short.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._patience_s
        placer = Role.PLACER_FRONT in request.answerers
        try_s = _FIRST_TRY_S if placer else timeout_s
        if isinstance(ask, placement.ReadAsk) and ask.at_least_sequence is None and self._seen:
            ask = ask.model_copy(update={"at_least_sequence": self._seen})
        while True:
            try:
                answer = await self.bus.ask(request, ask, timeout_s=min(try_s, timeout_s))
            except BusUnavailable:
                wait_s = _AGAIN_S
                try_s *= 2
                if loop.time() + wait_s > give_up:
                    raise
            except Refused as exc:
                if exc.code is not Code.OVERLOADED:
                    raise
                inner = exc.details.get("details", {})
                wait_s = int(inner.get("retry_after_ms", RETRY_AFTER_MS)) / 1000
                if loop.time() + wait_s > give_up:
                    raise
            else:
                if placer:
                    self._seen = max(self._seen, getattr(answer, "sequence", 0))
                return answer
            await asyncio.sleep(wait_s)

    # --- placement: a tenant's own ------------------------------------------------------------

    async def place(self, ask: placement.PlaceAsk) -> placement.Lease | placement.Pending:
        """Devices and a lease, or a place in the queue. The same ask twice gives the same lease."""
        return await self._ask(subjects.PLACE, ask, timeout_s=15)

    async def renew(self, lease: str, ttl_ms: int | None = None) -> placement.Lease:
        """Hold the lease for one ttl more, from now."""
        return await self._ask(subjects.RENEW, placement.RenewAsk(lease=lease, ttl_ms=ttl_ms))

    async def release(self, lease: str) -> placement.Lease:
        """Give the devices back."""
        return await self._ask(subjects.RELEASE, placement.ReleaseAsk(lease=lease))

    async def cancel(self, request_id: str) -> placement.Lease:
        """Take a queued request back."""
        return await self._ask(subjects.CANCEL, placement.CancelAsk(request_id=request_id))

    async def get(
        self, lease: str | None = None, *, request_id: str | None = None
    ) -> placement.Lease:
        """One lease, by its id or by its request's."""
        ask = placement.GetAsk(lease=lease, request_id=request_id)
        return await self._ask(subjects.GET, ask)

    async def leases(self, ask: placement.ListAsk | None = None) -> placement.Leases:
        """The tenant's leases, newest first."""
        return await self._ask(subjects.LIST, ask or placement.ListAsk())

    async def explain(self, request_id: str, *, hints: bool = False) -> placement.Explanation:
        """Why a request of the tenant got what it got; with `hints`, what would be placed now."""
        ask = placement.ExplainAsk(request_id=request_id, hints=hints)
        return await self._ask(subjects.EXPLAIN, ask)

    async def dry_run(self, ask: placement.PlaceAsk) -> placement.Verdict:
        """What `place` would say; nothing is kept."""
        return await self._ask(subjects.DRY_RUN, ask)

    async def quota(self) -> placement.QuotaView:
        """The tenant's caps and what is held under them."""
        return await self._ask(subjects.QUOTA, placement.QuotaAsk())

    async def queue(self, ask: placement.QueueAsk | None = None) -> placement.QueueView:
        """The tenant's requests that wait, with their places."""
        return await self._ask(subjects.QUEUE, ask or placement.QueueAsk())

    async def events(self, ask: placement.EventsAsk | None = None) -> placement.Events:
        """The newest transitions of the tenant's leases, oldest first."""
        return await self._ask(subjects.EVENTS, ask or placement.EventsAsk(), timeout_s=15)

    # --- operations ---------------------------------------------------------------------------

    async def cordon(self, nodes: tuple[str, ...], reason: str = "") -> placement.Done:
        """No new grants on these nodes."""
        return await self._ask(subjects.CORDON, placement.CordonAsk(nodes=nodes, reason=reason))

    async def uncordon(self, nodes: tuple[str, ...], reason: str = "") -> placement.Done:
        """Take a cordon back."""
        return await self._ask(subjects.UNCORDON, placement.CordonAsk(nodes=nodes, reason=reason))

    async def drain(
        self, nodes: tuple[str, ...], deadline_ms: int | None = None, reason: str = ""
    ) -> placement.Done:
        """Cordon, and be rid of what runs there; asked again, how far that is."""
        ask = placement.DrainAsk(nodes=nodes, deadline_ms=deadline_ms, reason=reason)
        return await self._ask(subjects.DRAIN, ask)

    async def taint(self, ask: placement.TaintAsk) -> placement.Done:
        """Only requests that tolerate it go to these nodes; or take that back."""
        return await self._ask(subjects.TAINT, ask)

    async def retire(self, nodes: tuple[str, ...], reason: str = "") -> placement.Done:
        """These nodes are gone for good."""
        return await self._ask(subjects.RETIRE, placement.RetireAsk(nodes=nodes, reason=reason))

    async def partition(self, ask: placement.PartitionAsk) -> placement.Done:
        """Cut a device that no lease holds, or say what that would be."""
        return await self._ask(subjects.PARTITION, ask)

    async def clear_dispute(self, ask: placement.ClearDisputeAsk) -> placement.Done:
        """A disputed device was looked at."""
        return await self._ask(subjects.CLEAR_DISPUTE, ask)

    async def adopt(self, ask: placement.AdoptAsk) -> placement.Lease:
        """An outside scheduler gave these devices to a tenant: open a lease on them."""
        return await self._ask(subjects.ADOPT, ask, timeout_s=15)

    async def end_adopted(self, lease: str, reason: str = "") -> placement.Lease:
        """The outside scheduler says that the work is over."""
        ask = placement.EndAdoptedAsk(lease=lease, reason=reason)
        return await self._ask(subjects.END_ADOPTED, ask)

    async def snapshot(self) -> placement.Done:
        """Append a census and write a snapshot now."""
        return await self._ask(subjects.SNAPSHOT, placement.SnapshotAsk(), timeout_s=30)

    async def saved_snapshot(self) -> tuple[int, bytes]:
        """A snapshot with its catalog, whole, and its sequence; for `simulate --snapshot`."""
        ask = placement.SnapshotPartAsk()
        parts: list[bytes] = []
        while True:
            part = await self._ask(subjects.SNAPSHOT_PART, ask, timeout_s=30)
            parts.append(base64.b64decode(part.data))
            offset = part.offset + len(parts[-1])
            if offset >= part.size or not parts[-1]:
                return part.sequence, b"".join(parts)
            ask = placement.SnapshotPartAsk(sequence=part.sequence, offset=offset)

    async def fleet(self, ask: placement.FleetAsk | None = None) -> placement.Fleet:
        """Nodes and devices, and what became of each."""
        return await self._ask(subjects.FLEET, ask or placement.FleetAsk(), timeout_s=15)

    async def capacity(self, ask: placement.FleetAsk | None = None) -> placement.Capacity:
        """The fleet in standard units."""
        return await self._ask(subjects.CAPACITY, ask or placement.FleetAsk(), timeout_s=15)

    async def all_leases(self, ask: placement.ListAsk | None = None) -> placement.Leases:
        """Leases of all tenants, or of the one that `ask` names."""
        return await self._ask(subjects.ALL_LEASES, ask or placement.ListAsk(), timeout_s=15)

    async def explain_any(
        self, request_id: str, tenant: str | None = None, *, hints: bool = False
    ) -> placement.Explanation:
        """Why any tenant's request got what it got, with nothing left out."""
        ask = placement.ExplainAsk(request_id=request_id, tenant=tenant, hints=hints)
        return await self._ask(subjects.EXPLAIN_ANY, ask)

    async def all_queues(self, ask: placement.QueueAsk | None = None) -> placement.QueueView:
        """Everybody who waits, or the one tenant's that `ask` names."""
        return await self._ask(subjects.ALL_QUEUES, ask or placement.QueueAsk(), timeout_s=15)

    async def all_quotas(self, tenant: str | None = None) -> placement.QuotaView:
        """Caps of all tenants, or of one."""
        return await self._ask(subjects.ALL_QUOTAS, placement.QuotaAsk(tenant=tenant))

    async def all_events(self, ask: placement.EventsAsk | None = None) -> placement.Events:
        """The newest transitions of leases and nodes, oldest first."""
        return await self._ask(subjects.ALL_EVENTS, ask or placement.EventsAsk(), timeout_s=15)

    # --- catalog ------------------------------------------------------------------------------

    async def apply(self, ask: catalog.ApplyAsk) -> catalog.Applied:
        """Make documents part of the catalog: all or none."""
        return await self._ask(subjects.APPLY, ask, timeout_s=30)

    async def check(self, ask: catalog.CheckAsk) -> catalog.Checked:
        """What `apply` would say."""
        return await self._ask(subjects.CHECK, ask, timeout_s=30)

    async def documents(self, ask: catalog.DocumentsAsk | None = None) -> catalog.Documents:
        """Documents, as of one revision."""
        return await self._ask(subjects.DOCUMENTS, ask or catalog.DocumentsAsk(), timeout_s=15)

    async def document_list(self, ask: catalog.DocumentsAsk | None = None) -> catalog.DocumentList:
        """What documents there are."""
        ask = ask or catalog.DocumentsAsk()
        return await self._ask(subjects.LIST_DOCUMENTS, ask, timeout_s=15)

    async def diff(self, before: int, after: int | None = None) -> catalog.Diff:
        """What differs between two revisions."""
        return await self._ask(subjects.DIFF, catalog.DiffAsk(before=before, after=after))

    async def history(self, ask: catalog.HistoryAsk | None = None) -> catalog.History:
        """Who changed the catalog, why, when."""
        return await self._ask(subjects.HISTORY, ask or catalog.HistoryAsk())

    async def rate(self, ask: catalog.RateAsk) -> catalog.Rated:
        """What a model is worth in each class, how sure that is, and what it rests on."""
        return await self._ask(subjects.RATE, ask)

    async def fit(self, ask: portable.FitAsk) -> portable.Fit:
        """Whether a workload runs on a node, in a pool, or under a stack."""
        return await self._ask(subjects.FIT, ask, timeout_s=15)

    async def portability(self, ask: portable.PortabilityAsk) -> portable.Portability:
        """Where a workload runs, and how much of the fleet is closed to it."""
        return await self._ask(subjects.PORTABILITY, ask, timeout_s=30)

    async def can_run(self, ask: portable.CanRunAsk) -> portable.CanRun:
        """Which workloads run on a node or pool."""
        return await self._ask(subjects.CAN_RUN, ask, timeout_s=30)

    # --- metering -----------------------------------------------------------------------------

    async def usage(self, ask: metered.SummaryAsk | None = None) -> metered.UsageSummary:
        """Usage and cost, grouped."""
        return await self._ask(subjects.SUMMARY, ask or metered.SummaryAsk(), timeout_s=30)

    async def slices(self, ask: metered.SlicesAsk | None = None) -> metered.Slices:
        """The rows beneath a summary."""
        return await self._ask(subjects.SLICES, ask or metered.SlicesAsk(), timeout_s=30)

    async def verify(self, ask: metered.VerifyAsk | None = None) -> metered.Verified:
        """Hold the fold against the census and the store."""
        return await self._ask(subjects.VERIFY, ask or metered.VerifyAsk(), timeout_s=120)

    async def report(self, ask: reports.ReportAsk) -> reports.Report:
        """Capacity, granted and used over time, and what each model's units cost."""
        return await self._ask(subjects.REPORT, ask, timeout_s=60)

    async def bill(self, month: str, tenant: str | None = None) -> bills.Bill:
        """A tenant's bill of a month such as `2026-11`; a tenant's own without a name."""
        ask = bills.BillAsk(month=month, tenant=tenant)
        return await self._ask(subjects.BILL, ask, timeout_s=60)

    async def quote(self, ask: bills.QuoteAsk) -> bills.Quote:
        """What use would cost."""
        return await self._ask(subjects.QUOTE, ask, timeout_s=30)

    async def rerate(self, ask: bills.RerateAsk) -> bills.Rerating:
        """Correct what was charged, in new rows."""
        return await self._ask(subjects.RERATE, ask, timeout_s=300)

    async def dead_letters(self, ask: bills.DeadLettersAsk | None = None) -> bills.DeadLetters:
        """What could not be taken in, and why."""
        return await self._ask(subjects.DEAD_LETTERS, ask or bills.DeadLettersAsk(), timeout_s=300)

    async def telemetry(self, ask: metered.TelemetryAsk | None = None) -> metered.TelemetryRows:
        """Minute rollups of a reading."""
        return await self._ask(subjects.TELEMETRY_ROWS, ask or metered.TelemetryAsk(), timeout_s=30)


class SyncClient:
    """What a job's script needs, without an event loop: each call blocks until it is answered.

    It keeps a loop of its own on a thread of its own; use it as a context manager.
    """

    def __init__(self, access: Access | None = None, *, patience_s: float = PATIENCE_S) -> None:
        """Connect. Raises BusUnavailable, or SetupError where the environment names no server."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._client = self._wait(Client.connect(access, patience_s=patience_s))
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._wait(self._client.close())
        self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def place(self, ask: placement.PlaceAsk) -> placement.Lease | placement.Pending:
        """As `Client.place`."""
        return self._wait(self._client.place(ask))

    def dry_run(self, ask: placement.PlaceAsk) -> placement.Verdict:
        """As `Client.dry_run`."""
        return self._wait(self._client.dry_run(ask))

    def renew(self, lease: str, ttl_ms: int | None = None) -> placement.Lease:
        """As `Client.renew`."""
        return self._wait(self._client.renew(lease, ttl_ms))

    def release(self, lease: str) -> placement.Lease:
        """As `Client.release`."""
        return self._wait(self._client.release(lease))

    def cancel(self, request_id: str) -> placement.Lease:
        """As `Client.cancel`."""
        return self._wait(self._client.cancel(request_id))

    def get(self, lease: str | None = None, *, request_id: str | None = None) -> placement.Lease:
        """As `Client.get`."""
        return self._wait(self._client.get(lease, request_id=request_id))

    def leases(self, ask: placement.ListAsk | None = None) -> placement.Leases:
        """As `Client.leases`."""
        return self._wait(self._client.leases(ask))

    def explain(self, request_id: str, *, hints: bool = False) -> placement.Explanation:
        """As `Client.explain`."""
        return self._wait(self._client.explain(request_id, hints=hints))

    def quota(self) -> placement.QuotaView:
        """As `Client.quota`."""
        return self._wait(self._client.quota())

    def usage(self, ask: metered.SummaryAsk | None = None) -> metered.UsageSummary:
        """As `Client.usage`."""
        return self._wait(self._client.usage(ask))
