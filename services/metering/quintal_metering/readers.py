"""Connections to the embedded engine that only read, each with a thread and bounds of its own.

The engine has one process and many connections; what one asks here runs beside the meter's own
thread and is bounded by the engine in time, memory, rows and threads, so that the slowest question
that is allowed delays no row of the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from quintal.errors import QuintalError
from quintal_metering.guard import Statement

READERS: Final = 2
"""Questions at the same time; the next one waits."""

WAIT_S: Final = 10.0
"""For a free reader, and for a client that does not take what it asked for."""

BOUNDS: Final = {
    "session_timezone": "UTC",
    "max_execution_time": 10,
    "timeout_before_checking_execution_speed": 0,
    "max_threads": 1,
    "max_memory_usage": 512 * 2**20,
    "max_result_rows": 5_000_000,
    "max_result_bytes": 512 * 2**20,
    "max_rows_to_read": 500_000_000,
    "max_query_size": 2**20,
    "max_ast_elements": 50_000,
    "allow_introspection_functions": 0,
    "output_format_native_write_json_as_string": 1,
    "output_format_arrow_compression_method": "none",
    "readonly": 1,
}
"""Set once, in this order; `readonly` last, because nothing can be set after it."""

STREAMED: Final = frozenset(
    {"Native", "TabSeparated", "TSV", "CSV", "RowBinary", "JSONEachRow", "JSONCompactEachRow"}
)
"""Formats whose blocks may be put one after another; others are made whole, within the bounds."""


class Busy(QuintalError):  # noqa: N818 - as Refused
    """All readers are at work."""


class Reader:
    """One connection. Blocks; its thread is `pool`'s only one."""

    def __init__(self, path: str, database: str) -> None:
        import chdb

        self.pool = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._connection: Any = chdb.connect(path)  # type: ignore[no-untyped-call]
        self._stream: Any = None
        self._connection.query(f"USE `{database}`", "TabSeparated")
        for name, value in BOUNDS.items():
            self._connection.query(f"SET {name} = '{value}'", "TabSeparated")

    def begin(self, asked: Statement, bound: dict[str, str]) -> Iterator[bytes]:
        """Start to answer. Raises RuntimeError with the engine's words."""
        if asked.format not in STREAMED or not asked.streams:
            return iter([self._connection.query(asked.text, asked.format, params=bound).bytes()])
        self._stream = self._connection.send_query(asked.text, asked.format, params=bound)
        return (chunk.bytes() for chunk in self._stream)

    def end(self) -> None:
        """Forget what was not read."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def close(self) -> None:
        """Let go of the engine."""
        self.end()
        self._connection.close()


class Readers:
    """A few readers and the queue before them."""

    def __init__(self, path: str, database: str, count: int = READERS) -> None:
        self._free: asyncio.Queue[Reader] = asyncio.Queue()
        self._all = [Reader(path, database) for _ in range(count)]
        for reader in self._all:
            self._free.put_nowait(reader)

    async def answer(self, asked: Statement, bound: dict[str, str]) -> AsyncIterator[bytes]:
        """The answer's bytes, block by block. Raises Busy, and RuntimeError as the engine says."""
        try:
            reader = await asyncio.wait_for(self._free.get(), WAIT_S)
        except TimeoutError as exc:
            raise Busy("all readers are at work: ask less at once") from exc
        loop = asyncio.get_running_loop()
        try:
            chunks = await loop.run_in_executor(reader.pool, reader.begin, asked, bound)
            while (
                chunk := await loop.run_in_executor(reader.pool, next, chunks, None)
            ) is not None:
                yield chunk
        finally:
            # The thread may still be at a block: what ends the answer waits behind it.
            ended = loop.run_in_executor(reader.pool, reader.end)
            ended.add_done_callback(lambda _: self._free.put_nowait(reader))

    def close(self) -> None:
        """Wait for what runs, at most its bound, and close."""
        for reader in self._all:
            reader.pool.submit(reader.close)
            reader.pool.shutdown()
