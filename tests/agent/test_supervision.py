"""How the agent lives under a supervisor: fed by real progress, up without a bus, and light."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

from quintal_agent import rounds
from tests.agent import nvml
from tests.agent.nvml import State
from tests.agent.test_process import PYTHONPATH, env_of

HEAVY = {"numpy", "pandas", "pyarrow", "chdb", "clickhouse-connect", "torch", "scipy"}


@contextmanager
def supervised(folder: Path, **environment: str) -> Iterator[socket.socket]:
    """An agent under a supervisor of our own; its words come through the socket."""
    beside = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    beside.bind(str(folder / "notify"))
    beside.settimeout(20)
    process = subprocess.Popen(
        [sys.executable, "-m", "quintal_agent"],
        env={
            **os.environ, **env_of(folder), "PYTHONPATH": PYTHONPATH,
            "NOTIFY_SOCKET": str(folder / "notify"), "QUINTAL_PROBES": "cpu",
            "QUINTAL_TELEMETRY_S": "0.2", "QUINTAL_PROBE_DEADLINE_S": "5",
            "QUINTAL_LEASE_DIR": str(folder / "leases"), **environment,
        },
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield beside
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        beside.close()


def test_the_watchdog_is_fed_only_while_both_loops_come_round() -> None:
    done = {"looks": 100.0, "bus": 90.0}
    assert rounds.makes_progress(done, now_s=110, within_s=60)
    assert not rounds.makes_progress(done, now_s=151, within_s=60), "the bus loop hangs"
    assert not rounds.makes_progress({**done, "looks": 10.0}, now_s=110, within_s=60)


async def test_an_agent_without_a_bus_still_feeds_its_watchdog_and_keeps_its_readings(
    tmp_path: Path,
) -> None:
    def words(beside: socket.socket) -> None:
        while beside.recv(200) != b"WATCHDOG=1":
            pass

    with supervised(tmp_path, QUINTAL_URL="nats://127.0.0.1:9", WATCHDOG_USEC="8000000") as beside:
        await asyncio.to_thread(words, beside)
        await asyncio.to_thread(words, beside)
        assert (tmp_path / "state" / "spool.db").exists()


@pytest.mark.skipif(nvml.COMPILER is None, reason="fake_nvml: no C compiler here to build it with")
async def test_a_hung_vendor_does_not_starve_the_watchdog(tmp_path: Path) -> None:
    library = nvml.build(tmp_path / "lib")
    state = State(tmp_path / "gpus", 1)
    state.set({"hang.nvmlInitWithFlags": 1})

    def fed(beside: socket.socket) -> None:
        for _ in range(2):
            while beside.recv(200) != b"WATCHDOG=1":
                pass

    with supervised(
        tmp_path, **state.environment(library) | {
            "QUINTAL_URL": "nats://127.0.0.1:9", "WATCHDOG_USEC": "8000000",
            "QUINTAL_PROBES": "cpu,nvidia",
        }
    ) as beside:  # fmt: skip
        await asyncio.to_thread(fed, beside)


def closure(name: str, extra: str | None) -> set[str]:
    """Every distribution that installing it brings, by what is installed here."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    todo = [(name, extra or "")]
    seen: set[tuple[str, str]] = set()
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            needs = metadata.requires(one[0]) or []
        except metadata.PackageNotFoundError:
            continue
        for text in needs:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": one[1]}):
                found.add(re.sub(r"[-_.]+", "-", need.name).lower())
                todo += [(need.name, wanted) for wanted in (*need.extras, "")]
    return found


def test_a_node_is_brought_nothing_heavy() -> None:
    from tomllib import loads

    project = loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    from packaging.requirements import Requirement

    brought: set[str] = set()
    for text in [*project["dependencies"], *project["optional-dependencies"]["agent"]]:
        need = Requirement(text)
        brought |= {need.name.lower()}
        for extra in (*need.extras, None):
            brought |= closure(need.name, extra)
    assert {"nats-py", "psutil", "pydantic"} <= brought, "the closure was walked"
    assert not brought & HEAVY
    control = closure("clickhouse-connect", None) | {"clickhouse-connect"}
    assert control & HEAVY, "a heavy one would be found"


def test_the_agent_and_its_probes_load_nothing_heavy() -> None:
    code = (
        "import sys, quintal_agent.app, quintal_agent.__main__\n"
        f"print([m for m in sys.modules if m.partition('.')[0] in {sorted(HEAVY | {'chdb'})!r}])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": PYTHONPATH},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert said.stdout.strip() == "[]"
