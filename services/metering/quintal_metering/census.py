"""The placer's census, held against what the fold counts at the same place in the ledger."""

from __future__ import annotations

from quintal.contracts.ledger import Census
from quintal_metering.capacity import TOTAL, counted
from quintal_metering.rows import CensusCheck, CensusDifference
from quintal_metering.turn import Turn

Counts = dict[str, int]


def compared(turn: Turn, census: Census) -> CensusCheck:
    """Every number that differs, by name; none if the two agree."""
    theirs: dict[tuple[str, str], Counts] = {}
    for row in census.rows:
        counts = {TOTAL: row.total, "leased": row.leased, "free": row.free, **row.unavailable}
        theirs[row.pool, row.model] = counts
    ours: dict[tuple[str, str], Counts] = {
        cell: {TOTAL: total, **parts} for cell, (total, parts) in counted(turn.state).items()
    }
    differences = tuple(
        CensusDifference(*cell, subject, expected, found)
        for cell in sorted({**theirs, **ours})
        for subject, expected, found in _differing(theirs.get(cell, {}), ours.get(cell, {}))
    )
    return CensusCheck(
        turn.sequence, turn.index, turn.at_ms, census.cause, len(census.rows), differences
    )


def _differing(theirs: Counts, ours: Counts) -> list[tuple[str, int, int]]:
    pairs = ((name, theirs.get(name, 0), ours.get(name, 0)) for name in sorted({**theirs, **ours}))
    return [pair for pair in pairs if pair[1] != pair[2]]
