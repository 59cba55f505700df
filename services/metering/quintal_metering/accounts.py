"""Questions of money and of what went astray: bill lines, slices that stand, dead letters."""

from __future__ import annotations

from dataclasses import dataclass

from quintal_metering.queries import ESTIMATED, Span, Sql


@dataclass(frozen=True, slots=True)
class BillLines:
    """A span's stored slices by all that a price depends on."""

    span: Span
    opened: tuple[str, ...] = ()
    """Open leases, to be told apart from those that are counted already."""

    def sql(self) -> Sql:
        """One row a line."""
        where, bound = self.span.where()
        text = f"""
SELECT project, profile, pool, model, vendor, workload_class, price, price_per, price_list,
    currency, sum(toInt256(quantity)) AS quantity_sum, sum(toInt256(nominal_quantity)) AS nominal_sum,
    sum(toInt256(part_ms)) AS part_ms_sum, sum(toDecimal256(cost, 9)) AS cost_sum,
    sumIf(toInt256(quantity), provenance IN {{estimated:Array(String)}}) AS estimated_sum,
    count() AS slices, countIf(kind = 'adjustment') AS adjustments, uniqExact(lease) AS leases,
    groupUniqArrayIf(lease, lease IN (SELECT arrayJoin({{opened:Array(String)}}))) AS known,
    groupUniqArray(concat(provenance, '@', rating_version)) AS ratings,
    groupUniqArray(revision) AS revisions, min(sequence) AS first, max(sequence) AS last
FROM (SELECT * FROM slices WHERE {where} LIMIT 1 BY id)
GROUP BY project, profile, pool, model, vendor, workload_class, price, price_per, price_list,
    currency"""  # noqa: S608, E501 - values bound
        return text, {**bound, "estimated": list(ESTIMATED), "opened": list(self.opened)}


@dataclass(frozen=True, slots=True)
class StandingSlices:
    """Stored slices that nothing reverses yet, in pages: those after (`at_ms`, `after`)."""

    span: Span
    at_ms: int
    after: str
    limit: int

    def sql(self) -> Sql:
        """One row a slice, oldest first."""
        where, bound = self.span.where()
        text = f"""
SELECT * FROM slices
WHERE {where} AND reverses = '' AND (from_ms, id) > ({{at_ms:Int64}}, {{after:String}})
    AND id NOT IN (SELECT reverses FROM slices WHERE {where} AND reverses != '')
ORDER BY from_ms, id LIMIT 1 BY id LIMIT {{limit:UInt64}}"""  # noqa: S608
        return text, {**bound, "at_ms": self.at_ms, "after": self.after, "limit": self.limit}


@dataclass(frozen=True, slots=True)
class Unbalanced:
    """Corrected slices whose reversal does not take back exactly what they say."""

    until: int

    def sql(self) -> Sql:
        """One row a reversal that is off."""
        text = """
SELECT r.reverses AS id, r.from_ms AS at_ms, r.correction AS correction,
    toString(r.cost + s.cost) AS left, toString(r.part_ms + s.part_ms) AS left_ms
FROM (SELECT * FROM slices WHERE reverses != '' AND sequence <= {until:UInt64} LIMIT 1 BY id) AS r
LEFT JOIN (
    SELECT * FROM slices
    WHERE id IN (SELECT reverses FROM slices WHERE reverses != '') LIMIT 1 BY id
) AS s ON r.reverses = s.id
WHERE r.cost + s.cost != 0 OR r.part_ms + s.part_ms != 0 OR r.quantity + s.quantity != 0
ORDER BY id LIMIT 1000"""
        return text, {"until": self.until}


@dataclass(frozen=True, slots=True)
class DeadLetterRows:
    """What could not be taken in and was not taken since, newest first."""

    limit: int

    def sql(self) -> Sql:
        """One row a letter, and how many there are."""
        text = """
SELECT *, count() OVER () AS waiting FROM (
    SELECT * FROM dead_letters WHERE id NOT IN (SELECT id FROM letters_taken) LIMIT 1 BY id
) ORDER BY at_ms DESC, sequence DESC, place LIMIT {limit:UInt64}"""
        return text, {"limit": self.limit}
