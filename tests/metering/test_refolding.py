"""What the ledger said and nobody could read is taken in late: the books end as if it had been."""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from quintal.bus import Stored
from quintal.contracts import ledger
from quintal.contracts.bills import DeadLettersAsk
from quintal_metering.meter import Meter
from quintal_metering.refolding import Refold
from quintal_metering.store import Store, StoreUnavailable
from tests.metering.shelves import Shelf, caller, counter
from tests.metering.story import HOUR, MODEL, POOL, Story, card, price_list
from tests.metering.test_money import FIRST
from tests.metering.test_store import begun, checked, messages, stored

pytestmark = pytest.mark.engine
OpenStore = Callable[[], Store]
PARTS = 1_000_000


def ledger_of_three_hours() -> Story:
    """Grants, ends, a card that comes late, a move of price, censuses that the placer counted."""
    story = Story().node().appear("g1").appear("g2")
    story.adopt(1, price_list("1.000001"), price_list("3", from_ms=story.now + HOUR + 7))
    story.grant("l1", card("g1"), bound=True, tenant="a")
    story.at(1_000).grant("l2", card("g2"), bound=True, tenant="b")
    story.at(2_000).appear("g3")
    story.at(HOUR // 2).end("l2", HOUR // 4, "node_lost").ended("l2")
    row = ledger.CensusRow(pool=POOL, model=MODEL, total=3 * PARTS, leased=PARTS, free=2 * PARTS)
    story.at(HOUR).census(row, cause="hour").at(2 * HOUR).census(row, cause="hour")
    return story.at(2 * HOUR + 5).end("l1").ended("l1").tick()


POISON = {"a grant": 6, "an end": 8, "a device": 7, "the price": 4}
"""What is said in which message of it."""


def taken_with_a_poison(store: Store, story: Story, sequence: int) -> Meter:
    """As an older release read it: one message is no group to it. Then the newer one comes."""
    meter = begun(store, story)
    for message in messages(story):
        torn = message.sequence == sequence
        meter.take([Stored(sequence, "", b'{"newer": 1}') if torn else message], 0)
    body = story.groups[sequence - 1].model_dump_json(by_alias=True)
    for table in ("transitions", "dead_letters"):
        store.command(
            f"ALTER TABLE {table} UPDATE body = {{body:String}} WHERE sequence = {{n:UInt64}} "
            "AND body LIKE '%newer%' SETTINGS mutations_sync = 2",
            {"body": body, "n": sequence},
        )
    return meter


def sums(store: Store) -> tuple[int, Decimal]:
    rows = stored(store)
    return sum(int(row["quantity"]) for row in rows), sum((r["cost"] for r in rows), Decimal(0))


@pytest.mark.parametrize("what", POISON)
async def test_a_late_message_of_the_ledger_mends_the_books_by_new_rows(
    open_store: OpenStore, tmp_path: Path, what: str
) -> None:
    story = ledger_of_three_hours()
    told = story.told()
    meter = taken_with_a_poison(open_store(), story, POISON[what])
    before = {row["id"]: row for row in stored(meter.store)}
    assert not checked(meter).ok
    desk = counter(meter, Shelf(r1=FIRST), tmp_path)
    tried = await desk.dead_letters(caller("operator"), DeadLettersAsk(retry=True))
    assert tried.waiting == 0, tried.rows
    assert {row.outcome for row in tried.rows} == {"taken"}
    after = {row["id"]: row for row in stored(meter.store)}
    assert {name: after[name] for name in before} == before, "a row was changed"
    assert sums(meter.store) == (told.quantity(), sum(row.cost for row in told.slices))
    assert meter.state == told.state
    found = checked(meter)
    assert found.ok, found.differences
    again = begun(open_store())
    assert again.state == told.state
    assert not (await desk.dead_letters(caller("operator"), DeadLettersAsk())).rows


async def test_a_message_that_still_cannot_be_read_is_left_with_the_reason(
    open_store: OpenStore, tmp_path: Path
) -> None:
    story = ledger_of_three_hours()
    meter = begun(open_store(), story)
    waiting = messages(story)
    meter.take([Stored(1, "", b"{torn"), *waiting[1:]], 0)
    desk = counter(meter, Shelf(r1=FIRST), tmp_path)
    rows = (await desk.dead_letters(caller("operator"), DeadLettersAsk(retry=True))).rows
    assert any(row.outcome.startswith("left: ") and row.code == "poison" for row in rows)


class Failing(Store):
    """Fails at one insert, once."""

    fails_at = 0
    inserts = 0

    def insert(self, table: str, columns: Any, token: str = "") -> None:
        self.inserts += 1
        if self.inserts == self.fails_at:
            raise StoreUnavailable("it is gone")
        super().insert(table, columns, token)


@pytest.mark.parametrize("insert", range(1, 6) if os.environ.get("QUINTAL_PROOF") else (2, 4))
def test_a_refold_that_a_crash_cut_short_ends_the_same_when_it_is_run_again(
    open_store: OpenStore, insert: int
) -> None:
    story = ledger_of_three_hours()
    told = story.told()
    plain = open_store()
    taken_with_a_poison(plain, story, POISON["a grant"])
    letters = [row["id"] for row in plain.rows("SELECT id FROM dead_letters WHERE code = 'poison'")]
    failing = Failing(plain._client, fenced=False)
    meter = begun(failing)
    failing.fails_at, failing.inserts = insert, 0
    work = Refold(meter, letters)
    while not work.step():
        pass
    try:
        work.finish(1, "op")
        assert insert > 3, "it did not fail"
    except StoreUnavailable:
        pass
    meter = begun(open_store())  # another process
    assert meter.state == told.state
    work = Refold(meter, letters)
    while not work.step():
        pass
    work.finish(2, "op")
    assert sums(meter.store) == (told.quantity(), sum(row.cost for row in told.slices))
    found = checked(meter)
    assert found.ok, found.differences
