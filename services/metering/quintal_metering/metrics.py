"""What Prometheus reads of metering: how far it is, what failed, what does not agree.

Looked after once a minute (`watch`), so that a scrape costs the engine nothing. Names and rules:
`deploy/prometheus/`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quintal.bus import Bus
from quintal.clock import Clock
from quintal.errors import BusUnavailable
from quintal.units import MS_PER_HOUR
from quintal_metering.accounts import DeadLetterRows
from quintal_metering.engine import Engine
from quintal_metering.following import LedgerFollower, Observer
from quintal_metering.meter import Meter
from quintal_metering.queries import Conserved
from quintal_metering.store import StoreUnavailable

log = logging.getLogger(__name__)

WATCH_S: Final = 30.0
HOURS_WATCHED: Final = 48
"""Closed hours whose conservation is looked at again and again; `verify` looks at all."""


@dataclass(slots=True)
class Watched:
    """What `watch` saw last; none before the first look."""

    ledger_last: int | None = None
    ledger_bytes: int | None = None
    ledger_bytes_max: int | None = None
    """None where the stream has no bound but the server's disk."""
    dead_letters: int | None = None
    unconserved: int | None = None
    hours: int = 0

    def stream(self, info: Mapping[str, Any]) -> None:
        """The server's own description of the ledger's stream."""
        self.ledger_last = int(info["state"]["last_seq"])
        self.ledger_bytes = int(info["state"]["bytes"])
        bound = int(info["config"].get("max_bytes") or 0)
        self.ledger_bytes_max = bound if bound > 0 else None


class Metrics:
    """A collector over the running parts."""

    def __init__(
        self, meter: Meter, follower: LedgerFollower, others: list[Observer], clock: Clock
    ) -> None:
        self._meter = meter
        self._follower = follower
        self._others = others
        self._clock = clock
        self.watched = Watched()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """In Prometheus's own form."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All families; one that is not known yet is left out, never 0."""
        meter, counts = self._meter, self._meter.counts
        gauges: list[tuple[str, str, float | None]] = [
            ("ledger_position", "Last message of the ledger that is stored.", meter.position),
            ("ledger_last", "Last message that the ledger has.", self.watched.ledger_last),
            ("ledger_lag_messages", "Messages of the ledger not stored yet.", self._lag()),
            ("ledger_bytes", "What the stream holds.", self.watched.ledger_bytes),
            ("ledger_bytes_max", "What the stream may hold; grants are refused from 80 % on.",
             self.watched.ledger_bytes_max),
            ("batch_age_seconds", "How long the oldest batch waits for the store.", self._age()),
            ("watermark_timestamp_seconds", "The ledger's time up to which usage is known.",
             meter.state.at_ms / 1000 if meter.state.at_ms else None),
            ("dead_letters_waiting", "What could not be taken in.", self.watched.dead_letters),
            ("unconserved_cells", "Cells of watched closed hours whose parts do not sum up.",
             self.watched.unconserved),
            ("watched_hours", "Closed hours looked at for that.", self.watched.hours),
            ("open_leases", "Leases that are metered now.", len(meter.state.leases)),
        ]  # fmt: skip
        for name, help_, value in gauges:
            if value is not None:
                yield GaugeMetricFamily(f"quintal_metering_{name}", help_, value=value)
        counters = {
            "messages": ("Messages of the ledger that were folded.", counts.messages),
            "rows": ("Rows that came of them.", counts.rows),
            "faults": ("Transitions that fit nothing before them.", counts.faults),
            "poison": ("Messages that are no group.", counts.poison),
            "gaps": ("Stretches that were gone before they were read.", counts.gaps),
            "census_differences": ("Numbers that the placer counts otherwise.",
                                   counts.census_differences),
            "failures": ("Tries at store or bus that failed.", self._follower.failures),
        }  # fmt: skip
        for name, (help_, number) in counters.items():
            yield CounterMetricFamily(f"quintal_metering_{name}", help_, value=number)
        position = GaugeMetricFamily(
            "quintal_metering_stream_position", "Last message stored, by stream.", labels=["stream"]
        )
        failed = CounterMetricFamily(
            "quintal_metering_stream_failures", "Tries that failed, by stream.", labels=["stream"]
        )
        for other in self._others:
            position.add_metric([other.stream], other.position)
            failed.add_metric([other.stream], other.failures)
        yield position
        yield failed

    def _lag(self) -> int | None:
        last = self.watched.ledger_last
        return None if last is None else max(0, last - self._meter.position)

    def _age(self) -> float:
        began = self._follower.waiting_since_s
        return 0.0 if began is None else self._clock.monotonic_s() - began


async def watch(bus: Bus, engine: Engine, metrics: Metrics) -> None:
    """Look again and again, until cancelled."""
    while True:
        try:
            metrics.watched.stream(await bus.stream_info("LEDGER"))
            await engine.call(look, metrics)
        except (BusUnavailable, StoreUnavailable) as exc:
            log.warning("metrics wait: %s", exc)
        await asyncio.sleep(WATCH_S)


def look(metrics: Metrics) -> None:
    """Dead letters, and the last closed hours' conservation; in the engine's thread."""
    meter, seen = metrics._meter, metrics.watched  # noqa: SLF001 - of this room
    rows = meter.store.ask(DeadLetterRows(1))
    seen.dead_letters = int(rows[0]["waiting"]) if rows else 0
    end = meter.state.hour_ms or 0
    start = max(0, end - HOURS_WATCHED * MS_PER_HOUR)
    cells = meter.store.ask(Conserved(meter.position, start, end))
    off = [
        row for row in cells
        if int(row["total"]) != int(row["parts"])
        or int(row["leased"]) != int(row["sliced"])
        or int(row["least"]) < 0
    ]  # fmt: skip
    if off and seen.unconserved in {None, 0}:
        first = off[0]
        log.error(
            "ALARM: %d cells of closed hours do not sum up, the first is %s/%s at %s",
            len(off), first["pool"], first["model"], first["hour"],
        )  # fmt: skip
    seen.unconserved, seen.hours = len(off), len({int(row["hour"]) for row in cells})
