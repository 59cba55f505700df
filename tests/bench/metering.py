"""Metering beside its floors: slices from ledger to store, telemetry, and what boards ask.

    python -m tests.bench.metering [slices|telemetry|question|start|boards] [SLICES ROLLUP_ROWS]

One engine, in a temporary folder; product and floor take turns in the same run.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from quintal.bus import Stored
from quintal.contracts import ledger
from quintal.contracts.nodes import Telemetry
from quintal_metering import checkpoint
from quintal_metering.columns import by_month
from quintal_metering.following import minutes_again
from quintal_metering.guard import Statement
from quintal_metering.hourly import HOURS_AT_ONCE, HoursAgain
from quintal_metering.meter import Meter
from quintal_metering.observations import telemetry
from quintal_metering.readers import READERS, Reader
from quintal_metering.rollups import FleetAgain, HeldHourAgain, NodesSeen
from quintal_metering.rows import SliceRow
from quintal_metering.settings import ROLLUP_PAUSES, ROLLUP_S, Where
from quintal_metering.store import Store
from tests.metering.story import HOUR, T0, Story, card, price_list
from tests.metering.test_rollups import TIMED, Observed
from tests.metering.test_store import begun

LEASES = 1_000
BATCHES = 12
OPEN, AFTER = 50_000, 6_000
NODES, DEVICES, PERIOD_S, PERIODS = 10_000, 8, 10, 36
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
    """The whole fleet, period after period, its minutes rolled up as seldom as the service does.

    Time is reckoned, not waited for: a period is ten seconds however long its work takes.
    """
    store = Store.open(Where(folder, database="telemetry"))
    for table in TIMED:
        store.command(f"ALTER TABLE {table} REMOVE TTL")
    seen = Observed(store)
    taken, rolled, steps = [], [], []
    due_s = 0.0
    memories = []
    for period in range(PERIODS):
        messages = period_of_the_fleet(seen, period)
        for first in range(0, NODES, NODES // 5):  # what arrives in two seconds is one batch
            batch = messages[first : first + NODES // 5]
            taken.append(timed(partial(taken_in, store, seen, batch, f"{period}:{first}")))
        if period * PERIOD_S >= due_s:
            began = time.perf_counter()
            rolling = minutes_again(store, seen)  # type: ignore[arg-type]
            over = False
            while not over:
                said: list[Any] = []
                steps.append(timed(partial(last_or_next, rolling, said)))
                over = bool(said)
            took = time.perf_counter() - began
            rolled.append(took)
            due_s = period * PERIOD_S + max(ROLLUP_S, took * ROLLUP_PAUSES)
        memories.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20)
    whole_s = PERIODS * PERIOD_S
    busy = (sum(cpu for _, cpu in taken) + sum(cpu for _, cpu in steps)) / 1000
    wall = (sum(ms for ms, _ in taken) + sum(ms for ms, _ in steps)) / 1000
    slowest = max(ms for ms, _ in steps) + max(ms for ms, _ in taken)
    third = PERIODS // 3
    print(
        f"telemetry, {NODES} nodes x {DEVICES} devices x {len(READINGS)} readings, {PERIODS} "
        f"periods of {PERIOD_S} s: {busy:.1f} s of processor in {whole_s} s = "
        f"{100 * busy / whole_s:.0f} % of a core (bound 70), of that taking in "
        f"{100 * sum(cpu for _, cpu in taken) / 1000 / whole_s:.0f} %; by the wall {wall:.1f} s; "
        f"{len(rolled)} rollups; a batch waits at most {slowest / 1000:.1f} s beside its two "
        f"(bound 5); memory, most in each third: {max(memories[:third]):.0f}, "
        f"{max(memories[third : 2 * third]):.0f}, {max(memories[2 * third :]):.0f} MiB"
    )


def last_or_next(steps: Iterator[None], said: list[Any]) -> None:
    """One step; says so when there was none left."""
    if next(steps, said) is said:
        said.append(True)


def period_of_the_fleet(seen: Observed, period: int) -> list[Stored]:
    """A message of each node."""
    columns = {name: tuple(50.0 + n + period for n in range(DEVICES)) for name in READINGS}
    messages = []
    for node in range(NODES):
        said = Telemetry(
            node=f"n{node}", boot_id="b", sequence=period,
            at_ms=T0 + period * PERIOD_S * 1000 + node % 9_000,
            devices=tuple(f"GPU-{node}-{n}" for n in range(DEVICES)), columns=columns,
        )  # fmt: skip
        seen.position += 1
        subject = f"quintal.v1.telemetry.n{node}"
        messages.append(Stored(seen.position, subject, said.model_dump_json().encode()))
    return messages


def taken_in(store: Store, seen: Observed, batch: list[Stored], token: str) -> None:
    """As an observer does."""
    found = telemetry(batch)
    store.insert("telemetry_raw", found.columns, token)
    seen.minutes |= found.minutes


def slowest_question(folder: Path) -> None:
    """Batches of 1,000 slices alone, and beside two of the slowest questions that are allowed."""
    story = hours()
    store = Store.open(Where(folder, database="beside"))
    meter = begun(store, story)
    for first in range(0, 1_000_000, STEP):
        fill_slices(store, first, STEP, 1_000_000)
    head, *batches = in_batches(story)
    meter.take(head, 0)
    alone = [timed(partial(meter.take, batch, 0))[0] for batch in batches[: BATCHES // 2]]
    readers = [Reader(str(folder), "beside") for _ in range(READERS)]
    slow = Statement(
        "SELECT max(cityHash64(a.id, b.number)) FROM slices AS a CROSS JOIN numbers(1000) AS b",
        "Native",
    )
    asked = [reader.pool.submit(refused_or_told, reader, slow) for reader in readers]
    time.sleep(0.5)
    beside = [timed(partial(meter.take, batch, 0))[0] for batch in batches[BATCHES // 2 :]]
    still = sum(not one.done() for one in asked)
    took = max(one.result() for one in asked)
    for reader in readers:
        reader.close()
    mid = [statistics.median(times) for times in (alone, beside)]
    print(
        f"the slowest allowed question: {len(readers)} at once, {took:.1f} s each, {still} "
        f"still at work after the batches; a batch of {LEASES} slices {mid[0]:.0f} ms alone, "
        f"{mid[1]:.0f} ms beside them, at worst {max(beside):.0f} ms (bound 2,000 more)"
    )


def refused_or_told(reader: Reader, asked: Statement) -> float:
    """Seconds until the answer, or until the engine gave it up."""
    began = time.perf_counter()
    with contextlib.suppress(RuntimeError):
        told(reader, asked)
    return time.perf_counter() - began


def start(folder: Path) -> None:
    """What a start costs: the checkpoint of a large fleet, and the archive after it."""
    story = Story().node().adopt(1, price_list("2.0"))
    for first in range(0, NODES * DEVICES, 256):
        story.tell(*(
            ledger.DeviceAppeared(
                at_ms=story.now, node=f"n{n // DEVICES}", device=_raw(f"g{n}"), model="m", pool="p"
            )
            for n in range(first, min(first + 256, NODES * DEVICES))
        ))  # fmt: skip
    for first in range(0, OPEN, 256):
        granted = Story(now=story.now)
        for n in range(first, min(first + 256, OPEN)):
            granted.grant(
                f"l{n}", card(f"g{n}", f"n{n // DEVICES}"), bound=True, tenant=f"t{n % 50}"
            )
        story.tell(*(record for group in granted.groups for record in group.transitions))
    meter = begun(Store.open(Where(folder, database="start")), story)
    stored = [
        Stored(n, "quintal.v1.ledger", group.model_dump_json(by_alias=True).encode())
        for n, group in enumerate(story.groups, 1)
    ]
    meter.take(stored, 0)
    keeping = timed(meter.rest)
    size = len(checkpoint.written(meter.state)) / 2**20
    after = Story(prices=story.prices, now=story.now + 1)
    after.groups = list(story.groups)
    for _ in range(AFTER // 3):
        n = len(after.groups) % OPEN
        after.tell(
            ledger.LeaseEnding(
                at_ms=after.now, lease=f"l{n}", reason="released", effective_ms=after.now
            ),
            ledger.LeaseEnded(at_ms=after.now, lease=f"l{n}"),
        ).grant(f"m{n}", card(f"g{n}", f"n{n // DEVICES}"), bound=True)
    more = [
        Stored(n, "quintal.v1.ledger", group.model_dump_json(by_alias=True).encode())
        for n, group in enumerate(after.groups, 1)
    ][len(stored) :]
    for at in range(0, len(more), 200):
        meter.take(more[at : at + 200], 0)
    again = Meter(Store.open(Where(folder, database="start")))
    wall, busy = timed(partial(again.open, "bench", 0))
    same = again.state == meter.state
    print(
        f"start: {NODES * DEVICES} devices, {OPEN} leases, a checkpoint of {size:.0f} MiB kept in "
        f"{keeping[0]:.0f} ms; opened with {len(more)} messages after it in {wall:.0f} ms, "
        f"{busy:.0f} ms of a core; the same state: {same}"
    )


def boards(folder: Path, slice_rows: int, rollup_rows: int) -> None:
    """What every panel asks, of a reader as the endpoint has it: one thread, and its bounds.

    Made-up rows of 90 days of slices and of what leases made of them, of a day of minutes of
    telemetry and a month of its hours, all summed up by metering's own statements.
    """
    store = Store.open(Where(folder, database="boards"))
    for table in (*TIMED, "decisions"):
        store.command(f"ALTER TABLE {table} REMOVE TTL")
    fill(store, slice_rows, rollup_rows)
    reader = Reader(str(folder), "boards")
    end = T0 + 90 * 24 * HOUR
    times: list[tuple[float, str]] = []
    for path in sorted(BOARDS.glob("*.json")):
        board = json.loads(path.read_text())
        if path.stem == "packing":
            continue  # of Prometheus, not of the store
        long = path.stem in {"tenants", "economics", "fleet"}
        spans = {"day": 24 * HOUR, "month": 30 * 24 * HOUR}
        for name, span in spans.items():
            if (name == "month") != long and path.stem != "telemetry":
                continue
            for panel in board["panels"]:
                text = expanded(panel["targets"][0]["rawSql"], (end - span, end))
                asked = Statement(text, "Native", streams=False)
                took = statistics.median(ms(partial(told, reader, asked)) for _ in range(3))
                times.append((took, f"{path.stem}, {name}: {panel['title']}"))
    reader.close()
    times.sort(reverse=True)
    said = f"boards, {slice_rows:,} slices, {rollup_rows:,} rollup rows, {len(times)} panels"
    print(f"{said}: p95 {times[len(times) // 20][0]:.0f} ms (bound 1,000)")
    for took, name in times:
        print(f"    {took:.0f} ms  {name}")
    usage = next(took for took, name in times if name == "tenants, month: Unit-hours")
    print(f"usage by tenant and hour over 30 days: {usage:.0f} ms (bound 300)")


def told(reader: Reader, asked: Statement) -> None:
    """All of the answer."""
    b"".join(reader.begin(asked, {}))


def expanded(text: str, span: tuple[int, int]) -> str:
    """As Grafana's plugin sends it, for all tenants, pools, models and classes."""
    text = re.sub(r"\[\$\{\w+:singlequote\}\]", "[]", text)
    text = text.replace("$__fromTime", f"toDateTime({span[0] // 1000})")
    text = text.replace("$__toTime", f"toDateTime({span[1] // 1000})")
    return text.replace("$__interval_s", "60" if span[1] - span[0] <= 24 * HOUR else "3600")


def fill(store: Store, slice_rows: int, rollup_rows: int) -> None:
    """Rows made by the engine itself, a million at a time: a query has a bound on its memory."""
    for first in range(0, slice_rows, STEP):
        fill_slices(store, first, min(STEP, slice_rows - first), slice_rows)
    fill_capacity(store)
    fill_catalog(store)
    began = time.perf_counter()
    hours = [T0 + HOUR * n for n in range(2160)]
    for at in range(0, len(hours), HOURS_AT_ONCE):
        store.command(*HoursAgain(tuple(hours[at : at + HOURS_AT_ONCE]), 1).sql())
    print(f"    usage of {len(hours)} hours summed in {time.perf_counter() - began:.0f} s")
    fill_leases(store)
    began = time.perf_counter()
    for hour in hours:
        store.command(*HeldHourAgain(hour, 1).sql())
    print(f"    leases of {len(hours)} hours summed in {time.perf_counter() - began:.0f} s")
    minutes = rollup_rows * 9 // 10
    for first in range(0, minutes, STEP):
        fill_minutes(store, first, min(STEP, minutes - first), minutes // 1440)
    for first in range(0, rollup_rows - minutes, STEP):
        count = min(STEP, rollup_rows - minutes - first)
        fill_telemetry_hours(store, first, count, (rollup_rows - minutes) // 720)
    began = time.perf_counter()
    end = T0 + 90 * 24 * HOUR
    day = [end - 60_000 * (1 + n) for n in range(1440)]
    for at in range(0, len(day), 10):
        store.command(*FleetAgain(tuple(day[at : at + 10]), 1).sql())
        store.command(*NodesSeen(tuple(day[at : at + 10])).sql())
    for hour in range(end - 720 * HOUR, end, HOUR):
        store.command(*FleetAgain((hour,), 1, hours=True).sql())
    print(f"    {rollup_rows:,} rollup rows summed in {time.perf_counter() - began:.0f} s")


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


def fill_leases(store: Store) -> None:
    """What each lease made of each hour, a tenth of them nothing; and a day of decisions."""
    for month in range(90):
        first = T0 + month * 24 * HOUR
        store.command(
            f"""INSERT INTO leases_by_hour SELECT from_ms, lease, tenant, project, workload_class,
                pool, model, 28800000, 28000000, if(cityHash64(lease) % 10 = 0, 0, 20000000), 0,
                cost, cost * 7 / 10, currency, 1
            FROM slices WHERE from_ms >= {first} AND from_ms < {first + 24 * HOUR}"""
        )
    end = T0 + 90 * 24 * HOUR
    store.command(
        f"""INSERT INTO decisions SELECT number, at, at, concat('t', toString(number % 50)),
            toString(number), 'request', if(number % 3 = 0, 'not_now', 'granted'),
            if(number % 3 = 0, 'no_capacity', ''), if(number % 3 = 0, '', toString(number % 50000)),
            number % 5000, 10, map(), 1
        FROM (SELECT number, {end} - intDiv(number * 86400000, 1000000) - 1 AS at
            FROM numbers(1000000))"""
    )


def fill_catalog(store: Store) -> None:
    """One revision: models, costs, caps, budgets, floors, an objective."""
    name = "concat('m', toString(number % 12))"
    for table, text in {
        "catalog_models": f"1, {name}, 'v', 'f', 2020 + number % 5, 700, 'train_llm', 1000000, "
        "'benchmark' FROM numbers(12)",
        "catalog_costs": f"1, concat('pool', toString(intDiv(number, 12))), {name}, 0, "
        "9007199254740992, 1.5, 'EUR' FROM numbers(60)",
        "catalog_caps": "1, concat('t', toString(number % 50)), if(number < 50, 'cap', "
        "'budget'), 'train_llm', '', '', 1000000000000, NULL FROM numbers(100)",
        "catalog_commitments": "1, concat('c', toString(number)), concat('t', "
        "toString(number)), 'train_llm', '', '', '', 1000000000, 0, 0, 9007199254740992 "
        "FROM numbers(50)",
        "catalog_profiles": "1, 'train', 'train_llm', 100",
    }.items():
        store.command(f"INSERT INTO {table} SELECT {text}")


def fill_minutes(store: Store, first: int, count: int, series: int) -> None:
    """A day of them, newest first."""
    end = T0 + 90 * 24 * HOUR
    store.command(
        f"""INSERT INTO telemetry_minutes
            (minute_ms, reading, node, device, samples, mean, low, high, version)
        SELECT {end} - 60000 * (1 + intDiv(number, {series}) % 1440),
            {_SERIES.format(series=series)}, 6, number % 100, 0, 100, 1
        FROM numbers({first}, {count})"""
    )


def fill_telemetry_hours(store: Store, first: int, count: int, series: int) -> None:
    """Thirty days of them, newest first."""
    end = T0 + 90 * 24 * HOUR
    store.command(
        f"""INSERT INTO telemetry_hours
            (hour_ms, reading, node, device, minutes, samples, mean, low, high, version)
        SELECT {end} - 3600000 * (1 + intDiv(number, {series}) % 720),
            {_SERIES.format(series=series)}, 60, 360, number % 100, 0, 100, 1
        FROM numbers({first}, {count})
        SETTINGS max_partitions_per_insert_block = 1000"""
    )


_SERIES = """['utilization_percent', 'power_watts', 'temperature_celsius',
                'memory_used_bytes'][number % {series} % 4 + 1],
            concat('n', toString(intDiv(number % {series}, 32))),
            concat('g', toString(intDiv(number % {series}, 4) % 8))"""
"""Four readings of eight devices of as many nodes as that gives."""


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
        if named in {"", "question"}:
            slowest_question(engine)
        if named in {"", "start"}:
            start(engine)
        if named in {"", "boards"}:
            boards(engine, sizes[0], sizes[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
