"""What `quintal report` shows of the whole fleet, in exact numbers: integers, and amounts of money.

The boards ask much the same (`reports`), but divide in the store, for the eye.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Final

from quintal.contracts.reports import FleetStretch, UnitCost
from quintal.units import MS_PER_HOUR, PARTS
from quintal_metering.queries import Sql

_WIDE: Final = Context(prec=90)
_STEP: Final = Decimal("1e-9")


@dataclass(frozen=True, slots=True)
class FleetOverTime:
    """Capacity, what was leased and could not be, what was granted and used: by class."""

    from_ms: int
    to_ms: int
    stretch_ms: int

    def sql(self) -> Sql:
        """One row a stretch and class; integers of 256 bits, so that no sum wraps."""
        text = """
WITH rated AS (
    SELECT model, workload_class, rating_micro FROM catalog_models FINAL
    WHERE revision = (SELECT max(revision) FROM catalog_models)
)
SELECT at * {stretch_ms:Int64} AS at_ms, workload_class, sum(capacity_sum) AS capacity,
    sum(leased_sum) AS leased, sum(unavailable_sum) AS unavailable, sum(granted_sum) AS granted,
    sum(covered_sum) AS covered, sum(used_sum) AS used
FROM (
    SELECT at, rated.workload_class AS workload_class,
        total * rated.rating_micro AS capacity_sum, held * rated.rating_micro AS leased_sum,
        gone * rated.rating_micro AS unavailable_sum, toInt256(0) AS granted_sum,
        toInt256(0) AS covered_sum, toInt256(0) AS used_sum
    FROM (
        SELECT intDiv(hour_ms, {stretch_ms:Int64}) AS at, model,
            sumIf(toInt256(part_ms), reason = 'total') AS total,
            sumIf(toInt256(part_ms), reason = 'leased') AS held,
            sumIf(toInt256(part_ms), reason NOT IN ('total', 'leased', 'free')) AS gone
        FROM (
            SELECT * FROM capacity
            WHERE hour_ms >= {from_ms:Int64} AND hour_ms < {to_ms:Int64} LIMIT 1 BY id
        ) GROUP BY at, model
    ) AS cells INNER JOIN rated ON cells.model = rated.model
    UNION ALL
    SELECT intDiv(hour_ms, {stretch_ms:Int64}) AS at, workload_class, toInt256(0), toInt256(0),
        toInt256(0), sum(toInt256(quantity)), toInt256(0), toInt256(0)
    FROM usage_hours FINAL
    WHERE hour_ms >= {from_ms:Int64} AND hour_ms < {to_ms:Int64}
    GROUP BY at, workload_class
    UNION ALL
    SELECT at, rated.workload_class, toInt256(0), toInt256(0), toInt256(0), toInt256(0),
        toInt256(round(1000000 * covered)) * rated.rating_micro,
        toInt256(round(1000000 * busy)) * rated.rating_micro
    FROM (
        SELECT intDiv(hour_ms, {stretch_ms:Int64}) AS at, model, workload_class,
            sum(covered_ms) AS covered, sum(busy_ms) AS busy
        FROM leases_by_hour FINAL
        WHERE hour_ms >= {from_ms:Int64} AND hour_ms < {to_ms:Int64}
        GROUP BY at, model, workload_class
    ) AS seen
    INNER JOIN rated ON seen.model = rated.model AND seen.workload_class = rated.workload_class
)
GROUP BY at, workload_class ORDER BY workload_class, at"""
        bound = {"from_ms": self.from_ms, "to_ms": self.to_ms, "stretch_ms": self.stretch_ms}
        return text, bound


@dataclass(frozen=True, slots=True)
class ModelsCosts:
    """What each model delivered by class, beside all the time that its cards were there."""

    from_ms: int
    to_ms: int

    def sql(self) -> Sql:
        """One row a model and class; times in parts x ms, `spent` that times a card-hour's cost."""
        text = """
SELECT s.vendor AS vendor, s.model AS model, s.workload_class AS workload_class,
    m.year AS release_year, s.quantity_sum AS quantity, s.part_ms_sum AS part_ms,
    s.cost_sum AS charged, s.currency_any AS currency, c.total AS total, c.leased AS leased,
    c.spent AS spent, ifNull(c.currency, '') AS cost_currency
FROM (
    SELECT any(vendor) AS vendor, model, workload_class, sum(toInt256(quantity)) AS quantity_sum,
        sum(toInt256(part_ms)) AS part_ms_sum, sum(toDecimal256(cost, 9)) AS cost_sum,
        max(currency) AS currency_any
    FROM usage_hours FINAL
    WHERE hour_ms >= {from_ms:Int64} AND hour_ms < {to_ms:Int64}
    GROUP BY model, workload_class
) AS s
LEFT JOIN (
    SELECT model, sum(p.total) AS total, sum(p.leased) AS leased,
        if(countIf(isNull(k.card_hour) AND p.total != 0) = 0,
            sum(toDecimal256(p.total, 0) * toDecimal256(k.card_hour, 9)), NULL) AS spent,
        max(ifNull(k.currency, '')) AS currency
    FROM (
        SELECT pool, model, sumIf(toInt256(part_ms), reason = 'total') AS total,
            sumIf(toInt256(part_ms), reason = 'leased') AS leased
        FROM (
            SELECT * FROM capacity
            WHERE hour_ms >= {from_ms:Int64} AND hour_ms < {to_ms:Int64} LIMIT 1 BY id
        ) GROUP BY pool, model
    ) AS p
    LEFT JOIN (
        SELECT pool, model, any(card_hour) AS card_hour, any(currency) AS currency
        FROM catalog_costs FINAL
        WHERE revision = (SELECT max(revision) FROM catalog_costs)
            AND from_ms < {to_ms:Int64} AND to_ms >= {to_ms:Int64}
        GROUP BY pool, model
    ) AS k ON p.pool = k.pool AND p.model = k.model
    GROUP BY model
) AS c ON s.model = c.model
LEFT JOIN (
    SELECT model, any(release_year) AS year FROM catalog_models FINAL
    WHERE revision = (SELECT max(revision) FROM catalog_models) GROUP BY model
) AS m ON s.model = m.model
ORDER BY workload_class, vendor, model SETTINGS join_use_nulls = 1"""
        return text, {"from_ms": self.from_ms, "to_ms": self.to_ms}


def stretches(rows: list[dict[str, Any]]) -> tuple[FleetStretch, ...]:
    """The rows of `FleetOverTime` as the wire has them."""
    names = ("at_ms", "capacity", "leased", "unavailable", "granted", "covered", "used")
    return tuple(
        FleetStretch(**{name: int(row[name]) for name in names}, **{"class": row["workload_class"]})
        for row in rows
    )


def unit_costs(rows: list[dict[str, Any]]) -> tuple[UnitCost, ...]:
    """The rows of `ModelsCosts`, with what the cards' time cost us."""
    return tuple(_unit_cost(row) for row in rows)


def _unit_cost(row: dict[str, Any]) -> UnitCost:
    own = full = None
    spent, part_ms = row["spent"], int(row["part_ms"])
    if spent is not None:
        own = _share(spent, part_ms, int(row["total"]))
        full = _share(spent, part_ms, int(row["leased"]))
    return UnitCost(
        vendor=row["vendor"], model=row["model"], release_year=row["release_year"] or None,
        quantity=int(row["quantity"]), charged=row["charged"], currency=row["currency"],
        own_cost=own, full_cost=full, cost_currency=row["cost_currency"],
        **{"class": row["workload_class"]},
    )  # fmt: skip


def _share(spent: Decimal, part_ms: int, whole: int) -> Decimal | None:
    """`part_ms` of `whole` of what was spent, as money; none where the whole is nothing."""
    if not whole:
        return None
    exact = _WIDE.divide(_WIDE.multiply(spent, Decimal(part_ms)), PARTS * MS_PER_HOUR * whole)
    return exact.quantize(_STEP, ROUND_HALF_EVEN, _WIDE)
