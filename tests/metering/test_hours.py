"""Usage by the hour: sums of slices, equal to the last digit, whatever came late or twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from quintal.contracts.usage import VerifyAsk
from quintal_metering import reports
from quintal_metering.columns import by_month
from quintal_metering.hourly import KEYS
from quintal_metering.meter import Meter
from quintal_metering.reports import Window
from quintal_metering.rows import SliceRow
from quintal_metering.store import Store
from quintal_metering.verifying import verify
from tests.metering.story import HOUR, STU, T0, Story, card, price_list
from tests.metering.test_store import begun, messages

pytestmark = pytest.mark.engine
OpenStore = Callable[[], Store]


def a_week_of_odd_prices() -> Story:
    """Thirds of a cent, leases that begin and end anywhere, one end that comes late."""
    story = Story().node().adopt(1, price_list("1.333333"))
    for n in range(6):
        story.appear(f"g{n}")
    for n in range(6):
        story.at(n * 777_777 + 13).grant(
            f"l{n}", card(f"g{n}", rating_micro=STU + n), bound=True, tenant=f"t{n % 2}",
            project=f"p{n % 3}",
        )  # fmt: skip
    for n in range(5):
        story.at((n + 2) * HOUR + 1_111 * n).end(f"l{n}", reason="released").ended(f"l{n}")
    return story.at(7 * HOUR + 1).end("l5", 5 * HOUR + 77, "node_lost").ended("l5").tick()


def summed(store: Store) -> dict[tuple[Any, ...], list[Any]]:
    rows = store.rows("SELECT * FROM usage_hours FINAL")
    names = ("part_ms", "quantity", "nominal_quantity", "cost", "slices", "adjustments")
    return {
        (row["hour_ms"], *(row[key] for key in KEYS)): [row[name] for name in names] for row in rows
    }


def reckoned(rows: list[SliceRow]) -> dict[tuple[Any, ...], list[Any]]:
    """The same from the fold's own rows, by hand."""
    found: dict[tuple[Any, ...], list[Any]] = defaultdict(lambda: [0, 0, 0, Decimal(0), 0, 0])
    for row in rows:
        hour = row.from_ms - row.from_ms % HOUR
        sums = found[hour, *(getattr(row, key) for key in KEYS)]
        new = (row.part_ms, row.quantity, row.nominal_quantity, row.cost, 1,
               row.kind == "adjustment")  # fmt: skip
        sums[:] = [a + b for a, b in zip(sums, new, strict=True)]
    return dict(found)


def done(meter: Meter) -> None:
    while meter.hours.again(meter.position):
        pass


def checked(meter: Meter) -> Any:
    *_, found = verify(meter, VerifyAsk(to_ms=2**50))
    return found.answer()


def test_an_hours_sums_are_those_of_its_slices_to_the_last_digit(open_store: OpenStore) -> None:
    story = a_week_of_odd_prices()
    meter = begun(open_store(), story)
    for message in messages(story):
        meter.take([message], 0)
        done(meter)
    assert summed(meter.store) == reckoned(story.told().slices)
    whole = meter.store.ask(reports.UsageOverTime(Window(T0, T0 + 24 * HOUR, 10**12)))
    cost = sum(row.cost for row in story.told().slices)
    assert sum(Decimal(str(row["cost"])) for row in whole).quantize(Decimal("1e-9")) == cost
    assert sum(row["restated"] for row in whole) == 2
    assert checked(meter).ok


def test_slices_that_are_stored_twice_count_once_in_their_hour(open_store: OpenStore) -> None:
    story = a_week_of_odd_prices()
    meter = begun(open_store(), story)
    meter.take(messages(story), 0)
    meter.store.command("INSERT INTO slices SELECT * FROM slices")
    done(meter)
    done(meter)
    assert summed(meter.store) == reckoned(story.told().slices)


def test_a_start_finds_the_hours_that_the_last_process_left_behind(open_store: OpenStore) -> None:
    story = a_week_of_odd_prices()
    waiting = messages(story)
    meter = begun(open_store(), story)
    meter.take(waiting[:-3], 0)
    done(meter)
    meter.take(waiting[-3:], 0)
    again = begun(open_store())
    assert again.hours.behind
    done(again)
    assert summed(again.store) == reckoned(story.told().slices)
    again.rest()
    assert begun(open_store()).hours.behind == set()


def test_a_correction_is_in_its_hour_also_after_a_crash(open_store: OpenStore) -> None:
    story = a_week_of_odd_prices()
    meter = begun(open_store(), story)
    meter.take(messages(story), 0)
    done(meter)
    meter.rest()
    one = story.told().slices[0]
    back = one._replace(
        id="back", kind="adjustment", part_ms=-one.part_ms, quantity=-one.quantity,
        nominal_quantity=-one.nominal_quantity, cost=-one.cost, correction="c", reverses=one.id,
    )  # fmt: skip
    meter.store.write(by_month("slices", [back], "c", "from_ms"))
    assert any("by the hour" in one.subject for one in checked(meter).differences)
    again = begun(open_store())
    assert again.hours.behind == {one.from_ms - one.from_ms % HOUR}
    assert not any("by the hour" in one.subject for one in checked(again).differences), (
        "what is known to be behind is no difference"
    )
    done(again)
    assert summed(again.store) == reckoned([*story.told().slices, back])
    assert begun(open_store()).hours.behind == set()


def test_verify_names_an_hour_whose_sums_are_off(open_store: OpenStore) -> None:
    story = a_week_of_odd_prices()
    meter = begun(open_store(), story)
    meter.take(messages(story), 0)
    done(meter)
    meter.store.command(
        "INSERT INTO usage_hours SELECT * REPLACE (cost + toDecimal128('0.000000001', 9) AS cost, "
        "version + 1 AS version) FROM usage_hours WHERE tenant = 't0' ORDER BY hour_ms LIMIT 1"
    )
    [off] = checked(meter).differences
    assert (off.check, off.at_ms) == ("recompute", T0)
    assert "t0" in off.subject
