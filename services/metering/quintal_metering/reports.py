"""What people ask again and again, over time: one frozen value each, for answers and for boards.

A question gives its text with what comes from outside bound by name. The boards in
`deploy/grafana/` are made of the same texts, with Grafana's own variables in those places. Every
answer over time has a column `time` (UTC). Stored rows only: `usage` adds what is still open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from quintal.units import MS_PER_HOUR
from quintal_metering.queries import Sql, grouping

_BUCKET: Final = (
    "toDateTime(intDiv({column}, {{bucket_ms:Int64}}) * {{bucket_ms:Int64}} / 1000, 'UTC') AS time"
)
_UNIT_HOURS: Final = "toFloat64({quantity}) / 3.6e18"
_CARD_HOURS: Final = "toFloat64({part_ms}) / 3.6e12"

DAY_MS: Final = 24 * MS_PER_HOUR
MINUTE_MS: Final = 60_000

_NEWEST: Final = "(SELECT max(revision) FROM {table})"


@dataclass(frozen=True, slots=True)
class Window:
    """From when to when, how finely, and which of each sort: an empty list is all."""

    from_ms: int
    to_ms: int
    bucket_ms: int = MS_PER_HOUR
    tenants: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def bound(self, *names: str) -> dict[str, Any]:
        """The parameters of a text that names these."""
        all_of_them = {
            "from_ms": self.from_ms, "to_ms": self.to_ms, "bucket_ms": self.bucket_ms,
            "tenants": list(self.tenants), "pools": list(self.pools),
            "models": list(self.models), "classes": list(self.classes),
        }  # fmt: skip
        return {name: all_of_them[name] for name in names}


def among(column: str, name: str) -> str:
    """A condition: the column is one of a bound list, or the list is empty."""
    return f"(empty({{{name}:Array(String)}}) OR has({{{name}:Array(String)}}, {column}))"


_SLICES: Final = f"""(
    SELECT * FROM slices
    WHERE from_ms >= {{from_ms:Int64}} AND from_ms < {{to_ms:Int64}}
        AND {among("tenant", "tenants")} AND {among("pool", "pools")}
        AND {among("model", "models")} AND {among("workload_class", "classes")}
    LIMIT 1 BY id
)"""  # noqa: S608 - our own names

_USAGE: Final = f"""(
    SELECT *, hour_ms AS from_ms FROM usage_hours FINAL
    WHERE hour_ms >= intDiv({{from_ms:Int64}}, {MS_PER_HOUR}) * {MS_PER_HOUR}
        AND hour_ms < {{to_ms:Int64}}
        AND {among("tenant", "tenants")} AND {among("pool", "pools")}
        AND {among("model", "models")} AND {among("workload_class", "classes")}
)"""  # noqa: S608

_CAPACITY: Final = f"""(
    SELECT * FROM capacity
    WHERE hour_ms >= {{from_ms:Int64}} AND hour_ms < {{to_ms:Int64}}
        AND {among("pool", "pools")} AND {among("model", "models")}
    LIMIT 1 BY id
)"""  # noqa: S608

_ALL: Final = ("from_ms", "to_ms", "tenants", "pools", "models", "classes")
_PLACES: Final = ("from_ms", "to_ms", "pools", "models")


@dataclass(frozen=True, slots=True)
class UsageOverTime:
    """Unit-hours, card-hours and cost by one grouping, per class and stretch."""

    window: Window
    by: str = "tenant"

    def sql(self) -> Sql:
        """One row a stretch, group and class; labels are the slices' alone."""
        source, restated = (
            (_SLICES, "countIf(kind = 'adjustment')")
            if self.by.startswith("label:")
            else (_USAGE, "sum(adjustments)")
        )
        text = f"""
SELECT {_BUCKET.format(column="from_ms")}, {grouping(self.by)} AS name,
    workload_class AS unit_class, {_UNIT_HOURS.format(quantity="sum(toInt256(quantity))")} AS unit_hours,
    {_CARD_HOURS.format(part_ms="sum(toInt256(part_ms))")} AS card_hours,
    toFloat64(sum(toDecimal256(cost, 9))) AS cost, {restated} AS restated
FROM {source}
GROUP BY time, name, unit_class ORDER BY time, name, unit_class"""  # noqa: E501, S608 - our own names
        return text, self.window.bound(*_ALL, "bucket_ms")


@dataclass(frozen=True, slots=True)
class CapacityByReason:
    """Card-hours by what they were: leased, free, or unavailable for a reason; and their cost."""

    window: Window
    reasons: tuple[str, ...] = field(default=())
    """Empty: all but `total`."""

    def sql(self) -> Sql:
        """One row a stretch and reason."""
        text = f"""
SELECT {_BUCKET.format(column="hour_ms")}, reason,
    {_CARD_HOURS.format(part_ms="sum(toInt256(c.part_ms))")} AS card_hours,
    sum(toFloat64(c.part_ms) / 3.6e12 * toFloat64(ifNull(k.card_hour, 0))) AS cost
FROM {_CAPACITY} AS c
LEFT JOIN (
    SELECT pool, model, any(card_hour) AS card_hour FROM catalog_costs FINAL
    WHERE revision = {_NEWEST.format(table="catalog_costs")}
        AND from_ms <= {{to_ms:Int64}} AND to_ms > {{to_ms:Int64}}
    GROUP BY pool, model
) AS k ON c.pool = k.pool AND c.model = k.model
WHERE if(empty({{reasons:Array(String)}}), reason != 'total', has({{reasons:Array(String)}}, reason))
GROUP BY time, reason ORDER BY time, reason"""  # noqa: E501, S608
        return text, {**self.window.bound(*_PLACES, "bucket_ms"), "reasons": list(self.reasons)}


@dataclass(frozen=True, slots=True)
class FleetUnits:
    """What the fleet could deliver at once, in units of each class, by model."""

    window: Window

    def sql(self) -> Sql:
        """One row a stretch, class and model: the mean over the stretch."""
        text = f"""
SELECT {_BUCKET.format(column="hour_ms")}, m.workload_class AS unit_class, c.model AS model,
    sum(toFloat64(c.part_ms)) / uniqExact(c.hour_ms) / 3.6e12 * any(m.rating_micro) / 1e6 AS units,
    sum(toFloat64(c.part_ms)) / uniqExact(c.hour_ms) / 3.6e12 AS cards
FROM {_CAPACITY} AS c
INNER JOIN (
    SELECT * FROM catalog_models FINAL
    WHERE revision = {_NEWEST.format(table="catalog_models")} AND {among("workload_class", "classes")}
) AS m ON c.model = m.model
WHERE c.reason = 'total'
GROUP BY time, unit_class, model ORDER BY time, unit_class, model"""  # noqa: E501, S608
        return text, self.window.bound(*_PLACES, "classes", "bucket_ms")


@dataclass(frozen=True, slots=True)
class CostPerUnit:
    """What a delivered unit-hour cost us and brought in, by vendor, model and year of release.

    `own_cost` counts the time in which the cards were leased; `full_cost` shares out the idle and
    unavailable time too.
    """

    window: Window

    def sql(self) -> Sql:
        """One row a vendor, model and class."""
        text = f"""
SELECT s.vendor AS vendor, s.model AS model, any(m.release_year) AS release_year,
    s.workload_class AS unit_class, any(s.unit_hours) AS delivered,
    any(s.charged) / any(s.unit_hours) AS charged_per_unit_hour,
    any(s.card_hours) * any(f.card_hour) / any(s.unit_hours) AS own_cost_per_unit_hour,
    any(s.card_hours) / any(f.leased) * any(f.total) * any(f.card_hour) / any(s.unit_hours)
        AS full_cost_per_unit_hour,
    any(f.leased) / any(f.total) AS leased_share, any(m.units_per_watt) AS units_per_watt
FROM (
    SELECT any(vendor) AS vendor, model, workload_class,
        {_UNIT_HOURS.format(quantity="sum(toInt256(quantity))")} AS unit_hours,
        {_CARD_HOURS.format(part_ms="sum(toInt256(part_ms))")} AS card_hours,
        toFloat64(sum(toDecimal256(cost, 9))) AS charged
    FROM {_USAGE} GROUP BY model, workload_class HAVING unit_hours > 0
) AS s
LEFT JOIN (
    SELECT model, {_CARD_HOURS.format(part_ms="sumIf(toInt256(part_ms), reason = 'total')")} AS total,
        {_CARD_HOURS.format(part_ms="sumIf(toInt256(part_ms), reason = 'leased')")} AS leased,
        sumIf(toFloat64(c.part_ms) * toFloat64(k.card_hour), reason = 'total')
            / sumIf(toFloat64(c.part_ms), reason = 'total') AS card_hour
    FROM {_CAPACITY} AS c
    LEFT JOIN (
        SELECT pool, model, any(card_hour) AS card_hour FROM catalog_costs FINAL
        WHERE revision = {_NEWEST.format(table="catalog_costs")}
            AND from_ms <= {{to_ms:Int64}} AND to_ms > {{to_ms:Int64}}
        GROUP BY pool, model
    ) AS k ON c.pool = k.pool AND c.model = k.model
    GROUP BY model
) AS f ON s.model = f.model
LEFT JOIN (
    SELECT model, workload_class, any(release_year) AS release_year,
        if(any(tdp_watts) > 0, any(rating_micro) / 1e6 / toFloat64(any(tdp_watts)), NULL)
            AS units_per_watt
    FROM catalog_models FINAL
    WHERE revision = {_NEWEST.format(table="catalog_models")} GROUP BY model, workload_class
) AS m ON s.model = m.model AND s.workload_class = m.workload_class
GROUP BY vendor, model, unit_class ORDER BY unit_class, vendor, model"""  # noqa: E501, S608
        return text, self.window.bound(*_ALL)


@dataclass(frozen=True, slots=True)
class Utilization:
    """How busy leased cards were, and how much of that was seen: never averaged over gaps."""

    window: Window
    by: str = "tenant"

    def sql(self) -> Sql:
        """One row a stretch and group."""
        column = {"tenant": "tenant", "pool": "pool", "model": "model", "project": "project"}[
            self.by
        ]
        text = f"""
SELECT {_BUCKET.format(column="hour_ms")}, {column} AS name,
    if(sum(covered_ms) > 0, 100 * sum(busy_ms) / sum(covered_ms), NULL) AS busy_percent,
    100 * sum(covered_ms) / sum(held_ms) AS covered_percent,
    sum(held_ms) / 3.6e6 AS held_card_hours,
    sum(idle_ms) / 3.6e6 AS held_idle_card_hours,
    toFloat64(sum(cost)) AS cost, toFloat64(sum(used_cost)) AS used_cost
FROM held_hours FINAL
WHERE hour_ms >= {{from_ms:Int64}} AND hour_ms < {{to_ms:Int64}} AND held_ms > 0
    AND {among("tenant", "tenants")} AND {among("pool", "pools")} AND {among("model", "models")}
GROUP BY time, name ORDER BY time, name"""  # noqa: S608
        return text, self.window.bound(
            "from_ms", "to_ms", "bucket_ms", "tenants", "pools", "models"
        )


@dataclass(frozen=True, slots=True)
class HeldIdle:
    """Leases whose cards were seen and did nothing: held, paid for, idle."""

    window: Window

    def sql(self) -> Sql:
        """One row a lease, the dearest first."""
        text = f"""
SELECT lease, tenant, project, pool, model, sum(held_ms) / 3.6e6 AS held_card_hours,
    100 * sum(busy_ms) / sum(covered_ms) AS busy_percent,
    100 * sum(covered_ms) / sum(held_ms) AS covered_percent, toFloat64(sum(cost)) AS cost
FROM leases_by_hour FINAL
WHERE hour_ms >= {{from_ms:Int64}} AND hour_ms < {{to_ms:Int64}} AND covered_ms > 0
    AND {among("tenant", "tenants")} AND {among("pool", "pools")} AND {among("model", "models")}
GROUP BY lease, tenant, project, pool, model HAVING busy_percent < 1
ORDER BY held_card_hours DESC, lease LIMIT 100"""  # noqa: S608
        return text, self.window.bound("from_ms", "to_ms", "tenants", "pools", "models")


@dataclass(frozen=True, slots=True)
class QuotaAttained:
    """How much of its cap a tenant held, on the mean of each stretch: per class, without family."""

    window: Window

    def sql(self) -> Sql:
        """One row a stretch, tenant and class."""
        text = f"""
SELECT {_BUCKET.format(column="from_ms")}, s.tenant AS tenant, s.workload_class AS unit_class,
    toFloat64(sum(toInt256(s.quantity))) / 1e12 / {{bucket_ms:Int64}} AS held_units,
    any(c.units) AS cap_units, 100 * held_units / any(c.units) AS percent
FROM {_USAGE} AS s
INNER JOIN (
    SELECT tenant, workload_class, toFloat64(sum(micro)) / 1e6 AS units FROM catalog_caps FINAL
    WHERE revision = {_NEWEST.format(table="catalog_caps")} AND sort = 'cap' AND family = ''
        AND model = '' AND micro > 0
    GROUP BY tenant, workload_class
) AS c ON s.tenant = c.tenant AND s.workload_class = c.workload_class
GROUP BY time, tenant, unit_class ORDER BY time, tenant, unit_class"""  # noqa: S608
        return text, self.window.bound(*_ALL, "bucket_ms")


@dataclass(frozen=True, slots=True)
class BudgetAttained:
    """How much of its month's budget a tenant used, month by month, UTC."""

    window: Window

    def sql(self) -> Sql:
        """One row a month, tenant and class."""
        text = f"""
SELECT toDateTime(toStartOfMonth(fromUnixTimestamp64Milli(from_ms, 'UTC')), 'UTC') AS time,
    s.tenant AS tenant, s.workload_class AS unit_class,
    {_UNIT_HOURS.format(quantity="sum(toInt256(s.quantity))")} AS used_unit_hours,
    any(c.unit_hours) AS budget_unit_hours, 100 * used_unit_hours / any(c.unit_hours) AS percent
FROM {_USAGE} AS s
INNER JOIN (
    SELECT tenant, workload_class, toFloat64(sum(micro)) / 1e6 AS unit_hours
    FROM catalog_caps FINAL
    WHERE revision = {_NEWEST.format(table="catalog_caps")} AND sort = 'budget' AND micro > 0
    GROUP BY tenant, workload_class
) AS c ON s.tenant = c.tenant AND s.workload_class = c.workload_class
GROUP BY time, tenant, unit_class ORDER BY time, tenant, unit_class"""  # noqa: S608
        return text, self.window.bound(*_ALL)


@dataclass(frozen=True, slots=True)
class CommitmentsAttained:
    """How much of each paid floor was used, on the mean of each stretch; unused is 0, not missing.

    `used` and `committed` are units, or cards where the floor is agreed by the card.
    """

    window: Window

    def sql(self) -> Sql:
        """One row a stretch and commitment in force."""
        text = f"""
SELECT toDateTime(c.bucket * {{bucket_ms:Int64}} / 1000, 'UTC') AS time, c.commitment AS commitment,
    any(c.tenant) AS tenant, any(c.workload_class) AS unit_class,
    if(any(c.cards) > 0, toFloat64(any(c.cards)), toFloat64(any(c.micro)) / 1e6) AS committed,
    sumIf(if(c.cards > 0, s.part_ms / 1e6, s.quantity / 1e12),
        (c.pool = '' OR c.pool = s.pool) AND (c.model = '' OR c.model = s.model)
            AND (c.family = '' OR c.family = s.family)) / {{bucket_ms:Int64}} AS used,
    100 * least(used, committed) / committed AS percent
FROM (
    SELECT *, arrayJoin(range(toUInt64(intDiv({{from_ms:Int64}}, {{bucket_ms:Int64}})),
        toUInt64(intDiv({{to_ms:Int64}} - 1, {{bucket_ms:Int64}}) + 1))) AS bucket
    FROM catalog_commitments FINAL
    WHERE revision = {_NEWEST.format(table="catalog_models")} AND {among("tenant", "tenants")}
        AND bucket * {{bucket_ms:Int64}} >= from_ms AND bucket * {{bucket_ms:Int64}} < to_ms
) AS c
LEFT JOIN (
    SELECT toUInt64(intDiv(u.from_ms, {{bucket_ms:Int64}})) AS bucket, u.tenant AS tenant,
        u.workload_class AS workload_class, u.pool AS pool, u.model AS model,
        any(m.family) AS family, toFloat64(sum(toInt256(u.part_ms))) AS part_ms,
        toFloat64(sum(toInt256(u.quantity))) AS quantity
    FROM {_USAGE} AS u
    LEFT JOIN (
        SELECT model, any(family) AS family FROM catalog_models FINAL
        WHERE revision = {_NEWEST.format(table="catalog_models")} GROUP BY model
    ) AS m ON u.model = m.model
    GROUP BY bucket, tenant, workload_class, pool, model
) AS s ON c.bucket = s.bucket AND c.tenant = s.tenant AND c.workload_class = s.workload_class
GROUP BY time, commitment ORDER BY time, commitment"""  # noqa: S608
        return text, self.window.bound(*_ALL, "bucket_ms")


@dataclass(frozen=True, slots=True)
class ObjectivesAttained:
    """How often a profile's time to place was kept, by the placer's own measure of a decision."""

    window: Window

    def sql(self) -> Sql:
        """One row a stretch and profile that states an objective."""
        text = f"""
SELECT {_BUCKET.format(column="at_ms")}, l.profile AS profile, count() AS granted,
    100 * countIf(d.micros <= 1000 * p.objective_ms) / count() AS kept_percent,
    quantileExact(0.95)(d.micros) / 1000 AS p95_ms, any(p.objective_ms) AS objective_ms
FROM (
    SELECT * FROM decisions
    WHERE at_ms >= {{from_ms:Int64}} AND at_ms < {{to_ms:Int64}} AND lease != ''
        AND {among("tenant", "tenants")}
    LIMIT 1 BY sequence
) AS d
INNER JOIN (
    SELECT lease, any(profile) AS profile FROM slices
    WHERE from_ms >= {{from_ms:Int64}} AND from_ms < {{to_ms:Int64}} + {MS_PER_HOUR}
    GROUP BY lease
) AS l ON d.lease = l.lease
INNER JOIN (
    SELECT profile, any(time_to_place_ms) AS objective_ms FROM catalog_profiles FINAL
    WHERE revision = {_NEWEST.format(table="catalog_profiles")} AND isNotNull(time_to_place_ms)
    GROUP BY profile
) AS p ON l.profile = p.profile
GROUP BY time, profile ORDER BY time, profile"""  # noqa: S608
        return text, self.window.bound("from_ms", "to_ms", "bucket_ms", "tenants")


@dataclass(frozen=True, slots=True)
class DecisionsOverTime:
    """What became of requests, and how long the placer took."""

    window: Window

    def sql(self) -> Sql:
        """One row a stretch, verdict and code."""
        text = f"""
SELECT {_BUCKET.format(column="at_ms")}, if(code = '', verdict, code) AS outcome, count() AS requests,
    quantileExact(0.5)(micros) / 1000 AS p50_ms, quantileExact(0.99)(micros) / 1000 AS p99_ms
FROM (
    SELECT * FROM decisions
    WHERE at_ms >= {{from_ms:Int64}} AND at_ms < {{to_ms:Int64}} AND {among("tenant", "tenants")}
    LIMIT 1 BY sequence
)
GROUP BY time, outcome ORDER BY time, outcome"""  # noqa: E501, S608
        return text, self.window.bound("from_ms", "to_ms", "bucket_ms", "tenants")


@dataclass(frozen=True, slots=True)
class ReadingOverTime:
    """A reading over all devices, with how many were seen.

    From minutes up to a day, beyond from hours: of a longer stretch nobody sees minutes.
    """

    window: Window
    reading: str
    hours: bool = False
    """From hours in any case."""

    def sql(self) -> Sql:
        """One row a stretch; the devices are the most that were seen at once."""
        step = (
            f"{MS_PER_HOUR}"
            if self.hours
            else f"if({{to_ms:Int64}} - {{from_ms:Int64}} <= {DAY_MS}, {MINUTE_MS}, {MS_PER_HOUR})"
        )
        text = f"""
SELECT {_BUCKET.format(column="at_ms")},
    if(sum(means) > 0, sum(mean_sum) / sum(means), NULL) AS mean, min(f.low) AS low,
    max(f.high) AS high, max(f.devices) AS devices, max(silent) AS silent_devices
FROM telemetry_fleet AS f FINAL
WHERE step_ms = {step} AND reading = {{reading:String}}
    AND at_ms >= {{from_ms:Int64}} AND at_ms < {{to_ms:Int64}}
GROUP BY time ORDER BY time"""  # noqa: S608
        return text, {**self.window.bound("from_ms", "to_ms", "bucket_ms"), "reading": self.reading}
