"""Usage by the hour: sums of stored slices, recomputed whole for every hour that slices came to.

What boards ask over weeks would otherwise read every slice with its id. An hour's sums are made
again from its slices, each read once, whenever one was written that begins in it: after a batch of
the ledger, a late end, a correction. They are exact, to the last digit, and `verify` holds them to
the slices. Which hours are behind is kept in memory and found again at a start: by the sequence up
to which all were done, and for corrections, which have no place in the ledger, by their number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from quintal.units import MS_PER_HOUR
from quintal_metering.columns import Insert
from quintal_metering.positions import set_stream_position, stream_position
from quintal_metering.queries import ESTIMATED, Sql
from quintal_metering.store import Store

SUMMED: Final = "LEDGER summed by hours"

HOURS_AT_ONCE: Final = 6
"""Recomputed in one statement: half a million slices at 80,000 devices, well within its memory."""

KEYS: Final = (
    "tenant", "project", "profile", "pool", "model", "vendor", "workload_class", "currency",
)  # fmt: skip
"""What an hour's sums are kept apart by, beside the hour."""


@dataclass(frozen=True, slots=True)
class HoursAgain:
    """Sum these hours up again."""

    hours: tuple[int, ...]
    version: int

    def sql(self) -> Sql:
        """An insert from a select over the slices; integers of 256 bits, so that no sum wraps."""
        text = f"""
INSERT INTO usage_hours
    (hour_ms, {", ".join(KEYS)}, part_ms, quantity, nominal_quantity, cost, estimated, unpriced,
     slices, adjustments, corrected, version)
SELECT {HOUR_OF} AS hour, {", ".join(KEYS)}, toDecimal128(sum(toInt256(part_ms)), 0),
    toDecimal128(sum(toInt256(quantity)), 0), toDecimal128(sum(toInt256(nominal_quantity)), 0),
    toDecimal128(sum(toDecimal256(cost, 9)), 9),
    toDecimal128(sumIf(toInt256(quantity), provenance IN {{estimated:Array(String)}}), 0),
    toDecimal128(sumIf(toInt256(quantity), isNull(price)), 0), count(),
    countIf(kind = 'adjustment'), countIf(correction != ''), {{version:UInt64}}
FROM (
    SELECT * FROM slices
    WHERE from_ms >= {{first:Int64}} AND from_ms < {{last:Int64}}
        AND {HOUR_OF} IN (SELECT arrayJoin({{hours:Array(Int64)}}))
    LIMIT 1 BY id
)
GROUP BY hour, {", ".join(KEYS)}"""  # noqa: S608 - our own names
        return text, {
            "hours": list(self.hours), "version": self.version, "hour_long": MS_PER_HOUR,
            "first": min(self.hours), "last": max(self.hours) + MS_PER_HOUR,
            "estimated": list(ESTIMATED),
        }  # fmt: skip


HOUR_OF: Final = "intDiv(from_ms, {hour_long:Int64}) * {hour_long:Int64}"


@dataclass(frozen=True, slots=True)
class HoursBehind:
    """Hours whose sums may lack something."""

    after: int

    def sql(self) -> Sql:
        """One row an hour: it got slices after a sequence, or corrections that are not summed."""
        text = f"""
SELECT DISTINCT {HOUR_OF} AS hour FROM slices WHERE sequence > {{after:UInt64}}
UNION DISTINCT
SELECT hour FROM (
    SELECT hour, sum(found) AS found, sum(summed) AS summed FROM (
        SELECT {HOUR_OF} AS hour, uniqExact(id) AS found, 0 AS summed
        FROM slices WHERE correction != '' GROUP BY hour
        UNION ALL
        SELECT hour_ms AS hour, 0 AS found, sum(corrected) AS summed
        FROM usage_hours FINAL WHERE corrected > 0 GROUP BY hour
    ) GROUP BY hour
) WHERE found != summed"""  # noqa: S608
        return text, {"after": self.after, "hour_long": MS_PER_HOUR}


@dataclass(frozen=True, slots=True)
class HoursDiffer:
    """Hours' sums that are not those of their slices."""

    from_ms: int
    to_ms: int
    behind: tuple[int, ...]
    """Hours that are known to be recomputed yet."""

    def sql(self) -> Sql:
        """One row an hour and key that differs."""
        text = f"""
SELECT hour, {", ".join(KEYS)}, sum(kept_q) AS kept_quantity, sum(kept_c) AS kept_cost,
    sum(q) AS quantity, sum(c) AS cost
FROM (
    SELECT hour_ms AS hour, {", ".join(KEYS)}, toInt256(quantity) AS kept_q,
        toInt256(part_ms) AS kept_p, toInt256(nominal_quantity) AS kept_n,
        toDecimal256(cost, 9) AS kept_c, slices AS kept_s, toInt256(0) AS q, toInt256(0) AS p,
        toInt256(0) AS n, toDecimal256(0, 9) AS c, toInt64(0) AS s
    FROM usage_hours FINAL
    WHERE hour_ms >= {{from_ms:Int64}} AND hour_ms < {{to_ms:Int64}}
    UNION ALL
    SELECT {HOUR_OF} AS hour, {", ".join(KEYS)}, toInt256(0), toInt256(0), toInt256(0),
        toDecimal256(0, 9), toInt64(0), sum(toInt256(quantity)), sum(toInt256(part_ms)),
        sum(toInt256(nominal_quantity)), sum(toDecimal256(cost, 9)), toInt64(count())
    FROM (
        SELECT * FROM slices WHERE from_ms >= {{from_ms:Int64}} AND from_ms < {{to_ms:Int64}}
        LIMIT 1 BY id
    ) GROUP BY hour, {", ".join(KEYS)}
)
WHERE hour NOT IN (SELECT arrayJoin({{behind:Array(Int64)}}))
GROUP BY hour, {", ".join(KEYS)}
HAVING kept_quantity != quantity OR kept_cost != cost OR sum(kept_p) != sum(p)
    OR sum(kept_n) != sum(n) OR sum(kept_s) != sum(s)
ORDER BY hour, tenant LIMIT 1000"""  # noqa: S608
        return text, {
            "from_ms": self.from_ms, "to_ms": self.to_ms, "behind": list(self.behind),
            "hour_long": MS_PER_HOUR,
        }  # fmt: skip


class UsageHours:
    """Keeps the hours' sums up with the slices. Runs in the engine's thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version = 0
        self._summed = 0
        self.behind: set[int] = set()
        """Hours to recompute."""

    def open(self) -> None:
        """Find what an earlier process left undone."""
        (row,) = self._store.rows("SELECT max(version) AS newest FROM usage_hours")
        self._version = int(row["newest"])
        self._summed = stream_position(self._store, SUMMED)
        found = self._store.ask(HoursBehind(self._summed))
        self.behind |= {int(row["hour"]) for row in found}

    def wrote(self, batch: Iterable[Insert]) -> None:
        """Slices were written: their hours are behind."""
        for insert in batch:
            if insert.table == "slices":
                hours = {at // MS_PER_HOUR for at in insert.columns["from_ms"]}
                self.behind |= {hour * MS_PER_HOUR for hour in hours}

    def again(self, position: int) -> bool:
        """Recompute some of what is behind, the newest first; whether there is more.

        `position` is up to where the ledger is stored. Raises StoreUnavailable.
        """
        hours = tuple(sorted(self.behind, reverse=True)[:HOURS_AT_ONCE])
        if hours:
            self._version += 1
            self._store.command(*HoursAgain(hours, self._version).sql())
            self.behind.difference_update(hours)
        if not self.behind and position > self._summed:
            set_stream_position(self._store, SUMMED, "", position)
            self._summed = position
        return bool(self.behind)
