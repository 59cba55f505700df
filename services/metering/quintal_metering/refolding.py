"""Taking in late what the ledger said: the whole archive folded again, and rows for what differs.

A message of the ledger that could not be read was passed over, and all that came after it was
folded without it. Once it can be read (a newer release), its place is in the past, so nothing less
than a fold from the beginning tells what it changes. No row is changed: a slice that should not be,
or should be otherwise, is taken back whole by one row and stands anew in another; what is missing
is written as it should have been. All of them name the correction, `refold:` and its mark.

What a crash costs, by step:

    corrections     the mark is known: rows that name it are counted to the rows that they mend
    checkpoints go  the next start folds the archive, late message and all: the state is right
    rows            a repeat writes what is not there yet, and nothing twice
    letters taken, checkpoint    it is over
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from quintal_metering import checkpoint
from quintal_metering.columns import Insert, by_month, dead_letter, inserts
from quintal_metering.correcting import slice_of
from quintal_metering.facts import State
from quintal_metering.fold import fold_group, pass_over
from quintal_metering.meter import Meter, parsed
from quintal_metering.queries import ArchivedMessages, Written
from quintal_metering.rows import (
    CapacityRow,
    CensusCheck,
    Fault,
    HoldingRow,
    Row,
    SliceRow,
    row_id,
)
from quintal_metering.store import Store

STEP_MESSAGES: Final = 500
"""Folded in one go, so that the engine's thread can serve others between."""

COMPARED: Final = {
    "slices": ("part_ms", "quantity", "nominal_quantity", "cost"),
    "capacity": ("part_ms",),
}
Numbers = dict[str, int | Decimal]


def marks(store: Store) -> tuple[str, ...]:
    """The refolds that there were, oldest first."""
    rows = store.rows(
        "SELECT id FROM corrections WHERE what = 'refold' ORDER BY at_ms, id LIMIT 1 BY id"
    )
    return tuple(str(row["id"]) for row in rows)


def numbers(table: str, row: Any) -> Numbers:
    """What must be the same in a row and its like."""
    return {name: getattr(row, name) for name in COMPARED[table]}


def standing(
    store: Store, span: tuple[int, int], names: Iterable[str], known: Sequence[str]
) -> dict[str, Numbers]:
    """What the messages `span` brought, by id: each row with the rows that mended it."""
    stored: dict[str, Numbers] = {
        row["id"]: {name: row[name] for name in COMPARED[table]}
        for table in COMPARED
        for row in store.ask(Written(table, *span))
    }
    if not known:
        return stored
    for name in {*names, *stored}:
        mended = False
        for mark in known:
            for sort in ("-", "+"):
                mending = stored.pop(row_id(sort, name, mark), None)
                if mending is not None:
                    _add(stored.setdefault(name, {}), mending)
                    mended = True
        if mended and not any(stored[name].values()):
            del stored[name]
    return stored


def _add(to: Numbers, more: Numbers) -> None:
    for name, value in more.items():
        to[name] = to.get(name, 0) + value


@dataclass
class Refold:
    """One refold under way. Every call in the engine's thread. Raises StoreUnavailable."""

    meter: Meter
    letters: Sequence[str]
    """Ids of the dead letters whose messages can be read now."""
    state: State = field(default_factory=State)
    mended: int = 0
    """Rows that were written."""

    def __post_init__(self) -> None:
        self.mark = f"refold:{row_id(*sorted(self.letters))[:24]}"
        known = marks(self.meter.store)
        self._known = known if self.mark in known else (*known, self.mark)
        self._slices: list[SliceRow] = []
        self._capacity: list[CapacityRow] = []
        self._others: list[Row] = []
        self._censuses: list[CensusCheck] = []
        self._faults: set[str] = set()

    def step(self) -> bool:
        """Fold some more of the archive; whether all of it is."""
        store = self.meter.store
        after = self.state.sequence
        messages = store.ask(ArchivedMessages(after, self.meter.position, STEP_MESSAGES))
        if not messages:
            return True
        rows: list[Row] = []
        for message in messages:
            group, sequence = parsed(message["body"]), int(message["sequence"])
            if isinstance(group, str):
                self.state = pass_over(self.state, sequence)
                continue
            self.state, more = fold_group(self.state, sequence, group, self.meter.prices)
            rows.extend(more)
        span = (after, int(messages[-1]["sequence"]))
        self._compare(rows, span)
        self._compare_others(rows, span)
        return span[1] >= self.meter.position

    def finish(self, at_ms: int, author: str) -> None:
        """Write what differs, and go on from the state that is right."""
        meter, store = self.meter, self.meter.store
        if self.mark not in marks(store):
            row = {
                "id": self.mark, "at_ms": at_ms, "author": author, "what": "refold",
                "why": f"{len(self.letters)} messages of the ledger could be read", "from_ms": 0,
                "to_ms": 0, "revision": meter.state.revision, "sequence": meter.position,
            }  # fmt: skip
            store.insert("corrections", {name: [value] for name, value in row.items()})
        store.command(
            "DELETE FROM positions WHERE sequence <= {upto:UInt64}", {"upto": meter.position}
        )
        batch = self._batch()
        store.write(batch)
        meter.hours.wrote(batch)
        self._take(at_ms, author)
        meter.state = self.state
        store.keep(meter.position, self.state.at_ms, checkpoint.written(self.state))

    # --- what differs -------------------------------------------------------------------------

    def _compare(self, rows: Iterable[Row], span: tuple[int, int]) -> None:
        folded = {row.id: row for row in rows if isinstance(row, (SliceRow, CapacityRow))}
        found = standing(self.meter.store, span, folded, self._known)
        for name in sorted({*folded, *found}):
            row = folded.get(name)
            table = "capacity" if isinstance(row, CapacityRow) else "slices"
            if row is None and len(found[name]) == 1:
                table = "capacity"
            wanted = {} if row is None else numbers(table, row)
            if {k: v for k, v in wanted.items() if v} == {
                k: v for k, v in found.get(name, {}).items() if v
            }:
                continue
            if table == "capacity":
                self._mend_capacity(name, row, found.get(name, {}))  # type: ignore[arg-type]
            else:
                self._mend_slice(name, row)  # type: ignore[arg-type]

    def _mend_slice(self, name: str, row: SliceRow | None) -> None:
        old = self._stands(name)
        if old is None and row is not None and not self._stored("slices", (name,)):
            self._slices.append(row._replace(correction=self.mark))
            return
        if old is not None:
            self._slices.append(
                old._replace(
                    id=row_id("-", name, self.mark), kind="adjustment", part_ms=-old.part_ms,
                    quantity=-old.quantity, nominal_quantity=-old.nominal_quantity,
                    cost=old.cost.copy_negate(), correction=self.mark, reverses="",
                )
            )  # fmt: skip
        if row is not None:
            self._slices.append(
                row._replace(
                    id=row_id("+", name, self.mark), kind="adjustment", correction=self.mark
                )
            )

    def _stands(self, name: str) -> SliceRow | None:
        """The row that stands for this one after the refolds so far; none where none does."""
        ids = {row_id(sort, name, mark): (n, sort) for n, mark in enumerate(self._known)
               for sort in "-+"}  # fmt: skip
        rows = self._stored("slices", (name, *ids))
        if not rows:
            return None
        last = max(rows, key=lambda row: (ids.get(row["id"], (-1, "+"))[0], row["id"] in ids
                                          and ids[row["id"]][1] == "+"))  # fmt: skip
        taken_back = last["id"] in ids and ids[last["id"]][1] == "-"
        return None if taken_back else slice_of(last)

    def _mend_capacity(self, name: str, row: CapacityRow | None, found: Numbers) -> None:
        if row is not None and not found and not self._stored("capacity", (name,)):
            self._capacity.append(row)
            return
        old = row
        if old is None:
            [facts] = self._stored("capacity", (name,))
            old = CapacityRow(**{field: facts[field] for field in CapacityRow._fields})
        by = (row.part_ms if row is not None else 0) - int(found.get("part_ms", 0))
        self._capacity.append(
            old._replace(id=row_id("+", name, self.mark), kind="adjustment", part_ms=by)
        )

    def _stored(self, table: str, ids: Sequence[str]) -> list[dict[str, Any]]:
        return self.meter.store.rows(
            f"SELECT * FROM {table} WHERE id IN (SELECT arrayJoin({{ids:Array(String)}})) "  # noqa: S608
            "LIMIT 1 BY id",
            {"ids": list(ids)},
        )

    def _compare_others(self, rows: Iterable[Row], span: tuple[int, int]) -> None:
        """Holdings, censuses and faults: what is not there, or says something else now."""
        bound = {"after": span[0], "until": span[1]}
        within = "sequence > {after:UInt64} AND sequence <= {until:UInt64}"
        ask = self.meter.store.rows
        held = {
            (row["id"], row["to_ms"])
            for row in ask(f"SELECT DISTINCT id, to_ms FROM holdings WHERE {within}", bound)  # noqa: S608
        }
        checks = {
            (row["sequence"], row["at_ms"], row["cause"]): row["differences"]
            for row in ask(
                f"SELECT sequence, at_ms, cause, differences FROM censuses WHERE {within} "  # noqa: S608
                "ORDER BY sequence, refolded DESC LIMIT 1 BY sequence, at_ms, cause",
                bound,
            )
        }
        for row in rows:
            match row:
                case HoldingRow() if (row.id, row.to_ms) not in held:
                    self._others.append(row)
                case CensusCheck():
                    said = json.loads(checks.get((row.sequence, row.at_ms, row.cause), "null"))
                    [made] = inserts(span, [row], [])
                    if said != json.loads(made.columns["differences"][0]):
                        self._censuses.append(row)
                case Fault():
                    self._faults.add(dead_letter(row).id)
                    self._others.append(row)
                case _:
                    pass

    # --- writing ------------------------------------------------------------------------------

    def _batch(self) -> list[Insert]:
        told = {row["id"] for row in self.meter.store.rows("SELECT DISTINCT id FROM dead_letters")}
        self._others = [
            row for row in self._others
            if not isinstance(row, Fault) or dead_letter(row).id not in told
        ]  # fmt: skip
        names = [*(row.id for row in self._slices), *(row.id for row in self._capacity)]
        self.mended = len(names)
        ids = row_id(self.mark, *names)[:24]
        found = [
            *by_month("slices", self._slices, f"{self.mark}:{ids}", "from_ms"),
            *by_month("capacity", self._capacity, f"{self.mark}:{ids}", "hour_ms"),
        ]
        for insert in inserts((0, self.meter.position), [*self._others, *self._censuses], []):
            columns = dict(insert.columns)
            if insert.table == "censuses":
                columns["id"] = [row_id("+", name, self.mark) for name in columns["id"]]
                columns["refolded"] = [len(self._known)] * len(columns["id"])
            found.append(Insert(insert.table, columns, f"{self.mark}:{insert.table}:{ids}"))
        return found

    def _take(self, at_ms: int, author: str) -> None:
        """The messages' own letters, and those of faults that are none any more."""
        waiting = self.meter.store.rows(
            "SELECT DISTINCT id FROM dead_letters WHERE stream = 'LEDGER' AND place >= 0 "
            "AND id NOT IN (SELECT id FROM letters_taken)"
        )
        gone = {row["id"] for row in waiting} - self._faults
        ids = sorted({*self.letters, *gone})
        columns = {"id": ids, "at_ms": [at_ms] * len(ids), "author": [author] * len(ids)}
        self.meter.store.insert("letters_taken", columns, f"taken:{row_id(*ids)[:24]}")
