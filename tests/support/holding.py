"""A proxy before the server that can hold single messages back, and bring them late.

It reads the client's side of the protocol frame by frame; what is not to be held goes on at once,
so that a message is overtaken by all that was said after it. A wire cannot do that to one
connection; a server that hangs on its disk, or a cluster that elects, can.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

_WITH_PAYLOAD = {b"PUB", b"HPUB"}


@dataclass
class HoldingProxy:
    """Forwards to `port` of this host; `hold(...)` says what is held from now on."""

    port: int
    held: list[str] = field(default_factory=list)
    """Subjects of what was held, in order."""
    arrived: list[str] = field(default_factory=list)
    """Subjects of what was held and has gone on since."""
    _server: asyncio.Server | None = None
    _holds: dict[str, tuple[float, int]] = field(default_factory=dict)
    _go: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hold(self, subject: str, seconds: float, count: int = 1) -> None:
        """The next `count` messages on `subject` arrive `seconds` late, or when they are let go."""
        self._holds[subject] = (seconds, count)

    def let_go(self) -> None:
        """All that is held arrives now, and nothing is held any more."""
        self._holds.clear()
        self._go.set()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    def _spawn(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.port)
            self._spawn(asyncio.create_task(_pump(from_server, writer)))
            self._spawn(asyncio.create_task(self._frames(reader, to_server)))

    async def _frames(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                frame = line
                words = line.split()
                if words and words[0] in _WITH_PAYLOAD:
                    frame += await reader.readexactly(int(words[-1]) + 2)
                    subject = words[1].decode()
                    seconds, count = self._holds.get(subject, (0.0, 0))
                    if count:
                        self._holds[subject] = (seconds, count - 1)
                        self.held.append(subject)
                        late = self._late(to_server, subject, frame, seconds)
                        self._spawn(asyncio.create_task(late))
                        continue
                to_server.write(frame)
                await to_server.drain()
        to_server.close()

    async def _late(
        self, to_server: asyncio.StreamWriter, subject: str, frame: bytes, seconds: float
    ) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._go.wait(), seconds)
        with contextlib.suppress(OSError):
            to_server.write(frame)
            await to_server.drain()
            self.arrived.append(subject)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
