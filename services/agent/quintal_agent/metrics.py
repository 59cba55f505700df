"""Prometheus' endpoint: one schema over all vendors, answered from the last look.

A value that is not there is a sample that is not there: only fresh, plausible readings appear.
Names follow Prometheus' rules (base units, ratios and not percent, `_total` for what only grows);
a device has one series a reading, and nothing in a label says whose lease it is. A scrape reads
what the last look left and touches no device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from quintal.contracts.nodes import DeviceHealth
from quintal.errors import SetupError
from quintal_agent import readings
from quintal_agent.probes.probe import Device
from quintal_agent.settings import Metrics

if TYPE_CHECKING:
    from quintal_agent.app import Agent
    from quintal_agent.report import ProbeState

log = logging.getLogger(__name__)

COUNTERS: Final = frozenset({"energy_joules"})
"""Readings that only grow; a fall is a new epoch, as a counter's reset is to Prometheus."""

_RESERVED: Final = ("_total", "_sum", "_count", "_bucket", "_info", "_created")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a scrape is answered from."""

    node: str
    version: str
    devices: tuple[Device, ...] = ()
    health: Mapping[str, DeviceHealth] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Device -> reading -> a value that is there."""
    foreign: Mapping[str, int] = field(default_factory=dict)
    idle_s: Mapping[str, float] = field(default_factory=dict)
    leases: Mapping[str, int] = field(default_factory=dict)
    probes: tuple[ProbeState, ...] = ()
    spooled: int = 0
    spooled_bytes: int = 0
    dropped: int = 0
    connected: bool = False
    now_s: float = 0.0
    """UTC; when the snapshot was taken."""


def snapshot(agent: Agent, node: str) -> Snapshot:
    """The agent as it is now. Reads values that are replaced whole, so from any thread."""
    from quintal import __version__
    from quintal.clock import SystemClock

    seen, state = agent.lookout.seen, agent.keeper.state
    inventory = agent.lookout.inventory(state, sequence=0)
    now_ms = SystemClock().now_ms()
    counts: dict[str, int] = {}
    for lease in (*state.leases.values(), *state.outside.values()):
        for device in lease.devices:
            counts[device.uuid] = counts.get(device.uuid, 0) + 1
    return Snapshot(
        node=node,
        version=__version__,
        devices=seen.devices,
        health={device.uuid: device.health for device in inventory.devices},
        values={
            device.uuid: {
                name: float(value.value)
                for name, value in readings.usable(device, seen.epochs, at_ms=seen.at_ms).items()
                if value.quality == "ok" and value.value is not None
            }
            for device in seen.devices
        },
        foreign={device.uuid: device.foreign_bytes for device in inventory.devices},
        idle_s={uuid: (now_ms - began) / 1000 for uuid, began in seen.idle_since.items()},
        leases=counts,
        probes=seen.probes,
        spooled=agent.spool.depth,
        spooled_bytes=agent.spool.size,
        dropped=agent.spool.dropped,
        connected=agent.outbox.bus is not None and agent.outbox.bus.connected,
        now_s=now_ms / 1000,
    )


def name_of(reading: str) -> tuple[str, float]:
    """A reading's name by Prometheus' rules, and what its value is multiplied with."""
    if reading.endswith("_percent"):
        return f"quintal_device_{reading.removesuffix('_percent')}_ratio", 0.01
    for suffix in _RESERVED:
        reading = reading.removesuffix(suffix)
    return f"quintal_device_{reading}", 1.0


class Families:
    """The collector that prometheus-client asks at each scrape."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take

    def collect(self) -> Iterator[Any]:
        """Every family of one snapshot."""
        now = self._take()
        yield from _of_devices(now)
        yield from _of_holding(now)
        yield from _of_probes(now)
        yield from _of_agent(now)


def _of_devices(now: Snapshot) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    labels = ["node", "vendor", "device"]
    info = InfoMetricFamily("quintal_device", "What the device is", labels=labels)
    health = GaugeMetricFamily(
        "quintal_device_health", "1 for the health it has", labels=[*labels, "state"]
    )
    families: dict[str, Any] = {}
    for device in now.devices:
        who = [now.node, device.vendor, device.uuid]
        told = {
            "name": device.name, "index": str(device.index),
            "pci_address": device.pci_address or "", "pci_id": device.pci_id or "",
        }  # fmt: skip
        info.add_metric(who, told)
        for state in DeviceHealth:
            is_so = now.health.get(device.uuid) is state
            health.add_metric([*who, state.value], float(is_so))
        if device.memory_bytes is not None:
            _into(families, GaugeMetricFamily, "quintal_device_memory_bytes", labels).add_metric(
                who, device.memory_bytes
            )
        for reading, value in sorted(now.values.get(device.uuid, {}).items()):
            name, factor = name_of(reading)
            kind = CounterMetricFamily if reading in COUNTERS else GaugeMetricFamily
            _into(families, kind, name, labels).add_metric(who, value * factor)
    yield info
    yield health
    yield from families.values()


def _into(families: dict[str, Any], kind: Any, name: str, labels: list[str]) -> Any:
    if name not in families:
        words = name.removeprefix("quintal_device_").replace("_", " ")
        families[name] = kind(name, f"The device's {words}", labels=labels)
    return families[name]


def _of_holding(now: Snapshot) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    labels = ["node", "vendor", "device"]
    leases = GaugeMetricFamily("quintal_device_leases", "How many leases hold it", labels=labels)
    foreign = GaugeMetricFamily(
        "quintal_device_foreign_bytes", "Memory held by processes of no lease", labels=labels
    )
    idle = GaugeMetricFamily(
        "quintal_device_held_idle_seconds", "For how long leases hold it for nothing", labels=labels
    )
    for device in now.devices:
        who = [now.node, device.vendor, device.uuid]
        leases.add_metric(who, now.leases.get(device.uuid, 0))
        if device.busy_bytes is not None:
            foreign.add_metric(who, now.foreign.get(device.uuid, 0))
        if device.uuid in now.idle_s:
            idle.add_metric(who, now.idle_s[device.uuid])
    yield from (leases, foreign, idle)


def _of_probes(now: Snapshot) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = ["node", "vendor"]
    duration = GaugeMetricFamily(
        "quintal_probe_duration_seconds", "How long its last look took", labels=labels
    )
    failures = CounterMetricFamily(
        "quintal_probe_failures", "Looks that gave nothing", labels=labels
    )
    good = GaugeMetricFamily(
        "quintal_probe_last_success_timestamp_seconds", "Its last good look", labels=labels
    )
    for probe in now.probes:
        who = [now.node, probe.vendor]
        failures.add_metric(who, probe.failures)
        if probe.duration_s is not None:
            duration.add_metric(who, probe.duration_s)
        if probe.last_good_s is not None:
            good.add_metric(who, now.now_s - probe.last_good_s)
    yield from (duration, failures, good)


def _of_agent(now: Snapshot) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    build = InfoMetricFamily("quintal_agent", "The agent", labels=["node"])
    build.add_metric([now.node], {"version": now.version})
    yield build
    gauges = (
        ("connected", "Whether the bus hears it", float(now.connected)),
        ("spool_messages", "Messages that wait for the bus", now.spooled),
        ("spool_bytes", "Their size on disk", now.spooled_bytes),
    )
    for name, words, value in gauges:
        family = GaugeMetricFamily(f"quintal_agent_{name}", words, labels=["node"])
        family.add_metric([now.node], value)
        yield family
    lost = CounterMetricFamily(
        "quintal_agent_telemetry_dropped", "Messages lost to a full spool", labels=["node"]
    )
    lost.add_metric([now.node], now.dropped)
    yield lost


class Endpoint:
    """The listening end, where the settings turn it on."""

    def __init__(self, settings: Metrics | None, take: Callable[[], Snapshot]) -> None:
        self._settings = settings
        self._take = take
        self._server: Any = None
        self.port = 0

    def start(self) -> None:
        """Listen, in a thread of its own. Raises SetupError where it cannot."""
        if self._settings is None:
            return
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
        except ImportError as exc:
            raise SetupError("QUINTAL_METRICS needs prometheus-client: install it") from exc
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Families(self._take))
        ProcessCollector(registry=registry)
        own, certificate = self._settings, self._settings.certificate
        try:
            self._server, _ = start_http_server(
                own.port,
                own.host,
                registry,
                certfile=str(certificate) if certificate else None,
                keyfile=str(own.key) if own.key else None,
            )
        except OSError as exc:
            raise SetupError(f"QUINTAL_METRICS={own.host}:{own.port} cannot listen") from exc
        self.port = self._server.server_port
        log.info("metrics on %s:%d", own.host, self.port)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
