"""Metering beside its floors: slices from ledger to store, telemetry, and what boards ask.

    python -m tests.bench.metering [slices|telemetry|boards] [SLICES ROLLUP_ROWS]

One engine, in a temporary folder; product and floor take turns in the same run.
"""

from __future__ import annotations

import json
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from quintal.bus import Stored
from quintal.contracts import ledger
from quintal.contracts.nodes import Telemetry
from quintal_metering.columns import by_month
from quintal_metering.following import roll_up_once
from quintal_metering.meter import Meter
from quintal_metering.observations import telemetry
from quintal_metering.rows import SliceRow
from quintal_metering.settings import Where
from quintal_metering.store import Store
from tests.metering.story import HOUR, T0, Story, card, price_list
from tests.metering.test_rollups import TIMED, Observed
from tests.metering.test_store import begun

LEASES = 1_000
BATCHES = 12
NODES, DEVICES, PERIOD_S = 10_000, 8, 10
READINGS = ("utilization_percent", "memory_used_bytes", "power_watts", "temperature_celsius",
            "energy_joules")  # fmt: skip
STEP = 1_000_000
BOARDS = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"


def ms(work: Callable[[], Any]) -> float:
    """How long it took, by the wall."""
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds by the wall, and of this process's processor time."""
    began = cpu_s()
    return ms(work), 1000 * (cpu_s() - began)


def cpu_s() -> float:
    """Of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def slices(folder: Path) -> None:
    """Batches of 1,000 slices: hours that close over 1,000 open leases, and whole short leases."""
    for title, story in (("open leases, an hour closes", hours()), ("leases that end", short())):
        metered_beside_bare(folder, title, story)


def metered_beside_bare(folder: Path, title: str, story: Story) -> None:
    """The meter and a bare insert of the same slices, by turns.

    Bare is the driver's own insert of columns, without ids, archive or order of steps.
    """
    meter = begun(Store.open(Where(folder, database=f"m{len(story.groups)}")), story)
    floor = Store.open(Where(folder, database=f"f{len(story.groups)}"))
    dry = Meter(meter.store)
    dry.prices = meter.prices
    ours, bare, folds = [], [], []
    rows: list[SliceRow] = []

    def fold(batch: list[Stored]) -> None:
        for message in batch:
            found = dry._fold(message.sequence, ledger.GROUP.validate_json(message.data))
            rows.extend(row for row in found if isinstance(row, SliceRow))

    def insert(columns: dict[str, list[Any]]) -> None:
        floor._client.insert(
            "slices", list(columns.values()), column_names=list(columns), column_oriented=True,
            settings={"async_insert": 0},
        )  # fmt: skip

    for batch in in_batches(story):
        rows.clear()
        folds.append(timed(partial(fold, batch)))
        ours.append(timed(partial(meter.take, batch, 0)))
        (one,) = by_month("slices", rows, "", "from_ms") or (None,)
        if one is not None:
            bare.append(timed(partial(insert, one.columns)))
    mid = [[statistics.median(column) for column in zip(*times[1:], strict=True)]
           for times in (ours, bare, folds)]  # fmt: skip
    (wall, busy), (bare_wall, bare_busy), (fold_wall, _) = mid
    print(
        f"slices, {title}: {len(rows)} a batch; ledger to store {wall:.0f} ms "
        f"({1000 * len(rows) / wall:.0f} slices/s), of that parsing and folding "
        f"{fold_wall:.0f} ms; bare insert {bare_wall:.0f} ms; {bare_wall / wall:.2f} x (bound "
        f"0.5); of processor {busy:.0f} and {bare_busy:.0f} ms"
    )


def hours() -> Story:
    """1,000 open leases; each tick closes an hour."""
    story = Story().node().adopt(1, price_list("2.0"))
    story.tell(*(
        ledger.DeviceAppeared(at_ms=story.now, node="n1", device=_raw(f"g{n}"), model="m", pool="p")
        for n in range(LEASES)
    ))  # fmt: skip
    granted = Story(now=story.now)
    for n in range(LEASES):
        granted.grant(f"l{n}", card(f"g{n}"), bound=True, tenant=f"t{n % 50}")
    story.tell(*(record for group in granted.groups for record in group.transitions))
    for hour in range(1, BATCHES + 1):
        story.at(hour * HOUR).tick()
    return story


def short() -> Story:
    """Leases that are granted and released: three transitions a slice, 256 a message."""
    story = Story().node().adopt(1, price_list("2.0"))
    story.tell(*(
        ledger.DeviceAppeared(at_ms=story.now, node="n1", device=_raw(f"g{n}"), model="m", pool="p")
        for n in range(LEASES)
    ))  # fmt: skip
    for batch in range(BATCHES):
        told = Story(now=T0 + batch * 100_000)
        for n in range(LEASES):
            told.grant(f"l{batch}-{n}", card(f"g{n}"), bound=True, tenant=f"t{n % 50}")
        told.at(batch * 100_000 + 50_000)
        for n in range(LEASES):
            told.end(f"l{batch}-{n}").ended(f"l{batch}-{n}")
        records = [record for group in told.groups for record in group.transitions]
        for at in range(0, len(records), 256):
            story.tell(*records[at : at + 256])
    return story


def _raw(uuid: str) -> Any:
    from tests.metering.story import raw

    return raw(uuid)


def in_batches(story: Story) -> Any:
    """The first batch brings the fleet; each other one 1,000 slices."""
    stored = [
        Stored(n, "quintal.v1.ledger", group.model_dump_json(by_alias=True).encode())
        for n, group in enumerate(story.groups, 1)
    ]
    head = next(n for n, g in enumerate(story.groups) if len(g.transitions) == LEASES) + 1
    head += len(story.groups[head].transitions) == LEASES
    rest = stored[head:]
    size = len(rest) // BATCHES
    yield stored[:head]
    for at in range(0, size * BATCHES, size):
        yield rest[at : at + size]


def telemetry_rate(folder: Path) -> None:
    """One period of the whole fleet, over and over: how long the store works for ten seconds."""
    store = Store.open(Where(folder, database="telemetry"))
    for table in TIMED:
        store.command(f"ALTER TABLE {table} REMOVE TTL")
    seen = Observed(store)
    devices = tuple(f"GPU-{n}" for n in range(DEVICES))
    columns = {reading: tuple(50.0 + n for n in range(DEVICES)) for reading in READINGS}
    spent, memory = [], []
    for period in range(6):
        at = T0 + period * PERIOD_S * 1000
        messages = []
        for node in range(NODES):
            said = Telemetry(
                node=f"n{node}", boot_id="b", sequence=period, at_ms=at, devices=devices,
                columns=columns,
            )  # fmt: skip
            seen.position += 1
            subject = f"quintal.v1.telemetry.n{node}"
            messages.append(Stored(seen.position, subject, said.model_dump_json().encode()))
        began, wall = cpu_s(), time.perf_counter()
        for first in range(0, NODES, 2_000):  # what arrives in two seconds is one batch
            found = telemetry(messages[first : first + 2_000])
            store.insert("telemetry_raw", found.columns, f"{period}:{first}")
            seen.minutes |= found.minutes
        took = time.perf_counter() - wall
        roll_up_once(store, seen)  # type: ignore[arg-type]
        spent.append((cpu_s() - began, took, time.perf_counter() - wall))
        memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20)
    busy, took, whole = (statistics.median(column) for column in zip(*spent, strict=True))
    print(
        f"telemetry, {NODES} nodes x {DEVICES} devices x {len(READINGS)} readings a period of "
        f"{PERIOD_S} s: {busy:.1f} s of processor = {100 * busy / PERIOD_S:.0f} % of a core "
        f"(bound 70), {took:.1f} s to store, {whole:.1f} s with the minute's rollup; memory "
        f"{memory[1]:.0f} -> {memory[-1]:.0f} MiB"
    )


def boards(folder: Path, slice_rows: int, rollup_rows: int) -> None:
    """What every panel asks, over made-up rows of 90 days of slices and a day of minutes."""
    store = Store.open(Where(folder, database="boards"))
    for table in TIMED:
        store.command(f"ALTER TABLE {table} REMOVE TTL")
    fill(store, slice_rows, rollup_rows)
    span = {"day": 24 * HOUR, "month": 30 * 24 * HOUR}
    end = T0 + 90 * 24 * HOUR
    times: list[tuple[float, str]] = []
    for path in sorted(BOARDS.glob("*.json")):
        board = json.loads(path.read_text())
        long = path.stem in {"tenants", "economics", "fleet"}
        for panel in board["panels"]:
            text = panel["targets"][0]["rawSql"]
            text = re.sub(r"\[\$\{\w+:singlequote\}\]", "[]", text)
            begin = end - span["month" if long else "day"]
            text = text.replace("$__fromTime", f"toDateTime({begin // 1000})")
            text = text.replace("$__toTime", f"toDateTime({end // 1000})")
            text = text.replace("$__interval_s", "3600" if long else "60")
            store.rows(text)
            took = statistics.median(ms(partial(store.rows, text)) for _ in range(3))
            times.append((took, f"{path.stem}: {panel['title']}"))
    times.sort(reverse=True)
    p95 = times[len(times) // 20][0]
    said = f"boards, {slice_rows:,} slices, {rollup_rows:,} rollup rows"
    print(f"{said}: p95 {p95:.0f} ms (bound 1,000)")
    for took, name in times[:5]:
        print(f"    {took:.0f} ms  {name}")
    usage = next(took for took, name in times if name == "tenants: Unit-hours")
    print(f"usage by tenant and hour over 30 days: {usage:.0f} ms (bound 300)")


def fill(store: Store, slice_rows: int, rollup_rows: int) -> None:
    """Rows made by the engine itself, a million at a time: a query has a bound on its memory."""
    for first in range(0, slice_rows, STEP):
        fill_slices(store, first, min(STEP, slice_rows - first), slice_rows)
    for first in range(0, rollup_rows, STEP):
        fill_minutes(store, first, min(STEP, rollup_rows - first))
    fill_capacity(store)


def fill_slices(store: Store, first: int, count: int, slice_rows: int) -> None:
    """Ninety days of them, as evenly as can be."""
    store.command(
        f"""INSERT INTO slices (id, kind, lease, tenant, project, profile, pool, model, vendor,
            workload_class, from_ms, to_ms, devices, parts, part_ms, rating_micro, quantity,
            nominal_quantity, cost, currency, revision, sequence, home_pool, home_model)
        SELECT hex(SHA256(toString(number))), 'usage', toString(number % 50000),
            concat('t', toString(number % 50)), 'p', 'train', concat('pool', toString(number % 5)),
            concat('m', toString(number % 12)), 'v', 'train_llm', start, start + 3600000, 8,
            1000000, 28800000000000, 1000000, toDecimal128('28800000000000000000', 0),
            toDecimal128('28800000000000000000', 0), 16, 'EUR', 1, number,
            concat('pool', toString(number % 5)), concat('m', toString(number % 12))
        FROM (SELECT number, {T0} + 3600000 * intDiv(number * 2160, {slice_rows}) AS start
            FROM numbers({first}, {count}))
        SETTINGS max_partitions_per_insert_block = 1000, max_insert_block_size = 100000"""
    )


def fill_minutes(store: Store, first: int, count: int) -> None:
    """A day of them, newest first."""
    end = T0 + 90 * 24 * HOUR
    store.command(
        f"""INSERT INTO telemetry_minute
            (reading, node, device, minute_ms, samples, mean, low, high, version)
        SELECT ['utilization_percent', 'power_watts', 'temperature_celsius',
                'memory_used_bytes'][number % 4 + 1],
            concat('n', toString(intDiv(number, 4) % 10000)),
            concat('g', toString(intDiv(number, 40000) % 8)),
            {end} - 60000 * (1 + intDiv(number, 320000) % 1440), 6, number % 100, 0, 100, 1
        FROM numbers({first}, {count})"""
    )


def fill_capacity(store: Store) -> None:
    """Ninety days of sixty cells."""
    store.command(
        f"""INSERT INTO capacity SELECT hex(SHA256(toString(number))), 'usage',
            concat('pool', toString(number % 5)), concat('m', toString(intDiv(number, 5) % 12)),
            {T0} + 3600000 * (intDiv(number, 300) % 2160),
            ['total', 'leased', 'free', 'cordoned', 'suspect'][intDiv(number, 60) % 5 + 1],
            28800000000000, number FROM numbers(648000)
        SETTINGS max_partitions_per_insert_block = 1000"""
    )


def main() -> int:
    """All of them, or the one that is named."""
    named = sys.argv[1] if len(sys.argv) > 1 else ""
    sizes = [int(word) for word in sys.argv[2:4]] or [1_000_000, 10_000_000]
    with tempfile.TemporaryDirectory() as folder:
        engine = Path(folder) / "engine"
        if named in {"", "slices"}:
            slices(engine)
        if named in {"", "telemetry"}:
            telemetry_rate(engine)
        if named in {"", "boards"}:
            boards(engine, sizes[0], sizes[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
