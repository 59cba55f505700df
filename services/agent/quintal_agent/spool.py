"""What could not be said while the bus was away: kept on disk in order, within a bound of bytes.

SQLite in WAL mode. Readings are written unsynced-but-ordered (NORMAL): a power cut may cost the
last of them, which is less than what an fsync a sample costs a node's disk. When the bound is
reached the oldest readings go, and how many went is itself told. Health events are not dropped for
readings' sake; they have a bound of their own, in numbers.

A spool that cannot be written (disk full, damaged) costs samples and nothing else: it is told as a
problem, and the agent goes on. Its methods block: call them off the event loop.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, Literal

log = logging.getLogger(__name__)

Kind = Literal["telemetry", "health"]

BYTES_MAX: Final = 64 * 2**20
"""A day of a node's readings at 10 s and 2 KiB is 17 MiB."""

EVENTS_MAX: Final = 10_000

_DROP_AT_ONCE: Final = 64
"""So many rows go together: a full spool must not delete before every insert."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS kept (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS kept_kind ON kept (kind, id);
CREATE TABLE IF NOT EXISTS counted (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """One message that waits."""

    id: int
    kind: Kind
    at_ms: int
    body: bytes


class Spool:
    """The file. `depth`, `size` and `dropped` are kept in memory and cost nothing to ask for."""

    def __init__(self, path: Path, *, bytes_max: int = BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._db: sqlite3.Connection | None = None
        self._lock = Lock()
        self._counts: dict[str, int] = {}
        self.size = 0
        self.dropped = 0
        """Messages of readings that are lost, since the spool was made."""
        self.trouble = ""

    @property
    def depth(self) -> int:
        """How many messages wait."""
        return sum(self._counts.values())

    def waiting(self, kind: Kind) -> int:
        """How many messages of one kind wait."""
        return self._counts.get(kind, 0)

    def open(self) -> None:
        """Open what an earlier run left; without it the file is made when it is first needed."""
        with self._lock:
            if self._path.exists():
                self._begin()

    def _begin(self) -> None:
        """A file that cannot be read is set aside and a new one begun."""
        if self._db is None:
            try:
                self._open()
            except sqlite3.OperationalError as exc:  # a full or locked disk may do again
                self._close()
                self._broken(exc)
            except sqlite3.DatabaseError as exc:
                log.warning("%s cannot be read (%s): set aside", self._path, exc)
                self._close()
                with contextlib.suppress(OSError):
                    self._path.replace(self._path.with_suffix(".damaged"))
                    for suffix in ("-wal", "-shm"):
                        Path(f"{self._path}{suffix}").unlink(missing_ok=True)
                try:
                    self._open()
                except sqlite3.Error as again:
                    self._broken(again)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._close()

    def put(self, kind: Kind, at_ms: int, body: bytes) -> bool:
        """Keep a message, the oldest readings making room; whether it is kept."""
        with self._lock:
            self._begin()
            if self._db is None:
                self.dropped += kind == "telemetry"
                return False
            try:
                self._make_room(kind, len(body))
                self._db.execute(
                    "INSERT INTO kept (kind, at_ms, body) VALUES (?, ?, ?)", (kind, at_ms, body)
                )
                self._db.commit()
            except sqlite3.Error as exc:
                self.dropped += kind == "telemetry"
                self._broken(exc)
                return False
            self.trouble = ""
            self._counts[kind] = self.waiting(kind) + 1
            self.size += len(body) if kind == "telemetry" else 0
            return True

    def oldest(self, kind: Kind, most: int) -> list[Kept]:
        """The messages of a kind that waited longest, in order; none where it cannot be read."""
        with self._lock:
            if self._db is None:
                return []
            try:
                rows = self._db.execute(
                    "SELECT id, kind, at_ms, body FROM kept WHERE kind = ? ORDER BY id LIMIT ?",
                    (kind, most),
                ).fetchall()
            except sqlite3.Error as exc:
                self._broken(exc)
                return []
        return [Kept(*row) for row in rows]

    def forget(self, messages: Sequence[Kept]) -> None:
        """They have been said."""
        with self._lock:
            if self._db is None or not messages:
                return
            try:
                self._delete([message.id for message in messages])
                self._db.commit()
                if not self.depth:
                    self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    self._db.execute("PRAGMA incremental_vacuum")
            except sqlite3.Error as exc:
                self._broken(exc)

    def _open(self) -> None:
        db = sqlite3.connect(self._path, check_same_thread=False, timeout=1.0)
        self._db = db
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA journal_size_limit=1048576")
        db.execute("PRAGMA cache_size=-256")
        db.executescript(_SCHEMA)
        self._counts = dict(db.execute("SELECT kind, count(*) FROM kept GROUP BY kind").fetchall())
        sized = "SELECT coalesce(sum(length(body)), 0) FROM kept WHERE kind = 'telemetry'"
        self.size = db.execute(sized).fetchone()[0]
        row = db.execute("SELECT value FROM counted WHERE name = 'dropped'").fetchone()
        self.dropped += row[0] if row else 0

    def _close(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None

    def _make_room(self, kind: Kind, size: int) -> None:
        assert self._db is not None
        if kind == "health":
            if self.waiting(kind) >= EVENTS_MAX:
                self._drop("health", 1)
            return
        while self.size and self.size + size > self._bytes_max:
            self.dropped += self._drop("telemetry", _DROP_AT_ONCE)
            self._count()

    def _drop(self, kind: Kind, most: int) -> int:
        assert self._db is not None
        chosen = "SELECT id FROM kept WHERE kind = ? ORDER BY id LIMIT ?"
        rows = self._db.execute(chosen, (kind, most)).fetchall()
        self._delete([row[0] for row in rows])
        return len(rows)

    def _delete(self, ids: Sequence[int]) -> None:
        assert self._db is not None
        for one in ids:
            gone = self._db.execute(
                "DELETE FROM kept WHERE id = ? RETURNING kind, length(body)", (one,)
            ).fetchone()
            if gone is not None:
                self._counts[gone[0]] -= 1
                self.size -= gone[1] if gone[0] == "telemetry" else 0

    def _count(self) -> None:
        if self._db is None:
            return
        with contextlib.suppress(sqlite3.Error):
            self._db.execute(
                "INSERT INTO counted VALUES ('dropped', ?) "
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (self.dropped,),
            )
            self._db.commit()

    def _broken(self, exc: sqlite3.Error) -> None:
        if not self.trouble:
            log.warning("the spool %s cannot be written: %s", self._path, exc)
        self.trouble = str(exc)
