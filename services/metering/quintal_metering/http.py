"""As much of HTTP/1.1 as a loopback endpoint needs: requests with bounded bodies, chunked answers.

Small because its peers are few and local: ClickHouse's clients, Grafana, Prometheus. Whatever is
not plainly right is refused and the connection closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlsplit

log = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 65_536
BODY_BYTES_MAX: Final = 16 * 2**20
IDLE_S: Final = 120.0
"""A connection that says nothing for so long is closed."""

BODY_S: Final = 15.0
DRAIN_S: Final = 15.0
"""A peer that takes nothing for so long is gone."""

CONNECTIONS_MAX: Final = 64

PHRASES: Final = {
    200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    413: "Content Too Large", 421: "Misdirected Request", 500: "Internal Server Error",
    503: "Service Unavailable",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, read whole."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Said:
    """An answer: whole, or `chunks` one after another."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: AsyncIterator[bytes] | None = None


class Malformed(Exception):  # noqa: N818 - the peer's, told as a status
    """Not a request that is taken here."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class CutOff(Exception):  # noqa: N818 - no error of ours
    """An answer failed in its middle."""


Handler = Callable[[Asked], Awaitable[Said]]


class Listener:
    """A server on a loopback address. Make it with `open`."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen; the port (another one, where `port` is taken). Raises OSError."""
        try:
            self._server = await asyncio.start_server(
                self._connected, host, port, limit=HEAD_BYTES_MAX
            )
        except OSError:
            if not port:
                raise
            return await self.open(host, 0)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Take no more, and end what is open."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._tasks) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._tasks.add(task)
        try:
            while await self._once(reader, writer):
                pass
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            log.debug("a connection ended in the middle of a request")
        except CutOff as exc:
            # The last chunk is left out, so that the peer does not take the answer for whole.
            log.warning("an answer was cut off: %s", exc)
        except asyncio.CancelledError:
            # We are closing; the streams' own callback would log a task that ends cancelled.
            log.debug("a connection was open at the end")
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _once(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection goes on."""
        try:
            asked = await _read(reader, writer)
        except Malformed as exc:
            await _write(writer, Said(exc.status, f"{exc}\n".encode()), closing=True)
            return False
        if asked is None:
            return False
        try:
            said = await self._handler(asked)
        except Exception:
            log.exception("answering %s %s", asked.method, asked.path)
            said = Said(500, b"internal\n")
        closing = asked.headers.get("connection", "").lower() == "close"
        await _write(writer, said, closing=closing, bodiless=asked.method == "HEAD")
        return not closing


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked | None:
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), IDLE_S)
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError as exc:
        raise Malformed(413, "the head is too long") from exc
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004
        raise Malformed(400, "no request line")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise Malformed(400, "no header line")
        headers[name.lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await asyncio.wait_for(_body(reader, headers), BODY_S)
    target = urlsplit(words[1])
    query = dict(parse_qsl(target.query, keep_blank_values=True))
    return Asked(words[0], target.path, query, headers, body)


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    coding = headers.get("transfer-encoding", "").lower()
    length = headers.get("content-length")
    if coding:
        if coding != "chunked" or length is not None:
            raise Malformed(400, "a body has a length or comes in chunks")
        return await _chunked(reader)
    if length is None:
        return b""
    if not length.isascii() or not length.isdigit():
        raise Malformed(400, "no length")
    if int(length) > BODY_BYTES_MAX:
        raise Malformed(413, "the body is too long")
    return await reader.readexactly(int(length))


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    total = 0
    while True:
        line = (await reader.readuntil(b"\r\n")).split(b";")[0].strip()
        try:
            size = int(line, 16)
        except ValueError as exc:
            raise Malformed(400, "no chunk") from exc
        total += size
        if size < 0 or total > BODY_BYTES_MAX:
            raise Malformed(413, "the body is too long")
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass
            return b"".join(parts)
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)


async def _write(
    writer: asyncio.StreamWriter, said: Said, *, closing: bool, bodiless: bool = False
) -> None:
    headers = {**said.headers, "Connection": "close" if closing else "Keep-Alive"}
    if said.chunks is None:
        headers["Content-Length"] = str(len(said.body))
    else:
        headers["Transfer-Encoding"] = "chunked"
    lines = [f"HTTP/1.1 {said.status} {PHRASES.get(said.status, 'Status')}"]
    lines += [f"{name}: {_one_line(value)}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1", "replace"))
    if said.chunks is None:
        writer.write(b"" if bodiless else said.body)
    else:
        # A fault in the middle must not look like an end: the last chunk is then left out.
        async for chunk in said.chunks:
            if chunk:
                writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                await asyncio.wait_for(writer.drain(), DRAIN_S)
        writer.write(b"0\r\n\r\n")
    await asyncio.wait_for(writer.drain(), DRAIN_S)


def _one_line(value: str) -> str:
    return value.replace("\r", " ").replace("\n", " ")
