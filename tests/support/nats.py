"""A real nats-server for tests, with real identities; it can be killed and started again."""

from __future__ import annotations

import asyncio
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from quintal.auth import Authority, Listen
from quintal.bus import Bus
from quintal.contracts.subjects import Role
from quintal.settings import Access
from quintal.up import server

DEADLINE_S = 20.0


class NatsServer:
    """One server on one folder: `start`, `kill`, `start` again on the same port and store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory / "auth")
        self._process: subprocess.Popen[bytes] | None = None
        self._at: server.Endpoints | None = None

    @property
    def url(self) -> str:
        assert self._at is not None, "never started"
        return self._at.url

    @property
    def monitor_url(self) -> str:
        assert self._at is not None, "never started"
        return self._at.monitor_url

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def access(self, principal: str, role: Role) -> Access:
        return self.authority.access(self.url, principal, role)

    async def bus(self, principal: str, role: Role) -> Bus:
        """A connection of this principal: `async with await nats.bus(...) as bus`."""
        return await Bus.connect(self.access(principal, role))

    def start(self) -> None:
        files = self.directory / "nats"
        at = self._at
        listen = Listen(
            store=files / "store",
            port=at.port if at else -1,
            monitor_port=at.monitor_port if at else -1,
        )
        config = server.write_config(files, self.authority, listen)
        with (files / "log").open("ab") as log:
            process = subprocess.Popen(server.command(config), stdout=log, stderr=log)
        self._process = process
        give_up = time.monotonic() + DEADLINE_S
        while not self._up(files, process):
            if process.poll() is not None or time.monotonic() > give_up:
                self.kill()
                raise AssertionError((files / "log").read_text()[-4000:])
            time.sleep(0.02)

    def _up(self, files: Path, process: subprocess.Popen[bytes]) -> bool:
        found = server.endpoints(files, process.pid)
        if found is None:
            return False
        said = server.varz(found.monitor_url)
        if said is None or "config" not in said.get("jetstream", {}):
            return False
        server.check_durable(said)
        self._at = found
        return True

    def declare(self) -> None:
        """The streams, as `up` declares them. Call it outside of any event loop, or inside."""

        async def body() -> None:
            async with await self.bus("bootstrap", Role.BOOTSTRAP) as bus:
                await bus.declare()

        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, body()).result()

    def kill(self) -> None:
        """As a crash does: SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
