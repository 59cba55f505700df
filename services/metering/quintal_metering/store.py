"""The store: ClickHouse, embedded or as a server, through one client; blocking throughout.

A batch is an exact range of the ledger. Its steps, in order, and what a crash after each costs:

    intend    the range is known: the next start reads exactly it again
    write     rows are in, perhaps not all: written again under the same tokens and ids
    settle    position (and checkpoint) in one insert: the batch is over

Every row has an id and is read once by it, so that neither the engine's own deduplication, which
forgets, nor a merge, which comes when it likes, has to hold for the sums to be right.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

from quintal.errors import QuintalError, SetupError
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

CHECKPOINTS_KEPT: Final = 3


class StoreUnavailable(QuintalError):  # noqa: N818 - as BusUnavailable
    """The store did not take or give something."""


class Deposed(QuintalError):  # noqa: N818 - the trade says it so
    """Another process writes to this store now."""


class Question(Protocol):
    """A frozen value that knows its own query."""

    def sql(self) -> tuple[str, dict[str, Any]]:
        """The text, and the parameters bound in it."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Where the last writer stopped."""

    position: int
    """Everything up to here is stored; 0 before the first batch."""
    checkpoint: str
    checkpoint_sequence: int
    intent: tuple[int, int] | None
    """A batch that was begun and may be half stored."""


class Store:
    """One connection. Blocks; give it a thread of its own. Raises StoreUnavailable."""

    def __init__(self, client: Any, *, fenced: bool) -> None:
        self._client = client
        self._fenced = fenced
        self.generation = 0

    @classmethod
    def open(cls, where: Where) -> Self:
        """Connect and bring the tables up. Raises SetupError where that cannot be."""
        client = _client(where)
        migrate(client)
        return cls(client, fenced=bool(where.url))

    def close(self) -> None:
        """Let go of the engine."""
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
        (newest,) = self.rows("SELECT max(sequence) AS position FROM positions")
        position = int(newest["position"])
        checkpoints = self.rows(
            "SELECT sequence, checkpoint FROM positions WHERE checkpoint != '' "
            "ORDER BY sequence DESC LIMIT 1"
        )
        begun = self.rows(
            "SELECT first, last FROM intents WHERE first = {next:UInt64} "
            "ORDER BY generation DESC LIMIT 1",
            {"next": position + 1},
        )
        return Restart(
            position,
            checkpoints[0]["checkpoint"] if checkpoints else "",
            int(checkpoints[0]["sequence"]) if checkpoints else 0,
            (int(begun[0]["first"]), int(begun[0]["last"])) if begun else None,
        )

    def intend(self, first: int, last: int) -> None:
        """The messages `first..last` of the ledger are about to be written. Raises Deposed."""
        self._check_generation()
        self.insert("intents", {"generation": [self.generation], "first": [first], "last": [last]})

    def write(self, batch: Iterable[Insert]) -> None:
        """Store the rows of a batch; to store them again changes nothing."""
        for insert in batch:
            self.insert(insert.table, insert.columns, insert.token)

    def settle(self, sequence: int, at_ms: int, checkpoint: str = "") -> None:
        """The batch up to `sequence` is over."""
        row: Columns = {
            "generation": [self.generation],
            "sequence": [sequence],
            "at_ms": [at_ms],
            "checkpoint": [checkpoint],
        }
        self.insert("positions", row)

    def prune(self) -> None:
        """Forget checkpoints and intents that no start will read."""
        kept = self.rows(
            "SELECT sequence FROM positions WHERE checkpoint != '' "
            "ORDER BY sequence DESC LIMIT 1 OFFSET {kept:UInt64}",
            {"kept": CHECKPOINTS_KEPT},
        )
        if kept:
            below = int(kept[0]["sequence"]) + 1
            self.command("DELETE FROM positions WHERE sequence < {below:UInt64}", {"below": below})
            self.command("DELETE FROM intents WHERE last < {below:UInt64}", {"below": below})

    def insert(self, table: str, columns: Columns, token: str = "") -> None:
        """Insert columns; under a token, at most once while the engine remembers it."""
        settings = {"async_insert": 0}
        try:
            self._client.insert(
                table,
                list(columns.values()),
                column_names=list(columns),
                column_oriented=True,
                settings={**settings, "insert_deduplication_token": token} if token else settings,
            )
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
