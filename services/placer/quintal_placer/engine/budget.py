"""What a tenant used this month, in micro-units x milliseconds, and what a budget still leaves.

Counted from the ledger alone: use that is over, by calendar month (UTC), and live leases up to
their deadlines, so that what is promised today is not promised twice. Integers, undivided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quintal.months import month_of

QUANTITY_PER_MICRO_HOUR: Final = 3_600_000


class Stretch(NamedTuple):
    """So many micro-units, from one instant to another."""

    micro: int
    from_ms: int
    to_ms: int


@dataclass(slots=True)
class Spent:
    """Use that is over: (tenant, class) -> first instant of a month -> micro-units x ms."""

    used: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)

    def add(self, tenant: str, workload_class: str, stretch: Stretch) -> None:
        """A lease is over: what it used, in the months in which it did."""
        months = self.used.setdefault((tenant, workload_class), {})
        for begin_ms, amount in by_month(stretch):
            months[begin_ms] = months.get(begin_ms, 0) + amount

    def in_month(
        self, tenant: str, workload_class: str, at_ms: int, live: Iterable[Stretch]
    ) -> int:
        """Of the month of `at_ms`: what is over, and what live leases come to by their deadlines.

        What lies beyond the month's end is the next month's.
        """
        begin_ms, end_ms = month_of(at_ms)
        amount = self.used.get((tenant, workload_class), {}).get(begin_ms, 0)
        return amount + sum(within(stretch, begin_ms, end_ms) for stretch in live)

    def forget(self, at_ms: int) -> None:
        """Drop months before the last one: no budget asks for them."""
        kept_from = month_of(month_of(at_ms)[0] - 1)[0]
        for months in self.used.values():
            for begin_ms in [month for month in months if month < kept_from]:
                del months[begin_ms]


def within(stretch: Stretch, begin_ms: int, end_ms: int) -> int:
    """What of a stretch lies between two instants."""
    return stretch.micro * max(0, min(stretch.to_ms, end_ms) - max(stretch.from_ms, begin_ms))


def by_month(stretch: Stretch) -> Iterator[tuple[int, int]]:
    """(first instant of the month, amount) of each month that the stretch touches."""
    at_ms = stretch.from_ms
    while at_ms < stretch.to_ms:
        begin_ms, end_ms = month_of(at_ms)
        yield begin_ms, within(stretch, at_ms, end_ms)
        at_ms = end_ms
