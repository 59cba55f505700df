"""A store with a little of everything, for reports and boards: three hours of two tenants."""

from __future__ import annotations

from typing import Any

from quintal.contracts import ledger
from quintal_metering.following import roll_up_hour
from quintal_metering.samples import MINUTE_MS
from quintal_metering.store import Store
from tests.metering.shelves import Shelf, charges, document, model, prices_of, profile, rating
from tests.metering.story import HOUR, POOL, STU, T0, Story, card
from tests.metering.test_rollups import TIMED, Observed
from tests.metering.test_store import begun, messages

AMD = "amd-mi300x"
FROM_MS, TO_MS = T0, T0 + 3 * HOUR

CATALOG = (
    model(rating("1"), rating("1.2", **{"class": "llm_large"}), release_year=2022, tdp_watts=700),
    model(rating("1.3"), name=AMD, vendor="amd", family="amd-mi300", release_year=2023),
    document("Pool", POOL, selector={}),
    charges("2.00"),
    charges("1.50", "owned", "card_hour", type="cost"),
    profile(time_to_place_ms=100),
    document("Commitment", "floor", tenant="a", **{"class": "train_llm"}, units=2),
    document(
        "Commitment", "cards", tenant="b", **{"class": "train_llm"}, cards=1, model=AMD,
    ),
    document(
        "Quota", "a", tenant="a", caps=[{"class": "train_llm", "units": 4}],
        budgets=[{"class": "train_llm", "unit_hours": 10}],
    ),
)  # fmt: skip


def story(shelf: Shelf) -> Story:
    found = Story().node().node("n2").appear("g1").appear("g2").appear("g3")
    found.appear("h1", "n2", AMD).adopt(1, *(spec for _, spec in prices_of(shelf.revisions[1])))
    found.grant("l1", card("g1"), bound=True, tenant="a", profile="train", labels={"team": "x"})
    amd = card("h1", "n2", model=AMD, vendor="amd", rating_micro=STU * 13 // 10)
    found.grant("l2", amd, bound=True, tenant="b", profile="train", labels={"team": "y"})
    found.tell(ledger.CordonChanged(at_ms=found.now, node="n1", by="op", cordoned=True))
    found.at(HOUR // 2).census(cause="snapshot")
    found.at(2 * HOUR).end("l2").ended("l2").at(3 * HOUR + 200_000).tick()
    return found


def filled(store: Store) -> Store:
    """The store, with all of it in."""
    for table in (*TIMED, "decisions"):
        store.command(f"ALTER TABLE {table} REMOVE TTL")
    shelf = Shelf(r1=CATALOG)
    told = story(shelf)
    meter = begun(store, told)
    meter.describe(shelf.revisions[1])
    meter.take(messages(told), 0)
    meter.hours.again(meter.position)
    seen = Observed(store)
    for minute in range(0, 180, 2):
        readings = {
            "utilization_percent": (0, 30, None), "power_watts": (100, 300, 90),
            "temperature_celsius": (40, 60, 40), "memory_used_bytes": (1e9, 2e9, None),
            "energy_joules": (minute * 6_000, minute * 18_000, None),
        }  # fmt: skip
        seen.sample(T0 + minute * MINUTE_MS, **readings)
    seen.roll()
    for hour in range(3):
        roll_up_hour(meter, seen, T0 + hour * HOUR)  # type: ignore[arg-type]
    columns: dict[str, list[Any]] = {
        "sequence": [1, 2, 3], "stored_ms": [T0] * 3, "at_ms": [T0, T0 + 1, T0 + HOUR],
        "tenant": ["a", "b", "b"], "request_id": ["1", "2", "3"], "verb": ["request"] * 3,
        "verdict": ["granted", "granted", "not_now"], "code": ["", "", "no_capacity"],
        "lease": ["l1", "l2", ""], "micros": [50_000, 150_000, 900], "candidates": [3, 2, 0],
        "reasons": [{}, {}, {"held": 2}], "catalog_revision": [1] * 3,
    }  # fmt: skip
    store.insert("decisions", columns)
    event = {
        "sequence": [1], "stored_ms": [T0], "at_ms": [T0 + 5], "node": ["n1"], "boot_id": ["b"],
        "device": ["g1"], "kind": ["event"], "before": [""], "after": [""], "code": ["xid_79"],
        "message": ["fell off the bus"],
    }  # fmt: skip
    store.insert("health_events", event)
    letter = {
        "id": ["x"], "stream": ["HEALTH"], "sequence": [2], "place": [-1], "at_ms": [T0 + 9],
        "code": ["poison"], "message": ["torn"], "body": ["{"],
    }  # fmt: skip
    store.insert("dead_letters", letter)
    return store
