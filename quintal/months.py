"""Calendar months, UTC, as instants: what budgets and bills are counted by."""

from __future__ import annotations

from datetime import UTC, datetime


def month_of(at_ms: int) -> tuple[int, int]:
    """[first instant, first instant of the next) of the month of `at_ms`, in milliseconds."""
    at = datetime.fromtimestamp(at_ms // 1000, tz=UTC)
    return month(at.year, at.month)


def month(year: int, number: int) -> tuple[int, int]:
    """The same, of a month by its number (1 to 12). Raises ValueError where there is none."""
    begin = datetime(year, number, 1, tzinfo=UTC)
    following = datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC)
    return int(begin.timestamp()) * 1000, int(following.timestamp()) * 1000
