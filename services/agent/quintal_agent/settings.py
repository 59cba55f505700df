"""What the agent reads from its environment, once.

QUINTAL_URL, QUINTAL_CREDENTIALS     the bus and the node's credentials (`<node>.creds`)
QUINTAL_NODE                         the node's id, where it is not the credentials' name
QUINTAL_STATE                        the state directory
QUINTAL_LEASE_DIR                    where lease files lie; default /run/quintal/leases
QUINTAL_CLUSTER, QUINTAL_LOCATION    where the node stands
QUINTAL_LABELS                       `key=value,key=value`
QUINTAL_PROBES                       which probes run: `cpu,nvidia`; `-intel`: all but that; `none`
QUINTAL_SYS_ROOT                     where /sys is, if not there
QUINTAL_KERNEL_LOG                   /dev/kmsg, another file, or `off`
QUINTAL_EVENT_CLASSES                `xid:74=note,xid:31=failed`: over the defaults of events.py
QUINTAL_SPOOL_BYTES                  how much of an outage's readings is kept on disk
QUINTAL_METRICS                      `127.0.0.1:9464` turns Prometheus' endpoint on; another
                                     address than loopback needs the next two
QUINTAL_METRICS_CERT, QUINTAL_METRICS_KEY
QUINTAL_TASK_SOCKET                  where the task runner listens; default /run/quintal/task.sock
QUINTAL_ACT_WITHIN_S                 how long the tasks `fence` and `cleanup` may take; default 30
QUINTAL_HELD_IDLE_S                  from when on a lease without a process is told as idle
QUINTAL_HEARTBEAT_S, QUINTAL_TELEMETRY_S, QUINTAL_INVENTORY_S, QUINTAL_PROBE_DEADLINE_S
QUINTAL_FOREIGN_BYTES                from how much memory on, held without a lease, use is foreign
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_args

from quintal.errors import SetupError
from quintal.settings import Access, access
from quintal_agent.events import CLASSES, Class
from quintal_agent.probes import table
from quintal_agent.report import Bounds
from quintal_agent.spool import BYTES_MAX

LEASE_DIR: Final = Path("/run/quintal/leases")

_TOKEN: Final = re.compile(r"^[A-Za-z0-9_-]{1,64}$")


@dataclass(frozen=True, slots=True)
class Beats:
    """How often what is said, in seconds."""

    heartbeat_s: float = 5.0
    """Three missed beats make a node suspect, so this is a third of that bound."""
    jitter: float = 0.2
    telemetry_s: float = 10.0
    inventory_s: float = 600.0
    """The slow beat; a change is said at once."""
    probe_deadline_s: float = 8.0
    """Less than the telemetry period, so that looks never overlap."""
    drain_spread_s: float = 30.0
    """After an outage a fleet empties its spools spread over so long."""


TASK_SOCKET: Final = Path("/run/quintal/task.sock")
ACT_WITHIN_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """Where Prometheus may ask; TLS where that is not this machine alone."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None


_BEATS: Final = Beats()
_BOUNDS: Final = Bounds()


@dataclass(frozen=True, slots=True)
class Settings:
    """One node's settings."""

    access: Access
    state: Path
    lease_dir: Path
    cluster: str = "default"
    location: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    probes: tuple[str, ...] = table.NAMES
    beats: Beats = field(default_factory=Beats)
    bounds: Bounds = field(default_factory=Bounds)
    sys_root: str = "/sys"
    kernel_log: Path | None = None
    event_classes: Mapping[str, Class] = field(default_factory=lambda: dict(CLASSES))
    spool_bytes: int = BYTES_MAX
    metrics: Metrics | None = None
    task_socket: Path = TASK_SOCKET
    act_within_s: float = ACT_WITHIN_S

    @property
    def node(self) -> str:
        """The node's id: one subject token, and the name in its credentials."""
        return self.access.principal


def read(env: Mapping[str, str]) -> Settings:
    """The settings. Raises SetupError that names the variable that is missing or wrong."""
    node = env.get("QUINTAL_NODE", "")
    reach = access({**env, "QUINTAL_PRINCIPAL": node} if node else env)
    if _TOKEN.fullmatch(reach.principal) is None:
        raise SetupError(
            f"{reach.principal!r} is no node id (letters, digits, _ and -, at most 64): "
            "set QUINTAL_NODE"
        )
    state = Path(env.get("QUINTAL_STATE", "") or "/var/lib/quintal-agent")
    beats = beats_from(env)
    return Settings(
        access=reach,
        state=state,
        lease_dir=_lease_dir(env, state),
        cluster=env.get("QUINTAL_CLUSTER", "") or "default",
        location=env.get("QUINTAL_LOCATION", ""),
        labels=_labels(env.get("QUINTAL_LABELS", "")),
        probes=_probes(env.get("QUINTAL_PROBES", "")),
        beats=beats,
        bounds=bounds_from(env, beats),
        sys_root=env.get("QUINTAL_SYS_ROOT", "") or "/sys",
        kernel_log=_kernel_log(env.get("QUINTAL_KERNEL_LOG", "")),
        event_classes={**CLASSES, **_classes(env.get("QUINTAL_EVENT_CLASSES", ""))},
        spool_bytes=_bytes(env, "QUINTAL_SPOOL_BYTES", BYTES_MAX),
        metrics=_metrics(env),
        task_socket=Path(env.get("QUINTAL_TASK_SOCKET", "") or TASK_SOCKET),
        act_within_s=_seconds(env, "QUINTAL_ACT_WITHIN_S", ACT_WITHIN_S),
    )


def beats_from(env: Mapping[str, str]) -> Beats:
    """The beats. Raises SetupError."""
    return Beats(
        heartbeat_s=_seconds(env, "QUINTAL_HEARTBEAT_S", _BEATS.heartbeat_s),
        telemetry_s=_seconds(env, "QUINTAL_TELEMETRY_S", _BEATS.telemetry_s),
        inventory_s=_seconds(env, "QUINTAL_INVENTORY_S", _BEATS.inventory_s),
        probe_deadline_s=_seconds(env, "QUINTAL_PROBE_DEADLINE_S", _BEATS.probe_deadline_s),
    )


def bounds_from(env: Mapping[str, str], beats: Beats) -> Bounds:
    """From when on what was seen is old: counted in telemetry periods. Raises SetupError."""
    return Bounds(
        stale_s=2.5 * beats.telemetry_s,
        unknown_s=6 * beats.telemetry_s,
        foreign_bytes=_bytes(env, "QUINTAL_FOREIGN_BYTES", _BOUNDS.foreign_bytes),
        idle_s=_seconds(env, "QUINTAL_HELD_IDLE_S", _BOUNDS.idle_s),
    )


def _bytes(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    if text and not text.isdigit():
        raise SetupError(f"{name}={text}: give a number of bytes")
    return int(text) if text else default


def _kernel_log(text: str) -> Path | None:
    return None if text == "off" else Path(text or "/dev/kmsg")


def _classes(text: str) -> dict[str, Class]:
    found: dict[str, Class] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        code, equals, name = part.partition("=")
        kind = next((k for k in get_args(Class) if k == name), None)
        if not equals or ":" not in code or kind is None:
            raise SetupError(
                f"QUINTAL_EVENT_CLASSES has {part!r}: write xid:74=note, =degraded or =failed"
            )
        found[code] = kind
    return found


def _metrics(env: Mapping[str, str]) -> Metrics | None:
    text = env.get("QUINTAL_METRICS", "")
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        number = int(port) if colon else -1
    except ValueError:
        address, number = None, -1
    if address is None or not 0 <= number < 2**16:
        raise SetupError(f"QUINTAL_METRICS={text}: give address:port, such as 127.0.0.1:9464")
    certificate, key = env.get("QUINTAL_METRICS_CERT", ""), env.get("QUINTAL_METRICS_KEY", "")
    if bool(certificate) != bool(key):
        raise SetupError("set both QUINTAL_METRICS_CERT and QUINTAL_METRICS_KEY, or neither")
    if not address.is_loopback and not certificate:
        raise SetupError(
            f"QUINTAL_METRICS={text} is no loopback address: set QUINTAL_METRICS_CERT and "
            "QUINTAL_METRICS_KEY"
        )
    return Metrics(
        str(address),
        number,
        Path(certificate) if certificate else None,
        Path(key) if key else None,
    )


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= 86_400:  # noqa: PLR2004 - a beat between a hundredth and a day
        raise SetupError(f"{name}={text}: give seconds between 0.01 and 86400")
    return value


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise SetupError(f"QUINTAL_LABELS has {part!r}: write key=value,key=value")
        found.append((key, value))
    return tuple(sorted(found))


def _probes(text: str) -> tuple[str, ...]:
    if text.strip() == "none":
        return ()
    asked = tuple(filter(None, (part.strip() for part in text.split(","))))
    for name in asked:
        if name.removeprefix("-") not in table.NAMES:
            raise SetupError(f"QUINTAL_PROBES has {name!r}: there are {', '.join(table.NAMES)}")
    wanted = tuple(name for name in asked if not name.startswith("-")) or table.NAMES
    return tuple(name for name in wanted if f"-{name}" not in asked)


def _lease_dir(env: Mapping[str, str], state: Path) -> Path:
    text = env.get("QUINTAL_LEASE_DIR", "")
    if text:
        return Path(text)
    nearest = next(path for path in (LEASE_DIR, *LEASE_DIR.parents) if path.exists())
    return LEASE_DIR if os.access(nearest, os.W_OK) else state / "leases"
