"""What the agent reads from its environment, once.

QUINTAL_URL, QUINTAL_CREDENTIALS     the bus and the node's credentials (`<node>.creds`)
QUINTAL_NODE                         the node's id, where it is not the credentials' name
QUINTAL_STATE                        the state directory
QUINTAL_LEASE_DIR                    where lease files lie; default /run/quintal/leases
QUINTAL_CLUSTER, QUINTAL_LOCATION    where the node stands
QUINTAL_LABELS                       `key=value,key=value`
QUINTAL_PROBES                       which probes run: `cpu,nvidia`
QUINTAL_HEARTBEAT_S, QUINTAL_TELEMETRY_S, QUINTAL_INVENTORY_S, QUINTAL_PROBE_DEADLINE_S
QUINTAL_FOREIGN_BYTES                from how much memory on, held without a lease, use is foreign
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quintal.errors import SetupError
from quintal.settings import Access, access
from quintal_agent.probes import table
from quintal_agent.report import Bounds

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
    text = env.get("QUINTAL_FOREIGN_BYTES", "")
    if text and not text.isdigit():
        raise SetupError(f"QUINTAL_FOREIGN_BYTES={text}: give a number of bytes")
    return Bounds(
        stale_s=2.5 * beats.telemetry_s,
        unknown_s=6 * beats.telemetry_s,
        foreign_bytes=int(text) if text else _BOUNDS.foreign_bytes,
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
    names = tuple(filter(None, (part.strip() for part in text.split(",")))) or table.NAMES
    for name in names:
        if name not in table.NAMES:
            raise SetupError(f"QUINTAL_PROBES has {name!r}: there are {', '.join(table.NAMES)}")
    return names


def _lease_dir(env: Mapping[str, str], state: Path) -> Path:
    text = env.get("QUINTAL_LEASE_DIR", "")
    if text:
        return Path(text)
    nearest = next(path for path in (LEASE_DIR, *LEASE_DIR.parents) if path.exists())
    return LEASE_DIR if os.access(nearest, os.W_OK) else state / "leases"
