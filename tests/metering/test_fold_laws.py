"""Laws 8 and 9 over generated ledgers, against a reckoning that shares nothing with the fold."""

from __future__ import annotations

import itertools
from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from quintal.contracts.ledger import Group
from quintal_metering.billing import cut
from quintal_metering.facts import State
from quintal_metering.fold import fold_group
from quintal_metering.rows import CapacityRow, SliceRow
from tests.metering.histories import HOUR, reckoned, steps, written
from tests.metering.story import Story, Told

pytestmark = pytest.mark.laws
Drawn = list[tuple[int, str, int]]
law = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def with_open(story: Story, told: Told) -> list[SliceRow]:
    """The slices, and the open leases' cut at the watermark."""
    rows = list(told.slices)
    for lease in told.state.leases.values():
        if lease.state == "bound":
            rows += cut(lease, (lease.billed_ms, told.state.at_ms), story.prices, 0)
    return rows


def by_stretch(rows: list[SliceRow], edges: list[int]) -> Counter[tuple[str, int, int]]:
    """Each slice spread over the elementary stretches it covers; adjustments take away."""
    found: Counter[tuple[str, int, int]] = Counter()
    for row in rows:
        rate, rest = divmod(row.part_ms, row.to_ms - row.from_ms)
        assert not rest
        for start, end in itertools.pairwise(edges):
            if row.from_ms <= start and end <= row.to_ms:
                found[row.lease, start, end] += rate * (end - start)
    return Counter({key: number for key, number in found.items() if number})


@given(steps)
@law
def test_every_millisecond_of_every_bound_lease_is_metered_once(drawn: Drawn) -> None:
    story = written(drawn)
    truth = reckoned(story)
    rows = with_open(story, story.told())
    assert by_stretch(rows, truth.edges) == truth.usage
    assert all(
        row.quantity * row.parts == row.part_ms * row.charged_parts * row.rating_micro
        for row in rows
    )
    assert len({row.id for row in rows}) == len(rows)


@given(steps)
@law
def test_the_parts_of_every_closed_hour_are_conserved(drawn: Drawn) -> None:
    story = written(drawn)
    truth = reckoned(story)
    told = story.told()
    found: Counter[tuple[str, str, int, str]] = Counter()
    leased: Counter[tuple[str, str, int]] = Counter()
    for row in told.rows:
        if isinstance(row, CapacityRow):
            found[row.pool, row.model, row.hour_ms, row.reason] += row.part_ms
    last = truth.until - truth.until % HOUR
    for slice_ in told.slices:
        if slice_.from_ms < last and slice_.home_pool:
            leased[slice_.home_pool, slice_.home_model, slice_.from_ms // HOUR * HOUR] += (
                slice_.part_ms
            )
    closed = {key: n for key, n in truth.capacity.items() if key[2] < last and n}
    assert {key: n for key, n in found.items() if n} == closed
    for pool, model, hour, reason in closed:
        if reason == "total":
            cell = {r: n for (p, m, h, r), n in found.items() if (p, m, h) == (pool, model, hour)}
            assert cell.pop("total") == sum(cell.values())
            assert cell.get("leased", 0) == leased[pool, model, hour]
    assert told.faults == []


@given(steps)
@law
def test_what_each_lease_costs_is_what_its_true_stretches_cost(drawn: Drawn) -> None:
    """An end that came late costs what it would have cost had it come in time."""
    story = written(drawn)
    told = story.told()
    costs: dict[str, Decimal] = {}
    for row in with_open(story, told):
        costs[row.lease] = costs.get(row.lease, Decimal(0)) + row.cost
    in_time = [row for row in with_open(story, told) if row.kind == "usage"]
    taken = [row for row in told.slices if row.kind == "adjustment"]
    assert all(cost >= 0 for cost in costs.values())
    for row in taken:
        whole = [r for r in in_time if r.lease == row.lease and r.to_ms == row.to_ms]
        exact = [r for r in whole if r.from_ms == row.from_ms]
        assert not exact or row.cost in {-r.cost for r in exact}
        assert row.cost <= 0


@given(steps, st.sets(st.integers(1, 60)))
@law
def test_a_checkpoint_anywhere_changes_nothing(drawn: Drawn, checkpoints: set[int]) -> None:
    story = written(drawn)
    assert story.told(checkpoints) == story.told()


@given(steps, st.integers(2, 9))
@law
def test_how_transitions_lie_in_messages_changes_no_quantity(drawn: Drawn, size: int) -> None:
    story = written(drawn)
    records = [record for group in story.groups for record in group.transitions]
    other = Story(prices=story.prices)
    for at in range(0, len(records), size):
        other.tell(*records[at : at + size])

    def essence(told: Told) -> list[object]:
        rows = [row for row in told.rows if isinstance(row, (SliceRow, CapacityRow))]
        return [
            row._replace(sequence=0, id="" if row.kind == "adjustment" else row.id) for row in rows
        ]

    assert essence(other.told()) == essence(story.told())


@given(steps)
@law
def test_a_message_read_twice_is_folded_once(drawn: Drawn) -> None:
    story = written(drawn)
    state, rows = State(), []
    for sequence, group in enumerate(story.groups, 1):
        for _ in range(2):
            state, more = fold_group(state, sequence, Group.model_validate(group), story.prices)
            rows += more
    assert rows == story.told().rows
