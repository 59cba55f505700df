"""The embedded store, open to others on this machine: a part of ClickHouse's HTTP interface.

Only one process can own the embedded engine; others ask here, through the same clients as a
server: `clickhouse-connect` (sync and async, Arrow, streams) and Grafana's data source. It only
reads. A token keeps other users of the machine out, the Host check keeps browsers out that a
foreign page sends here. What may be asked is `guard`'s to say, how much is `readers`'s.
"""

from __future__ import annotations

import base64
import hmac
import json
import logging
import os
import re
import secrets
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quintal_metering.guard import NO_DATABASE, READONLY, NotAllowed, statement
from quintal_metering.http import Asked, CutOff, Listener, Said
from quintal_metering.readers import Busy, Readers

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
NAMES: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Under which this machine may be called: a page of elsewhere that names us otherwise is none."""

AUTHENTICATION_FAILED, TOO_MANY_QUERIES, UNKNOWN_ERROR = 516, 202, 1002
BLOCK_BYTES: Final = 256 * 2**10

_CODE: Final = re.compile(r"Code: (\d+)\.")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the endpoint's address and token are kept."""

    state: Path

    @property
    def address(self) -> Path:
        """`endpoint.json`: url, database, token file."""
        return self.state / "endpoint.json"

    @property
    def token(self) -> Path:
        """`endpoint.token`: for the owner's eyes only."""
        return self.state / "endpoint.token"


class Endpoint:
    """Answers ClickHouse's clients, and `/metrics`. Make it with `open`."""

    def __init__(
        self, place: Place, readers: Readers, database: str, metrics: Callable[[], bytes]
    ) -> None:
        self._place = place
        self._readers = readers
        self._database = database
        self._metrics = metrics
        self._functions: frozenset[str] = frozenset()
        self._token = ""
        self._listener = Listener(self._answer)

    async def open(self) -> str:
        """Listen, on the port of the last time if it is free; the URL."""
        self._token = _token(self._place.token)
        named = statement("SELECT name FROM system.table_functions", "TabSeparated")
        text = b"".join([chunk async for chunk in self._readers.answer(named, {})]).decode()
        self._functions = frozenset(text.split())
        port = await self._listener.open(HOST, _last_port(self._place.address))
        url = f"http://{HOST}:{port}"
        known = {"url": url, "database": self._database, "token_file": str(self._place.token)}
        self._place.address.write_text(json.dumps(known, indent=1) + "\n")
        return url

    async def close(self) -> None:
        """Take no more questions."""
        await self._listener.close()

    async def _answer(self, asked: Asked) -> Said:
        said = self._open_to_all(asked)
        if said is not None:
            return said
        if not hmac.compare_digest(_given(asked).encode(), self._token.encode()):
            return _fault(AUTHENTICATION_FAILED, "Authentication failed: no such token", 403)
        try:
            return await self._asked(asked)
        except NotAllowed as exc:
            return _fault(exc.code, str(exc), 403)
        except Busy as exc:
            return _fault(TOO_MANY_QUERIES, str(exc), 503)
        except RuntimeError as exc:
            found = _CODE.search(str(exc))
            return _fault(int(found[1]) if found else UNKNOWN_ERROR, str(exc), 500)

    def _open_to_all(self, asked: Asked) -> Said | None:
        """What needs no token; none for a question to the store."""
        if asked.headers.get("host", "").rsplit(":", 1)[0].lower() not in NAMES:
            return Said(421, b"this is a loopback address: call it by that\n")
        if asked.path in {"/ping", "/replicas_status"}:
            return Said(200, b"Ok.\n")
        if asked.path == "/metrics":
            kind = "text/plain; version=0.0.4; charset=utf-8"
            return Said(200, self._metrics(), {"Content-Type": kind})
        if asked.path not in {"", "/"}:
            return Said(404, b"nothing is here\n")
        if asked.method not in {"GET", "POST"}:
            return Said(405, b"ask with GET or POST\n")
        return None

    async def _asked(self, asked: Asked) -> Said:
        database = asked.query.get("database") or asked.headers.get("x-clickhouse-database", "")
        if database not in {"", "default", "system", self._database}:
            raise NotAllowed(NO_DATABASE, f"Database {database} does not exist")
        encoding = asked.headers.get("content-encoding", "")
        body = _unpacked(asked.body, encoding)
        text = "\n".join(part for part in (asked.query.get("query", ""), body) if part)
        default = asked.query.get("default_format") or asked.headers.get(
            "x-clickhouse-format", "TabSeparated"
        )
        wanted = statement(text, default, self._functions)
        bound = {
            name.removeprefix("param_"): value
            for name, value in asked.query.items()
            if name.startswith("param_")
        }
        chunks = self._readers.answer(wanted, bound)
        # The first block is awaited before anything is said: most faults are seen by then.
        first = await anext(chunks, b"")
        headers = {
            "Content-Type": "application/octet-stream",
            "X-ClickHouse-Format": wanted.format,
            "X-ClickHouse-Timezone": "UTC",
            "X-ClickHouse-Server-Display-Name": "quintal",
            "X-ClickHouse-Query-Id": asked.query.get("query_id", "") or secrets.token_hex(8),
            "X-ClickHouse-Summary": "{}",
            "X-ClickHouse-Exception-Tag": (tag := secrets.token_hex(8)),
        }
        packed = asked.query.get("enable_http_compression") == "1" and "gzip" in asked.headers.get(
            "accept-encoding", ""
        )
        whole = _after(first, chunks, tag)
        if packed:
            headers["Content-Encoding"] = "gzip"
            whole = _gzipped(whole)
        return Said(200, b"", headers, whole)


async def _after(first: bytes, rest: AsyncIterator[bytes], tag: str) -> AsyncIterator[bytes]:
    """The blocks; a fault in the middle is told in ClickHouse's own way, behind a tag.

    It also cuts the answer off, so that no client takes what it has for the whole.
    """
    yield first
    try:
        async for chunk in rest:
            for at in range(0, len(chunk), BLOCK_BYTES):
                yield chunk[at : at + BLOCK_BYTES]
    except RuntimeError as exc:
        said = f"{exc}\n"
        told = (
            f"\r\n__exception__\r\n{tag}\r\n{said}{len(said.encode())} {tag}\r\n__exception__\r\n"
        )
        yield told.encode()
        raise CutOff(str(exc)) from exc


async def _gzipped(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(1, wbits=31)
    try:
        async for chunk in chunks:
            yield packer.compress(chunk)
    except CutOff:
        yield packer.flush()
        raise
    yield packer.flush()


def _unpacked(body: bytes, encoding: str) -> str:
    if encoding not in {"", "identity"}:
        raise NotAllowed(READONLY, f"a body in {encoding} is refused: this endpoint only reads")
    try:
        return body.decode()
    except UnicodeDecodeError as exc:
        raise NotAllowed(READONLY, "the question is no text: this endpoint only reads") from exc


def _given(asked: Asked) -> str:
    """The token as ClickHouse's clients send it: key header, password, basic or bearer."""
    kind, _, value = asked.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except ValueError:
            return ""
    return asked.headers.get("x-clickhouse-key", "") or asked.query.get("password", "")


def _fault(code: int, message: str, status: int) -> Said:
    text = message if message.startswith("Code: ") else f"Code: {code}. DB::Exception: {message}"
    return Said(status, f"{text}\n".encode(), {"X-ClickHouse-Exception-Code": str(code)})


def _token(path: Path) -> str:
    """The installation's token: made once, readable by its owner alone."""
    if path.exists():
        return path.read_text().strip()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    made = secrets.token_urlsafe(32)
    with os.fdopen(handle, "w") as file:
        file.write(made + "\n")
    return made


def _last_port(path: Path) -> int:
    try:
        known: dict[str, Any] = json.loads(path.read_text())
        return int(known["url"].rpartition(":")[2])
    except (OSError, ValueError, KeyError):
        return 0
