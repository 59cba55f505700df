"""The placer's wiring: two connections, one table of subjects, one life from standby to leader."""

from __future__ import annotations

import asyncio
import logging

from quintal import process
from quintal.bus import Bus
from quintal.clock import SystemClock
from quintal.contracts import subjects
from quintal.settings import environment
from quintal_placer.handlers import Handlers
from quintal_placer.lead import Placer
from quintal_placer.ledger import Deposed
from quintal_placer.settings import load

log = logging.getLogger(__name__)


def table(handlers: Handlers) -> tuple[tuple[object, object], ...]:
    """Subject -> handler: everything outsiders can ask of the placer."""
    return (
        (subjects.PLACE, handlers.place),
        (subjects.RENEW, handlers.renew),
        (subjects.RELEASE, handlers.release),
        (subjects.CANCEL, handlers.cancel),
        (subjects.GET, handlers.get),
        (subjects.LIST, handlers.list),
        (subjects.EXPLAIN, handlers.explain),
        (subjects.DRY_RUN, handlers.dry_run),
        (subjects.QUOTA, handlers.quota),
        (subjects.CORDON, handlers.cordon),
        (subjects.UNCORDON, handlers.uncordon),
        (subjects.DRAIN, handlers.drain),
        (subjects.TAINT, handlers.taint),
        (subjects.RETIRE, handlers.retire),
        (subjects.CLEAR_DISPUTE, handlers.clear_dispute),
        (subjects.ADOPT, handlers.adopt),
        (subjects.END_ADOPTED, handlers.end),
        (subjects.SNAPSHOT, handlers.snapshot),
        (subjects.FLEET, handlers.fleet),
        (subjects.CAPACITY, handlers.capacity),
        (subjects.ALL_LEASES, handlers.all_leases),
        (subjects.EXPLAIN_ANY, handlers.explain_any),
        (subjects.ALL_QUOTAS, handlers.all_quotas),
    )


async def run(stop: asyncio.Event) -> int:
    """Follow, lead, stop. A deposed placer ends, and is started again as a standby."""
    settings = load(environment())
    async with (
        await Bus.connect(settings.back) as back,
        await Bus.connect(settings.front) as front,
    ):
        placer = Placer(settings, back, SystemClock())
        handlers = Handlers(placer)
        for request, handler in table(handlers):
            await front.serve(
                request,  # type: ignore[arg-type]
                handler,  # type: ignore[arg-type]
                bytes_max=settings.payload_bytes_max,
            )
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
    return 0
