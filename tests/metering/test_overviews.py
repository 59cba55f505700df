"""What the report of the fleet says is what the demo's numbers are, undivided."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from quintal.contracts.reports import ReportAsk
from quintal.errors import Code, Refused
from quintal_metering.engine import Engine
from quintal_metering.handlers import Handlers, Principals
from quintal_metering.meter import Meter
from quintal_metering.overviews import FleetOverTime, ModelsCosts, stretches, unit_costs
from quintal_metering.settings import Where
from quintal_metering.store import Store
from tests.metering.demo import AMD, FROM_MS, TO_MS, filled
from tests.metering.shelves import caller
from tests.metering.story import HOUR, MODEL, STU, T0

pytestmark = pytest.mark.engine
WHOLE_HOUR = 1_000_000 * HOUR * STU


@pytest.fixture(scope="module")
def store(engine_path: Path) -> Iterator[Store]:
    opened = filled(Store.open(Where(engine_path, database="overviews")))
    yield opened
    opened.close()


def test_capacity_granted_and_used_are_by_class_and_hour_undivided(store: Store) -> None:
    rows = {
        (row.workload_class, (row.at_ms - T0) // HOUR): row
        for row in stretches(store.ask(FleetOverTime(FROM_MS, TO_MS, HOUR)))
    }
    first = rows["train_llm", 0]
    assert first.capacity == WHOLE_HOUR * 43 // 10  # three of 1, one of 1.3
    assert first.granted == WHOLE_HOUR * 23 // 10
    assert first.leased == WHOLE_HOUR * 23 // 10
    assert first.unavailable == WHOLE_HOUR * 2  # two cordoned
    assert (first.covered, first.used) == (WHOLE_HOUR // 2, 0)
    last = rows["train_llm", 2]
    assert (last.granted, last.leased) == (WHOLE_HOUR, WHOLE_HOUR)
    other = rows["llm_large", 0]
    assert (other.granted, other.leased) == (0, WHOLE_HOUR * 12 // 10), "held by another class"
    [whole] = [
        row
        for row in stretches(store.ask(FleetOverTime(FROM_MS, TO_MS, 10**6 * HOUR)))
        if row.workload_class == "train_llm"
    ]
    assert whole.granted == sum(
        row.granted for (name, _), row in rows.items() if name == "train_llm"
    )


def test_what_a_model_cost_us_has_its_share_of_idle_time_and_is_unknown_without_a_list(
    store: Store,
) -> None:
    found = {row.model: row for row in unit_costs(store.ask(ModelsCosts(FROM_MS, TO_MS)))}
    amd, nvidia = found[AMD], found[MODEL]
    assert (amd.quantity, amd.charged) == (WHOLE_HOUR * 26 // 10, Decimal("5.2"))
    # Two of three hours were leased, at 1.50 a card-hour.
    assert (amd.own_cost, amd.full_cost) == (Decimal(3), Decimal("4.5"))
    assert (nvidia.own_cost, nvidia.full_cost) == (Decimal("4.5"), Decimal("13.5"))
    assert (nvidia.release_year, nvidia.cost_currency) == (2022, "EUR")
    store.command("CREATE TABLE kept AS catalog_costs")
    store.command("INSERT INTO kept SELECT * FROM catalog_costs")
    store.command("TRUNCATE TABLE catalog_costs")
    try:
        bare = unit_costs(store.ask(ModelsCosts(FROM_MS, TO_MS)))
    finally:
        store.command("INSERT INTO catalog_costs SELECT * FROM kept")
    assert {(row.own_cost, row.full_cost) for row in bare} == {(None, None)}
    assert {row.quantity for row in bare} == {WHOLE_HOUR * 3, WHOLE_HOUR * 26 // 10}


async def test_the_fleet_is_told_to_people_who_run_it_alone_and_up_to_the_closed_hour(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "principals.json"
    path.write_text('{"finance": "finance"}')
    meter = Meter(store)
    meter.open("again", 0)
    desk = Handlers(Engine(), meter, Principals(path))
    ask = ReportAsk(from_ms=T0 + 5, to_ms=T0 + 100 * HOUR)
    told = await desk.report(caller("finance"), ask)
    assert (told.from_ms, told.to_ms) == (T0, TO_MS)
    assert told.fleet
    assert told.costs
    with pytest.raises(Refused) as refused:
        await desk.report(caller("a"), ask)
    assert refused.value.code == Code.NOT_YOURS
    with pytest.raises(Refused, match="at most 1000 stretches"):
        await desk.report(caller("finance"), ReportAsk(from_ms=0, to_ms=10**12))
