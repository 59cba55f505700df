"""The store: ClickHouse, embedded or as a server, through one client; blocking throughout.

A batch is an exact range of the ledger. Its steps, in order, and what a crash after each costs:

    archive   its messages are kept, with the position before it: the next start folds exactly
              this range again and writes its rows under the same tokens and ids
    rows      the batch is over, which the archive of the next one says (`settled`)
    keep      now and then: a checkpoint of the fold, with the position

Every row has an id and is read once by it, so that neither the engine's own deduplication, which
forgets, nor a merge, which comes when it likes, has to hold for the sums to be right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import local
from typing import Any, Final, Protocol, Self

from quintal.errors import QuintalError, SetupError
from quintal_metering.arrow import arrow_type, packed, spelled_out
from quintal_metering.columns import Columns, Insert
from quintal_metering.migrations import migrate
from quintal_metering.settings import Where

log = logging.getLogger(__name__)

MEMORY_BYTES_MAX: Final = 2 * 2**30
"""The embedded engine would take nine tenths of the machine."""

QUERY_BYTES_MAX: Final = 2**30
THREADS_MAX: Final = 2
QUERY_TEXT_BYTES_MAX: Final = 64 * 2**20
"""Of a question's text with its bound values."""

SPELLED_OUT_MAX: Final = 64
"""Rows that go as text within the statement: that spares the engine a file, and us 2 ms."""

CHECKPOINTS_KEPT: Final = 3

_MINE: Final = local()
"""Which connection is this thread's."""


class StoreUnavailable(QuintalError):  # noqa: N818 - as BusUnavailable
    """The store did not take or give something."""


class Deposed(QuintalError):  # noqa: N818 - the trade says it so
    """Another process writes to this store now."""


class Question(Protocol):
    """A frozen value that knows its own query."""

    def sql(self) -> tuple[str, dict[str, Any]]:
        """The text, and the parameters bound in it."""


Wait = Callable[[], None]
"""Returns when it is done. Raises what it raised: StoreUnavailable, Deposed."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Where the last writer stopped."""

    position: int
    """Everything up to here is stored; 0 before the first batch."""
    checkpoint: str
    checkpoint_sequence: int
    archived: int
    """A batch up to here was begun and may be half stored; none where it is the position."""


class Store:
    """One connection. Blocks; give it a thread of its own. Raises StoreUnavailable."""

    def __init__(self, client: Any, *, fenced: bool, second: Any = None) -> None:
        self._client = client
        self._fenced = fenced
        self._second = second
        self._hand = ThreadPoolExecutor(1, "beside", _take_the_second) if second else None
        self._types: dict[str, dict[str, Any]] = {}
        self.generation = 0

    @classmethod
    def open(cls, where: Where) -> Self:
        """Connect and bring the tables up. Raises SetupError where that cannot be."""
        client = _client(where)
        migrate(client)
        return cls(client, fenced=bool(where.url), second=_client(where))

    def close(self) -> None:
        """Let go of the engine."""
        if self._hand:
            self._hand.shutdown()
            self._second.close()
        self._client.close()

    # --- asking -------------------------------------------------------------------------------

    def ask(self, question: Question) -> list[dict[str, Any]]:
        """The answer's rows."""
        text, bound = question.sql()
        return self.rows(text, bound)

    def rows(self, text: str, bound: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """The rows of a query with bound parameters."""
        try:
            found = self._client.query(text, parameters=bound or {})
        except Exception as exc:
            raise StoreUnavailable("asking the store") from exc
        return [dict(zip(found.column_names, row, strict=True)) for row in found.result_rows]

    # --- writing ------------------------------------------------------------------------------

    def begin(self, writer: str, at_ms: int) -> int:
        """Become the one writer: a higher generation than any before."""
        (row,) = self.rows("SELECT max(generation) AS newest FROM writers")
        self.generation = int(row["newest"]) + 1
        self.insert(
            "writers", {"generation": [self.generation], "writer": [writer], "at_ms": [at_ms]}
        )
        return self.generation

    def restart(self) -> Restart:
        """Where to go on."""
        kept = self.rows("SELECT sequence FROM positions ORDER BY sequence DESC LIMIT 1")
        known = int(kept[0]["sequence"]) if kept else 0
        checkpoints = self.rows(
            "SELECT sequence, checkpoint FROM positions WHERE checkpoint != '' "
            "ORDER BY sequence DESC LIMIT 1"
        )
        (newest,) = self.rows(
            "SELECT max(settled) AS settled, max(sequence) AS archived FROM transitions "
            "WHERE sequence > {known:UInt64}",
            {"known": known},
        )
        position = max(known, int(newest["settled"]))
        return Restart(
            position,
            checkpoints[0]["checkpoint"] if checkpoints else "",
            int(checkpoints[0]["sequence"]) if checkpoints else 0,
            max(position, int(newest["archived"])),
        )

    def write(self, batch: Iterable[Insert]) -> None:
        """Store the rows of a batch; to store them again changes nothing."""
        for insert in batch:
            self.insert(insert.table, insert.columns, insert.token)

    def archive(self, batch: Sequence[Insert]) -> Wait:
        """Begin a batch by its archive, `beside`; the rest may follow when that is there."""
        return self._meanwhile(self._archive, batch)

    def beside(self, batch: Sequence[Insert]) -> Wait:
        """`write` on a second connection, meanwhile.

        A synced insert is mostly waiting for the disk: two at once take little more than one.
        """
        return self._meanwhile(self.write, batch)

    def _archive(self, batch: Sequence[Insert]) -> None:
        self._check_generation()
        self.write(batch)

    def _meanwhile(self, work: Callable[[Sequence[Insert]], None], batch: Sequence[Insert]) -> Wait:
        if self._hand is not None and batch:
            return self._hand.submit(work, batch).result
        done: Future[None] = Future()
        try:
            work(batch)
            done.set_result(None)
        except QuintalError as exc:
            done.set_exception(exc)
        return done.result

    def keep(self, sequence: int, at_ms: int, checkpoint: str) -> None:
        """Everything up to `sequence` is stored, and this is the fold's state there."""
        row: Columns = {
            "generation": [self.generation],
            "sequence": [sequence],
            "at_ms": [at_ms],
            "checkpoint": [checkpoint],
        }
        self.insert("positions", row)

    def prune(self) -> None:
        """Forget checkpoints that no start will read."""
        kept = self.rows(
            "SELECT sequence FROM positions WHERE checkpoint != '' "
            "ORDER BY sequence DESC LIMIT 1 OFFSET {kept:UInt64}",
            {"kept": CHECKPOINTS_KEPT},
        )
        if kept:
            below = int(kept[0]["sequence"]) + 1
            self.command("DELETE FROM positions WHERE sequence < {below:UInt64}", {"below": below})

    def insert(self, table: str, columns: Columns, token: str = "") -> None:
        """Insert columns; under a token, at most once while the engine remembers it."""
        client = self._second if getattr(_MINE, "second", False) else self._client
        try:
            rows = self._packed(client, table, columns)
            if rows.num_rows <= SPELLED_OUT_MAX:
                statement, data = spelled_out(table, rows, token)
                client.command(statement, data=data)
                return
            settings: dict[str, Any] = {"async_insert": 0, "input_format_null_as_default": 0}
            if token:
                settings["insert_deduplication_token"] = token
            client.insert_arrow(table, rows, settings=settings)
        except Exception as exc:
            raise StoreUnavailable(f"inserting into {table}") from exc

    def command(self, text: str, bound: dict[str, Any] | None = None) -> None:
        """Run a statement that answers nothing."""
        try:
            self._client.command(text, parameters=bound or {})
        except Exception as exc:
            raise StoreUnavailable("changing the store") from exc

    def _check_generation(self) -> None:
        """A folder is locked by its process; a server is not, so look who writes."""
        if not self._fenced:
            return
        (row,) = self.rows("SELECT max(generation) AS newest FROM writers")
        if int(row["newest"]) != self.generation:
            raise Deposed(f"generation {row['newest']} writes to this store, not {self.generation}")

    def _packed(self, client: Any, table: str, columns: Columns) -> Any:
        if table not in self._types:
            found = client.query(f"DESCRIBE TABLE `{table}`").result_rows
            self._types[table] = {row[0]: arrow_type(row[1]) for row in found}
        return packed(columns, self._types[table])


def _take_the_second() -> None:
    _MINE.second = True


def _client(where: Where) -> Any:
    import clickhouse_connect

    settings = {
        "max_memory_usage": QUERY_BYTES_MAX,
        "max_threads": THREADS_MAX,
        "max_query_size": QUERY_TEXT_BYTES_MAX,
    }
    try:
        if where.url:
            client = clickhouse_connect.get_client(dsn=where.url, settings=settings)
        else:
            Path(where.path).mkdir(parents=True, exist_ok=True)
            client = clickhouse_connect.get_client(
                interface="chdb",
                path=str(where.path),
                settings=settings,
                chdb_options={"max_server_memory_usage": str(MEMORY_BYTES_MAX)},
            )
        client.command(f"CREATE DATABASE IF NOT EXISTS `{where.database}`")
        client.database = where.database
    except Exception as exc:
        raise SetupError(f"opening the store at {where.url or where.path}") from exc
    return client
