"""A tenant's month as a bill. Pure.

A line is what differs in nothing that a price depends on. Its cost is the sum of what the slices
stored, its amount is that rounded once to the minor unit, and what the rounding left is shown. A
correction is part of the line whose slices it reverses, and of the line that stands instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Final

from quintal import months
from quintal.contracts.bills import BillLine, BillTotal, minor_step
from quintal.units import PARTS, unit_hours
from quintal_metering.queries import ESTIMATED
from quintal_metering.rows import SliceRow

LINE: Final = (
    "project", "profile", "pool", "model", "vendor", "workload_class", "price", "price_per",
    "price_list", "currency",
)  # fmt: skip
"""What a line is one of."""

_WIDE: Final = Context(prec=100)


@dataclass(slots=True)
class Sum:
    """What a line comes to so far."""

    quantity: int = 0
    nominal: int = 0
    part_ms: int = 0
    cost: Decimal = Decimal(0)
    estimated: int = 0
    slices: int = 0
    adjustments: int = 0
    leases: int = 0
    known: set[str] = field(default_factory=set)
    """Open leases that are among the stored ones already."""
    ratings: set[str] = field(default_factory=set)
    revisions: set[int] = field(default_factory=set)
    sequences: set[int] = field(default_factory=set)

    def add(self, row: SliceRow) -> None:
        """An open lease's slice."""
        self.quantity += row.quantity
        self.nominal += row.nominal_quantity
        self.part_ms += row.part_ms
        self.cost = _WIDE.add(self.cost, row.cost)
        self.estimated += row.quantity if row.provenance in ESTIMATED else 0
        self.slices += 1
        self.leases += row.lease not in self.known
        self.known.add(row.lease)
        self.ratings.add(f"{row.provenance}@{row.rating_version}")
        self.revisions.add(row.revision)
        self.sequences.add(row.sequence)


def month_span(month: str) -> tuple[int, int]:
    """`2026-11` as milliseconds, UTC: its first instant and the next month's."""
    return months.month(int(month[:4]), int(month[5:]))


def lines(stored: Iterable[dict[str, Any]], opened: Iterable[SliceRow]) -> tuple[BillLine, ...]:
    """`stored` are the rows of `BillLines`."""
    found: dict[tuple[Any, ...], Sum] = {}
    for row in stored:
        found[tuple(row[name] for name in LINE)] = Sum(
            int(row["quantity_sum"]), int(row["nominal_sum"]), int(row["part_ms_sum"]),
            row["cost_sum"], int(row["estimated_sum"]), int(row["slices"]),
            int(row["adjustments"]), int(row["leases"]), set(row["known"]), set(row["ratings"]),
            {int(n) for n in row["revisions"]}, {int(row["first"]), int(row["last"])},
        )  # fmt: skip
    for slice_ in opened:
        key = tuple(getattr(slice_, name) for name in LINE)
        found.setdefault(key, Sum()).add(slice_)
    ordered = sorted(found.items(), key=lambda item: tuple(str(part) for part in item[0]))
    return tuple(_line(dict(zip(LINE, key, strict=True)), total) for key, total in ordered)


def _line(named: dict[str, Any], total: Sum) -> BillLine:
    amount = rounded(total.cost, named["currency"])
    price = named.pop("price")
    return BillLine(
        **named,
        price=None if price is None else format(price.normalize(), "f"),
        quantity=total.quantity,
        nominal_quantity=total.nominal,
        unit_hours=format(unit_hours(total.quantity), "f"),
        card_ms=total.part_ms // PARTS,
        cost=total.cost,
        amount=amount,
        residue=_WIDE.subtract(total.cost, amount),
        leases=total.leases,
        slices=total.slices,
        adjustments=total.adjustments,
        estimated_quantity=total.estimated,
        ratings=tuple(sorted(total.ratings)),
        revisions=tuple(sorted(total.revisions)),
        first_sequence=min(total.sequences),
        last_sequence=max(total.sequences),
    )


def rounded(cost: Decimal, currency: str) -> Decimal:
    """Rounded once to the currency's minor unit, half-even."""
    return cost.quantize(minor_step(currency), ROUND_HALF_EVEN, context=_WIDE)


def summed(found: Iterable[BillLine]) -> tuple[BillTotal, ...]:
    """The lines' amounts and residues by currency; a line without a price costs nothing."""
    totals: dict[str, tuple[Decimal, Decimal]] = {}
    for line in found:
        if line.currency:
            amount, residue = totals.get(line.currency, (Decimal(0), Decimal(0)))
            totals[line.currency] = (
                _WIDE.add(amount, line.amount), _WIDE.add(residue, line.residue),
            )  # fmt: skip
    return tuple(
        BillTotal(currency=currency, amount=amount, residue=residue)
        for currency, (amount, residue) in sorted(totals.items())
    )
