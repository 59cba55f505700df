"""Telemetry rolled up: epochs of counters, late samples, and what leases made of what they held."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from quintal.bus import Stored
from quintal.contracts import ledger
from quintal.contracts.nodes import Telemetry
from quintal.contracts.subjects import TELEMETRY
from quintal_metering.following import roll_up_hour, roll_up_once
from quintal_metering.observations import telemetry
from quintal_metering.samples import MINUTE_MS
from quintal_metering.store import Store
from tests.metering.story import HOUR, T0, Story, card, price_list
from tests.metering.test_store import begun, messages

pytestmark = pytest.mark.engine
PARTS = 1_000_000
OpenStore = Callable[[], Store]


TIMED = (
    "telemetry_raw", "telemetry_minutes", "telemetry_hours", "telemetry_fleet", "nodes_seen",
    "leases_by_hour", "held_hours", "holdings",
)  # fmt: skip


@pytest.fixture
def open_store(open_store: OpenStore) -> OpenStore:
    """As ever, but nothing is too old to keep: the stories play in 2023."""

    def start() -> Store:
        store = open_store()
        for table in TIMED:
            store.command(f"ALTER TABLE {table} REMOVE TTL SETTINGS mutations_sync = 0")
        return store

    return start


class Observed:
    """What the rollups need of an observer."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.minutes: set[int] = set()
        self.told: deque[frozenset[int]] = deque()
        self.hours: set[int] = set()
        self.position = 0
        self.waiting: dict[str, list[Any]] = {}

    def sample(self, at_ms: int, boot: str = "b1", node: str = "n1", **columns: Any) -> None:
        """One message; a column is the readings of g1, g2, ... in order."""
        self.position += 1
        wide = max(len(values) for values in columns.values())
        said = Telemetry(
            node=node, boot_id=boot, sequence=self.position, at_ms=at_ms,
            devices=tuple(f"g{n + 1}" for n in range(wide)), columns=columns,
        )  # fmt: skip
        subject = TELEMETRY.subject(node=node)
        found = telemetry([Stored(self.position, subject, said.model_dump_json().encode())])
        for name, values in found.columns.items():
            self.waiting.setdefault(name, []).extend(values.to_pylist())
        self.minutes |= found.minutes

    def roll(self) -> None:
        if self.waiting:
            self.store.insert("telemetry_raw", self.waiting)
            self.waiting = {}
        roll_up_once(self.store, self)  # type: ignore[arg-type]

    def minute(self, reading: str, device: str = "g1") -> list[tuple[int, Any, Any]]:
        rows = self.store.rows(
            "SELECT minute_ms, mean, gain FROM telemetry_minutes FINAL "
            "WHERE reading = {reading:String} AND device = {device:String} ORDER BY minute_ms",
            {"reading": reading, "device": device},
        )
        start = T0 // MINUTE_MS
        return [(row["minute_ms"] // MINUTE_MS - start, row["mean"], row["gain"]) for row in rows]


def test_a_counter_gains_within_a_boot_and_a_new_epoch_starts_it_anew(
    open_store: OpenStore,
) -> None:
    seen = Observed(open_store())
    for at, boot, joules in (
        (0, "b1", 100), (30_000, "b1", 160), (60_000, "b1", 250),
        (90_000, "b2", 5), (120_000, "b2", 25),  # the node came back: its counter at 0
        (150_000, "b2", 3), (180_000, "b2", 13),  # the driver was loaded again
    ):  # fmt: skip
        seen.sample(T0 + at, boot, energy_joules=(joules,))
    seen.roll()
    assert [(minute, gain) for minute, _, gain in seen.minute("energy_joules")] == [
        (0, 60), (1, 90), (2, 20), (3, 10),
    ]  # fmt: skip


def test_what_a_spool_brings_back_late_restates_its_minutes_and_those_after(
    open_store: OpenStore,
) -> None:
    seen = Observed(open_store())
    for minute in (0, 4, 5, 9):
        seen.sample(T0 + minute * MINUTE_MS, energy_joules=(100 * minute,), power_watts=(50,))
        seen.roll()
    assert seen.minute("energy_joules") == [
        (0, 0, None),
        (4, 400, 400),
        (5, 500, 100),
        (9, 900, 400),
    ]
    for minute in (2, 3):
        seen.sample(T0 + minute * MINUTE_MS, energy_joules=(100 * minute,), power_watts=(70,))
    seen.sample(T0 + 9 * MINUTE_MS + 1, power_watts=(50,))
    seen.roll()
    gains = {minute: gain for minute, _, gain in seen.minute("energy_joules")}
    assert gains == {0: None, 2: 200, 3: 100, 4: 100, 5: 100, 9: 400}
    assert [mean for _, mean, _ in seen.minute("power_watts")] == [50, 70, 70, 50, 50, 50]


def test_a_minute_rolled_up_twice_is_the_same_minute(open_store: OpenStore) -> None:
    seen = Observed(open_store())
    seen.sample(T0, utilization_percent=(40, None))
    seen.roll()
    seen.minutes = {T0}
    seen.roll()
    assert seen.minute("utilization_percent") == [(0, 40, None)]
    assert seen.minute("utilization_percent", "g2") == [(0, None, None)]


def metered(store: Store, story: Story) -> Any:
    meter = begun(store, story)
    meter.take(messages(story), 0)
    return meter


def lease_hours(store: Store) -> dict[str, dict[str, Any]]:
    return {row["lease"]: row for row in store.rows("SELECT * FROM leases_by_hour FINAL")}


def test_case_k02_a_lease_that_is_busy_a_tenth_costs_all_and_used_a_tenth(
    open_store: OpenStore,
) -> None:
    story = Story().node().appear("g1").appear("g2").adopt(1, price_list("3.0"))
    story.grant("l1", card("g1"), bound=True).grant("l2", card("g2"), bound=True)
    store = open_store()
    meter = metered(store, story.at(HOUR + 200_000).tick())
    seen = Observed(store)
    for minute in range(60):
        seen.sample(T0 + minute * MINUTE_MS, utilization_percent=(10, 80 if minute < 15 else None))
    seen.roll()
    roll_up_hour(meter, seen, T0)  # type: ignore[arg-type]
    roll_up_hour(meter, seen, T0)  # type: ignore[arg-type]
    first, second = lease_hours(store)["l1"], lease_hours(store)["l2"]
    assert (first["cost"], first["used_cost"]) == (Decimal(3), Decimal("0.3"))
    assert (first["held_ms"], first["covered_ms"], first["busy_ms"]) == (HOUR, HOUR, HOUR / 10)
    assert (second["covered_ms"], second["busy_ms"]) == (HOUR / 4, HOUR / 5)
    assert second["used_cost"] == Decimal("2.4"), "what was not seen counts as what was"
    assert seen.hours == set(), "an hour that is well past is final"


def test_a_lease_without_readings_has_no_usage_cost_rather_than_nothing(
    open_store: OpenStore,
) -> None:
    story = Story().node().appear("g1").adopt(1, price_list("3.0"))
    meter = metered(
        open_store(), story.grant("l1", card("g1"), bound=True).at(HOUR // 2).end("l1").tick()
    )
    roll_up_hour(meter, Observed(meter.store), T0)  # type: ignore[arg-type]
    row = lease_hours(meter.store)["l1"]
    assert (row["held_ms"], row["covered_ms"], row["used_cost"]) == (HOUR / 2, 0, None)


def test_case_j07_four_sharers_of_a_busy_card_are_not_each_told_all_of_it(
    open_store: OpenStore,
) -> None:
    story = Story().node().appear("g1").adopt(1, price_list("1"))
    for n in range(4):
        story.grant(f"l{n}", card("g1", parts=PARTS // 4), bound=True, tenant=f"t{n}")
    meter = metered(open_store(), story.at(HOUR).tick())
    seen = Observed(meter.store)
    for minute in range(60):
        seen.sample(T0 + minute * MINUTE_MS, utilization_percent=(99,))
    seen.roll()
    roll_up_hour(meter, seen, T0)  # type: ignore[arg-type]
    rows = lease_hours(meter.store).values()
    assert [row["device_level_only"] for row in rows] == [1] * 4
    assert sum(row["busy_ms"] for row in rows) == pytest.approx(0.99 * HOUR)


def test_case_j08_whose_a_partition_is_the_lease_table_says_and_no_label(
    open_store: OpenStore,
) -> None:
    """Two leases hold partitions of one card, under labels that name somebody else."""
    story = Story().node().appear("g1").adopt(1, price_list("1"))
    for n, tenant in enumerate(("vision", "speech")):
        part = card("g1", parts=PARTS // 2, partition=f"MIG-{n}", partition_profile="3g.40gb")
        story.grant(f"l{n}", part, bound=True, tenant=tenant, labels={"owner": "nobody"})
    meter = metered(open_store(), story.at(HOUR).tick())
    seen = Observed(meter.store)
    for minute in range(60):
        seen.sample(T0 + minute * MINUTE_MS, utilization_percent=(50,))
    seen.roll()
    roll_up_hour(meter, seen, T0)  # type: ignore[arg-type]
    rows = lease_hours(meter.store)
    assert {name: row["tenant"] for name, row in rows.items()} == {"l0": "vision", "l1": "speech"}
    assert [row["device_level_only"] for row in rows.values()] == [1, 1]


def test_a_move_and_a_late_end_are_seen_on_the_right_device(open_store: OpenStore) -> None:
    story = Story().node().appear("g1").appear("g2").adopt(1, price_list("1"))
    story.grant("l1", card("g1"), bound=True).at(HOUR // 2)
    story.tell(
        ledger.LeaseMoved(at_ms=story.now, lease="l1", devices=(card("g2"),), reason="x", token=2)
    )
    story.at(HOUR + 5).end("l1", 3 * HOUR // 4, "node_lost").ended("l1")
    meter = metered(open_store(), story)
    seen = Observed(meter.store)
    for minute in range(60):
        seen.sample(T0 + minute * MINUTE_MS, utilization_percent=(100, 20))
    seen.roll()
    roll_up_hour(meter, seen, T0)  # type: ignore[arg-type]
    row = lease_hours(meter.store)["l1"]
    assert row["held_ms"] == 3 * HOUR / 4
    assert row["busy_ms"] == HOUR / 2 + HOUR / 4 * 0.2
