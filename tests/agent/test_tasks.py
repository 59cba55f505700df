"""What acts on a node: installed executables by name, and nothing that only looks like one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quintal.bus import Caller
from quintal.clock import SystemClock
from quintal.contracts import nodes, subjects
from quintal.contracts.message import Refusal
from quintal.contracts.subjects import Role
from quintal.errors import Code
from quintal_agent import tasks
from quintal_agent.handlers import TaskRunner
from tests.agent.builders import a_device, seen, settings
from tests.agent.test_live import Scripted, running
from tests.agent.test_process import PYTHONPATH
from tests.support.nats import NatsServer
from tests.support.wait import until

CALLER = Caller("catalog", "", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tasks.d"
    made.mkdir(mode=0o755)
    return made


def install(folder: Path, name: str, body: str, mode: int = 0o755) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return path


def asked(folder: Path, **ask: Any) -> dict[str, Any]:
    return tasks.answer(json.dumps(ask).encode(), folder, SystemClock())


@contextmanager
def listening(at: Path, folder: Path) -> Iterator[None]:
    """The runner as `quintal up` has it."""
    beside = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify = at.with_suffix(".notify")
    beside.bind(str(notify))
    beside.settimeout(20)
    process = subprocess.Popen(
        [sys.executable, "-m", "quintal_agent.tasks", "--listen", str(at), "--tasks", str(folder)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "NOTIFY_SOCKET": str(notify)},
    )
    try:
        assert beside.recv(100) == b"READY=1"
        yield
    finally:
        process.terminate()
        assert process.wait(10) == 0
        beside.close()


def test_a_task_runs_by_its_name_and_says_how_it_ended(folder: Path) -> None:
    install(folder, "accept", "echo well; echo $QUINTAL_TASK; env | wc -l; exit 3")
    done = asked(folder, run="accept")
    assert done["exit_status"] == 3
    assert done["output"].splitlines()[:2] == ["well", "accept"]
    assert asked(folder, list=True) == {"names": ["accept"]}


def test_a_task_gets_nothing_of_its_runners_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUINTAL_CREDENTIALS", "/secret")
    install(folder, "show", "env")
    assert "/secret" not in asked(folder, run="show")["output"]


@pytest.mark.parametrize(
    "name", ["../accept", "/bin/sh", "a/b", ".hidden", "", "x" * 65, "accept\n", None, 7]
)
def test_only_a_plain_name_is_a_name(folder: Path, name: object) -> None:
    install(folder, "accept", "true")
    assert "refused" in asked(folder, run=name)


def test_a_file_that_others_could_write_or_that_leads_elsewhere_is_not_run(folder: Path) -> None:
    install(folder, "open", "true", 0o777)
    install(folder, "plain", "true", 0o644)
    (folder / "link").symlink_to("/bin/true")
    assert "written by others" in asked(folder, run="open")["refused"]
    assert "not executable" in asked(folder, run="plain")["refused"]
    assert "link is not followed" in asked(folder, run="link")["refused"]
    assert "no task" in asked(folder, run="absent")["refused"]
    assert asked(folder, list=True) == {"names": []}
    install(folder, "good", "true")
    folder.chmod(0o777)
    assert "written by others" in asked(folder, run="good")["refused"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_run(folder: Path) -> None:
    path = install(folder, "theirs", "true")
    os.chown(path, 65_534, 65_534)
    assert "belong to root" in asked(folder, run="theirs")["refused"]


async def test_a_task_past_its_deadline_is_ended_with_all_that_it_started(folder: Path) -> None:
    install(folder, "long", "sleep 60 & echo $!; wait")
    done = asked(folder, run="long", timeout_ms=400)
    assert done["exit_status"] is None
    left = Path(f"/proc/{int(done['output'])}/stat")

    def is_dead() -> bool:
        """If not yet buried. A kill takes effect when the kernel comes to it."""
        try:
            return ") Z " in left.read_text()
        except OSError:
            return True

    await until(is_dead)


def test_a_flood_of_output_keeps_its_end(folder: Path) -> None:
    install(folder, "loud", "yes | head -c 3000000; echo the end")
    done = asked(folder, run="loud")
    assert len(done["output"]) <= tasks.OUTPUT_BYTES_MAX
    assert done["output"].endswith("the end\n")


def test_a_task_runs_once_at_a_time(folder: Path) -> None:
    install(
        folder, "slow", f"touch {folder}/begun; while [ -e {folder}/begun ]; do sleep 0.1; done"
    )
    first: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: first.append(asked(folder, run="slow")))
    thread.start()
    while not (folder / "begun").exists():
        time.sleep(0.02)
    assert "already" in asked(folder, run="slow")["refused"]
    (folder / "begun").unlink()
    thread.join()
    assert first[0]["exit_status"] == 0


@pytest.mark.parametrize("line", [b"", b"nonsense\n", b"[]\n", b"\xff\n", b'{"run": "a"'])
def test_an_ask_that_is_none_is_refused(folder: Path, line: bytes) -> None:
    assert "refused" in tasks.answer(line, folder, SystemClock())


def test_under_systemd_one_connection_is_served_on_stdin(folder: Path) -> None:
    install(folder, "accept", "echo well")
    ours, theirs = socket.socketpair()
    with ours:
        process = subprocess.Popen(
            [sys.executable, "-m", "quintal_agent.tasks", "--tasks", str(folder)],
            stdin=theirs, env={**os.environ, "PYTHONPATH": PYTHONPATH},
        )  # fmt: skip
        theirs.close()
        ours.sendall(b'{"run": "accept"}\n')
        ours.settimeout(20)
        with ours.makefile() as said:
            assert json.loads(said.readline())["output"] == "well\n"
        assert process.wait(10) == 0


async def test_without_a_runner_the_verb_is_not_enabled(tmp_path: Path) -> None:
    runner = TaskRunner(tmp_path / "absent.sock")
    assert await runner.names() is None
    answer = await runner.run(CALLER, nodes.TaskAsk(name="accept"))
    assert isinstance(answer, Refusal)
    assert answer.code is Code.NOT_ENABLED


@pytest.mark.bus
async def test_the_catalog_has_a_task_run_on_a_node(
    nats: NatsServer, tmp_path: Path, folder: Path
) -> None:
    from dataclasses import replace

    from quintal_agent.app import Agent

    install(folder, "accept", "echo well; exit 0")
    at = tmp_path / "task.sock"
    own = replace(settings(nats.access("act-1", Role.AGENT), tmp_path), task_socket=at)
    agent = Agent(own, [Scripted(seen(a_device()))], boot="boot-1")
    with listening(at, folder):
        async with await nats.bus("catalog", Role.CATALOG_BACK) as catalog, running(agent):
            ask = nodes.TaskAsk(name="accept")
            done = await catalog.ask(subjects.TASK, ask, node="act-1", timeout_s=20)
            assert (done.exit_status, done.output) == (0, "well\n")
            refused = await catalog.request(subjects.TASK, nodes.TaskAsk(name="no"), node="act-1")
            assert isinstance(refused, Refusal)
            assert agent._inventory().tasks == ("accept",)
