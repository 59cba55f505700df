"""The placer's wiring: two connections, one table of subjects, one life from standby to leader."""

from __future__ import annotations

import asyncio
import logging

from quintal import process
from quintal.bus import Bus
from quintal.clock import SystemClock
from quintal.contracts import subjects
from quintal.settings import environment
from quintal_placer.bundles import Bundles
from quintal_placer.handlers import Handlers
from quintal_placer.history import History
from quintal_placer.lead import Placer
from quintal_placer.ledger import Deposed
from quintal_placer.limits import TenantLimits
from quintal_placer.metrics import Endpoint, Families
from quintal_placer.reading import ReadHandlers
from quintal_placer.settings import load

log = logging.getLogger(__name__)


def table(
    handlers: Handlers, reads: ReadHandlers, bundles: Bundles, history: History
) -> tuple[tuple[object, object], ...]:
    """Subject -> handler: everything outsiders can ask of the placer."""
    return (
        (subjects.PLACE, handlers.place),
        (subjects.RENEW, handlers.renew),
        (subjects.RELEASE, handlers.release),
        (subjects.CANCEL, handlers.cancel),
        (subjects.GET, reads.get),
        (subjects.LIST, reads.leases),
        (subjects.EXPLAIN, reads.explain),
        (subjects.DRY_RUN, handlers.dry_run),
        (subjects.QUOTA, reads.quota),
        (subjects.QUEUE, reads.queue),
        (subjects.CORDON, handlers.cordon),
        (subjects.UNCORDON, handlers.uncordon),
        (subjects.DRAIN, handlers.drain),
        (subjects.TAINT, handlers.taint),
        (subjects.RETIRE, handlers.retire),
        (subjects.CLEAR_DISPUTE, handlers.clear_dispute),
        (subjects.PARTITION, handlers.partition),
        (subjects.ADOPT, handlers.adopt),
        (subjects.END_ADOPTED, handlers.end),
        (subjects.SNAPSHOT, handlers.snapshot),
        (subjects.EVENTS, history.own),
        (subjects.ALL_EVENTS, history.every),
        (subjects.SNAPSHOT_PART, bundles.part),
        (subjects.FLEET, reads.fleet),
        (subjects.CAPACITY, reads.capacity),
        (subjects.ALL_LEASES, reads.all_leases),
        (subjects.EXPLAIN_ANY, reads.explain_any),
        (subjects.ALL_QUOTAS, reads.all_quotas),
        (subjects.ALL_QUEUES, reads.all_queues),
    )


async def run(stop: asyncio.Event) -> int:
    """Follow, lead, stop. A deposed placer ends, and is started again as a standby."""
    settings = load(environment())
    async with (
        await Bus.connect(settings.back) as back,
        await Bus.connect(settings.front) as front,
    ):
        placer = Placer(settings, back, SystemClock())
        limits = TenantLimits(settings.rate_per_s, settings.in_flight_max)
        writes, reads = Handlers(placer, limits), ReadHandlers(placer, limits)
        for request, handler in table(
            writes, reads, Bundles(placer), History(placer, back, limits)
        ):
            await front.serve(
                request,  # type: ignore[arg-type]
                handler,  # type: ignore[arg-type]
                bytes_max=settings.payload_bytes_max,
            )
        metrics = Endpoint(settings.metrics, Families(placer, front))
        await front.announce("quintal-placer", "answers placement requests")
        await front.flush()
        life = asyncio.create_task(placer.run(stop))
        up = asyncio.create_task(placer.ready.wait())
        await asyncio.wait({life, up}, return_when=asyncio.FIRST_COMPLETED)
        if placer.ready.is_set():
            process.notify("READY=1")
        try:
            await life
        except Deposed as exc:
            log.error("deposed: %s", exc)  # noqa: TRY400 - no fault of the code
            return process.EXIT_DEPOSED
        finally:
            metrics.close()
    return 0
