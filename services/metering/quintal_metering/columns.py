"""Rows as columns, table by table: what the store inserts. Pure.

Rows go in by columns because a list of rows costs five times as much on the way into the engine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from quintal.units import MS_PER_HOUR
from quintal_metering.rows import CapacityRow, CensusCheck, Fault, HoldingRow, Row, SliceRow, row_id

Columns = dict[str, Any]
"""Name -> its values: a list, or an Arrow array."""

BLOCK_ROWS = 200_000
"""Below the engine's own block size, so that one insert is one atomic part."""


@dataclass(frozen=True, slots=True)
class Insert:
    """Columns for one table and one partition, under a token that names their content."""

    table: str
    columns: Columns
    token: str


class Archived(NamedTuple):
    """One message of the ledger as it was read."""

    sequence: int
    at_ms: int
    epoch: int
    writer: str
    body: str
    settled: int
    """Everything up to here was stored when this batch began."""


class DeadLetter(NamedTuple):
    """A message or transition that could not be folded, kept whole."""

    stream: str
    sequence: int
    place: int
    at_ms: int
    code: str
    message: str
    body: str = ""

    @property
    def id(self) -> str:
        """One letter for one place in a stream and one reason."""
        return row_id("dead", self.stream, self.sequence, self.place, self.code)


def archive(span: tuple[int, int], archived: Sequence[Archived]) -> list[Insert]:
    """The messages `span` of the ledger as they were read."""
    return _blocks("transitions", archived, _token(span))


def inserts(
    span: tuple[int, int], rows: Sequence[Row], letters: Sequence[DeadLetter]
) -> list[Insert]:
    """Everything that came of the messages `span` of the ledger, slices first."""
    token = _token(span)
    slices = [row for row in rows if isinstance(row, SliceRow)]
    capacity = [row for row in rows if isinstance(row, CapacityRow)]
    holdings = [row for row in rows if isinstance(row, HoldingRow)]
    checks = [row for row in rows if isinstance(row, CensusCheck)]
    faults = [row for row in rows if isinstance(row, Fault)]
    dead = [*letters, *(dead_letter(fault) for fault in faults)]
    found = [
        *by_month("slices", slices, token, "from_ms"),
        *by_month("capacity", capacity, token, "hour_ms"),
        *by_month("holdings", holdings, token, "from_ms"),
    ]
    if checks:
        found.append(Insert("censuses", _censuses(checks), token))
    if dead:
        found.append(Insert("dead_letters", dead_columns(dead), token))
    return found


def _token(span: tuple[int, int]) -> str:
    return f"LEDGER:{span[0]}-{span[1]}"


def dead_letter(fault: Fault) -> DeadLetter:
    """A fault of the fold as a dead letter."""
    return DeadLetter("LEDGER", fault.sequence, fault.index, fault.at_ms, fault.code, fault.message)


def dead_columns(letters: Sequence[DeadLetter]) -> Columns:
    """Columns of `dead_letters`."""
    return {"id": [letter.id for letter in letters], **columns(letters)}


def by_month(table: str, rows: Sequence[Any], token: str, instant: str) -> list[Insert]:
    """One insert a partition: an insert over several is not atomic."""
    if not rows:
        return []
    place = rows[0]._fields.index(instant)
    months: dict[str, list[Any]] = {}
    for row in rows:
        months.setdefault(_month(row[place] // MS_PER_HOUR), []).append(row)
    return [
        insert
        for name, group in sorted(months.items())
        for insert in _blocks(table, group, f"{token}:{name}")
    ]


@lru_cache(maxsize=1024)
def _month(hour: int) -> str:
    return datetime.fromtimestamp(hour * (MS_PER_HOUR // 1000), UTC).strftime("%Y%m")


def _blocks(table: str, rows: Sequence[Any], token: str) -> list[Insert]:
    return [
        Insert(table, columns(rows[at : at + BLOCK_ROWS]), f"{token}:{at}")
        for at in range(0, len(rows), BLOCK_ROWS)
    ]


def columns(rows: Sequence[Any]) -> Columns:
    """Rows as columns by field name."""
    return dict(zip(rows[0]._fields, map(list, zip(*rows, strict=True)), strict=True))


def _censuses(checks: Sequence[CensusCheck]) -> Columns:
    return {
        "id": [row_id("census", check.sequence, check.index) for check in checks],
        "sequence": [check.sequence for check in checks],
        "at_ms": [check.at_ms for check in checks],
        "cause": [check.cause for check in checks],
        "cells": [check.rows for check in checks],
        "differences": [json.dumps([asdict(d) for d in check.differences]) for check in checks],
    }
