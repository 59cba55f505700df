"""The part that acts: runs an installed task by its name, and knows no bus.

The agent observes; ending work, cleaning up and acceptance are done here, by executables that the
node's owner has put into /etc/quintal/tasks.d. Whoever asks gives a name and nothing else: no
arguments, no input, no environment. A file that is not its owner's alone is not run.

Under systemd each connection to `quintal-task.socket` starts one `quintal-task@.service`, which
serves it on stdin and ends. Elsewhere (`quintal up`) `--listen` serves the same socket.

One line of JSON in, one out: {"run": NAME, "timeout_ms": N} -> {"exit_status", "duration_ms",
"output"} or {"refused": WHY}; {"list": true} -> {"names": [...]}.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import selectors
import signal
import socket
import socketserver
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from quintal.clock import Clock, SystemClock
from quintal.process import notify

FOLDER: Final = Path("/etc/quintal/tasks.d")
ASK_BYTES_MAX: Final = 4_096
OUTPUT_BYTES_MAX: Final = 32_768
TIMEOUT_MS_MAX: Final = 3_600_000
_STOPS_WITHIN_S: Final = 5.0
_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class RefusedTask(Exception):  # noqa: N818 - an answer, and no fault of ours
    """Why a task is not run."""


def answer(line: bytes, folder: Path, clock: Clock) -> dict[str, Any]:
    """What is answered to one line; runs the task that it names. Blocks."""
    try:
        ask = json.loads(line)
    except ValueError:
        return {"refused": "the ask is no line of JSON"}
    if not isinstance(ask, dict):
        return {"refused": "the ask is no object"}
    if ask.get("list") is True:
        return {"names": sorted(installed(folder))}
    name, timeout_ms = ask.get("run"), ask.get("timeout_ms", 600_000)
    if not isinstance(name, str):
        return {"refused": "a task is asked for by its name"}
    if not isinstance(timeout_ms, int) or not 0 < timeout_ms <= TIMEOUT_MS_MAX:
        return {"refused": f"timeout_ms must lie between 1 and {TIMEOUT_MS_MAX}"}
    try:
        return run(checked(folder, name), timeout_ms / 1000, clock)
    except (RefusedTask, OSError) as exc:
        return {"refused": str(exc)}


def installed(folder: Path) -> Iterator[str]:
    """The names that would be run."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(RefusedTask, OSError):
            yield checked(folder, entry.name).name


def checked(folder: Path, name: str) -> Path:
    """The executable of that name. Raises RefusedTask where it may not be run."""
    if _NAME.fullmatch(name) is None:
        raise RefusedTask(f"{name!r} is no task's name")
    path = folder / name
    for place, kind in ((folder, stat.S_ISDIR), (path, stat.S_ISREG)):
        try:
            found = place.lstat()
        except FileNotFoundError as exc:
            raise RefusedTask(f"no task {name} is installed in {folder}") from exc
        if not kind(found.st_mode):
            raise RefusedTask(f"{place} is not what it should be (a link is not followed)")
        if found.st_uid not in {0, os.geteuid()}:
            raise RefusedTask(f"{place} must belong to root")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise RefusedTask(f"{place} can be written by others than its owner")
    if not path.stat().st_mode & stat.S_IXUSR:
        raise RefusedTask(f"{path} is not executable")
    return path


def run(path: Path, timeout_s: float, clock: Clock) -> dict[str, Any]:
    """Run it, once at a time, and end it and all it started at the deadline. Blocks."""
    with path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise RefusedTask("it is running already") from exc
        began_s = clock.monotonic_s()
        child = subprocess.Popen(
            [str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={"PATH": _PATH, "LC_ALL": "C", "HOME": "/", "QUINTAL_TASK": path.name},
            start_new_session=True,
        )
        with child:
            output, in_time = _output(child, began_s + timeout_s, clock)
            if not in_time:
                _end(child)
        return {
            "exit_status": child.returncode if in_time else None,
            "duration_ms": int((clock.monotonic_s() - began_s) * 1000),
            "output": output.decode(errors="replace"),
        }


def _output(child: subprocess.Popen[bytes], give_up_s: float, clock: Clock) -> tuple[bytes, bool]:
    """The end of what it says, until it ends; and whether it ended by itself in time."""
    assert child.stdout is not None
    kept = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while (left_s := give_up_s - clock.monotonic_s()) > 0:
            if selector.select(min(left_s, 0.2)):
                piece = os.read(child.stdout.fileno(), 65_536)
                kept = (kept + piece)[-OUTPUT_BYTES_MAX:]
                if piece:
                    continue
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(max(0.0, left_s))
            if child.poll() is not None:
                return kept, True
    return kept, False


def _end(child: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_STOPS_WITHIN_S)


def serve_one(connection: socket.socket, folder: Path, clock: Clock) -> None:
    """One ask, one answer."""
    connection.settimeout(10)
    with connection.makefile("rb") as asks:
        line = asks.readline(ASK_BYTES_MAX)
    if line:
        connection.settimeout(None)
        connection.sendall(json.dumps(answer(line, folder, clock)).encode() + b"\n")


class _Listener(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 8


def listen(path: Path, folder: Path) -> None:
    """Serve the socket until the process is ended. The folder is made, empty, where it is not."""
    clock = SystemClock()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                serve_one(self.request, folder, clock)

    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        server = _Listener(str(path), Handler)
    finally:
        os.umask(before)
    with server:
        notify("READY=1")
        server.serve_forever()


def main() -> None:
    """Serve stdin (systemd's socket), or `--listen PATH`."""
    parser = argparse.ArgumentParser(prog="quintal-task", description=__doc__.splitlines()[0])
    parser.add_argument("--listen", type=Path, help="serve this socket instead of stdin")
    parser.add_argument("--tasks", type=Path, default=FOLDER, help="where tasks are installed")
    options = parser.parse_args()
    if options.listen is not None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with contextlib.suppress(KeyboardInterrupt):
            listen(options.listen, options.tasks)
        return
    try:
        connection = socket.socket(fileno=0)
    except OSError:
        parser.exit(2, "quintal-task: stdin is no socket: use quintal-task.socket, or --listen\n")
    with connection:
        serve_one(connection, options.tasks, SystemClock())


if __name__ == "__main__":
    main()
