"""A meter in a process of its own that kills itself between two steps of a batch.

Usage: dying.py WHERE MESSAGES STEP: read MESSAGES messages of the story in batches of 7, and die
by SIGKILL in the last batch once STEP's insert went through. WHERE is a folder, or the address of a
server; a STEP led by `stop:` stops (SIGSTOP) and does not die. STEP `#N` dies at the N-th insert of
this process, `#N-` just before it. STEP `none` lives, and tells as JSON what the store has.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from quintal.contracts.usage import VerifyAsk
from quintal.process import EXIT_DEPOSED
from quintal_metering.meter import Meter
from quintal_metering.queries import SliceRows, Span
from quintal_metering.settings import Where
from quintal_metering.store import Deposed, Store
from quintal_metering.verifying import verify
from tests.metering.story import HOUR, T0, Story, card, price_list

BATCH = 7
STEPS = (
    "transitions", "slices", "capacity", "holdings", "positions",
)  # fmt: skip


def story() -> Story:
    """Every batch of 7 messages closes an hour, so that each has all the steps."""
    dearer = price_list("2.000001", from_ms=T0 + 5 * HOUR + 40_001)
    found = Story().adopt(1, price_list("1.5"), dearer).node().appear("g1").appear("g2")
    for n in range(15):
        found.at(n * HOUR + 1_000 + n).grant(f"l{n}", card("g1"), bound=True, tenant=f"t{n % 2}")
        found.at((n + 1) * HOUR + 999).end(f"l{n}", n * HOUR + 77_777, "node_lost").ended(f"l{n}")
        found.tick().tick().tick().tick()
    return found


class DyingStore(Store):
    """Ends the process, or stops it, at one insert."""

    step = "none"
    how = signal.SIGKILL
    inserts = 0

    def insert(self, table: str, columns: Any, token: str = "") -> None:
        # Two threads insert: each goes by the number that it drew, and one of them ends it.
        mine = self.inserts = self.inserts + 1
        if self.step == f"#{mine}-":
            self._end()
        super().insert(table, columns, token)
        if self.step in {f"#{mine}", table}:
            self._end()

    def _end(self) -> None:
        self.step = "none"
        os.kill(os.getpid(), self.how)


def where_of(text: str) -> Where:
    return Where(Path("nowhere"), text) if "://" in text else Where(Path(text))


def main(where: str, count: int, step: str) -> None:
    from tests.metering.test_store import messages

    store = DyingStore.open(where_of(where))
    if step.startswith("stop:"):
        store.how, step = signal.SIGSTOP, step.removeprefix("stop:")
    if step.startswith("#"):
        store.step = step
    meter = Meter(store)
    meter.open("dying", 0)
    told = story()
    if 1 not in meter.prices:
        meter.learn(1, told.prices[1])
    waiting = messages(told)[:count]
    now_s = 0.0
    while meter.position < len(waiting):
        first = meter.position
        if first + BATCH >= len(waiting):
            store.step = step
        now_s += 61.0  # each batch but the first brings a checkpoint
        meter.take(waiting[first : first + BATCH], now_s)
    *_, found = verify(meter, VerifyAsk(to_ms=2**50))
    rows = store.ask(SliceRows(Span(), 10_000))
    print(
        json.dumps(
            {
                "ids": sorted(row["id"] for row in rows),
                "quantity": str(sum(int(row["quantity"]) for row in rows)),
                "cost": str(sum(row["cost"] for row in rows)),
                "ok": found.answer().ok,
                "hours": found.answer().hours,
            }
        )
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    except Deposed as exc:
        print(exc)
        sys.exit(EXIT_DEPOSED)
