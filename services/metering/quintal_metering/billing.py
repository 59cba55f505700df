"""What bound leases used, cut into slices: at every hour, change of shape, adoption and price.

A slice is never kept in memory once it is given out. What a lease *was* is kept instead (`Use`,
one per change), and slices are cut from it again where an end that came late takes some back: the
same cuts give the same slices, to the last digit of their cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from quintal.contracts.ledger import device_key
from quintal.pricing import Charge, Terms, charge
from quintal_metering.facts import Card, Group, Lease, State, Use, hour_of, hours_within
from quintal_metering.rows import HoldingRow, SliceRow, checked, row_id
from quintal_metering.turn import Charged, Prices, Turn


def grouped(state: State, cards: tuple[Card, ...]) -> tuple[Group, ...]:
    """The lease's cards by what a slice names, and by where they stand in the inventory."""
    counts: Counter[Group] = Counter()
    for card in cards:
        device = state.devices.get(device_key(card.node, card.uuid))
        home = (device.pool, device.model or "") if device and device.present else ("", "")
        its = (card.charged_parts, card.partition_profile)
        counts[Group(card.vendor, card.model, card.pool, *card[5:9], *home, 0, *its)] += 1
    return tuple(sorted(group._replace(devices=count) for group, count in counts.items()))


def held(turn: Turn, lease: Lease, to_ms: int = 0) -> None:
    """Say on which devices the lease is from `held_ms` on, or was until `to_ms`."""
    owner = (lease.tenant, lease.project, lease.workload_class)
    turn.say(
        HoldingRow(
            row_id("holding", lease.id, place, *card[:2], lease.held_ms), lease.id, *owner,
            card.pool, card.model, card.node, card.uuid, card.parts, lease.held_ms, to_ms,
            turn.sequence,
        )
        for place, card in enumerate(lease.cards)
    )  # fmt: skip


def begin(turn: Turn, lease: Lease) -> None:
    """Usage runs from now on."""
    lease.state, lease.bound_ms, lease.billed_ms = "bound", turn.at_ms, turn.at_ms
    lease.held_ms = turn.at_ms
    held(turn, lease)
    lease.uses = [Use(turn.at_ms, turn.state.revision, grouped(turn.state, lease.cards))]


def reshape(turn: Turn, lease: Lease) -> None:
    """Something that a slice names may have changed: cut here if it has."""
    now = Use(turn.at_ms, turn.state.revision, grouped(turn.state, lease.cards))
    last = lease.uses[-1]
    if last[1:] == now[1:]:
        return
    bill(turn, lease, turn.at_ms)
    if last.from_ms == turn.at_ms:
        lease.uses.pop()
    lease.uses.append(now)


def bill(turn: Turn, lease: Lease, to_ms: int) -> None:
    """Give out the slices up to `to_ms` that were not given out yet."""
    turn.say(cut(lease, (lease.billed_ms, to_ms), turn.prices, turn.sequence, turn.charged))
    lease.billed_ms = max(lease.billed_ms, to_ms)


def finish(turn: Turn, lease: Lease, effective_ms: int) -> None:
    """Usage ended at `effective_ms`: bill up to there, or take back what lies beyond it."""
    held(turn, lease, max(effective_ms, lease.held_ms, 1))
    if effective_ms >= lease.billed_ms:
        bill(turn, lease, effective_ms)
    else:
        turn.say(_taken_back(turn, lease, effective_ms))
    lease.uses.clear()


def _taken_back(turn: Turn, lease: Lease, effective_ms: int) -> Iterator[SliceRow]:
    """New rows that undo the part of each slice beyond `effective_ms`; the slices stand."""
    start = hour_of(effective_ms)
    kept = {
        row.id: row.cost for row in cut(lease, (start, effective_ms), turn.prices, turn.sequence)
    }
    for row in cut(lease, (start, lease.billed_ms), turn.prices, turn.sequence):
        from_ms = max(row.from_ms, effective_ms)
        if from_ms >= row.to_ms:
            continue
        # A slice is so much a millisecond, all along: its part is exact.
        part, whole = row.to_ms - from_ms, row.to_ms - row.from_ms
        yield row._replace(
            id=row_id("adjustment", row.id),
            kind="adjustment",
            from_ms=from_ms,
            part_ms=-(row.part_ms * part // whole),
            quantity=checked(-(row.quantity * part // whole)),
            nominal_quantity=checked(-(row.nominal_quantity * part // whole)),
            cost=kept.get(row.id, row.cost * 0) - row.cost,
        )


def cut(
    lease: Lease,
    span: tuple[int, int],
    prices: Prices,
    sequence: int,
    charged: Charged | None = None,
) -> Iterator[SliceRow]:
    """The lease's slices within `span`, oldest first. The span begins where a slice may begin.

    `charged` keeps what equal terms came to over the same stretch.
    """
    known = {} if charged is None else charged
    ends = [use.from_ms for use in lease.uses[1:]] + [span[1]]
    for use, end in zip(lease.uses, ends, strict=True):
        start, stop = max(use.from_ms, span[0]), min(end, span[1])
        for _, from_ms, to_ms in hours_within(start, stop):
            for group in use.groups:
                terms = _terms(lease, group)
                key = (use.revision, terms, from_ms, to_ms)
                pieces = known.get(key)
                if pieces is None:
                    pieces = known[key] = charge(terms, from_ms, to_ms, prices[use.revision])
                for piece in pieces:
                    yield _slice(lease, group, (piece, terms), (use.revision, sequence))


def _terms(lease: Lease, group: Group) -> Terms:
    charged = group.rating_micro if lease.nominal_micro is None else lease.nominal_micro
    return Terms(
        lease.tenant, lease.profile, group.pool, group.model, lease.workload_class,
        group.devices, group.parts, charged,
        group.charged_parts if group.charged_parts != group.parts else None,
    )  # fmt: skip


def _slice(
    lease: Lease, group: Group, priced: tuple[Charge, Terms], named: tuple[int, int]
) -> SliceRow:
    piece, terms = priced
    revision, sequence = named
    part_ms = group.devices * group.parts * (piece.to_ms - piece.from_ms)
    owner = (lease.tenant, lease.id, lease.workload_class)
    charged_ms = group.devices * group.charged_parts * (piece.to_ms - piece.from_ms)
    quantity = charged_ms * group.rating_micro
    nominal = charged_ms * terms.charged_micro
    return SliceRow(
        row_id("usage", *owner, *group.named, piece.from_ms, revision), "usage", lease.id,
        lease.tenant, lease.project, lease.labels, lease.profile, group.pool, group.model,
        group.vendor, lease.workload_class, piece.from_ms, piece.to_ms, group.devices,
        group.parts, checked(part_ms), group.rating_micro, group.rating_version,
        group.provenance, checked(quantity), checked(nominal), piece.price, piece.per,
        piece.price_list, piece.cost, piece.currency, revision, sequence, group.home_pool,
        group.home_model, charged_parts=group.charged_parts, partition=group.partition,
    )  # fmt: skip
