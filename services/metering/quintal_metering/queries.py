"""Questions to the store: each a frozen value that knows its text and what is bound in it.

What is compared with anything comes from outside is bound, never spelled into the text; column
names come from the table below alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from quintal.units import MS_PER_HOUR

Sql = tuple[str, dict[str, Any]]

ESTIMATED: Final = ("derived", "roofline")
"""Provenances that are no measurement of this device."""

GROUPS: Final = {
    "tenant": "tenant",
    "project": "project",
    "profile": "profile",
    "model": "model",
    "pool": "pool",
    "class": "workload_class",
    "vendor": "vendor",
    "month": "formatDateTime(fromUnixTimestamp64Milli(from_ms, 'UTC'), '%Y-%m', 'UTC')",
    "day": "formatDateTime(fromUnixTimestamp64Milli(from_ms, 'UTC'), '%Y-%m-%d', 'UTC')",
    "hour": "formatDateTime(fromUnixTimestamp64Milli(from_ms, 'UTC'), '%Y-%m-%dT%H:00Z', 'UTC')",
}
"""What usage can be grouped by, as an expression over a slice."""


@dataclass(frozen=True, slots=True)
class Span:
    """Which slices: those that begin within full hours, of one owner or all."""

    from_ms: int | None = None
    to_ms: int | None = None
    tenant: str | None = None
    project: str | None = None
    profile: str | None = None
    model: str | None = None
    lease: str | None = None

    def where(self) -> Sql:
        """A condition and its parameters."""
        parts, bound = ["1"], {}
        for name in ("tenant", "project", "profile", "model", "lease"):
            value = getattr(self, name)
            if value is not None:
                parts.append(f"{name} = {{{name}:String}}")
                bound[name] = value
        if self.from_ms is not None:
            parts.append("from_ms >= {from_ms:Int64}")
            bound["from_ms"] = self.from_ms
        if self.to_ms is not None:
            parts.append("from_ms < {to_ms:Int64}")
            bound["to_ms"] = self.to_ms
        return " AND ".join(parts), bound


@dataclass(frozen=True, slots=True)
class Sums:
    """Stored usage and cost by group and class."""

    span: Span
    by: tuple[str, ...]

    def sql(self) -> Sql:
        """One row a group and class; integers are 256 bits wide, so that no sum wraps."""
        where, bound = self.span.where()
        keys = _keys(self.by)
        text = f"""
SELECT {keys.select} workload_class AS unit_class, uniqExact(lease) AS leases,
    sum(toInt256(quantity)) AS quantity_sum, sum(toInt256(nominal_quantity)) AS nominal_sum,
    sum(toInt256(part_ms)) AS part_ms_sum, sum(toDecimal256(cost, 9)) AS cost_sum,
    max(currency) AS currency_any,
    sumIf(toInt256(quantity), provenance IN {{estimated:Array(String)}}) AS estimated_sum,
    sumIf(toInt256(quantity), isNull(price)) AS unpriced_sum,
    countIf(kind = 'adjustment') AS adjustments
FROM (SELECT * FROM slices WHERE {where} LIMIT 1 BY id)
GROUP BY {keys.group} unit_class"""  # noqa: S608 - names from our own table, values bound
        return text, {**bound, "estimated": list(ESTIMATED)}


@dataclass(frozen=True, slots=True)
class StoredLeases:
    """Which of these (open) leases have stored slices in which group, so that none counts twice."""

    span: Span
    by: tuple[str, ...]
    leases: tuple[str, ...]

    def sql(self) -> Sql:
        """One row a group and class."""
        where, bound = self.span.where()
        keys = _keys(self.by)
        text = f"""
SELECT {keys.select} workload_class AS unit_class, groupUniqArray(lease) AS leases
FROM slices
WHERE {where} AND lease IN (SELECT arrayJoin({{leases:Array(String)}}))
GROUP BY {keys.group} unit_class"""  # noqa: S608
        return text, {**bound, "leases": list(self.leases)}


@dataclass(frozen=True, slots=True)
class SliceRows:
    """Stored slices, oldest first."""

    span: Span
    limit: int

    def sql(self) -> Sql:
        """One row a slice."""
        where, bound = self.span.where()
        text = f"""
SELECT * FROM slices WHERE {where}
ORDER BY from_ms, lease, id LIMIT 1 BY id LIMIT {{limit:UInt64}}"""  # noqa: S608
        return text, {**bound, "limit": self.limit}


@dataclass(frozen=True, slots=True)
class ArchivedMessages:
    """Messages of the ledger from the archive, in order."""

    after: int
    until: int
    limit: int

    def sql(self) -> Sql:
        """One row a message."""
        text = """
SELECT sequence, body FROM transitions
WHERE sequence > {after:UInt64} AND sequence <= {until:UInt64}
ORDER BY sequence LIMIT 1 BY sequence LIMIT {limit:UInt64}"""
        return text, {"after": self.after, "until": self.until, "limit": self.limit}


@dataclass(frozen=True, slots=True)
class Gaps:
    """Stretches of sequences that the archive lacks."""

    until: int

    def sql(self) -> Sql:
        """One row a gap: the last sequence before it and the first after."""
        text = """
SELECT before, sequence AS after FROM (
    SELECT sequence, lagInFrame(sequence, 1, 0) OVER (ORDER BY sequence) AS before
    FROM (SELECT DISTINCT sequence FROM transitions WHERE sequence <= {until:UInt64})
) WHERE sequence > before + 1 ORDER BY before LIMIT 100"""
        return text, {"until": self.until}


@dataclass(frozen=True, slots=True)
class Censuses:
    """Stored censuses up to a place in the ledger."""

    until: int
    from_ms: int = 0
    to_ms: int = 2**53

    def sql(self) -> Sql:
        """One row a census, oldest first."""
        text = """
SELECT sequence, at_ms, cause, differences FROM censuses
WHERE sequence <= {until:UInt64} AND at_ms >= {from_ms:Int64} AND at_ms <= {to_ms:Int64}
ORDER BY sequence, refolded DESC, id LIMIT 1 BY sequence, at_ms, cause"""
        return text, {"until": self.until, "from_ms": self.from_ms, "to_ms": self.to_ms}


@dataclass(frozen=True, slots=True)
class Conserved:
    """Closed hours: what each cell's parts were, beside what the slices say was leased."""

    until: int
    from_ms: int
    to_ms: int

    def sql(self) -> Sql:
        """One row a cell and hour: `total`, `parts` (all reasons), `leased`, `sliced`, `least`."""
        text = """
SELECT pool, model, hour, sum(total) AS total, sum(parts) AS parts, sum(leased) AS leased,
    sum(sliced) AS sliced, min(least) AS least
FROM (
    SELECT pool, model, hour_ms AS hour,
        sumIf(reason_sum, reason = 'total') AS total,
        sumIf(reason_sum, reason != 'total') AS parts,
        sumIf(reason_sum, reason = 'leased') AS leased,
        toInt256(0) AS sliced, min(reason_sum) AS least
    FROM (
        SELECT pool, model, hour_ms, reason, sum(toInt256(part_ms)) AS reason_sum
        FROM (SELECT * FROM capacity WHERE sequence <= {until:UInt64} LIMIT 1 BY id)
        GROUP BY pool, model, hour_ms, reason
    ) GROUP BY pool, model, hour_ms
    UNION ALL
    SELECT home_pool AS pool, home_model AS model,
        intDiv(from_ms, {hour:Int64}) * {hour:Int64} AS hour,
        toInt256(0) AS total, toInt256(0) AS parts, toInt256(0) AS leased,
        sum(toInt256(part_ms)) AS sliced, toInt256(0) AS least
    FROM (SELECT * FROM slices WHERE sequence <= {until:UInt64} AND home_pool != '' LIMIT 1 BY id)
    GROUP BY pool, model, hour
)
WHERE hour >= {from_ms:Int64} AND hour + {hour:Int64} <= {to_ms:Int64}
GROUP BY pool, model, hour ORDER BY hour, pool, model"""
        bound = {"from_ms": self.from_ms, "to_ms": self.to_ms, "hour": MS_PER_HOUR}
        return text, {**bound, "until": self.until}


@dataclass(frozen=True, slots=True)
class Written:
    """Rows that messages `after < sequence <= until` brought, as the store has them."""

    table: str
    after: int
    until: int

    def sql(self) -> Sql:
        """One row an id: what must be the same when it is folded again."""
        columns = {
            "slices": "id, part_ms, quantity, nominal_quantity, cost",
            "capacity": "id, part_ms",
        }[self.table]
        own = ""
        if self.table == "slices":
            # What people corrected is none of the ledger's; what was folded late is.
            own = "AND (correction = '' OR startsWith(correction, 'refold:'))"
        text = f"""
SELECT {columns} FROM {self.table}
WHERE sequence > {{after:UInt64}} AND sequence <= {{until:UInt64}} {own} LIMIT 1 BY id"""  # noqa: S608
        return text, {"after": self.after, "until": self.until}


@dataclass(frozen=True, slots=True)
class Minutes:
    """Minute rollups of one reading."""

    reading: str
    node: str | None
    from_ms: int
    to_ms: int
    limit: int

    def sql(self) -> Sql:
        """The newest version of each minute, newest minutes first."""
        node = "AND node = {node:String}" if self.node is not None else ""
        text = f"""
SELECT node, device, minute_ms, samples, mean, low, high
FROM telemetry_minutes FINAL
WHERE reading = {{reading:String}} {node}
    AND minute_ms >= {{from_ms:Int64}} AND minute_ms < {{to_ms:Int64}}
ORDER BY minute_ms DESC, node, device LIMIT {{limit:UInt64}}"""  # noqa: S608
        bound: dict[str, Any] = {"reading": self.reading, "limit": self.limit}
        if self.node is not None:
            bound["node"] = self.node
        return text, {**bound, "from_ms": self.from_ms, "to_ms": self.to_ms}


@dataclass(frozen=True, slots=True)
class TouchedMinutes:
    """Minutes that raw readings after a sequence belong to."""

    after: int

    def sql(self) -> Sql:
        """One row a minute."""
        text = """
SELECT DISTINCT minute_ms FROM telemetry_raw
WHERE sequence > {after:UInt64} AND quality != 'clock' ORDER BY minute_ms"""
        return text, {"after": self.after}


@dataclass(frozen=True, slots=True)
class _Keys:
    select: str = ""
    group: str = ""
    names: tuple[str, ...] = field(default=())


def _keys(by: tuple[str, ...]) -> _Keys:
    names = tuple(f"`by_{name}`" for name in by)
    select = "".join(f"{grouping(name)} AS `by_{name}`, " for name in by)
    return _Keys(select, "".join(f"{name}, " for name in names), names)


LABEL: Final = re.compile(r"label:([A-Za-z0-9][A-Za-z0-9._/-]{0,62})")


def grouping(name: str) -> str:
    """One grouping as an expression over a slice; `label:KEY` is the label's value.

    Raises KeyError for what is none: no text from outside gets into a query.
    """
    label = LABEL.fullmatch(name)
    return f"labels['{label[1]}']" if label else GROUPS[name]
