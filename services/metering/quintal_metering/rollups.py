"""Statements that roll telemetry up: minutes, hours, and what leases made of what they held.

Each recomputes a window whole and replaces what was there, so that it can be done again whenever
something late comes, as from an agent's spool, and comes to the same.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from quintal.units import MS_PER_HOUR
from quintal_metering.queries import Sql
from quintal_metering.samples import MINUTE_MS

BACK_MS: Final = 300_000
"""How far back a counter's last reading may lie to count its gain from there."""

BUSY_READING: Final = "utilization_percent"


READINGS_AT_ONCE: Final = 500_000
"""Raw readings in one statement: about half a second of a core, and 200 MiB."""

COUNTERS: Final = re.compile(r"_(joules|total|count)$")
"""Readings that count: what they grew by is asked for."""


@dataclass(frozen=True, slots=True)
class RawReadings:
    """How many raw readings these minutes have, reading by reading."""

    minutes: tuple[int, ...]

    def sql(self) -> Sql:
        """One row a minute and reading, in the table's order."""
        text = """
SELECT minute_ms, reading, count() AS readings FROM telemetry_raw
WHERE minute_ms IN (SELECT arrayJoin({minutes:Array(Int64)}))
    AND minute_ms >= {first:Int64} AND minute_ms <= {last:Int64}
GROUP BY minute_ms, reading ORDER BY minute_ms, reading"""
        first, last = min(self.minutes), max(self.minutes)
        return text, {"minutes": list(self.minutes), "first": first, "last": last}


def portions(
    counted: Iterable[tuple[int, str, int]],
) -> Iterator[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Minutes and readings, statement by statement, from rows of (minute, reading, readings).

    Whole minutes as long as they are few; a minute of a large fleet reading by reading. A portion
    never spans more than a counter looks back, since it reads all that lies between.
    """
    minutes: list[int] = []
    names: set[str] = set()
    total = 0
    for minute, rows in itertools.groupby(counted, key=itemgetter(0)):
        found = [(reading, number) for _, reading, number in rows]
        number = sum(one for _, one in found)
        if minutes and (total + number > READINGS_AT_ONCE or minute - minutes[-1] > BACK_MS):
            yield tuple(minutes), tuple(sorted(names))
            minutes, names, total = [], set(), 0
        if number > READINGS_AT_ONCE:
            yield from (((minute,), (reading,)) for reading, _ in found)
            continue
        minutes.append(minute)
        names.update(reading for reading, _ in found)
        total += number
    if minutes:
        yield tuple(minutes), tuple(sorted(names))


@dataclass(frozen=True, slots=True)
class MinutesAgain:
    """Roll these minutes of these readings up again. Only `ok` enters; a gap stays a gap.

    A sample that is stored twice counts once. A counter's gain is what it grew by within one boot;
    where it fell, or the boot is another, a new epoch began and the step between is unknown.
    """

    minutes: tuple[int, ...]
    readings: tuple[str, ...]
    version: int

    def sql(self) -> Sql:
        """An insert from a select over the raw readings, each read once."""
        counters = [reading for reading in self.readings if COUNTERS.search(reading)]
        text = f"""
INSERT INTO telemetry_minutes
    (reading, node, device, minute_ms, samples, mean, low, high, gain, version)
SELECT m.reading, m.node, m.device, m.minute_ms, length(good), if(empty(good), NULL, arrayAvg(good)),
    if(empty(good), NULL, arrayMin(good)), if(empty(good), NULL, arrayMax(good)),
    {"g.gain" if counters else "NULL"}, {{version:UInt64}}
FROM (
    SELECT reading, node, device, minute_ms, groupUniqArrayIf(
        (at_ms, assumeNotNull(value)), quality = 'ok' AND isNotNull(value)).2 AS good
    FROM telemetry_raw
    WHERE minute_ms IN (SELECT arrayJoin({{minutes:Array(Int64)}}))
        AND minute_ms >= {{first:Int64}} AND minute_ms <= {{last:Int64}}
        AND reading IN (SELECT arrayJoin({{readings:Array(String)}})) AND quality != 'clock'
    GROUP BY reading, node, device, minute_ms
) AS m{_GAINS if counters else ""}
SETTINGS join_use_nulls = 1"""  # noqa: E501, S608 - our own words
        bound: dict[str, Any] = {
            "minutes": list(self.minutes), "readings": list(self.readings),
            "version": self.version, "first": min(self.minutes), "last": max(self.minutes),
        }  # fmt: skip
        if counters:
            bound |= {"counters": counters, "back": BACK_MS, "minute_long": MINUTE_MS}
        return text, bound


_GAINS: Final = """
LEFT JOIN (
    SELECT reading, node, device, step.1 AS minute_ms, sum(step.2) AS gain
    FROM (
        SELECT reading, node, device, arrayJoin(arrayMap(
            (a, b) -> (intDiv(b.1, {minute_long:Int64}) * {minute_long:Int64},
                if(a.2 = b.2 AND b.3 >= a.3, b.3 - a.3, -1)),
            arrayPopBack(seen), arrayPopFront(seen))) AS step
        FROM (
            SELECT reading, node, device, arrayConcat(
                if(countIf(minute_ms < {first:Int64}) > 0,
                    [argMaxIf((at_ms, boot, good), at_ms, minute_ms < {first:Int64})], []),
                arraySort(groupUniqArrayIf((at_ms, boot, good), minute_ms >= {first:Int64}))
            ) AS seen
            FROM (
                SELECT reading, node, device, minute_ms, at_ms, sipHash64(boot_id) AS boot,
                    assumeNotNull(value) AS good
                FROM telemetry_raw
                WHERE minute_ms >= {first:Int64} - {back:Int64} AND minute_ms <= {last:Int64}
                    AND reading IN (SELECT arrayJoin({counters:Array(String)}))
                    AND quality = 'ok' AND isNotNull(value)
            )
            GROUP BY reading, node, device
        )
    )
    WHERE step.2 >= 0 AND minute_ms IN (SELECT arrayJoin({minutes:Array(Int64)}))
    GROUP BY reading, node, device, minute_ms
) AS g ON m.reading = g.reading AND m.node = g.node AND m.device = g.device
    AND m.minute_ms = g.minute_ms"""
"""What counters grew by: each sample against the one before, the first against the last before."""


@dataclass(frozen=True, slots=True)
class ReadingsOf:
    """What was read in an hour at all."""

    hour_ms: int

    def sql(self) -> Sql:
        """One row a reading."""
        text = """
SELECT DISTINCT reading FROM telemetry_fleet
WHERE step_ms = {step:Int64} AND at_ms >= {hour:Int64} AND at_ms < {end:Int64} ORDER BY reading"""
        end = self.hour_ms + MS_PER_HOUR
        return text, {"step": MINUTE_MS, "hour": self.hour_ms, "end": end}


@dataclass(frozen=True, slots=True)
class HourAgain:
    """Roll one hour of a reading up from its minutes."""

    hour_ms: int
    reading: str
    version: int

    def sql(self) -> Sql:
        """An insert from a select over the minutes' newest versions."""
        text = """
INSERT INTO telemetry_hours
    (reading, node, device, hour_ms, minutes, samples, mean, low, high, gain, version)
SELECT reading, node, device, {hour:Int64}, countIf(samples > 0), sum(samples) AS n,
    if(n = 0, NULL, sum(mean * samples) / n), min(low), max(high), sum(gain), {version:UInt64}
FROM telemetry_minutes FINAL
WHERE minute_ms >= {hour:Int64} AND minute_ms < {end:Int64} AND reading = {reading:String}
GROUP BY reading, node, device"""
        bound = {"hour": self.hour_ms, "end": self.hour_ms + MS_PER_HOUR, "reading": self.reading}
        return text, {**bound, "version": self.version}


@dataclass(frozen=True, slots=True)
class FleetAgain:
    """Sum minutes or hours up over all devices: what a board draws of a whole fleet."""

    at: tuple[int, ...]
    version: int
    hours: bool = False

    def sql(self) -> Sql:
        """An insert from a select over the newest versions."""
        table, column, step = (
            ("telemetry_hours", "hour_ms", MS_PER_HOUR)
            if self.hours
            else ("telemetry_minutes", "minute_ms", MINUTE_MS)
        )
        text = f"""
INSERT INTO telemetry_fleet
    (step_ms, at_ms, reading, devices, silent, samples, means, mean_sum, low, high, version)
SELECT {{step:Int64}}, {column}, reading, count(), countIf(samples = 0), sum(samples), count(mean),
    ifNull(sum(mean), 0), min(low), max(high), {{version:UInt64}}
FROM {table} FINAL
WHERE {column} IN (SELECT arrayJoin({{at:Array(Int64)}}))
    AND {column} >= {{first:Int64}} AND {column} <= {{last:Int64}}
GROUP BY {column}, reading"""  # noqa: S608 - our own names
        return text, {
            "at": list(self.at), "step": step, "version": self.version,
            "first": min(self.at), "last": max(self.at),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """When each node was last heard of within the hour."""

    minutes: tuple[int, ...]

    def sql(self) -> Sql:
        """An insert from a select over the minutes; the newest stands."""
        text = """
INSERT INTO nodes_seen (hour_ms, node, newest_ms)
SELECT intDiv(minute_ms, {hour_long:Int64}) * {hour_long:Int64} AS hour, node, max(minute_ms)
FROM telemetry_minutes
WHERE minute_ms IN (SELECT arrayJoin({minutes:Array(Int64)}))
    AND minute_ms >= {first:Int64} AND minute_ms <= {last:Int64}
GROUP BY hour, node"""
        return text, {
            "minutes": list(self.minutes), "hour_long": MS_PER_HOUR,
            "first": min(self.minutes), "last": max(self.minutes),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class HeldHourAgain:
    """Sum up over leases what they held in one hour, saw and used of it."""

    hour_ms: int
    version: int

    def sql(self) -> Sql:
        """An insert from a select over the hour's leases."""
        text = """
INSERT INTO held_hours
    (hour_ms, tenant, project, workload_class, pool, model, currency, held_ms, covered_ms, busy_ms,
     idle_ms, cost, used_cost, version)
SELECT hour_ms, tenant, project, workload_class, pool, model, currency, sum(l.held_ms),
    sum(l.covered_ms), sum(l.busy_ms),
    sumIf(l.held_ms, l.covered_ms > 0 AND l.busy_ms < 0.01 * l.covered_ms),
    toDecimal128(sum(toDecimal256(l.cost, 9)), 9), sum(l.used_cost), {version:UInt64}
FROM leases_by_hour AS l FINAL
WHERE hour_ms = {hour:Int64}
GROUP BY hour_ms, tenant, project, workload_class, pool, model, currency"""
        return text, {"hour": self.hour_ms, "version": self.version}


@dataclass(frozen=True, slots=True)
class LeaseHourAgain:
    """What each lease made of what it held in one hour: a report, never a bill.

    Held, covered and busy in card-ms, by the parts that the lease has; covered is where there were
    readings, and nothing is said of the rest. A device that several leases share has one reading:
    each is told as its share of it, marked `device_level_only`.
    """

    hour_ms: int
    version: int

    def sql(self) -> Sql:
        """An insert from a select over holdings, minutes and slices."""
        text = """
INSERT INTO leases_by_hour
    (lease, tenant, project, workload_class, pool, model, hour_ms, held_ms, covered_ms, busy_ms,
     device_level_only, cost, used_cost, currency, version)
WITH held AS (
    SELECT id, lease, tenant, project, workload_class, pool, model, node, device, parts,
        greatest(started, {hour:Int64}) AS begins,
        least(if(ended = 0, {end:Int64}, ended), {end:Int64}) AS ends
    FROM (
        SELECT id, any(lease) AS lease, any(tenant) AS tenant, any(project) AS project,
            any(workload_class) AS workload_class, any(pool) AS pool, any(model) AS model,
            any(node) AS node, any(device) AS device, any(parts) AS parts,
            any(from_ms) AS started, argMax(to_ms, (sequence, to_ms)) AS ended
        FROM holdings WHERE from_ms < {end:Int64} GROUP BY id
    )
    WHERE ends > begins
), minutes AS (
    SELECT node, device, minute_ms, mean FROM telemetry_minutes FINAL
    WHERE reading = {reading:String} AND samples > 0
        AND minute_ms >= {hour:Int64} AND minute_ms < {end:Int64}
), seen AS (
    SELECT id, sum(lap) AS covered, sum(lap * mean / 100) AS busy
    FROM (
        SELECT held.id AS id, minutes.mean AS mean, greatest(0,
            least(minutes.minute_ms + 60000, held.ends) - greatest(minutes.minute_ms, held.begins)
        ) AS lap
        FROM held INNER JOIN minutes ON held.node = minutes.node AND held.device = minutes.device
    ) GROUP BY id
), shared AS (
    SELECT node, device FROM held GROUP BY node, device HAVING min(parts) < 1000000
), costs AS (
    SELECT lease, pool, model, sum(cost) AS cost, max(currency) AS currency
    FROM (
        SELECT * FROM slices WHERE from_ms >= {hour:Int64} AND from_ms < {end:Int64} LIMIT 1 BY id
    ) GROUP BY lease, pool, model
)
SELECT held.lease, any(held.tenant), any(held.project), any(held.workload_class), held.pool,
    held.model, {hour:Int64}, sum((held.ends - held.begins) * held.parts / 1000000),
    sum(ifNull(seen.covered, 0) * held.parts / 1000000) AS covered_sum,
    sum(ifNull(seen.busy, 0) * held.parts / 1000000) AS busy_sum,
    max((held.node, held.device) IN (SELECT node, device FROM shared)),
    toDecimal128(ifNull(any(costs.cost), 0), 9) AS money,
    if(covered_sum > 0,
       toNullable(toDecimal128(
           money * toInt64(round(1000000 * busy_sum / covered_sum)) / 1000000, 9)), NULL),
    ifNull(any(costs.currency), ''), {version:UInt64}
FROM held
LEFT JOIN seen ON held.id = seen.id
LEFT JOIN costs ON held.lease = costs.lease AND held.pool = costs.pool
    AND held.model = costs.model
GROUP BY held.lease, held.pool, held.model
SETTINGS join_use_nulls = 1"""
        bound = {"hour": self.hour_ms, "end": self.hour_ms + MS_PER_HOUR}
        return text, {**bound, "version": self.version, "reading": BUSY_READING}
