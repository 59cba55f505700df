"""`quintal up`: bring a system up in order, keep it up, take it down in the reverse order."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from quintal import process
from quintal.auth import Authority, Listen
from quintal.bus import Bus
from quintal.clock import SystemClock
from quintal.contracts.subjects import Role
from quintal.errors import QuintalError, SetupError
from quintal.up import plan, server
from quintal.up.layout import Layout, System
from quintal.up.server import Endpoints
from quintal.up.supervisor import Process, Supervised


def main(data: Path, *, demo: bool = False, port: int | None = None) -> int:
    """Run until SIGTERM or Ctrl-C; gives the exit status."""
    layout = Layout(data)

    async def body(stop: asyncio.Event) -> int:
        try:
            layout.create()
            with layout.locked():
                await Up(layout, demo=demo, port=port).run(stop)
        except QuintalError as exc:
            _say(process.chain(exc))
            return 1
        return 0

    logging.getLogger().handlers.clear()  # the CLI was silent; a supervisor speaks
    return process.run(body)


class Up:
    """One run of one installation."""

    def __init__(self, layout: Layout, *, demo: bool, port: int | None) -> None:
        self._layout = layout
        self._demo = demo
        self._port = port
        self._up: list[Supervised] = []
        self._at: Endpoints | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Up, until `stop`, down. Raises SetupError where it cannot come up; then it is down."""
        stopped = asyncio.create_task(stop.wait())
        rising = asyncio.create_task(self._rise())
        try:
            await asyncio.wait({stopped, rising}, return_when=asyncio.FIRST_COMPLETED)
            if rising.done():
                rising.result()
                await stopped
        finally:
            rising.cancel()
            await asyncio.gather(rising, return_exceptions=True)
            await self._fall()
            self._layout.write_pid("up", None)
            self._layout.stopped()

    async def _rise(self) -> None:
        authority = self._layout.authority()
        plan.issue_people(authority)
        at = await self._server(authority)
        self._tell(at, authority)
        access = authority.access(at.url, "bootstrap", Role.BOOTSTRAP)
        async with await Bus.connect(access) as bus:
            await bus.declare()
        for group in plan.groups(self._layout, authority, at.url, demo=self._demo):
            await self._start(group)
        print(  # noqa: T201 - the one line that scripts wait for
            f"quintal is up at {at.url}; credentials lie in {authority.credentials};"
            " Ctrl-C stops it",
            flush=True,
        )
        process.notify("READY=1")

    async def _start(self, group: list[Process]) -> None:
        begun = [self._supervise(one) for one in group]
        await asyncio.gather(*(supervised.start() for supervised in begun))

    def _supervise(self, one: Process) -> Supervised:
        supervised = Supervised(one, self._layout.logs, tell_pid=self._layout.write_pid, log=_say)
        self._up.append(supervised)
        return supervised

    async def _fall(self) -> None:
        for supervised in reversed(self._up):
            await supervised.stop()

    # --- the server ---------------------------------------------------------------------------

    async def _server(self, authority: Authority) -> Endpoints:
        files = self._layout.nats
        listen = Listen(store=files / "store", port=self._choose_port())
        config = server.write_config(files, authority, listen)
        nats = Process("nats", tuple(server.command(config)), ready_s=60, is_ready=self._serves)
        await self._supervise(nats).start()
        at = self._at
        assert at is not None, "ready means that it told its ports"
        said = await asyncio.to_thread(server.varz, at.monitor_url)
        server.check_durable(said or {})
        # A restart must find the same ports, or every connection would be lost with it.
        fixed = Listen(store=listen.store, port=at.port, monitor_port=at.monitor_port)
        server.write_config(files, authority, fixed)
        return at

    async def _serves(self, pid: int) -> bool:
        found = server.endpoints(self._layout.nats, pid)
        if found is None:
            return False
        said = await asyncio.to_thread(server.varz, found.monitor_url)
        if said is None or "config" not in said.get("jetstream", {}):
            return False
        self._at = found
        return True

    def _choose_port(self) -> int:
        if self._port is not None:
            if not server.port_is_free(self._port):
                raise SetupError(
                    f"port {self._port} is taken: stop who listens there, or give another --port"
                )
            return self._port
        known = self._layout.system()
        wanted = known.port if known else server.DEFAULT_PORT
        if server.port_is_free(wanted):
            return wanted
        _say(f"port {wanted} is taken, so that another is chosen")
        return -1

    def _tell(self, at: Endpoints, authority: Authority) -> None:
        now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
        self._layout.write_pid("up", os.getpid())
        self._layout.write_system(
            System(
                url=at.url,
                monitor_url=at.monitor_url,
                credentials=str(authority.credentials),
                pid=os.getpid(),
                started=now.isoformat(timespec="seconds"),
            )
        )


def _say(line: str) -> None:
    print(f"quintal up: {line}", file=sys.stderr, flush=True)  # noqa: T201 - to whoever runs it
