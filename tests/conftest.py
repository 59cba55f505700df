"""Fixtures that every part's tests may use, and the count of what touched the real thing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.nats import NatsServer

REAL = {"bus": "a real nats-server", "engine": "the real engine", "crash": "killed processes"}


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One real server for the whole session, its streams declared. Do not kill it."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    server.declare()
    yield server
    server.kill()


@pytest.fixture
def fresh_nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A real server of the test's own, its streams declared and empty; kill it as you like."""
    server = NatsServer(tmp_path / "fresh")
    server.start()
    server.declare()
    yield server
    server.kill()


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "call" and call.excinfo is None:
        counts = item.config.stash.setdefault(_COUNTS, Counter())
        counts.update(mark for mark in REAL if item.get_closest_marker(mark))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How much of this run was real, and why each skipped test was skipped."""
    counts = terminalreporter.config.stash.get(_COUNTS, Counter())
    terminalreporter.section("what was real")
    for mark, what in REAL.items():
        terminalreporter.write_line(f"{counts[mark]:>6} tests passed with {what}")
    skipped = terminalreporter.stats.get("skipped", [])
    terminalreporter.write_line(f"{len(skipped):>6} tests skipped")
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"       {report.nodeid}: {reason}")


_COUNTS = pytest.StashKey[Counter[str]]()
