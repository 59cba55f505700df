"""The placer and metering, each from the ledger alone, come to the same parts of every card.

What is decided here is decided by the real engine over cards that are shared, cut, cut anew under
a lease, given other shares by another catalog, cordoned, lost; each record goes to both folds, and
after each act the placer's census is held against metering's count, hours against themselves.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from quintal.contracts import ledger
from quintal.contracts.documents import Catalog, Document
from quintal.contracts.message import Refusal
from quintal_metering.facts import State
from quintal_metering.fold import fold_group
from quintal_metering.rows import CapacityRow, CensusCheck, Fault, SliceRow
from quintal_placer import facts
from tests.laws.audit import check_state, restored
from tests.metering.test_independent import reckoning
from tests.placer.cut import card, documents, partition, share
from tests.placer.site import Site, inventory, only

HOUR = 3_600_000
ASKS: tuple[dict[str, Any], ...] = (
    share(300),
    share(500, "10GiB"),
    share(100, "30GiB"),
    share(400, cards=2),
    partition("1g.10gb"),
    partition("1g.10gb", 3),
    partition("3g.40gb"),
    {"cards": 1, "accelerator": only("cut-80")},
    {"cards": 1, "accelerator": only("cut-80"), "groups": [share(500)]},
    {"cards": 1, **partition("3g.40gb"), "groups": [partition("1g.10gb"), share(200)]},
)
CUTS = ((), ("1g.10gb",) * 7, ("3g.40gb", "3g.40gb"), ("9x",), ("2g.20gb", "1g.10gb", "3g.40gb"))


class Recorded(Site):
    """A site whose ledger is kept."""

    def __init__(self, *args: Any) -> None:
        self.groups: list[ledger.Group] = []
        super().__init__(*args)

    def adopt(self, documents: list[Document], revision: int) -> None:
        catalog = Catalog(tuple(documents), revision=revision, digest=str(revision))
        records = facts.adoption_records(self.state, catalog, self.writer.at_ms)
        self.state.adopt_catalog(catalog)
        self.apply(*records)

    def apply(self, *records: ledger.AnyRecord) -> None:
        super().apply(*records)
        if records:
            number = len(self.groups)
            self.groups.append(
                ledger.Group(
                    epoch=1, writer="w", group=number, expected=number, transitions=records
                )
            )


class Histories:
    """Acts upon two nodes of two cards each."""

    def __init__(self) -> None:
        nodes = [inventory(n, card(n, 0), card(n, 1)) for n in ("n1", "n2")]
        self.place = Recorded(documents(), *nodes)
        self.held: list[ledger.LeaseGranted] = []
        self.cards = {(n, i): card(n, i) for n in ("n1", "n2") for i in (0, 1)}
        self.made = 0
        self.seen: Counter[str] = Counter()

    def act(self, passed: int, what: str, n: int) -> None:
        self.place.writer.at_ms += passed
        getattr(self, what)(n)
        at_ms = self.place.writer.at_ms
        rows = self.place.state.census()
        self.place.apply(ledger.Census(at_ms=at_ms, cause="snapshot", rows=rows))
        check_state(self.place.state)

    def ask(self, n: int) -> None:
        found = self.place.ask(**ASKS[n % len(ASKS)], bind="none" if n % 3 else "wait")
        if isinstance(found, Refusal):
            self.seen[found.code] += 1
            return
        self.held.append(found)
        self.seen["granted"] += 1
        self.seen["shared"] += any(d.parts < 1_000_000 and not d.partition for d in found.devices)
        self.seen["cut"] += any(d.partition for d in found.devices)

    def bind(self, n: int) -> None:
        waiting = [g for g in self.held if self.place.state.leases[g.lease].bound_ms is None]
        live = [g for g in waiting if g.lease in self.place.state.live]
        if live:
            lease = live[n % len(live)].lease
            self.place.apply(ledger.LeaseBound(at_ms=self.place.writer.at_ms, lease=lease))

    def end(self, n: int) -> None:
        """Now, or as of a while ago; its agents say so at once, or never."""
        if self.held:
            granted = self.held.pop(n % len(self.held))
            now = self.place.writer.at_ms
            lease = self.place.state.leases[granted.lease]
            begin = lease.bound_ms or lease.granted_ms
            effective = max(begin, now - (0, 1, 700_000, 2 * HOUR)[n % 4])
            self.place.apply(
                ledger.LeaseEnding(
                    at_ms=now, lease=granted.lease, reason="released", effective_ms=effective
                )
            )
            if n % 5:
                node = granted.devices[0].node
                self.place.apply(
                    ledger.NodeReleased(at_ms=now, lease=granted.lease, node=node, by="agent"),
                    ledger.LeaseEnded(at_ms=now, lease=granted.lease),
                )

    def recut(self, n: int) -> None:
        """Whether a lease holds it or not; the partitions are new ones each time."""
        self.made += 1
        key = sorted(self.cards)[n % 4]
        fresh = card(*key, *CUTS[n // 4 % len(CUTS)])
        parts = tuple(
            p.model_copy(update={"uuid": f"{p.uuid}.{self.made}"}) for p in fresh.partitions
        )
        self.cards[key] = fresh.model_copy(update={"partitions": parts})
        self.report(n)

    def report(self, n: int) -> None:
        node = ("n1", "n2")[n % 2]
        there = [its for key, its in sorted(self.cards.items()) if key[0] == node]
        self.place.report(inventory(node, *there))

    def adopt(self, n: int) -> None:
        revision = self.place.state.adopted[0] + 1
        smallest = (100, 300, 500)[n % 3]
        self.place.adopt(documents(shares={"smallest_milli": smallest, "step_milli": 50}), revision)

    def cordon(self, n: int) -> None:
        self.place.apply(
            ledger.CordonChanged(
                at_ms=self.place.writer.at_ms, node=("n1", "n2")[n % 2], cordoned=n % 4 < 2, by="op"
            )
        )


_WEIGHTS = {"ask": 6, "bind": 2, "end": 3, "recut": 3, "adopt": 1, "cordon": 1, "report": 1}
acts = st.lists(
    st.tuples(
        st.sampled_from((0, 1, 999, 600_000, 1_800_001, HOUR)),
        st.sampled_from([act for act, weight in _WEIGHTS.items() for _ in range(weight)]),
        st.integers(0, 59),
    ),
    min_size=10,
    max_size=40,
)

SEEN: Counter[str] = Counter()


@given(acts)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def agree(drawn: list[tuple[int, str, int]]) -> None:
    told = Histories()
    for passed, what, n in drawn:
        told.act(passed, what, n)
    told.place.apply(ledger.Tick(at_ms=told.place.writer.at_ms + HOUR))
    rows: list[Any] = []
    state = State()
    prices = dict.fromkeys(range(60), ())
    for number, group in enumerate(told.place.groups):
        state, more = fold_group(state, number + 1, group, prices)
        rows += more
    assert not [row for row in rows if isinstance(row, Fault)]
    checks = [row for row in rows if isinstance(row, CensusCheck)]
    assert len(checks) == len(drawn)
    assert not [check.differences for check in checks if check.differences]
    _conserved(rows)
    _reckoned(told, rows)
    again = restored(told.place.state, 1)
    assert again.census() == told.place.state.census()
    SEEN.update(told.seen)


def _conserved(rows: list[Any]) -> None:
    """Law 9: the reasons of an hour sum to its total; what is leased is what is sliced."""
    hours: Counter[tuple[Any, ...]] = Counter()
    leased: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        if isinstance(row, CapacityRow):
            sign = -1 if row.reason == "total" else 1
            hours[row.pool, row.model, row.hour_ms] += sign * row.part_ms
            if row.reason == "leased":
                leased[row.pool, row.model, row.hour_ms] += row.part_ms
        if isinstance(row, SliceRow) and row.home_model:
            hour = row.from_ms - row.from_ms % HOUR
            leased[row.home_pool, row.home_model, hour] -= row.part_ms
    assert not any(hours.values())
    closed = set(hours)
    assert not {key: left for key, left in leased.items() if left and key in closed}


def _reckoned(told: Histories, rows: list[Any]) -> None:
    """And what shares nothing with either comes to the same hours."""
    groups = [json.loads(group.model_dump_json(by_alias=True)) for group in told.place.groups]
    _, cells = reckoning.reckon(groups, {})
    ours: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        if isinstance(row, CapacityRow) and row.reason != "total":
            ours[row.pool, row.model, row.hour_ms, row.reason] += row.part_ms
    hours = {key[2] for key in ours}
    theirs = {key: parts for key, parts in cells.items() if key[2] in hours}
    assert {key: parts for key, parts in ours.items() if parts} == theirs


def test_census_fold_and_an_independent_count_agree_on_every_part_of_every_card() -> None:
    """Laws 1 and 9 over shares, partitions and cards that are cut anew within an hour."""
    SEEN.clear()
    agree()
    assert SEEN["shared"] > 0
    assert SEEN["cut"] > 0
