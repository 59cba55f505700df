"""Stored sums and open leases put together: a summary is the sum of its slices, to the last digit.

Pure. Open leases are cut at the watermark by the same `cut` and priced by the same `charge` as
the slices that they will become.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Final

from quintal.contracts.usage import Slice, UsageRow
from quintal.units import PARTS, unit_hours
from quintal_metering.billing import cut
from quintal_metering.facts import Lease, State
from quintal_metering.queries import ESTIMATED, Span
from quintal_metering.rows import SliceRow
from quintal_metering.turn import Prices

Key = tuple[tuple[str, ...], str]
"""The group's values in the order asked for, and the class."""

_WIDE: Final = Context(prec=100)
_MICRO_STEP: Final = Decimal("0.000001")


@dataclass(slots=True)
class Total:
    """What one group comes to."""

    quantity: int = 0
    nominal: int = 0
    part_ms: int = 0
    cost: Decimal = Decimal(0)
    currency: str = ""
    estimated: int = 0
    unpriced: int = 0
    leases: int = 0
    open: set[str] = field(default_factory=set)

    def add(self, row: SliceRow) -> None:
        """One open lease's slice."""
        self.quantity += row.quantity
        self.nominal += row.nominal_quantity
        self.part_ms += row.part_ms
        self.cost = _WIDE.add(self.cost, row.cost)
        self.currency = max(self.currency, row.currency)
        self.estimated += row.quantity if row.provenance in ESTIMATED else 0
        self.unpriced += row.quantity if row.price is None else 0
        self.open.add(row.lease)


def open_slices(state: State, prices: Prices, span: Span) -> list[SliceRow]:
    """What open leases used since their last stored slice, up to the watermark."""
    found: list[SliceRow] = []
    for lease in state.leases.values():
        if lease.state == "bound" and _wanted(lease, span):
            rows = cut(lease, (lease.billed_ms, state.at_ms), prices, state.sequence)
            found.extend(row for row in rows if _within(row, span))
    return found


def _wanted(lease: Lease, span: Span) -> bool:
    return (
        span.tenant in {None, lease.tenant}
        and span.project in {None, lease.project}
        and span.profile in {None, lease.profile}
        and span.lease in {None, lease.id}
    )


def _within(row: SliceRow, span: Span) -> bool:
    return (
        span.model in {None, row.model}
        and (span.from_ms is None or row.from_ms >= span.from_ms)
        and (span.to_ms is None or row.from_ms < span.to_ms)
    )


def totals(
    by: tuple[str, ...],
    stored: Iterable[dict[str, Any]],
    opened: Iterable[SliceRow],
    counted: Iterable[dict[str, Any]],
) -> dict[Key, Total]:
    """`stored` are the rows of `Sums`, `counted` those of `StoredLeases` for the open leases."""
    found: dict[Key, Total] = {}
    for row in stored:
        found[_key(by, row)] = Total(
            int(row["quantity_sum"]), int(row["nominal_sum"]), int(row["part_ms_sum"]),
            row["cost_sum"], row["currency_any"], int(row["estimated_sum"]),
            int(row["unpriced_sum"]), int(row["leases"]),
        )  # fmt: skip
    for slice_ in opened:
        key = (tuple(grouped_as(slice_, name) for name in by), slice_.workload_class)
        found.setdefault(key, Total()).add(slice_)
    known = {_key(by, row): set(row["leases"]) for row in counted}
    for key, total in found.items():
        total.leases += len(total.open - known.get(key, set()))
    return found


def _key(by: tuple[str, ...], row: dict[str, Any]) -> Key:
    return tuple(str(row[f"by_{name}"]) for name in by), str(row["unit_class"])


_FORMS: Final = {"month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H:00Z"}


def grouped_as(row: SliceRow, by: str) -> str:
    """The value of one grouping for a slice, as `queries.GROUPS` has it."""
    if by in _FORMS:
        return datetime.fromtimestamp(row.from_ms / 1000, UTC).strftime(_FORMS[by])
    if by.startswith("label:"):
        return row.labels.get(by.removeprefix("label:"), "")
    return str(getattr(row, "workload_class" if by == "class" else by))


def usage_rows(by: tuple[str, ...], found: dict[Key, Total]) -> tuple[UsageRow, ...]:
    """As the wire has them, by group and class."""
    return tuple(
        UsageRow(
            group=dict(zip(by, values, strict=True)),
            workload_class=workload_class,
            leases=total.leases,
            quantity=total.quantity,
            nominal_quantity=total.nominal,
            unit_hours=format(unit_hours(total.quantity), "f"),
            unit_seconds=unit_seconds(total.quantity),
            card_ms=total.part_ms // PARTS,
            cost=total.cost,
            currency=total.currency,
            estimated_quantity=total.estimated,
            unpriced_quantity=total.unpriced,
        )
        for (values, workload_class), total in sorted(found.items())
    )


def unit_seconds(quantity: int) -> str:
    """An undivided quantity as unit-seconds, to the micro-unit, half-even."""
    exact = _WIDE.divide(Decimal(quantity), Decimal(PARTS * 1_000_000 * 1_000))
    return format(exact.quantize(_MICRO_STEP, ROUND_HALF_EVEN, context=_WIDE), "f")


def told(row: SliceRow | dict[str, Any]) -> Slice:
    """A slice as the wire has it, from the store or from an open lease."""
    facts = row if isinstance(row, dict) else {name: getattr(row, name) for name in _NAMES}
    price = facts["price"]
    return Slice(
        **{name: facts[name] for name in _PLAIN},
        kind_of=facts["kind"],
        quantity=int(facts["quantity"]),
        nominal_quantity=int(facts["nominal_quantity"]),
        price=None if price is None else format(price, "f"),
        cost=facts["cost"],
    )


_PLAIN: Final = (
    "id", "lease", "tenant", "project", "labels", "profile", "pool", "model", "workload_class",
    "from_ms", "to_ms", "devices", "parts", "rating_micro", "rating_version", "provenance",
    "price_per", "price_list", "currency", "revision", "sequence",
)  # fmt: skip
_NAMES: Final = (*_PLAIN, "kind", "quantity", "nominal_quantity", "price", "cost")
