"""The catalog service, wired: one table, subject -> handler."""

from __future__ import annotations

import asyncio
from typing import Any

from quintal.bus import EACH_MAX, Bus
from quintal.clock import SystemClock
from quintal.contracts.subjects import (
    APPLY,
    CAN_RUN,
    CHECK,
    DIFF,
    DOCUMENTS,
    FIT,
    HISTORY,
    LIST_DOCUMENTS,
    PORTABILITY,
    RATE,
    Request,
)
from quintal.process import notify
from quintal_catalog import first
from quintal_catalog.asking import FitHandlers
from quintal_catalog.fleet import FleetReader
from quintal_catalog.handlers import Handlers
from quintal_catalog.roles import Roles
from quintal_catalog.settings import Settings
from quintal_catalog.store import Store


def table(handlers: Handlers, fits: FitHandlers) -> tuple[tuple[Request[Any, Any], Any], ...]:
    """Every subject that the catalog answers."""
    return (
        (APPLY, handlers.apply),
        (CHECK, handlers.check),
        (DOCUMENTS, handlers.documents),
        (LIST_DOCUMENTS, handlers.rows),
        (DIFF, handlers.diff),
        (HISTORY, handlers.history),
        (RATE, handlers.rate),
        (FIT, fits.fit),
        (PORTABILITY, fits.portability),
        (CAN_RUN, fits.can_run),
    )


async def run(settings: Settings, stop: asyncio.Event) -> int:
    """Serve until `stop`, or until a connection is over for good."""
    async with await Bus.connect(settings.back) as back:
        store = Store(back)
        roles = Roles(settings.principals)
        fleet = FleetReader(back)
        handlers = Handlers(store, roles, SystemClock(), fleet)
        fits = FitHandlers(store, fleet, roles, SystemClock())
        if settings.starter:
            await first.begin(store, handlers)
        async with await Bus.connect(settings.front) as front:
            for request, handler in table(handlers, fits):
                await front.serve(request, handler, each_max=EACH_MAX)
            await front.announce("catalog", "What models, profiles, quotas and prices mean.")
            await front.flush()
            notify("READY=1")
            return await _until(stop, front.closed, back.closed)


async def _until(stop: asyncio.Event, *closed: asyncio.Event) -> int:
    """0 when asked to stop; 1 when a connection ended by itself."""
    tasks = [asyncio.ensure_future(event.wait()) for event in (stop, *closed)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    return 0 if stop.is_set() else 1
