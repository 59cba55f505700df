"""A store that is a server: the same code over HTTP, many clients, one of them stopped.

Each test runs over the engine in a process of its own (`tests/support/engine_server`), and over a
real ClickHouse server where Docker is at hand.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from quintal.contracts.bills import BillAsk, RerateAsk
from quintal.process import EXIT_DEPOSED
from quintal_metering.meter import Meter
from quintal_metering.settings import Where
from quintal_metering.store import Deposed, Store, StoreUnavailable
from tests.metering import dying
from tests.metering.shelves import Shelf, caller, counter
from tests.metering.story import Story
from tests.metering.test_independent import an_hour_that_holds_everything, assert_the_store_is_equal
from tests.metering.test_money import FIRST, MONTH, SECOND, metered
from tests.metering.test_store import a_story, begun, checked, messages, stored
from tests.support.containers import clickhouse
from tests.support.engine_server import EngineServer

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[2]
STOPPED_AT = "stop:#9"
"""An insert in the middle of the second batch."""
OpenStore = Callable[[], Store]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    server = EngineServer(tmp_path_factory.mktemp("served") / "engine")
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module", params=["engine", "clickhouse"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server; the real one is skipped with its reason where it cannot be."""
    if request.param == "engine":
        yield request.getfixturevalue("engine").url
        return
    with clickhouse() as address:
        yield address


@pytest.fixture
def place(url: str) -> tuple[str, str]:
    """(address, a database of the test's own)."""
    return url, f"s{next(_numbers)}"


@pytest.fixture
def open_served(place: tuple[str, str]) -> Iterator[OpenStore]:
    opened: list[Store] = []

    def start() -> Store:
        opened.append(Store.open(Where(Path("nowhere"), *place)))
        return opened[-1]

    yield start
    for store in opened:
        store.close()


def test_a_server_is_metered_into_by_the_same_code_and_gives_the_same_back(
    open_served: OpenStore, place: tuple[str, str]
) -> None:
    story = a_story()
    meter = begun(open_served(), story)
    meter.take(messages(story)[:6], 0)
    meter.take(messages(story)[6:], 0)
    assert checked(meter).ok
    assert sorted(row["id"] for row in stored(meter.store)) == sorted(
        row.id for row in story.told().slices
    )
    assert_the_store_is_equal(*place, story)
    again = begun(open_served())
    assert (again.position, again.state) == (meter.position, meter.state)


def test_one_hour_with_all_changes_in_it_is_the_same_in_the_store(
    open_served: OpenStore, place: tuple[str, str]
) -> None:
    """A change of price, rating, quota, partition, a lost node; then redelivered one by one."""
    story = an_hour_that_holds_everything()
    begun(open_served(), story).take(messages(story), 0)
    for insert in replayed(open_served(), story):
        assert insert, "nothing came of the ledger"
    assert_the_store_is_equal(*place, story)


def replayed(store: Store, story: Story) -> Iterator[int]:
    """The same ledger folded again from its start, each message a batch, into the same tables."""
    meter = Meter(store)
    meter.open("again", 0)
    meter.state, meter.position = type(meter.state)(), 0
    meter.prices.update(story.prices)
    for message in messages(story):
        meter.take([message], 0)
    yield meter.counts.rows


async def test_a_correction_on_a_server_is_reversed_to_the_last_digit_and_stays_visible(
    open_served: OpenStore, tmp_path: Path
) -> None:
    shelf = Shelf(r1=FIRST, r2=SECOND)
    meter = metered(open_served(), shelf)
    before = {row["id"]: row for row in stored(meter.store)}
    desk = counter(meter, shelf, tmp_path)
    told = await desk.rerate(caller("finance"), RerateAsk(from_ms=0, why="rating was wrong"))
    after = {row["id"]: row for row in stored(meter.store)}
    assert {name: after[name] for name in before} == before
    reversals = [row for row in after.values() if row["reverses"]]
    assert len(reversals) == told.changed == 3
    for row in reversals:
        assert row["cost"] + before[row["reverses"]]["cost"] == 0
    difference = sum(row.difference for row in told.rows)
    assert (
        sum(row["cost"] for row in after.values()) - sum(row["cost"] for row in before.values())
        == difference
    )
    bill = await desk.bill(caller("a"), BillAsk(month=MONTH))
    assert {line.cost for line in bill.lines} == {Decimal(0), Decimal("1.25")}
    assert checked(meter).ok


def test_who_is_no_longer_the_writer_begins_no_batch(open_served: OpenStore) -> None:
    story = a_story()
    first = begun(open_served(), story)
    first.take(messages(story)[:5], 0)
    second = begun(open_served(), story)
    second.take(messages(story)[5:8], 0)
    with pytest.raises(Deposed, match="generation 2 writes"):
        first.take(messages(story)[5:], 0)
    second.take(messages(story)[8:], 0)
    assert checked(second).ok


@pytest.mark.crash
def test_a_writer_that_was_stopped_in_a_batch_goes_on_beside_its_successor_and_ends(
    place: tuple[str, str],
) -> None:
    """SIGSTOP, not a kill: it wakes with half a batch, after another wrote all of the ledger."""
    url, _ = place
    database = "quintal"
    own = Store.open(Where(Path("nowhere"), url, database))
    own.command(f"DROP DATABASE {database}")
    own.close()
    paths = (str(ROOT), str(ROOT / "services/metering"), os.environ.get("PYTHONPATH", ""))
    stopped = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("dying.py")), url,
         str(len(dying.story().groups)), STOPPED_AT],
        env={**os.environ, "PYTHONPATH": ":".join(paths)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    _, status = os.waitpid(stopped.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    story = dying.story()
    store = Store.open(Where(Path("nowhere"), url, database))
    try:
        successor = begun(store, story)
        assert successor.position < len(story.groups)
        successor.take(messages(story)[successor.position :], 0)
        stopped.send_signal(signal.SIGCONT)
        out, _ = stopped.communicate(timeout=60)
        assert stopped.returncode == EXIT_DEPOSED, out
        assert checked(successor).ok
        assert_the_store_is_equal(url, database, story)
    finally:
        store.close()


@pytest.mark.crash
def test_a_server_that_dies_in_a_batch_and_comes_back_has_each_row_once(tmp_path: Path) -> None:
    server = EngineServer(tmp_path / "engine")
    server.start()
    story = a_story()
    store = Store.open(Where(Path("nowhere"), server.url, "q"))
    try:
        meter = begun(store, story)
        meter.take(messages(story)[:6], 0)
        server.kill()
        with pytest.raises(StoreUnavailable):
            meter.take(messages(story)[6:9], 0)
        assert not meter.settled
        server.start()
        meter.flush(0)
        meter.take(messages(story)[meter.position :], 0)
        assert checked(meter).ok
        assert_the_store_is_equal(server.url, "q", story)
    finally:
        store.close()
        server.kill()


def test_the_archive_alone_gives_all_of_it_back_where_the_stream_was_purged(
    open_served: OpenStore, place: tuple[str, str]
) -> None:
    story = a_story()
    meter = begun(open_served(), story)
    meter.take(messages(story)[:8], 0)
    meter.rest()
    meter.store.command("TRUNCATE TABLE positions")
    replayed = begun(open_served())
    assert replayed.state == meter.state, "folded from the archive, without a checkpoint"
    replayed.take(messages(story)[replayed.position :], 0)
    assert checked(replayed).ok
    assert_the_store_is_equal(*place, story)
