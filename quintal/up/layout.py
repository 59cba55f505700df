"""The folder of one installation: what lies where, who has it now, where its server listens.

DIR/system.json    url, credentials, pid: how everybody on this machine finds it
DIR/auth           identities (quintal.auth)
DIR/nats           the server's configuration and store
DIR/<process>      a process's own state
DIR/logs, DIR/run  a log and a pid file for each process
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from quintal.auth import Authority, is_reserved
from quintal.errors import SetupError
from quintal.names import meant
from quintal.settings import Access

DEFAULT: Final = "quintal-data"
TENANTS: Final = ("vision", "language", "climate")
"""The tenants of the starter catalog: `up` issues their credentials."""


@dataclass(frozen=True, slots=True)
class System:
    """What `DIR/system.json` says."""

    url: str
    monitor_url: str
    credentials: str
    pid: int | None
    """Of the running `up`; none after a clean stop."""
    started: str

    @property
    def port(self) -> int:
        """The server's port, kept from one start to the next."""
        return int(self.url.rpartition(":")[2])


class Layout:
    """The folder. Nothing is made before `create`."""

    def __init__(self, data: Path) -> None:
        self.data = data.absolute()
        self.auth = self.data / "auth"
        self.nats = self.data / "nats"
        self.logs = self.data / "logs"
        self.run = self.data / "run"
        self.system_file = self.data / "system.json"

    def create(self) -> None:
        """Make the folder, for its owner alone. Raises SetupError."""
        try:
            for folder in (self.data, self.logs, self.run):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise SetupError(f"{self.data} cannot be made: give --data another folder") from exc

    def state(self, process: str) -> Path:
        """A process's own folder."""
        folder = self.data / process
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def authority(self) -> Authority:
        """The identities of this installation; made at the first call."""
        return Authority(self.auth)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Have the folder alone. Raises SetupError that names who has it."""
        path = self.data / ".lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = path.read_text().strip() or "another process"
                raise SetupError(
                    f"{self.data} is in use by process {holder}: stop it, or give --data"
                    " another folder"
                ) from None
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(handle)

    def system(self) -> System | None:
        """How the installation is reached; none where it was never started."""
        try:
            return System(**json.loads(self.system_file.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write_system(self, system: System) -> None:
        """Tell everybody on this machine; whole or not at all."""
        draft = self.system_file.with_suffix(".new")
        draft.write_text(json.dumps(asdict(system), indent=1) + "\n")
        draft.replace(self.system_file)

    def stopped(self) -> None:
        """The server is down by intention; where it listened stays known."""
        system = self.system()
        if system is not None:
            self.write_system(replace(system, pid=None))

    def write_pid(self, process: str, pid: int | None) -> None:
        """`DIR/run/<process>.pid`, or none while it is down."""
        path = self.run / f"{process}.pid"
        if pid is None:
            path.unlink(missing_ok=True)
            return
        draft = path.with_suffix(".new")
        draft.write_text(f"{pid}\n")
        draft.replace(path)


def node_name(hostname: str | None = None) -> str:
    """This host's name as one subject token."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", hostname or socket.gethostname()).strip("-")[:59]
    taken = not name or name in TENANTS or is_reserved(name)
    return f"node-{name}".rstrip("-") if taken else name


def local_access(data: Path, principal: str) -> Access:
    """How `principal` reaches the installation in `data`. Raises SetupError with the way out."""
    system = Layout(data).system()
    if system is None:
        raise SetupError(f"no installation in {data}: start one with `quintal up --data {data}`")
    path = Path(system.credentials) / f"{principal}.creds"
    if not path.is_file():
        known = [found.stem for found in Path(system.credentials).glob("*.creds")]
        raise SetupError(
            f"no credentials for {principal} in {system.credentials}{meant(principal, known)}"
            " `quintal auth list` shows whose there are, `quintal auth add ROLE NAME` makes more"
        )
    return Access(system.url, path, principal)
