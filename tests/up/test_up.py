"""`quintal up` as a person runs it: real server, real services, on a folder of the test's own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.bus, pytest.mark.engine, pytest.mark.crash, pytest.mark.timeout(240)]

SERVICES = ("nats", "catalog", "placer-1", "placer-2", "metering", "agent")


class Run:
    """One `quintal up` on one folder."""

    def __init__(self, data: Path, *more: str) -> None:
        self.data = data
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quintal.cli", "up", "--data", str(data), *more],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def ready(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("quintal is up at nats://"), self.process.communicate()[1]
        return line

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def pid(self, name: str) -> int:
        return int((self.data / "run" / f"{name}.pid").read_text())

    def quintal(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "quintal.cli", *words, "--data", str(self.data)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def json(self, *words: str) -> Any:
        done = self.quintal(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Any, within_s: float = 20) -> None:
    give_up = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up, "it did not come true in time"
        time.sleep(0.05)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    yield folder
    for path in (folder / "run").glob("up.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGKILL)


def test_a_system_comes_up_is_well_goes_on_after_a_stop_and_leaves_nothing(data: Path) -> None:
    first = Run(data)
    line = first.ready()
    assert str(data / "auth" / "creds") in line
    wait_until(lambda: first.json("nodes")["nodes"])
    doctor = first.json("doctor")
    assert doctor["ok"], doctor
    [node] = first.json("nodes")["nodes"]
    assert node["devices"], "the host's own processor is a device"
    cpu = ("place", "cpu-batch", "--tenant", "vision", "--request-id", "kept")
    lease = first.json(*cpu)
    assert lease["state"] == "bound"
    pids = [first.pid(name) for name in SERVICES]
    assert first.stop() == 0
    assert not any(map(alive, pids))

    second = Run(data)
    assert second.ready() == line, "the same port, the same folder"
    assert second.json(*cpu)["lease"] == lease["lease"], "the same id, the same lease"
    assert second.json("history")["revisions"][0]["revision"] == 1, "the catalog is applied once"
    assert second.stop() == 0


def test_a_killed_service_comes_back_and_a_killed_up_takes_all_with_it(data: Path) -> None:
    run = Run(data)
    run.ready()
    for name in ("placer-1", "nats", "catalog"):
        before = run.pid(name)
        os.kill(before, signal.SIGKILL)
        wait_until(lambda name=name, before=before: (data / "run" / f"{name}.pid").exists()
                   and run.pid(name) != before)  # fmt: skip
    wait_until(lambda: run.quintal("nodes").returncode == 0)
    pids = [run.pid(name) for name in SERVICES]
    run.process.kill()
    run.process.wait()
    wait_until(lambda: not any(map(alive, pids)))


def test_a_taken_port_and_a_locked_folder_are_one_clear_line_each(
    data: Path, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = Run(tmp_path / "other", "--port", str(port)).process
        _, complaint = refused.communicate(timeout=60)
        assert refused.returncode == 1
        assert complaint.splitlines() == [
            f"quintal up: port {port} is taken: stop who listens there, or give another --port"
        ]

    run = Run(data)
    run.ready()
    again = Run(data).process
    _, complaint = again.communicate(timeout=60)
    assert again.returncode == 1
    assert len(complaint.splitlines()) == 1
    assert f"{data} is in use by process {run.process.pid}" in complaint

    beside = Run(tmp_path / "beside")
    assert beside.ready().split()[4] != json.loads((data / "system.json").read_text())["url"]
    assert beside.stop() == 0
    assert run.stop() == 0
