"""A placer's memory with 10,000 nodes and 50,000 leases; its start from a snapshot and a tail.

In one process and without a bus: the state, the desk and the snapshot are the product's own; the
tail is 100,000 transitions as the stream has them, in groups, read and applied as a start does.
"""

from __future__ import annotations

import gc
import json
import sys
import time

import psutil

from quintal.contracts import ledger, placement
from quintal.contracts.documents import Catalog
from quintal_placer import facts, snapshots
from quintal_placer.desk import Desk
from quintal_placer.ledger import LedgerWriter
from quintal_placer.settings import Settings
from quintal_placer.state import PlacerState
from tests.bench import world

NODES, LEASES, TAIL, GROUP = 10_000, 50_000, 100_000, 64
AT_MS = 1_800_000_000_000


class _Writer:
    """Ledger time that stands still; nothing is appended."""

    full = False
    sequence = 1

    def now_ms(self) -> int:
        return AT_MS


def _mib() -> float:
    return psutil.Process().memory_info().rss / 2**20


def _desk(state: PlacerState) -> Desk:
    writer: LedgerWriter = _Writer()  # type: ignore[assignment]
    settings = Settings(None, None, None)  # type: ignore[arg-type]
    return Desk(settings, state, writer, None)  # type: ignore[arg-type]


def _empty(catalog: Catalog) -> PlacerState:
    state = PlacerState()
    state.adopt_catalog(catalog)
    return state


def _grant(desk: Desk, number: int, cards: int = 1) -> ledger.LeaseGranted | None:
    model = world.MODELS[number % len(world.MODELS)][0]
    ask = placement.PlaceAsk.model_validate(
        {
            "request_id": f"r{number}",
            "profile": "training-standard",
            "accelerator": {"models": [model]},
            "cards": cards,
            "bind": "none",
            "ttl_ms": 86_400_000,
            "project": "p",
            "labels": {"run": f"b{number % 17}"},
        }
    )
    decided = desk.decide(world.TENANTS[number % len(world.TENANTS)], ask)
    if not isinstance(decided, tuple):
        return None
    name, token = desk.next()
    return desk.record(name, token, world.TENANTS[number % len(world.TENANTS)], ask, decided)


def main() -> int:
    """Print each figure beside its bound."""
    catalog = Catalog(tuple(world.documents()), revision=1)
    state = _empty(catalog)
    for number in range(NODES):
        for record in facts.inventory_records(state, world.inventory(number), AT_MS):
            state.apply(record)
    print(f"  the fleet alone: {_mib():.0f} MiB")
    desk = _desk(state)
    for number in range(LEASES):
        granted = _grant(desk, number)
        assert granted is not None, number
        state.apply(granted)
    gc.collect()
    mib = _mib()
    print(f"  memory, {NODES} nodes x 8, {len(state.live)} leases: {mib:.0f} MiB (bound 700)")

    data = snapshots.dump(state, 1)
    groups: list[bytes] = []
    part: list[str] = []
    count = number = 0
    while count < TAIL:
        number += 1
        granted = _grant(desk, LEASES + number)
        if granted is None:
            continue
        state.apply(granted)
        records: list[ledger.AnyRecord] = [
            granted,
            ledger.LeaseEnding(
                at_ms=AT_MS, lease=granted.lease, reason="released", effective_ms=AT_MS
            ),
            ledger.NodeReleased(
                at_ms=AT_MS, lease=granted.lease, node=granted.devices[0].node, by="operator"
            ),
            ledger.LeaseEnded(at_ms=AT_MS, lease=granted.lease),
        ]
        for record in records[1:]:
            state.apply(record)
        part += [record.model_dump_json() for record in records]
        count += len(records)
        if len(part) >= GROUP:
            head = {"epoch": 1, "writer": "w", "group": len(groups) + 1, "expected": len(groups)}
            text = json.dumps(head)[:-1] + ',"transitions":[' + ",".join(part) + "]}"
            groups.append(text.encode())
            part = []
    del desk, state
    gc.collect()
    gc.freeze()
    begin, spent = time.perf_counter(), time.process_time()
    fresh = _empty(catalog)
    snapshots.fill(fresh, data)
    filled = time.perf_counter()
    with fresh.fleet.reading():
        for group in groups:
            for record in ledger.GROUP.validate_json(group).transitions:
                fresh.apply(record)
    done = time.perf_counter()
    print(
        f"  start: snapshot of {len(data) / 2**20:.1f} MiB {filled - begin:.1f} s, "
        f"{count} transitions {done - filled:.1f} s, together {done - begin:.1f} s (bound 5); "
        f"{time.process_time() - spent:.1f} s of a core"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
