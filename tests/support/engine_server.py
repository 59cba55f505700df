"""The engine behind ClickHouse's HTTP interface, in a process of its own that a test owns.

    python -m tests.support.engine_server FOLDER PORT

It takes what metering's own client sends to a server, reads and writes, so that the code path of a
server runs without one: several clients, and one of them can be stopped while others go on. It is
the embedded engine, though, with no users, no replication and no limits: no stand-in for a server.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

OURS = frozenset({
    "query", "database", "query_id", "session_id", "default_format", "compress", "decompress",
    "enable_http_compression", "wait_end_of_query", "send_progress_in_http_headers", "user",
    "password", "http_headers_progress_interval_ms", "client_protocol_version", "role",
})  # fmt: skip
"""Of the address, what is no setting of the engine."""

INSERT = re.compile(rb"\s*INSERT\s+INTO\s.+?\sFORMAT\s+(\w+)[ \t]*\n?", re.IGNORECASE | re.DOTALL)
FORMAT = re.compile(r"\sFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
READY_S = 30.0


class Asked(BaseHTTPRequestHandler):
    """One request after another of one connection."""

    protocol_version = "HTTP/1.1"
    path_of_engine = ""
    one_at_a_time = threading.Lock()

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length")
        body = self.rfile.read(int(length)) if length else self._chunks()
        self._answer(_unpacked(body, self.headers.get("Content-Encoding", "")))

    def log_message(self, *_: object) -> None:
        """Nothing: a test has enough to read."""

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, body: bytes) -> None:
        asked = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        text = "\n".join(part for part in (asked.get("query", ""),) if part).encode()
        whole = text + b"\n" + body if text and body else text or body
        if not whole:
            self._say(200, b"Ok.\n")
            return
        try:
            with self.one_at_a_time:
                self._say(200, self._run(whole, asked))
        except RuntimeError as exc:
            found = re.search(r"Code: (\d+)", str(exc))
            code = found[1] if found else "1002"
            self._say(500, str(exc).encode(), {"X-ClickHouse-Exception-Code": code})

    def _run(self, whole: bytes, asked: dict[str, str]) -> bytes:
        import chdb

        engine: Any = chdb.connect(self.path_of_engine)  # type: ignore[no-untyped-call]
        try:
            database = asked.get("database") or self.headers.get("X-ClickHouse-Database") or ""
            if database:
                engine.query(f"USE `{database}`", "TabSeparated")
            for name, value in asked.items():
                if name not in OURS and not name.startswith("param_"):
                    engine.query(f"SET {name} = '{value}'", "TabSeparated")
            bound = {n.removeprefix("param_"): v for n, v in asked.items() if n[:6] == "param_"}
            if insert := INSERT.match(whole):
                return self._insert(engine, insert, whole)
            text = whole.decode()
            default = asked.get("default_format", "TabSeparated")
            form = found[1] if (found := FORMAT.search(text)) else default
            return bytes(engine.query(FORMAT.sub("", text), form, params=bound).bytes())
        finally:
            engine.close()

    def _insert(self, engine: Any, insert: re.Match[bytes], whole: bytes) -> bytes:
        head = insert[0].decode().strip()
        statement = head[: head.upper().rindex("FORMAT")]
        settings = ""
        if "SETTINGS" in statement:
            statement, _, rest = statement.partition("SETTINGS")
            settings = f"SETTINGS {rest}"
        with tempfile.NamedTemporaryFile() as file:
            file.write(whole[insert.end() :])
            file.flush()
            form = insert[1].decode()
            engine.query(f"{statement} FROM INFILE '{file.name}' {settings} FORMAT {form}")
        return b""

    def _say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        said = {"X-ClickHouse-Summary": "{}", "X-ClickHouse-Timezone": "UTC", **(headers or {})}
        for name, value in {**said, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _unpacked(body: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.decompress(body)
    if encoding == "lz4":
        import lz4.frame

        return bytes(lz4.frame.decompress(body))
    if encoding == "zstd":
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj().decompress(body)
    return body


class EngineServer:
    """The process: `start`, `kill`, `start` again on the same folder and port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """As a client's address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Until it answers."""
        command = [sys.executable, "-m", "tests.support.engine_server"]
        self._process = subprocess.Popen(
            [*command, str(self.folder), str(self.port)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        give_up = time.monotonic() + READY_S
        while True:
            try:
                connection = HTTPConnection("127.0.0.1", self.port, timeout=READY_S)
                connection.request("GET", "/ping")
                connection.getresponse().read()
                connection.close()
            except OSError:
                assert time.monotonic() < give_up
                continue
            return

    def kill(self) -> None:
        """By SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def main(folder: str, port: str) -> None:
    """Serve until killed."""
    Asked.path_of_engine = folder
    import chdb

    held = chdb.connect(folder)  # type: ignore[no-untyped-call] # the engine lives while one does
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Asked)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()
    held.close()


if __name__ == "__main__":
    main(*sys.argv[1:3])
