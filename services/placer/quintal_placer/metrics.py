"""Prometheus' endpoint of a placer, where `QUINTAL_PLACER_METRICS=127.0.0.1:9465` turns it on.

A scrape reads what was counted and touches neither ledger nor fleet. Names follow Prometheus'
rules; no label names a tenant. Rules: `deploy/prometheus/quintal-placer.rules.yaml`.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from quintal.bus import Bus
from quintal.errors import SetupError
from quintal.units import PARTS
from quintal_placer.counting import Buckets
from quintal_placer.lead import Placer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)

PREFIX: Final = "quintal_placer"
PORT_MAX: Final = 65_535


class Families:
    """The collector that prometheus-client asks at each scrape."""

    def __init__(self, placer: Placer, front: Bus) -> None:
        self._placer = placer
        self._front = front

    def collect(self) -> Iterator[Metric]:
        """All families; what only a leader knows is not there for a standby."""
        yield from self._histograms()
        yield from self._gauges()
        yield from self._rooms()
        yield from self._counters()
        yield from self._endpoints()

    def _histograms(self) -> Iterator[Metric]:
        from prometheus_client.core import HistogramMetricFamily

        tally = self._placer.tally
        placed = HistogramMetricFamily(
            f"{PREFIX}_placement_seconds", "From a request to its answer.", labels=["verdict"]
        )
        for verdict, buckets in sorted(tally.placements.items()):
            placed.add_metric([verdict], buckets.rows(), buckets.total)
        yield placed
        singles: tuple[tuple[str, str, Buckets], ...] = (
            ("append_seconds", "From sending a group to its acknowledgement.", tally.appends),
            ("group_decisions", "Decisions of one group of the ledger.", tally.groups),
        )
        for name, words, buckets in singles:
            family = HistogramMetricFamily(f"{PREFIX}_{name}", words)
            family.add_metric([], buckets.rows(), buckets.total)
            yield family

    def _gauges(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        placer, state = self._placer, self._placer.state
        writer = placer.writer
        gauges: tuple[tuple[str, str, float | None], ...] = (
            ("leads", "1 where this placer leads.", float(placer.promises is not None)),
            ("epoch", "The ledger's epoch.", state.epoch),
            ("ledger_sequence", "Last message that is applied.",
             writer.sequence if writer else placer.position),
            ("ledger_waiting", "Proposals that wait for their append.",
             writer.waiting if writer else None),
            ("queue_requests", "Requests that wait for devices.", len(state.queue)),
            ("leases_live", "Leases that are granted or bound.", len(state.live)),
            ("leases_ending", "Leases whose agents have yet to acknowledge.", len(state.ending)),
            ("explanations", "Decisions that are kept for explain.", len(placer.explanations)),
            ("nodes", "Nodes that are known.", len(state.fleet.nodes)),
        )  # fmt: skip
        for name, words, value in gauges:
            if value is not None:
                yield GaugeMetricFamily(f"{PREFIX}_{name}", words, value=value)

    def _rooms(self) -> Iterator[Metric]:
        """As the leader last worked them out; a standby has none."""
        from prometheus_client.core import GaugeMetricFamily

        rooms = self._placer.rooms
        fits = GaugeMetricFamily(
            f"{PREFIX}_profile_fits", "Leases of the profile that still fit by cards, CPU, memory.",
            labels=["profile", "pool"],
        )  # fmt: skip
        for rows in tuple(rooms.rows.values()):
            for one in rows:
                fits.add_metric([one.profile, one.pool], one.fits)
        yield fits
        names, each = ["pool", "model"], rooms.fragments
        for name, words, values in (
            ("free_cards", "Cards that are free, parts of them too.",
             [(row, row.free_parts) for row in each]),
            ("usable_cards", "Free cards that requests like those of late could use.",
             [(row, row.usable_parts) for row in each]),
            ("stranded_cards", "Free cards beside which too little CPU or memory is left.",
             [(row, row.stranded_parts) for row in each]),
        ):  # fmt: skip
            family = GaugeMetricFamily(f"{PREFIX}_{name}", words, labels=names)
            for row, parts in values:
                if parts is not None:
                    family.add_metric([row.pool, row.model], parts / PARTS)
            yield family

    def _counters(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        placer, counts = self._placer, self._front.counts
        counters = (
            ("news_dropped", "News and decision records lost to a full queue.",
             placer.announcer.dropped),
            ("ledger_foreign", "Messages of the ledger that no leader decided.", placer.foreign),
            ("forged", "Messages of one node in another's name.", placer.watch.forged),
            ("replies_dropped", "Requests whose reply lay outside their caller's inbox.",
             counts.replies_dropped),
            ("overloaded", "Requests refused since too many were in work.", counts.overloaded),
        )  # fmt: skip
        for name, words, number in counters:
            yield CounterMetricFamily(f"{PREFIX}_{name}", words, value=number)

    def _endpoints(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        heard = CounterMetricFamily(
            f"{PREFIX}_requests", "Requests that were heard.", labels=["endpoint"]
        )
        answered = CounterMetricFamily(
            f"{PREFIX}_answers", "Requests that this placer answered.", labels=["endpoint"]
        )
        failed = CounterMetricFamily(
            f"{PREFIX}_errors", "Requests that broke a contract, or our code.", labels=["endpoint"]
        )
        for endpoint in tuple(self._front.endpoints.values()):
            heard.add_metric([endpoint.name], endpoint.requests)
            answered.add_metric([endpoint.name], endpoint.answered)
            failed.add_metric([endpoint.name], endpoint.errors)
        yield from (heard, answered, failed)


class Endpoint:
    """The listening end, in a thread of its own. Raises SetupError where it cannot listen."""

    def __init__(self, where: str, families: Families) -> None:
        self._server: Any = None
        self.port = 0
        if where:
            self._start(*_address(where), families)

    def _start(self, host: str, port: int, families: Families) -> None:
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
        except ImportError as exc:
            raise SetupError("QUINTAL_PLACER_METRICS needs prometheus-client: install it") from exc
        registry = CollectorRegistry(auto_describe=False)
        registry.register(families)
        ProcessCollector(registry=registry)
        try:
            self._server, _ = start_http_server(port, host, registry)
        except OSError as exc:
            raise SetupError(f"QUINTAL_PLACER_METRICS={host}:{port} cannot listen") from exc
        self.port = self._server.server_port
        log.info("metrics on %s:%d", host, self.port)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def _address(text: str) -> tuple[str, int]:
    """Host and port; only of this machine, since nothing here asks who scrapes."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX or not _is_loopback(host):
        raise SetupError(
            f"QUINTAL_PLACER_METRICS={text}: give a loopback address and a port, such as"
            " 127.0.0.1:9465"
        )
    return host, int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
