"""The meter over the real engine: exact ranges, crashes between steps, what questions give."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from quintal.bus import Stored
from quintal.contracts import ledger
from quintal.contracts.usage import VerifyAsk
from quintal.errors import SetupError
from quintal_metering import migrations
from quintal_metering.columns import Insert
from quintal_metering.engine import Engine
from quintal_metering.handlers import Handlers, Principals
from quintal_metering.meter import Meter
from quintal_metering.queries import SliceRows, Span
from quintal_metering.store import Store, StoreUnavailable
from quintal_metering.summing import open_slices
from quintal_metering.verifying import verify
from tests.metering.story import HOUR, MODEL, POOL, STU, T0, Story, card, price_list

pytestmark = pytest.mark.engine
PARTS = 1_000_000
OpenStore = Callable[[], Store]


def messages(story: Story) -> list[Stored]:
    return [
        Stored(sequence, "quintal.v1.ledger", group.model_dump_json(by_alias=True).encode())
        for sequence, group in enumerate(story.groups, 1)
    ]


def begun(store: Store, story: Story | None = None) -> Meter:
    meter = Meter(store)
    meter.open("test", 0)
    for revision, lists in (story.prices if story else {}).items():
        if revision not in meter.prices:
            meter.learn(revision, lists)
    return meter


def a_story() -> Story:
    """Two tenants over three hours, an end that came late, an open lease, a census."""
    story = Story().node().appear("g1").appear("g2").appear("g3").adopt(1, price_list("2.5"))
    story.grant("l1", card("g1"), bound=True, tenant="a", project="p")
    story.grant(
        "l2", card("g2", rating_micro=2 * STU, provenance="derived"), bound=True, tenant="b"
    )
    story.at(2 * HOUR + 7).tick().end("l1", HOUR // 2, "node_lost").ended("l1")
    row = ledger.CensusRow(pool=POOL, model=MODEL, total=3 * PARTS, leased=PARTS, free=2 * PARTS)
    return story.census(row).at(2 * HOUR + 9_000).tick()


def stored(store: Store) -> list[dict[str, Any]]:
    return store.ask(SliceRows(Span(), 1_000))


def checked(meter: Meter, **ask: Any) -> Any:
    *_, found = verify(meter, VerifyAsk(**ask))
    return found.answer()


def test_what_the_fold_gave_out_is_what_the_store_gives_back(open_store: OpenStore) -> None:
    story = a_story()
    meter = begun(open_store(), story)
    meter.take(messages(story), 0)
    rows = {row["id"]: row for row in stored(meter.store)}
    told = story.told().slices
    assert {row.id: (row.quantity, row.cost, row.labels, row.sequence) for row in told} == {
        name: (int(row["quantity"]), row["cost"], row["labels"], row["sequence"])
        for name, row in rows.items()
    }
    assert checked(meter).ok


@pytest.mark.parametrize("size", [1, 3, 100])
def test_rows_do_not_depend_on_how_messages_lie_in_batches(
    open_store: OpenStore, size: int
) -> None:
    story = a_story()
    meter = begun(open_store(), story)
    waiting = messages(story)
    for at in range(0, len(waiting), size):
        meter.take(waiting[at : at + size], 0)
    assert {row["id"] for row in stored(meter.store)} == {row.id for row in story.told().slices}


def test_a_new_start_goes_on_from_the_position_without_a_checkpoint(open_store: OpenStore) -> None:
    story = a_story()
    waiting = messages(story)
    meter = begun(open_store(), story)
    meter.take(waiting[:6], 0)
    again = begun(open_store())
    assert (again.position, again.state) == (6, meter.state)
    again.take(waiting[6:], 0)
    assert checked(again).ok
    assert {row["id"] for row in stored(again.store)} == {row.id for row in story.told().slices}


def test_a_clean_stop_leaves_a_checkpoint(open_store: OpenStore) -> None:
    story = a_story()
    meter = begun(open_store(), story)
    meter.take(messages(story), 0)
    meter.rest()
    restart = open_store().restart()
    assert restart.checkpoint_sequence == restart.position == len(story.groups)
    assert begun(open_store()).state == meter.state


def test_old_checkpoints_are_forgotten_and_the_position_stays(open_store: OpenStore) -> None:
    story = a_story()
    meter = begun(open_store(), story)
    for at, message in enumerate(messages(story)):
        meter.take([message], at * 61.0)
    store = meter.store
    kept = store.rows("SELECT count() AS n FROM positions WHERE checkpoint != ''")
    assert kept[0]["n"] == 3
    assert store.restart().position == len(story.groups)


class FailingStore(Store):
    """Fails once at each step whose name is listed, after or before the insert went through."""

    def __init__(self, store: Store, failures: Iterable[tuple[str, bool]]) -> None:
        super().__init__(store._client, fenced=False)
        self.failures = list(failures)

    def insert(self, table: str, columns: Any, token: str = "") -> None:
        if self.failures and self.failures[0][0] == table:
            _, done = self.failures.pop(0)
            if done:
                super().insert(table, columns, token)
            raise StoreUnavailable(f"{table} fails")
        super().insert(table, columns, token)


def test_case_k07_a_store_that_fails_once_anywhere_counts_exactly_once(
    open_store: OpenStore,
) -> None:
    story = a_story()
    steps = ("transitions", "slices", "capacity", "censuses")
    failures = [(step, done) for step in steps for done in (False, True)]
    for failure in failures:
        meter = begun(FailingStore(open_store(), [failure]), story)
        if meter.position == 0:
            with pytest.raises(StoreUnavailable):
                meter.take(messages(story), 0)
            assert not meter.settled
            meter.flush(1)
            assert meter.settled
            _same_as_told(meter, story)
            _wipe(meter.store)


def _same_as_told(meter: Meter, story: Story) -> None:
    told = story.told()
    rows = stored(meter.store)
    assert sorted(row["id"] for row in rows) == sorted(row.id for row in told.slices)
    assert sum(int(row["quantity"]) for row in rows) == told.quantity()
    assert checked(meter).ok


def _wipe(store: Store) -> None:
    for table in ("transitions", "slices", "capacity", "censuses", "positions"):
        store.command(f"TRUNCATE TABLE {table}")


def test_a_crash_between_any_two_steps_neither_loses_nor_doubles(open_store: OpenStore) -> None:
    """The next start finds what was archived, writes its rows again, and ends the same."""
    story = a_story()
    waiting = messages(story)
    for step in ("transitions", "slices", "capacity", "censuses"):
        for done in (False, True):
            meter = begun(FailingStore(open_store(), [(step, done)]), story)
            with pytest.raises(StoreUnavailable):
                meter.take(waiting, 0)
            again = begun(open_store())
            begun_before = step != "transitions" or done
            assert again.position == (len(waiting) if begun_before else 0)
            again.take(waiting[again.position :], 0)
            _same_as_told(again, story)
            _wipe(again.store)


def test_a_start_reads_nothing_again_that_was_told_to_be_stored(open_store: OpenStore) -> None:
    """The placer may purge what metering told to be stored: the archive alone must do."""
    story = a_story()
    waiting = messages(story)
    meter = begun(open_store(), story)
    meter.take(waiting[:5], 0)
    meter.take(waiting[5:9], 0)
    told = meter.position
    again = begun(open_store())
    assert again.position == told == 9
    assert again.state == meter.state
    again.take(waiting[9:], 0)
    _same_as_told(again, story)


def test_rows_that_are_in_the_store_twice_count_once(open_store: OpenStore) -> None:
    story = a_story()
    meter = begun(open_store(), story)
    meter.take(messages(story), 0)
    store = meter.store
    store.command("INSERT INTO slices SELECT * FROM slices")
    store.command("INSERT INTO capacity SELECT * FROM capacity")
    assert store.rows("SELECT count() > uniq(id) AS twice FROM slices")[0]["twice"]
    _same_as_told(meter, story)


def test_case_k10_a_poison_message_goes_to_the_dead_letters_and_the_rest_goes_on(
    open_store: OpenStore,
) -> None:
    story = a_story().bind("ghost")
    poison = Stored(1, "quintal.v1.ledger", b'{"epoch": "no group", \xff')
    waiting = [poison]
    for at, message in enumerate(messages(story), 2):
        body = json.loads(message.data) | {"expected": at - 1}
        waiting.append(Stored(at, message.subject, json.dumps(body).encode()))
    meter = begun(open_store(), story)
    meter.take(waiting, 0)
    letters = meter.store.rows("SELECT * FROM dead_letters ORDER BY sequence")
    assert [(row["sequence"], row["code"]) for row in letters] == [
        (1, "poison"), (len(waiting), "unmatched"),
    ]  # fmt: skip
    assert letters[0]["body"].startswith('{"epoch": "no group"')
    assert (meter.counts.poison, meter.counts.faults) == (1, 1)
    assert len(stored(meter.store)) == len(story.told().slices)
    assert checked(meter).ok


def test_messages_that_were_gone_are_a_gap_that_verify_names(open_store: OpenStore) -> None:
    story = a_story()
    waiting = messages(story)
    meter = begun(open_store(), story)
    meter.take(waiting[:2], 0)
    meter.take(waiting[4:], 0)
    assert meter.counts.gaps == 1
    gaps = [d for d in checked(meter).differences if d.check == "gap"]
    assert [gap.subject for gap in gaps] == ["ledger 3..4"]


def test_verify_names_a_row_that_was_changed_one_that_is_missing_and_one_too_many(
    open_store: OpenStore,
) -> None:
    story = a_story()
    meter = begun(open_store(), story)
    meter.take(messages(story), 0)
    store = meter.store
    first, second, *_ = (row["id"] for row in stored(store))
    settings = " SETTINGS mutations_sync = 1"
    store.command(
        f"ALTER TABLE slices UPDATE quantity = quantity + 1 WHERE id = '{first}'{settings}"
    )
    store.command(f"DELETE FROM slices WHERE id = '{second}'")
    store.command("INSERT INTO slices SELECT * REPLACE ('stray' AS id) FROM slices LIMIT 1")
    differences = checked(meter).differences
    named = {d.subject: d for d in differences if d.check == "recompute"}
    assert set(named) == {first, second, "stray"}
    assert named[second].found == named["stray"].expected == "no such row"
    assert not [d for d in differences if d.check == "conservation"], "the stray has equal parts"
    store.command("DELETE FROM slices WHERE id = 'stray'")
    (hour,) = [d for d in checked(meter).differences if d.check == "conservation"]
    assert (hour.subject, hour.expected, hour.found) == (
        "leased, by slices", str(3 * HOUR * PARTS // 2), str(HOUR * PARTS // 2),
    )  # fmt: skip


def test_verify_names_a_census_that_differs(open_store: OpenStore) -> None:
    row = ledger.CensusRow(pool=POOL, model=MODEL, total=2 * PARTS, free=2 * PARTS)
    story = Story().node().appear("g1").census(row)
    meter = begun(open_store(), story)
    meter.take(messages(story), 0)
    found = checked(meter)
    assert not found.ok
    assert [(d.check, d.subject, d.expected, d.found) for d in found.differences] == [
        ("census", "free", "2000000", "1000000"), ("census", "total", "2000000", "1000000"),
    ]  # fmt: skip


def test_an_empty_ledger_verifies(open_store: OpenStore) -> None:
    found = checked(begun(open_store()))
    assert (found.ok, found.sequence, found.hours) == (True, 0, 0)


def test_a_summary_is_the_sum_of_its_slices_however_it_is_grouped(open_store: OpenStore) -> None:
    story = a_story()
    meter = begun(open_store(), story)
    meter.take(messages(story), 0)
    handlers = Handlers(Engine(), meter, Principals(None))
    listed = handlers._listed(Span(), 1_000)
    assert sum(row.quantity for row in listed.rows) == story.told().quantity() + sum(
        row.quantity for row in open_slices(meter.state, meter.prices, Span())
    )
    groupings = (
        "tenant", "project", "profile", "model", "pool", "class", "vendor", "month", "day", "hour",
        "label:team",
    )  # fmt: skip
    for by in (*((name,) for name in groupings), ("tenant", "hour")):
        summary = handlers._summed(Span(), by)
        assert sum(row.quantity for row in summary.rows) == sum(r.quantity for r in listed.rows)
        assert sum(row.cost for row in summary.rows) == sum(r.cost for r in listed.rows)
    by_tenant = {row.group["tenant"]: row for row in handlers._summed(Span(), ("tenant",)).rows}
    assert by_tenant["a"].quantity == HOUR // 2 * PARTS * STU
    assert by_tenant["a"].unit_hours == "0.500000"
    assert (by_tenant["a"].cost, by_tenant["a"].leases) == (Decimal("1.25"), 1)
    assert by_tenant["b"].quantity == (2 * HOUR + 9_000) * PARTS * 2 * STU
    assert by_tenant["b"].unit_seconds == "14418.000000"
    assert by_tenant["b"].estimated_quantity == by_tenant["b"].quantity
    assert by_tenant["b"].leases == 1, "stored and open, but one lease"
    within = handlers._summed(Span(from_ms=T0 + HOUR, to_ms=T0 + 2 * HOUR, tenant="b"), ("tenant",))
    assert [row.quantity for row in within.rows] == [HOUR * PARTS * 2 * STU]
    handlers.engine.close()


def test_migrations_are_applied_once_and_may_not_change(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    migrations.migrate(store._client)
    rows = store.rows("SELECT name FROM schema_migrations ORDER BY name")
    assert [row["name"] for row in rows] == [m.name for m in migrations.migrations()]
    changed = [migrations.Migration(m.name, m.text + "-- x") for m in migrations.migrations()]
    monkeypatch.setattr(migrations, "migrations", lambda: changed)
    with pytest.raises(SetupError, match="other content"):
        migrations.migrate(store._client)


def test_the_deployed_tables_are_the_shipped_ones() -> None:
    folder = Path(__file__).parents[2] / "deploy" / "clickhouse"
    shipped = {m.name: m.text for m in migrations.migrations()}
    assert {file.name: file.read_text() for file in folder.glob("*.sql")} == shipped


def test_the_engines_memory_is_bounded(open_store: OpenStore) -> None:
    (row,) = open_store().rows(
        "SELECT value FROM system.server_settings WHERE name = 'max_server_memory_usage'"
    )
    assert int(row["value"]) == 2 * 2**30


def test_a_column_that_is_no_column_is_an_error_of_the_store(open_store: OpenStore) -> None:
    with pytest.raises(StoreUnavailable):
        open_store().write([Insert("slices", {"nonsense": [1]}, "t")])
