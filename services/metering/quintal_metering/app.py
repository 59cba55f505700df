"""Metering, wired: the streams it follows, the questions it answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from typing import Any, Final

from quintal.bus import EACH_MAX, Bus
from quintal.catalog_reader import CatalogReader
from quintal.clock import Clock, SystemClock
from quintal.contracts import subjects
from quintal.process import EXIT_DEPOSED, notify
from quintal.settings import environment
from quintal_metering.counter import Counter
from quintal_metering.endpoint import Endpoint, Place
from quintal_metering.engine import Engine
from quintal_metering.following import (
    LedgerFollower,
    Observer,
    observers,
    roll_up,
    sum_up,
    tell_position,
)
from quintal_metering.handlers import Handlers, Principals
from quintal_metering.lock import locked
from quintal_metering.meter import Meter
from quintal_metering.metrics import Metrics, watch
from quintal_metering.readers import Readers
from quintal_metering.settings import Settings, settings
from quintal_metering.store import Deposed, Store

log = logging.getLogger(__name__)

ASK_BYTES_MAX: Final = 65_536


async def main(stop: asyncio.Event) -> int:
    """Run until `stop`."""
    return await serve(settings(environment()), SystemClock(), stop)


async def serve(chosen: Settings, clock: Clock, stop: asyncio.Event) -> int:
    """Wait for the folder, open the store, follow and answer until `stop`. Gives the status."""
    lock = await locked(chosen.state, stop)
    if lock is None:
        return 0
    try:
        async with _engine() as engine, _engine() as beside:
            store = await engine.call(Store.open, chosen.where)
            observed = await beside.call(Store.open, chosen.where)
            try:
                meter = Meter(store)
                await engine.call(
                    meter.open, f"{os.uname().nodename}:{os.getpid()}", clock.now_ms()
                )
                async with (
                    await Bus.connect(chosen.back) as back,
                    await Bus.connect(chosen.front) as front,
                ):
                    others = observers(back, beside, observed)
                    status = await _work(chosen, clock, stop, (engine, meter, back, front), others)
                await engine.call(meter.rest)
                return status
            finally:
                await beside.call(observed.close)
                await engine.call(store.close)
    finally:
        os.close(lock)


async def _work(
    chosen: Settings,
    clock: Clock,
    stop: asyncio.Event,
    parts: tuple[Engine, Meter, Bus, Bus],
    others: list[Observer],
) -> int:
    engine, meter, back, front = parts
    follower = LedgerFollower(back, engine, meter, clock)
    handlers = Handlers(engine, meter, Principals(chosen.principals))
    counter = Counter(handlers, CatalogReader(back), clock)
    counter.touched = others[0].told.append
    metrics = Metrics(meter, follower, others, clock)
    loops = [
        watch(back, engine, metrics),
        follower.run(),
        tell_position(back, meter),
        roll_up(others[0].engine, meter, others[0], clock),
        sum_up(engine, meter),
        *(other.run() for other in others),
        stop.wait(),
        back.closed.wait(),
        front.closed.wait(),
    ]
    tasks: list[asyncio.Task[Any]] = [asyncio.ensure_future(loop) for loop in loops]
    bounds = {"bytes_max": ASK_BYTES_MAX, "each_max": EACH_MAX}
    await front.serve(subjects.SUMMARY, handlers.summary, **bounds)
    await front.serve(subjects.SLICES, handlers.slices, **bounds)
    await front.serve(subjects.VERIFY, handlers.verify, **bounds)
    await front.serve(subjects.TELEMETRY_ROWS, handlers.telemetry, **bounds)
    await front.serve(subjects.REPORT, handlers.report, **bounds)
    await front.serve(subjects.BILL, counter.bill, **bounds)
    await front.serve(subjects.QUOTE, counter.quote, **bounds)
    await front.serve(subjects.RERATE, counter.rerate, **bounds)
    await front.serve(subjects.DEAD_LETTERS, counter.dead_letters, **bounds)
    await front.announce("metering", "What was used, and what it costs")
    await front.flush()
    async with endpoint(chosen, metrics):
        notify("READY=1")
        done = await _until_one_ends(tasks)
    return _status(done, stop)


async def _until_one_ends(tasks: list[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return done


@contextlib.asynccontextmanager
async def endpoint(chosen: Settings, metrics: Metrics) -> AsyncIterator[str]:
    """The embedded store, open to others on this machine; a server has an interface of its own."""
    if chosen.where.url or not chosen.endpoint:
        yield ""
        return
    readers = Readers(str(chosen.where.path), chosen.where.database)
    served = Endpoint(Place(chosen.state), readers, chosen.where.database, metrics.text)
    try:
        url = await served.open()
        log.info("the store answers at %s; the token is in %s", url, Place(chosen.state).token)
        yield url
    finally:
        await served.close()
        readers.close()


def _status(done: set[asyncio.Task[Any]], stop: asyncio.Event) -> int:
    for task in done:
        error = task.exception()
        if isinstance(error, Deposed):
            log.error("ALARM: %s", error)
            return EXIT_DEPOSED
        if error is not None:
            raise error
    return 0 if stop.is_set() else 1


@contextlib.asynccontextmanager
async def _engine() -> AsyncIterator[Engine]:
    engine = Engine()
    try:
        yield engine
    finally:
        engine.close()
