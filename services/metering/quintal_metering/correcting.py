"""Charging again what was charged, by the ratings and prices of one revision. Pure.

A slice that changes gets two sorts of new rows: one that takes it back whole, to the last digit,
and those that stand in its place. The slice itself stands. All are named by what they replace, so
that a correction that a crash cut short can be done again and ends the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal

from quintal.contracts.bills import Rerated
from quintal.contracts.documents import Catalog, Price, PriceListSpec, Rating
from quintal.pricing import Terms, charge
from quintal.units import to_micro, unit_hours
from quintal_metering.rows import SliceRow, checked, row_id
from quintal_metering.turn import PriceLists

What = Literal["both", "ratings", "prices"]


@dataclass(frozen=True, slots=True)
class Correction:
    """Under what the slices are charged again."""

    id: str
    what: What
    revision: int
    catalog: Catalog
    prices: PriceLists
    sequence: int
    """Where the ledger was: the new rows belong there."""


class Unmatched(Exception):  # noqa: N818 - no error: it is counted
    """The slice's rating cannot be found again."""


_FIELDS: Final = SliceRow._fields
_INTEGERS: Final = ("part_ms", "quantity", "nominal_quantity")


def slice_of(row: Mapping[str, Any]) -> SliceRow:
    """A stored row as the fold gave it out."""
    facts = {name: row[name] for name in _FIELDS}
    return SliceRow(**{**facts, **{name: int(row[name]) for name in _INTEGERS}})


def corrected(
    row: SliceRow, how: Correction, catalogs: Mapping[int, Catalog]
) -> tuple[SliceRow, ...]:
    """The reversal and what stands instead; nothing where it comes to the same.

    Raises Unmatched.
    """
    rating = _rating(row, how, catalogs)
    charged_ms = row.devices * row.charged_parts * (row.to_ms - row.from_ms)
    charged = abs(row.nominal_quantity) // charged_ms if charged_ms else 0
    nominal = charged != row.rating_micro
    micro = charged if nominal else rating[0]
    terms = Terms(
        row.tenant, row.profile, row.pool, row.model, row.workload_class,
        devices=row.devices, parts=row.parts, charged_micro=micro,
        charged_parts=row.charged_parts if row.charged_parts != row.parts else None,
    )  # fmt: skip
    pieces = charge(terms, row.from_ms, row.to_ms, _prices(row, how))
    same = len(pieces) == 1 and (pieces[0].price, pieces[0].per) == (row.price, row.price_per)
    if same and (rating[0], micro) == (row.rating_micro, charged):
        return ()
    sign = -1 if row.part_ms < 0 else 1
    instead = []
    for piece in pieces:
        share = sign * row.devices * (piece.to_ms - piece.from_ms)
        instead.append(
            row._replace(
                id=row_id("rerated", row.id, piece.from_ms, how.revision),
                kind="adjustment",
                from_ms=piece.from_ms,
                to_ms=piece.to_ms,
                part_ms=share * row.parts,
                rating_micro=rating[0],
                rating_version=rating[1],
                provenance=rating[2],
                quantity=checked(share * row.charged_parts * rating[0]),
                nominal_quantity=checked(share * row.charged_parts * micro),
                price=piece.price,
                price_per=piece.per,
                price_list=piece.price_list,
                cost=sign * piece.cost,
                currency=piece.currency or row.currency,
                revision=how.revision,
                sequence=how.sequence,
                correction=how.id,
                reverses="",
            )
        )
    return (reversal(row, how), *instead)


def reversal(row: SliceRow, how: Correction) -> SliceRow:
    """The row that, beside this one, comes to nothing."""
    return row._replace(
        id=row_id("reversal", row.id),
        kind="adjustment",
        part_ms=-row.part_ms,
        quantity=-row.quantity,
        nominal_quantity=-row.nominal_quantity,
        cost=row.cost.copy_negate(),
        sequence=how.sequence,
        correction=how.id,
        reverses=row.id,
    )


def _prices(row: SliceRow, how: Correction) -> PriceLists:
    if how.what != "ratings":
        return how.prices
    if row.price is None:
        return ()
    price = Price(amount=row.price, per=row.price_per)
    return ((row.price_list, PriceListSpec(currency=row.currency, prices=(price,))),)


def _rating(
    row: SliceRow, how: Correction, catalogs: Mapping[int, Catalog]
) -> tuple[int, str, str]:
    """(micro, version, provenance) that the slice has now: its precision's rating, as it is now."""
    if how.what == "prices":
        return row.rating_micro, row.rating_version, row.provenance
    old = _entry(catalogs.get(row.revision), row)
    if old is None:
        raise Unmatched(row.id)
    rated = _rated(how.catalog, row)
    new = how.catalog.rating(rated, row.workload_class, old.precision)
    if new is None or new.per != old.per:
        raise Unmatched(row.id)
    # A device of many cores was rated as so many times one core's.
    cores = row.rating_micro // old.micro
    return to_micro(Decimal(new.value)) * cores, new.version, new.provenance


def _rated(catalog: Catalog, row: SliceRow) -> str:
    """The model whose rating the slice goes by: a partition's own, where it has one."""
    spec = catalog.models.get(row.model)
    profiles = spec.partitions if spec and row.partition else ()
    own = next((p.model for p in profiles if p.name == row.partition), None)
    return own or row.model


def _entry(catalog: Catalog | None, row: SliceRow) -> Rating | None:
    """The rating that the slice was charged by, in the revision that it names."""
    spec = catalog.models.get(_rated(catalog, row)) if catalog else None
    if spec is None:
        return None
    for rating in spec.ratings:
        if rating.workload_class != row.workload_class or rating.version != row.rating_version:
            continue
        if row.rating_micro == rating.micro or (
            rating.per == "core" and rating.micro and not row.rating_micro % rating.micro
        ):
            return rating
    return None


@dataclass(slots=True)
class Tally:
    """What a correction comes to, by tenant, class and currency."""

    looked_at: int = 0
    changed: int = 0
    unmatched: int = 0
    by: dict[tuple[str, str, str], list[Any]] | None = None

    def count(self, row: SliceRow, rows: Iterable[SliceRow]) -> None:
        """One slice and what came of it."""
        self.looked_at += 1
        instead = [one for one in rows if not one.reverses]
        if not instead:
            return
        self.changed += 1
        self.by = self.by if self.by is not None else {}
        currency = row.currency or instead[0].currency
        sums = self.by.setdefault(
            (row.tenant, row.workload_class, currency), [0, 0, 0, Decimal(0), Decimal(0)]
        )
        sums[0] += 1
        sums[1] += row.quantity
        sums[2] += sum(one.quantity for one in instead)
        sums[3] += row.cost
        sums[4] += sum((one.cost for one in instead), Decimal(0))

    def rows(self) -> Iterator[Rerated]:
        """As the wire has it."""
        for (tenant, workload_class, currency), sums in sorted((self.by or {}).items()):
            slices, before, after, cost_before, cost_after = sums
            yield Rerated(
                tenant=tenant, workload_class=workload_class, slices=slices,
                unit_hours_before=format(unit_hours(before), "f"),
                unit_hours_after=format(unit_hours(after), "f"),
                cost_before=cost_before, cost_after=cost_after,
                difference=cost_after - cost_before, currency=currency,
            )  # fmt: skip
