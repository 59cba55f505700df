"""Draining: a cordon with an end to what runs there, and how far that is."""

from __future__ import annotations

from quintal.contracts import ledger, placement
from quintal.contracts.message import Refusal
from quintal.contracts.nodes import Inventory
from quintal_placer import facts, operations, snapshots
from quintal_placer.state import PlacerState
from tests.placer.test_budgets import NOW_MS, end, granted, house
from tests.placer.world import cards

MINUTE_MS = 60_000


def fleet() -> PlacerState:
    state = house("1000")
    inventory = Inventory(
        node="n", boot_id="b", sequence=1, at_ms=NOW_MS, devices=cards("n", "BIG-80", 2)
    )
    for record in facts.inventory_records(state, inventory, NOW_MS):
        state.apply(record)
    return state


def drain(state: PlacerState, at_ms: int = NOW_MS, **more: int) -> list[ledger.AnyRecord]:
    ask = placement.DrainAsk(nodes=("n",), **more)
    records = operations.drain(state, ask, by="ops", at_ms=at_ms)
    assert not isinstance(records, Refusal)
    for record in records:
        state.apply(record)
    return records


def test_a_drain_cordons_and_tells_what_still_runs() -> None:
    state = fleet()
    state.apply(granted("a", NOW_MS, 10 * MINUTE_MS))
    drain(state, deadline_ms=MINUTE_MS)
    assert state.fleet.nodes["n"].cordons == {"ops": ""}
    told = operations.progress(state, ("n",), NOW_MS)
    assert told.details["leases"] == ["a"]
    assert told.details["drained"] is False
    assert told.details["deadline_in_ms"] == MINUTE_MS
    end(state, "a", NOW_MS + 1)
    assert operations.progress(state, ("n",), NOW_MS).details["drained"] is True


def test_asked_again_it_changes_nothing_and_keeps_the_deadline() -> None:
    state = fleet()
    drain(state, deadline_ms=MINUTE_MS)
    assert drain(state, NOW_MS + 30_000) == []
    assert state.fleet.nodes["n"].drains == {"ops": NOW_MS + MINUTE_MS}
    drain(state, NOW_MS + 30_000, deadline_ms=MINUTE_MS)
    assert state.fleet.nodes["n"].drains == {"ops": NOW_MS + 30_000 + MINUTE_MS}


def test_only_a_deadline_that_is_past_empties_a_node() -> None:
    state = fleet()
    drain(state)
    assert state.fleet.draining(NOW_MS + 10**9) == []
    drain(state, deadline_ms=MINUTE_MS)
    assert state.fleet.draining(NOW_MS + MINUTE_MS - 1) == []
    assert state.fleet.draining(NOW_MS + MINUTE_MS) == ["n"]


def test_a_snapshot_keeps_the_deadline_and_an_uncordon_takes_it_back() -> None:
    state = fleet()
    drain(state, deadline_ms=MINUTE_MS)
    other = house("1000")
    snapshots.fill(other, snapshots.dump(state, 3))
    assert other.fleet.nodes["n"].drains == {"ops": NOW_MS + MINUTE_MS}
    ask = placement.CordonAsk(nodes=("n",))
    records = operations.cordon(state, ask, by="ops", at_ms=NOW_MS, on=False)
    assert not isinstance(records, Refusal)
    for record in records:
        state.apply(record)
    assert not state.fleet.nodes["n"].drains
    assert not state.fleet.nodes["n"].cordons
