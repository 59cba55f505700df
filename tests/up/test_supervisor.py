"""Keeping processes alive: ready, restarted with back-off, stopped, never orphaned."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from quintal.errors import SetupError
from quintal.up.supervisor import Process, Supervised
from tests.support.wait import until

pytestmark = pytest.mark.crash

READY = """
import signal, sys
from quintal.process import notify
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
notify("READY=1")
signal.sigwait({signal.SIGTERM})
print("stopped by SIGTERM", flush=True)
"""
STUBBORN = READY.replace(
    "signal.sigwait({signal.SIGTERM})",
    """
import subprocess
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True: signal.pause()
""",
)


class Stage:
    """A supervisor's surroundings, remembered."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.pids: list[int] = []
        self.said: list[str] = []

    def supervise(self, script: str, **more: float) -> Supervised:
        process = Process("one", (sys.executable, "-c", script), dict(os.environ), **more)
        return Supervised(process, self.logs, tell_pid=self.tell, log=self.said.append)

    def tell(self, name: str, pid: int | None) -> None:
        if pid is not None:
            self.pids.append(pid)

    @property
    def log(self) -> str:
        return (self.logs / "one.log").read_text()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_a_process_is_up_when_it_says_ready_and_stops_when_it_is_told(stage: Stage) -> None:
    one = stage.supervise(READY)
    await one.start()
    assert alive(stage.pids[0])
    await one.stop()
    assert not alive(stage.pids[0])
    assert "stopped by SIGTERM" in stage.log


async def test_a_killed_process_is_started_again(stage: Stage) -> None:
    one = stage.supervise(READY)
    await one.start()
    os.kill(stage.pids[0], signal.SIGKILL)
    await until(lambda: len(stage.pids) == 2)
    assert "again in 0.2 s" in stage.said[0]
    os.kill(stage.pids[1], signal.SIGKILL)
    await until(lambda: len(stage.pids) == 3)
    assert "again in 0.4 s" in stage.said[1]
    await one.stop()
    assert not any(map(alive, stage.pids))


async def test_a_process_that_cannot_start_is_given_up_with_its_last_word(stage: Stage) -> None:
    one = stage.supervise("import sys; sys.exit('the store is locked')")
    with pytest.raises(SetupError, match=r"status 1, 4 times.*one\.log.*the store is locked"):
        await one.start()
    await one.stop()


async def test_a_process_that_never_says_ready_is_named(stage: Stage) -> None:
    one = stage.supervise("import time; time.sleep(600)", ready_s=0.5)
    with pytest.raises(SetupError, match="not ready within"):
        await one.start()
    await one.stop()
    assert not alive(stage.pids[0])


async def test_what_does_not_stop_is_killed_with_all_it_started(stage: Stage) -> None:
    one = stage.supervise(STUBBORN, stop_s=0.3)
    await one.start()
    await until(lambda: "child" in stage.log)
    child = int(stage.log.split()[1])
    assert alive(child)
    await one.stop()
    assert not alive(stage.pids[0])
    await until(lambda: not alive(child))


async def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from quintal.up.supervisor import Process, Supervised\n"
        "async def main():\n"
        "    process = Process('one', ('sleep', '600'), dict(os.environ), says_ready=False)\n"
        "    one = Supervised(process, Path(sys.argv[1]),"
        " tell_pid=lambda name, pid: print(pid, flush=True), log=print)\n"
        "    await one.start()\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    assert alive(child)
    parent.kill()
    await parent.wait()
    await until(lambda: not alive(child))
