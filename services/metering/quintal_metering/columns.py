"""Rows as columns, table by table: what the store inserts. Pure.

Rows go in by columns because a list of rows costs five times as much on the way into the engine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from quintal_metering.rows import CapacityRow, CensusCheck, Fault, HoldingRow, Row, SliceRow, row_id

Columns = dict[str, list[Any]]

BLOCK_ROWS = 200_000
"""Below the engine's own block size, so that one insert is one atomic part."""


@dataclass(frozen=True, slots=True)
class Insert:
    """Columns for one table and one partition, under a token that names their content."""

    table: str
    columns: Columns
    token: str


@dataclass(frozen=True, slots=True)
class Archived:
    """One message of the ledger as it was read."""

    sequence: int
    at_ms: int
    epoch: int
    writer: str
    body: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
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


def inserts(
    span: tuple[int, int],
    archived: Sequence[Archived],
    rows: Sequence[Row],
    letters: Sequence[DeadLetter],
) -> list[Insert]:
    """Everything that came of the messages `span` of the ledger, archive first."""
    token = f"LEDGER:{span[0]}-{span[1]}"
    slices = [row for row in rows if isinstance(row, SliceRow)]
    capacity = [row for row in rows if isinstance(row, CapacityRow)]
    holdings = [row for row in rows if isinstance(row, HoldingRow)]
    checks = [row for row in rows if isinstance(row, CensusCheck)]
    faults = [row for row in rows if isinstance(row, Fault)]
    dead = [*letters, *(dead_letter(fault) for fault in faults)]
    found = [
        *_blocks("transitions", archived, token),
        *by_month("slices", slices, token, "from_ms"),
        *by_month("capacity", capacity, token, "hour_ms"),
        *by_month("holdings", holdings, token, "from_ms"),
    ]
    if checks:
        found.append(Insert("censuses", _censuses(checks), token))
    if dead:
        found.append(Insert("dead_letters", dead_columns(dead), token))
    return found


def dead_letter(fault: Fault) -> DeadLetter:
    """A fault of the fold as a dead letter."""
    return DeadLetter("LEDGER", fault.sequence, fault.index, fault.at_ms, fault.code, fault.message)


def dead_columns(letters: Sequence[DeadLetter]) -> Columns:
    """Columns of `dead_letters`."""
    return {"id": [letter.id for letter in letters], **columns(letters)}


def by_month(table: str, rows: Sequence[Any], token: str, instant: str) -> list[Insert]:
    """One insert a partition: an insert over several is not atomic."""

    def month(row: Any) -> str:
        return datetime.fromtimestamp(getattr(row, instant) / 1000, UTC).strftime("%Y%m")

    return [
        insert
        for name, group in groupby(sorted(rows, key=month), key=month)
        for insert in _blocks(table, list(group), f"{token}:{name}")
    ]


def _blocks(table: str, rows: Sequence[Any], token: str) -> list[Insert]:
    return [
        Insert(table, columns(rows[at : at + BLOCK_ROWS]), f"{token}:{at}")
        for at in range(0, len(rows), BLOCK_ROWS)
    ]


def columns(rows: Sequence[Any]) -> Columns:
    """Dataclass rows as columns by field name."""
    names = [field.name for field in fields(rows[0])]
    return {name: [getattr(row, name) for row in rows] for name in names}


def _censuses(checks: Sequence[CensusCheck]) -> Columns:
    return {
        "id": [row_id("census", check.sequence, check.index) for check in checks],
        "sequence": [check.sequence for check in checks],
        "at_ms": [check.at_ms for check in checks],
        "cause": [check.cause for check in checks],
        "cells": [check.rows for check in checks],
        "differences": [json.dumps([asdict(d) for d in check.differences]) for check in checks],
    }
