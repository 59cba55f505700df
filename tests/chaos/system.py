"""A real `quintal up`, whose processes can be killed, stopped for a while, and counted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from quintal.client import Client
from quintal.up.layout import Layout, local_access

START_S = 90.0
STOP_S = 60.0
MORTALS = ("nats", "catalog", "placer-1", "placer-2", "metering", "agent", "demo")
"""Every process that may be killed; `up` itself brings them back."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class System:
    """One installation: `start`, `kill`, `pause`, `stop`, `start` again."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = free_port()
        self.log = data.parent / "up.log"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Until its ready line."""
        with self.log.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quintal.cli", "up", "--demo",
                 "--data", str(self.data), "--port", str(self.port)],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        give_up = time.monotonic() + START_S
        with self.log.open("rb") as said:
            while not self._is_up(said, begin):
                assert self._process.poll() is None, self.log.read_text()[-4000:]
                assert time.monotonic() < give_up, self.log.read_text()[-4000:]
                await asyncio.sleep(0.1)

    @staticmethod
    def _is_up(said: IO[bytes], begin: int) -> bool:
        said.seek(begin)
        return b"quintal is up at" in said.read()

    async def stop(self) -> int:
        """SIGTERM, as a person's Ctrl-C; gives the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self._process.wait, STOP_S)

    def destroy(self) -> None:
        """Whatever still runs ends with `up`: the kernel sees to it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def pid(self, name: str) -> int | None:
        """Of a process that `up` runs now; none while it is down."""
        assert self._process is not None
        try:
            pid = int((self.data / "run" / f"{name}.pid").read_text())
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            return None
        state, parent = fields[0], int(fields[1])
        return pid if parent == self._process.pid and state != "Z" else None

    def signal(self, name: str, what: signal.Signals) -> bool:
        """Whether there was somebody to get it."""
        pid = self.pid(name)
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)
            return True
        return False

    async def pause(self, name: str, seconds: float) -> bool:
        """Stop it, and let it go on."""
        pid = self.pid(name)
        if pid is None or not self.signal(name, signal.SIGSTOP):
            return False
        try:
            await asyncio.sleep(seconds)
        finally:
            if self.pid(name) == pid:
                self.signal(name, signal.SIGCONT)
        return True

    @property
    def url(self) -> str:
        found = Layout(self.data).system()
        assert found is not None
        return found.url

    def credentials(self, principal: str) -> Path:
        return local_access(self.data, principal).credentials

    async def client(self, principal: str, *, patience_s: float = 15.0) -> Client:
        return await Client.connect(
            local_access(self.data, principal), patience_s=patience_s, wait_s=20
        )

    def tails(self) -> str:
        """The last lines of every log, for a failure's text."""
        logs = [self.log, *sorted((self.data / "logs").glob("*.log"))]
        return "\n".join(f"--- {path}\n{path.read_text()[-3000:]}" for path in logs)
