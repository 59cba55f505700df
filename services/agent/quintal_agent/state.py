"""What the agent keeps on disk: its lease set and fences, and the files that workloads read.

Everything is written beside its place, synced, renamed, and the folder synced, before anyone is
answered: a kill at any instant leaves the old or the new, whole. A file that cannot be read is
*not* replaced by an empty one, since the fences in it are what keeps a deposed placer's bind off a
device: the agent then takes no lease until an operator has looked (`StateLostError`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from quintal.contracts.nodes import BoundLease, DeviceHealth
from quintal.errors import QuintalError, SetupError
from quintal_agent.health import Settled
from quintal_agent.leases import Fence, LeaseSet, after_boot

VERSION: Final = 1

LEASE_ID: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
"""A lease's id becomes a file's name: nothing in it may lead elsewhere."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class StateLostError(QuintalError):
    """The kept state cannot be read; the message names the file and the way out."""


def boot_id(path: Path = _BOOT_ID) -> str:
    """The kernel's id of this boot. Raises SetupError where the kernel gives none."""
    try:
        return path.read_text().strip()
    except OSError as exc:
        raise SetupError(f"reading {path}: without a boot id no lease can be kept") from exc


def boot_age_ms() -> int:
    """Milliseconds since the machine started: where this boot's sequences go on after a restart."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def write_durably(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` by `data`, whole or not at all, and on disk when this returns."""
    draft = path.with_name(f".{path.name}.draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        os.fchmod(descriptor, mode)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(draft, path)  # noqa: PTH105
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Store:
    """One node's state directory. Its methods block: call them off the event loop."""

    def __init__(self, folder: Path, node: str) -> None:
        self._folder = folder
        self._node = node
        self._lock: int | None = None
        self.path = folder / "leases.json"

    def open(self) -> None:
        """Make and lock the folder. Raises SetupError where another agent has it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise SetupError(f"{self._folder} is in use: another agent runs for this node") from exc
        except OSError as exc:
            raise SetupError(f"{self._folder} cannot be written: set QUINTAL_STATE") from exc

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self, boot: str) -> LeaseSet:
        """The kept set; of an earlier boot only its fences. Raises StateLostError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return LeaseSet()
        except OSError as exc:
            raise self._lost("cannot be read") from exc
        try:
            body = json.loads(data)
            state = _decode(body)
        except (ValueError, KeyError, TypeError, AttributeError, ValidationError) as exc:
            raise self._lost("is damaged") from exc
        if body["node"] != self._node:
            raise self._lost(f"belongs to node {body['node']}")
        return state if body["boot_id"] == boot else after_boot(state)

    def save(self, state: LeaseSet, boot: str) -> None:
        """Keep the set. Raises OSError: nobody may be told then."""
        body = {
            "version": VERSION,
            "node": self._node,
            "boot_id": boot,
            "leases": [lease.model_dump(mode="json") for lease in state.leases.values()],
            "outside": [lease.model_dump(mode="json") for lease in state.outside.values()],
            "fences": {uuid: [f.newest, f.alone] for uuid, f in state.fences.items()},
            "ended": dict(state.ended),
        }
        write_durably(self.path, json.dumps(body, separators=(",", ":")).encode())

    def _lost(self, why: str) -> StateLostError:
        return StateLostError(
            f"{self.path} {why}: no lease is taken, since the fencing tokens in it are lost. "
            "Drain the node, delete the file, start the agent again"
        )


def _decode(body: Mapping[str, Any]) -> LeaseSet:
    if body["version"] != VERSION:
        raise ValueError(f"version {body['version']}")
    leases = [BoundLease.model_validate(lease) for lease in body["leases"]]
    outside = [BoundLease.model_validate(lease) for lease in body.get("outside", ())]
    return LeaseSet(
        {lease.lease: lease for lease in leases},
        {uuid: Fence(int(newest), int(alone)) for uuid, (newest, alone) in body["fences"].items()},
        {name: int(token) for name, token in body["ended"].items()},
        {lease.lease: lease for lease in outside},
    )


class LeaseFiles:
    """`<lease>.json` per live lease: where a workload reads what it was given. Blocks."""

    def __init__(self, folder: Path, node: str) -> None:
        self.folder = folder
        self._node = node

    def reconcile(self, state: LeaseSet, libraries: Mapping[str, str]) -> None:
        """Make the folder hold exactly the files of the set. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        for path in (*self.folder.glob("*.json"), *self.folder.glob("ending/*.json")):
            if path.stem not in state.leases:
                path.unlink(missing_ok=True)
        for lease in state.leases.values():
            self.restore(lease.lease)
            if not self._path(lease.lease).exists():
                self.write(lease, libraries)

    def write(self, lease: BoundLease, libraries: Mapping[str, str]) -> None:
        """Write one lease's file, readable by all on the node. Raises OSError."""
        sizes = [device.memory_bytes for device in lease.devices]
        known = [size for size in sizes if size is not None]
        body = {
            "version": VERSION,
            "node": self._node,
            "lease": lease.lease,
            "token": lease.token,
            "tenant": lease.tenant,
            "project": lease.project,
            "profile": lease.profile,
            "class": lease.workload_class,
            "precisions": [lease.precision] if lease.precision else [],
            "ttl_ms": lease.ttl_ms,
            "fence": lease.fence,
            "devices": [device.model_dump(mode="json") for device in lease.devices],
            "memory_bytes": sum(known) if len(known) == len(sizes) else None,
            "units_micro": sum(device.units_micro for device in lease.devices),
            "environment": dict(lease.environment),
            "libraries": dict(libraries),
        }
        data = json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"
        write_durably(self._path(lease.lease), data, 0o644)

    def retire(self, lease: str) -> None:
        """Its work ends: the file is for the task that ends it, not for the workload any more.

        Raises OSError.
        """
        ending = self.folder / "ending"
        ending.mkdir(exist_ok=True, mode=0o755)
        with contextlib.suppress(FileNotFoundError):
            self._path(lease).rename(ending / f"{lease}.json")

    def restore(self, lease: str) -> None:
        """The lease stands after all: its file is the workload's again. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "ending" / f"{lease}.json").rename(self._path(lease))

    def discard(self, lease: str) -> None:
        """Nothing is to be done after it any more. Raises OSError."""
        (self.folder / "ending" / self._path(lease).name).unlink(missing_ok=True)

    def remove(self, lease: str) -> None:
        """Take one lease's file away; one that is not there is gone already. Raises OSError."""
        self._path(lease).unlink(missing_ok=True)
        self.discard(lease)

    def _path(self, lease: str) -> Path:
        if LEASE_ID.fullmatch(lease) is None:
            raise ValueError(f"{lease!r} is no lease id")
        return self.folder / f"{lease}.json"


class HealthFile:
    """What was unhealthy, over a restart: a bad device is not made well by a new process.

    Blocks. A file that cannot be read is an empty one: the looks themselves find what is broken.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "health.json"

    def load(self) -> dict[str, Settled]:
        """The unhealthy devices as they were last kept."""
        try:
            body = json.loads(self._path.read_bytes())
            return {
                uuid: Settled(DeviceHealth(health), str(reason))
                for uuid, (health, reason) in body["unhealthy"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def save(self, health: Mapping[str, Settled]) -> None:
        """Keep what is unhealthy. Raises OSError."""
        unhealthy = {
            uuid: [settled.health.value, settled.reason]
            for uuid, settled in health.items()
            if settled.health is not DeviceHealth.OK
        }
        body = {"version": VERSION, "unhealthy": unhealthy}
        write_durably(self._path, json.dumps(body, separators=(",", ":")).encode())


class AckedFile:
    """When the last acknowledged beat was sent, over a restart within one boot. Blocks for little.

    Not synced: the boot that it belongs to is over where it is lost.
    """

    def __init__(self, folder: Path, boot: str) -> None:
        self._path = folder / "acked.json"
        self._boot = boot

    def load(self, default: float) -> float:
        """Monotonic seconds; `default` where nobody knows."""
        try:
            body = json.loads(self._path.read_bytes())
            known = float(body["acked_s"])
            return min(known, default) if body["boot_id"] == self._boot else default
        except (OSError, ValueError, KeyError, TypeError):
            return default

    def save(self, acked_s: float) -> None:
        """Keep it, or go on without."""
        draft = self._path.with_suffix(".draft")
        with contextlib.suppress(OSError):
            draft.write_text(json.dumps({"boot_id": self._boot, "acked_s": acked_s}))
            draft.replace(self._path)
