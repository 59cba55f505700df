"""The service as a process, over a real bus and the real engine: followed, asked, killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from quintal.bus import Appended, Bus
from quintal.contracts import ledger
from quintal.contracts.message import Refusal
from quintal.contracts.nodes import Telemetry
from quintal.contracts.placement import Position
from quintal.contracts.subjects import (
    LEDGER,
    POSITION,
    SLICES,
    SUMMARY,
    TELEMETRY,
    TELEMETRY_ROWS,
    VERIFY,
    Role,
)
from quintal.contracts.usage import SlicesAsk, SummaryAsk, TelemetryAsk, UsageSummary, VerifyAsk
from quintal.errors import BusUnavailable, Code
from tests.metering.story import HOUR, MODEL, POOL, STU, Story, card
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.bus, pytest.mark.engine, pytest.mark.timeout(120)]
PARTS = 1_000_000
ROOT = Path(__file__).parents[2]


class Service:
    """Metering's process on one folder; it can be killed and started again."""

    def __init__(self, server: NatsServer, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        front = server.access("metering-front", Role.METERING_FRONT)
        back = server.access("metering", Role.METERING_BACK)
        self.log = folder / "log"
        self.environment = {
            **os.environ,
            "PYTHONPATH": ":".join(
                [str(ROOT), str(ROOT / "services/metering"), os.environ.get("PYTHONPATH", "")]
            ),
            "QUINTAL_URL": server.url,
            "QUINTAL_CREDENTIALS_FRONT": str(front.credentials),
            "QUINTAL_CREDENTIALS_BACK": str(back.credentials),
            "QUINTAL_STATE": str(folder / "state"),
            "QUINTAL_PRINCIPALS": str(server.authority.registry),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **more: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "quintal_metering"],
                env={**self.environment, **more}, stdout=log, stderr=log,
            )  # fmt: skip
        return self.process

    def end(self, how: signal.Signals = signal.SIGKILL) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(30)


@pytest.fixture
def service(fresh_nats: NatsServer, tmp_path: Path) -> Iterator[Service]:
    found = Service(fresh_nats, tmp_path / "metering")
    found.start()
    yield found
    found.end()


@pytest.fixture
async def placer(fresh_nats: NatsServer) -> AsyncIterator[Bus]:
    async with await fresh_nats.bus("placer-1", Role.PLACER_BACK) as bus:
        yield bus


async def append(placer: Bus, story: Story, after: int = 0) -> int:
    """The story's groups from `after` on, as the placer appends them."""
    for sequence, group in enumerate(story.groups[after:], after):
        data = ledger.GROUP.dump_json(group, by_alias=True)
        got = await placer.append(LEDGER.subject(), data, sequence)
        assert got == Appended(sequence + 1)
    return len(story.groups)


async def summary(bus: Bus, sequence: int, within_s: float = 30, **ask: object) -> UsageSummary:
    """The summary as of `sequence` or later; waits until metering has read that far."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + within_s
    while True:
        try:
            answer = await bus.request(SUMMARY, SummaryAsk.model_validate(ask))
            if isinstance(answer, UsageSummary) and answer.sequence >= sequence:
                return answer
        except BusUnavailable:
            pass
        assert loop.time() < give_up, "metering does not get there"
        await asyncio.sleep(0.1)


def a_day() -> Story:
    """Two tenants over two hours; one lease ends late, one is still open; a census closes it."""
    story = Story().node().appear("g1").appear("g2")
    story.grant("l1", card("g1"), bound=True, tenant="a").at(5_000)
    story.grant("l2", card("g2", rating_micro=1_234_567), tenant="b").at(6_000).bind("l2")
    story.at(HOUR + 11).tick().at(HOUR + 50_003).end("l1", HOUR - 7, "node_lost").ended("l1")
    row = ledger.CensusRow(pool=POOL, model=MODEL, total=2 * PARTS, leased=PARTS, free=PARTS)
    return story.at(2 * HOUR).census(row, cause="hour").at(2 * HOUR + 777).tick()


async def test_a_ledger_is_metered_and_everybody_sees_what_is_theirs(
    fresh_nats: NatsServer, service: Service, placer: Bus
) -> None:
    story = a_day()
    heard: list[int] = []
    await placer.hear(POSITION, lambda said, _: heard.append(said.sequence))
    sequence = await append(placer, story)
    async with (
        await fresh_nats.bus("finance", Role.FINANCE) as finance,
        await fresh_nats.bus("a", Role.TENANT) as tenant,
        await fresh_nats.bus("operator", Role.OPERATOR) as operator,
    ):
        all_of_it = await summary(finance, sequence)
        assert {row.group["tenant"]: row.quantity for row in all_of_it.rows} == {
            "a": (HOUR - 7) * PARTS * STU,
            "b": (2 * HOUR + 777 - 6_000) * PARTS * 1_234_567,
        }
        assert all_of_it.restated
        own = await summary(tenant, sequence)
        assert [row.group["tenant"] for row in own.rows] == ["a"]
        foreign = await tenant.request(SUMMARY, SummaryAsk(tenant="b"))
        assert isinstance(foreign, Refusal)
        assert foreign.code == Code.NOT_YOURS
        rows = await tenant.ask(SLICES, SlicesAsk())
        assert {row.tenant for row in rows.rows} == {"a"}
        assert "l2" not in rows.model_dump_json()
        everything = await finance.ask(SLICES, SlicesAsk())
        assert sum(row.quantity for row in everything.rows) == sum(
            row.quantity for row in all_of_it.rows
        )
        verified = await operator.ask(VERIFY, VerifyAsk(), timeout_s=30)
        assert verified.ok, verified.differences
        assert (verified.censuses, verified.hours) == (1, 2)
    for _ in range(100):
        if sequence in heard:
            break
        await asyncio.sleep(0.1)
    assert Position(reader="metering", sequence=sequence).sequence in heard
    assert service.end(signal.SIGTERM) == 0


async def test_a_script_that_shares_nothing_comes_to_the_same(
    fresh_nats: NatsServer, service: Service, placer: Bus
) -> None:
    sequence = await append(placer, a_day())
    finance = fresh_nats.access("finance", Role.FINANCE)
    async with await fresh_nats.bus("finance", Role.FINANCE) as bus:
        await summary(bus, sequence)
    metering = fresh_nats.access("metering", Role.METERING_BACK)
    run = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "tests/independent/recompute.py"),
        fresh_nats.url, str(metering.credentials), str(finance.credentials),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await run.communicate()
    assert run.returncode == 0, out.decode()
    assert out.decode().count("=") == 2
    place = Path(service.environment["QUINTAL_STATE"]) / "endpoint.json"
    run = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "tests/independent/slices.py"),
        fresh_nats.url, str(metering.credentials), str(place),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await run.communicate()
    assert run.returncode == 0, out.decode()
    assert "ledger 1..11: 3 slices" in out.decode()
    assert "equal" in out.decode()
    with urlopen(f"{json.loads(place.read_text())['url']}/metrics") as answer:
        told = answer.read()
    assert b"quintal_metering_ledger_position 11.0" in told
    assert b"quintal_metering_ledger_bytes_max" in told


@pytest.mark.timeout(180)
async def test_the_commands_show_usage_slices_and_whether_all_agrees(
    fresh_nats: NatsServer, service: Service, placer: Bus
) -> None:
    story = a_day()
    sequence = await append(placer, story)
    async with await fresh_nats.bus("finance", Role.FINANCE) as bus:
        await summary(bus, sequence)
    shown = await _command(fresh_nats, "usage", "--by", "tenant,model", "-o", "json")
    assert {row["group"]["tenant"] for row in json.loads(shown)["rows"]} == {"a", "b"}
    table = await _command(fresh_nats, "usage")
    assert "STU" in table
    assert f"ledger sequence {sequence}" in table
    rows = await _command(fresh_nats, "slices", "l1")
    assert "adjustment" in rows
    assert "l2" not in rows
    assert "2 closed hours" in await _command(fresh_nats, "verify")
    bill = await _command(fresh_nats, "bill", "b", "--month", "2023-11", "-o", "csv")
    head, *lines = bill.splitlines()
    assert head.startswith("tenant,month,closed,project")
    assert [line.split(",")[0] for line in lines] == ["b"]
    assert "restated" in await _command(fresh_nats, "bill", "a", "--month", "2023-11")
    assert "2026-11" in await _command(fresh_nats, "bill", "a", "--month", "2026-13", status=2)
    assert await _command(fresh_nats, "dead-letters") == "0 wait\n"
    assert "no catalog" in await _command(fresh_nats, "rerate", "--from", "2023-11-01", status=3)
    wrong = story.groups[-2].transitions[0].model_copy(update={"rows": (), "at_ms": story.now})
    sequence = await append(placer, story.tell(wrong), sequence)
    async with await fresh_nats.bus("finance", Role.FINANCE) as bus:
        await summary(bus, sequence)
    assert "census" in await _command(fresh_nats, "verify", status=1)


async def _command(server: NatsServer, *words: str, status: int = 0) -> str:
    access = server.access("finance", Role.FINANCE)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quintal.cli", *words, cwd=server.directory,
        env={
            **os.environ, "PYTHONPATH": str(ROOT), "QUINTAL_URL": server.url,
            "QUINTAL_CREDENTIALS": str(access.credentials),
        },
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == status, out.decode()
    return out.decode()


@pytest.mark.crash
async def test_killed_at_any_moment_it_counts_every_millisecond_once(
    fresh_nats: NatsServer, service: Service, placer: Bus
) -> None:
    """SIGKILL over and over while the ledger grows: the sums are those of one quiet run."""
    story = Story().node()
    for n in range(8):
        story.appear(f"g{n}")
    for n in range(60):
        story.grant(f"l{n}", card(f"g{n % 8}"), bound=True, tenant=f"t{n % 3}")
        story.at(n * 400_000 + 399_000).end(f"l{n}").ended(f"l{n}").at((n + 1) * 400_000)
    story.tick()
    done = 0
    for kill, size in enumerate((23, 31, 17, 40, 29)):
        part = Story(groups=story.groups[: done + size])
        done = await append(placer, part, done)
        await asyncio.sleep(1.7 + 0.23 * kill)
        service.end()
        service.start()
    sequence = await append(placer, story, done)
    async with (
        await fresh_nats.bus("finance", Role.FINANCE) as finance,
        await fresh_nats.bus("operator", Role.OPERATOR) as operator,
    ):
        answer = await summary(finance, sequence, within_s=60)
        told = story.told()
        for row in answer.rows:
            name = row.group["tenant"]
            assert row.quantity == told.quantity(lambda s, name=name: s.tenant == name)
            assert row.leases == 20
        verified = await operator.ask(VERIFY, VerifyAsk(), timeout_s=60)
        assert verified.ok, verified.differences


async def test_a_second_process_waits_until_the_first_ends(
    fresh_nats: NatsServer, service: Service, placer: Bus
) -> None:
    sequence = await append(placer, a_day())
    async with await fresh_nats.bus("finance", Role.FINANCE) as finance:
        await summary(finance, sequence)
        first = service.process
        service.log = service.log.with_name("second")
        service.start()
        for _ in range(100):
            if "another process has" in service.log.read_text():
                break
            await asyncio.sleep(0.1)
        assert "another process has" in service.log.read_text()
        assert first is not None
        first.kill()
        first.wait()
        await summary(finance, sequence)


async def test_case_j01_case_j05_unknown_readings_stay_unknown_and_leave_a_gap(
    fresh_nats: NatsServer, service: Service
) -> None:
    """An older agent says 0 with `unsupported`, a newer one says nothing: neither is a 0."""
    node = fresh_nats.access("n1", Role.AGENT)
    base = 1_760_000_000_000 // 60_000 * 60_000
    now = int(await _server_ms(fresh_nats)) // 60_000 * 60_000
    assert now > base
    async with (
        await Bus.connect(node) as agent,
        await fresh_nats.bus("operator", Role.OPERATOR) as operator,
    ):
        for n in range(4):
            sample = Telemetry(
                node="n1", boot_id="b", sequence=n, at_ms=now - 60_000 + n * 10_000,
                devices=("g1", "g2"),
                columns={
                    "utilization_percent": (40 + n, None if n % 2 else 0),
                    "power_watts": (100.5, None),
                },
                qualities={
                    "utilization_percent": ("ok", "unsupported"),
                    "power_watts": ("implausible" if n == 3 else "ok", "unavailable"),
                },
            )  # fmt: skip
            await agent.publish(TELEMETRY, sample, node="n1")
        far = sample.model_copy(update={"at_ms": base, "sequence": 9})
        await agent.publish(TELEMETRY, far, node="n1")
        await agent.flush()
        rows = {row.device: row for row in (await _telemetry(operator, "utilization_percent"))}
        assert (rows["g1"].samples, rows["g1"].mean, rows["g1"].low, rows["g1"].high) == (
            4, 41.5, 40, 43,
        )  # fmt: skip
        assert (rows["g2"].samples, rows["g2"].mean, rows["g2"].low) == (0, None, None)
        power = {row.device: row for row in (await _telemetry(operator, "power_watts"))}
        assert power["g1"].samples == 3
        assert all(row.minute_ms > base for row in (*rows.values(), *power.values()))


async def _telemetry(operator: Bus, reading: str) -> list:
    for _ in range(300):
        try:
            rows = (await operator.ask(TELEMETRY_ROWS, TelemetryAsk(reading=reading))).rows
        except BusUnavailable:
            rows = ()
        if rows:
            return list(rows)
        await asyncio.sleep(0.1)
    raise AssertionError("no rollup came")


async def _server_ms(server: NatsServer) -> float:
    from datetime import datetime

    with urlopen(f"{server.monitor_url}/varz") as answer:
        text = json.load(answer)["now"]
    return datetime.fromisoformat(text).timestamp() * 1000
