"""A TCP proxy before the server, that stalls one connection just before or after an append.

Nothing is lost and nothing changes its place: what was held is delivered later, and what comes
behind it after it, both ways, as by a network that stalls and then goes on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal, Self

APPEND = b"HPUB quintal.v1.ledger "


@dataclass(slots=True)
class Hold:
    """What is to be held next, and for how long."""

    what: Literal["append", "answer"]
    seconds: float


class Proxy:
    """Listens on `port`; use `async with`."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._next: Hold | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.held = 0
        self.delivered = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hold(self, what: Literal["append", "answer"], seconds: float) -> None:
        """Stall the connection of the next append: before it is delivered, or before its answer."""
        self._next = Hold(what, seconds)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.close()
            return
        answers = asyncio.Event()
        answers.set()
        for pump in (self._up(reader, up_writer, answers), self._down(up_reader, writer, answers)):
            task = asyncio.create_task(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _up(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: asyncio.Event
    ) -> None:
        try:
            while data := await reader.read(65_536):
                hold, append = self._next, APPEND in data
                if hold is not None and append:
                    self._next = None
                    self.held += 1
                    answers.clear()
                    if hold.what == "answer":
                        writer.write(data)
                        data = b""
                    await asyncio.sleep(hold.seconds)
                    answers.set()
                    self.delivered += 1
                writer.write(data)
                await writer.drain()
        except OSError:
            return
        finally:
            writer.close()

    @staticmethod
    async def _down(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: asyncio.Event
    ) -> None:
        try:
            while data := await reader.read(65_536):
                await answers.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            return
        finally:
            writer.close()
