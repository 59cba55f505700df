"""Where am I? A running workload asks; the file that the node's agent wrote for its lease answers.

Reads one small file and nothing else: no bus, no credentials, no library beyond the standard one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from quintal.errors import SetupError
from quintal.settings import environment
from quintal.units import from_micro

LEASE_DIR: Final = Path("/run/quintal/leases")


@dataclass(frozen=True, slots=True)
class HereDevice:
    """One device of the lease, on this node."""

    uuid: str
    index: int
    vendor: str
    model: str
    memory_bytes: int | None
    parts: int
    partition: str | None
    units: Decimal


@dataclass(frozen=True, slots=True)
class Here:
    """What this workload holds on this node."""

    node: str
    lease: str
    token: int
    """The fencing token: hand it to whatever must refuse an older holder."""
    tenant: str
    project: str
    profile: str
    workload_class: str
    devices: tuple[HereDevice, ...]
    memory_bytes: int | None
    """Of all devices together; None where one's is unknown."""
    units: Decimal
    """Standard units of `workload_class` that the devices here deliver at once."""
    precisions: tuple[str, ...]
    libraries: Mapping[str, str]
    """Drivers and runtimes of the node: name -> version."""
    environment: Mapping[str, str]
    """What a process must have in its environment to see these devices and no others."""
    ttl_ms: int


def here(env: Mapping[str, str] | None = None, lease_dir: Path | None = None) -> Here:
    """The lease of this process.

    The file is the one that QUINTAL_LEASE_FILE names, or the lease that QUINTAL_LEASE names, or
    the only one on the node. Raises SetupError that says which of these is missing.
    """
    env = environment() if env is None else env
    path = _file(env, lease_dir or Path(env.get("QUINTAL_LEASE_DIR", "") or LEASE_DIR))
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError as exc:
        raise SetupError(f"{path} is not there: the lease has ended, or is another node's") from exc
    except (OSError, ValueError) as exc:
        raise SetupError(f"{path} cannot be read as a lease file") from exc
    try:
        return _here(body)
    except (KeyError, TypeError, AttributeError) as exc:
        raise SetupError(f"{path} is no lease file of this version") from exc


def _file(env: Mapping[str, str], folder: Path) -> Path:
    named = env.get("QUINTAL_LEASE_FILE", "")
    if named:
        return Path(named)
    lease = env.get("QUINTAL_LEASE", "")
    if lease:
        return folder / f"{lease}.json"
    found = sorted(folder.glob("*.json"))
    if len(found) == 1:
        return found[0]
    what = f"holds {len(found)} leases" if found else "holds no lease"
    raise SetupError(f"{folder} {what}: set QUINTAL_LEASE to this workload's lease id")


def _here(body: dict[str, Any]) -> Here:
    return Here(
        node=body["node"],
        lease=body["lease"],
        token=body["token"],
        tenant=body["tenant"],
        project=body["project"],
        profile=body["profile"],
        workload_class=body["class"],
        devices=tuple(
            HereDevice(
                uuid=device["uuid"],
                index=device["index"],
                vendor=device["vendor"],
                model=device["model"],
                memory_bytes=device["memory_bytes"],
                parts=device["parts"],
                partition=device["partition"],
                units=from_micro(device["units_micro"]),
            )
            for device in body["devices"]
        ),
        memory_bytes=body["memory_bytes"],
        units=from_micro(body["units_micro"]),
        precisions=tuple(body["precisions"]),
        libraries=MappingProxyType(dict(body["libraries"])),
        environment=MappingProxyType(dict(body["environment"])),
        ttl_ms=body["ttl_ms"],
    )
