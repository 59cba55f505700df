"""Processes that are kept alive: started, waited for, restarted with back-off, stopped in order.

A child must not outlive `up`, however `up` ends. So each asks the kernel to kill it when its
parent dies (PR_SET_PDEATHSIG), and is a session of its own: Ctrl-C in a terminal reaches `up`
alone, which then stops its children in order, and what a child leaves behind is killed as a group.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quintal.errors import SetupError
from quintal.process import EXIT_DEPOSED

BACKOFF_S: Final = 0.2
BACKOFF_S_MAX: Final = 5.0
SETTLED_S: Final = 10.0
"""A process that lived so long begins anew with the shortest back-off."""
FAILURES_AT_START: Final = 4
"""A process that ends so often before it was ever ready will not become so."""
LOG_BYTES_MAX: Final = 64 * 2**20
"""A log above this is put aside (one generation) when its process starts."""

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Process:
    """What to run, and how to tell that it is up."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_s: float = 60.0
    """How long it may take to be ready the first time."""
    stop_s: float = 5.0
    """How long it may take to stop by itself."""
    is_ready: Callable[[int], Awaitable[bool]] | None = None
    """Asked with the pid, again and again; without it READY=1 is waited for."""
    says_ready: bool = True
    """Whether the process says READY=1; else it is up when it was started."""


class Supervised:
    """One process and whoever watches over it."""

    def __init__(
        self,
        process: Process,
        logs: Path,
        *,
        tell_pid: Callable[[str, int | None], None],
        log: Callable[[str], None],
    ) -> None:
        self.process = process
        self.log_file = logs / f"{process.name}.log"
        self._tell_pid = tell_pid
        self._log = log
        self._ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._failed = asyncio.Event()
        self._statuses: deque[int] = deque(maxlen=FAILURES_AT_START)
        self._child: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises SetupError that names its log."""
        self._task = asyncio.create_task(self._keep())
        waits = [asyncio.create_task(self._ready.wait()), asyncio.create_task(self._failed.wait())]
        try:
            async with asyncio.timeout(self.process.ready_s):
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass
        finally:
            for wait in waits:
                wait.cancel()
        if not self._ready.is_set():
            raise SetupError(self._why_not())

    def _why_not(self) -> str:
        name = self.process.name
        if self._failed.is_set():
            what = f"{name} ended with status {self._statuses[-1]}, {len(self._statuses)} times"
        else:
            what = f"{name} was not ready within {self.process.ready_s:.0f} s"
        last = _last_line(self.log_file)
        return f"{what}; its log is {self.log_file}" + (f" and ends: {last}" if last else "")

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL to all it started when it takes too long."""
        self._stopping.set()
        child = self._child
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            try:
                await asyncio.wait_for(child.wait(), self.process.stop_s)
            except TimeoutError:
                self._log(f"{self.process.name} did not stop in {self.process.stop_s:.0f} s")
        if child is not None:
            _kill_group(child.pid)
            await child.wait()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._tell_pid(self.process.name, None)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        backoff_s = BACKOFF_S
        while not self._stopping.is_set():
            began_s = loop.time()
            status = await self._once()
            self._tell_pid(self.process.name, None)
            if self._stopping.is_set():
                return
            self._statuses.append(status)
            if not self._ready.is_set() and len(self._statuses) == FAILURES_AT_START:
                self._failed.set()
                return
            lived_s = loop.time() - began_s
            if lived_s > SETTLED_S:
                backoff_s = BACKOFF_S
            wait_s = 0.0 if status == EXIT_DEPOSED and lived_s > 1 else backoff_s
            self._log(f"{self.process.name} ended with status {status}; again in {wait_s:.1f} s")
            await asyncio.sleep(wait_s)
            backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)

    async def _once(self) -> int:
        """Run it to its end; gives its exit status, negative for a signal."""
        name = self.process.name
        _rotate(self.log_file)
        with (
            _notify_socket(name) as (notify, address),
            self.log_file.open("ab", buffering=0) as log,
        ):
            self._child = child = await asyncio.create_subprocess_exec(
                *self.process.command,
                env={**self.process.environment, "NOTIFY_SOCKET": address},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent(os.getpid()),
            )
            self._tell_pid(name, child.pid)
            watch = asyncio.create_task(self._watch(child.pid, notify))
            try:
                return await child.wait()
            finally:
                watch.cancel()
                _kill_group(child.pid)

    async def _watch(self, pid: int, notify: socket.socket) -> None:
        if self.process.is_ready is not None:
            while not await self.process.is_ready(pid):  # noqa: ASYNC110 - another process's doing
                await asyncio.sleep(0.05)
        elif self.process.says_ready:
            loop = asyncio.get_running_loop()
            while b"READY=1" not in await loop.sock_recv(notify, 4096):
                pass
        self._ready.set()


@contextlib.contextmanager
def _notify_socket(name: str) -> Iterator[tuple[socket.socket, str]]:
    """A datagram socket for READY=1, under an abstract name: a path of DIR could be too long."""
    address = f"@quintal-{os.getpid()}-{name}-{os.urandom(4).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.setblocking(False)  # noqa: FBT003
        receiver.bind("\0" + address[1:])
        yield receiver, address


def _die_with_parent(parent: int) -> Callable[[], None]:
    def in_child() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before we could ask

    return in_child


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _rotate(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.1"))


def _last_line(path: Path) -> str:
    try:
        lines = path.read_bytes()[-8_192:].decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def python(module: str) -> tuple[str, ...]:
    """What runs a module with this interpreter."""
    return (sys.executable, "-m", module)
