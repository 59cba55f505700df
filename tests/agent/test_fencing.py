"""A node that is cut off: what it ends by itself, when, and what it leaves alone. With real work.

The placer is played by the test under a placer's credentials; server, agent, task runner and the
workloads are real processes or real code on real sockets.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from quintal.bus import Bus
from quintal.contracts import nodes, subjects
from quintal.contracts.message import Refusal
from quintal.contracts.subjects import Role
from quintal.errors import Code
from quintal_agent.app import Agent
from quintal_agent.fencing import Fencing
from quintal_agent.settings import Settings
from tests.agent.builders import GPU, Scripted, a_device, a_lease, seen, settings
from tests.agent.test_live import running
from tests.agent.test_tasks import install, listening
from tests.support.nats import NatsServer
from tests.support.wait import until

TTL_MS = 1_200
STRICT = {"fence": "strict", "ttl_ms": TTL_MS}


# --- the rule -----------------------------------------------------------------------------------


def test_work_ends_one_ttl_after_the_sending_of_the_last_acknowledged_beat() -> None:
    """And not after its acknowledgement, which may have been long under way."""
    fencing, lease = Fencing(acked_s=100.0), a_lease("l-1", 7, **STRICT)
    for sequence, sent_s in ((1, 101.0), (2, 102.0), (3, 103.0)):
        fencing.sent(sequence, sent_s)
    assert fencing.acknowledged(2)
    assert fencing.overdue([lease], 103.19) == ()
    assert fencing.overdue([lease], 103.2) == ("l-1",)
    assert fencing.next_s([lease]) == pytest.approx(103.2)
    assert not fencing.acknowledged(1), "older than what is known"
    assert fencing.acknowledged(3)
    assert fencing.overdue([lease], 103.2) == ()


def test_a_lease_counts_from_its_taking_and_keep_never_ends_anything() -> None:
    fencing = Fencing(acked_s=100.0)
    fencing.taken("l-1", 110.0)
    strict, kept = a_lease("l-1", 7, **STRICT), a_lease("l-2", 8, ttl_ms=TTL_MS)
    told = a_lease("l-3", 9, bind="none", **STRICT)
    assert fencing.overdue([strict, kept, told], 111.1) == ()
    assert fencing.overdue([strict, kept, told], 111.3) == ("l-1",)
    fencing.stopped.add("l-1")
    assert fencing.overdue([strict, kept, told], 1e9) == ()


@given(st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=40))
def test_whatever_is_acknowledged_the_end_never_lies_before_what_is_known(
    words: list[tuple[int, bool]],
) -> None:
    """Acknowledgements come late, twice, out of order, or not at all."""
    fencing, lease, best_s = Fencing(acked_s=0.0), a_lease("l-1", 7, **STRICT), 0.0
    for number in range(1, 21):
        fencing.sent(number, float(number))
    for sequence, arrives in words:
        if arrives:
            fencing.acknowledged(sequence)
            best_s = max(best_s, float(sequence))
        assert fencing.ends_s(lease) == pytest.approx(best_s + TTL_MS / 1000)


# --- real work ----------------------------------------------------------------------------------


@contextmanager
def work() -> Iterator[subprocess.Popen[bytes]]:
    """A workload: it runs until somebody ends it."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def a_node(nats: NatsServer, name: str, tmp_path: Path) -> tuple[Settings, Path]:
    """Settings of a node whose task runner listens at a socket of its own, and its tasks."""
    folder = tmp_path / "tasks.d"
    folder.mkdir(mode=0o755)
    own = settings(nats.access(name, Role.AGENT), tmp_path)
    return replace(own, task_socket=tmp_path / "task.sock", act_within_s=5.0), folder


def an_agent(own: Settings) -> Agent:
    source = Scripted(seen(a_device(), a_device("GPU-b", index=1)))
    return Agent(own, [source], boot="boot-1", sequence=100)


async def hearing(placer: Bus, node: str) -> None:
    """Acknowledge each beat that wants it, as a leader does."""
    words: set[asyncio.Task[None]] = set()

    def on_beat(beat: nodes.Heartbeat, _: tuple[str, ...]) -> None:
        if beat.wants_word:
            heard = nodes.Heard(node=node, sequence=beat.sequence)
            word = asyncio.ensure_future(placer.publish(subjects.HEARD, heard, node=node))
            words.add(word)
            word.add_done_callback(words.discard)

    await placer.hear(subjects.HEARTBEAT, on_beat)
    await placer.flush()


async def bind(placer: Bus, node: str, lease: nodes.BoundLease) -> None:
    done = await placer.request(subjects.BIND, nodes.BindAsk(lease=lease), node=node)
    assert isinstance(done, nodes.BindDone), done


@pytest.mark.bus
@pytest.mark.crash
async def test_a_bus_that_is_down_for_three_ttls_ends_strict_work_in_time_and_no_other(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    own, folder = a_node(fresh_nats, "cut-1", tmp_path)
    with work() as kept, work() as strict:
        pids = {"l-keep": kept.pid, "l-strict": strict.pid}
        (tmp_path / "pids.json").write_text(json.dumps(pids))
        killer = tmp_path / "killer.py"
        killer.write_text(
            "import json, os, pathlib, signal\n"
            f"pids = json.loads(pathlib.Path({str(tmp_path / 'pids.json')!r}).read_text())\n"
            f"for path in pathlib.Path({str(own.lease_dir)!r}).glob('ending/*.json'):\n"
            "    assert json.loads(path.read_text())['lease'] == path.stem\n"
            "    os.kill(pids[path.stem], signal.SIGTERM)\n"
        )
        install(folder, "fence", f"exec {sys.executable} {killer}")
        agent = an_agent(own)
        with listening(own.task_socket, folder):
            async with running(agent):
                async with await fresh_nats.bus("placer-1", Role.PLACER_BACK) as placer:
                    await hearing(placer, "cut-1")
                    await until(lambda: agent.acting.can("fence"))
                    await bind(placer, "cut-1", a_lease("l-keep", 7, GPU, ttl_ms=TTL_MS))
                    await bind(placer, "cut-1", a_lease("l-strict", 8, "GPU-b", **STRICT))
                    await asyncio.sleep(2 * TTL_MS / 1000)  # it lives on its acknowledged beats
                    assert strict.poll() is None
                fresh_nats.kill()
                cut_s = time.monotonic()
                await until(lambda: strict.poll() is not None, within_s=10)
                took_s = time.monotonic() - cut_s
                assert TTL_MS / 1000 - 0.5 < took_s < TTL_MS / 1000 + 1.0, took_s
                await asyncio.sleep(max(0.0, 3 * TTL_MS / 1000 - took_s))
                assert kept.poll() is None, "keep ends nothing"
                assert set(agent.keeper.state.leases) == set(pids), "and no lease is over"
                assert [p.stem for p in own.lease_dir.glob("*.json")] == ["l-keep"]

                fresh_nats.start()
                async with await fresh_nats.bus("placer-1", Role.PLACER_BACK) as placer:
                    await hearing(placer, "cut-1")
                    await until((own.lease_dir / "l-strict.json").exists, within_s=15)
                    assert not agent.fencing.stopped


@pytest.mark.bus
async def test_a_node_where_nothing_can_end_work_takes_no_strict_lease(
    nats: NatsServer, tmp_path: Path
) -> None:
    own, _ = a_node(nats, "lame-1", tmp_path)
    async with await nats.bus("placer-1", Role.PLACER_BACK) as placer, running(an_agent(own)):
        ask = nodes.BindAsk(lease=a_lease("l-1", 7, **STRICT))
        refused = await placer.request(subjects.BIND, ask, node="lame-1")
        assert isinstance(refused, Refusal)
        assert refused.code is Code.NOT_ENABLED
        await bind(placer, "lame-1", a_lease("l-2", 8))


@pytest.mark.bus
async def test_an_agent_that_starts_again_while_it_is_cut_off_remembers_when_it_was_heard(
    nats: NatsServer, tmp_path: Path
) -> None:
    own, folder = a_node(nats, "again-1", tmp_path)
    install(folder, "fence", f"echo stopped > {tmp_path}/stopped")
    lease = a_lease("l-1", 7, fence="strict", ttl_ms=3_000)
    with listening(own.task_socket, folder):
        agent = an_agent(own)
        async with running(agent), await nats.bus("placer-1", Role.PLACER_BACK) as placer:
            await hearing(placer, "again-1")
            await until(lambda: agent.acting.can("fence"))
            await bind(placer, "again-1", lease)
            await until((own.state / "acked.json").exists)
        heard_s = agent.fencing.acked_s
        again = an_agent(own)
        async with running(again):  # nobody acknowledges anything any more
            assert again.fencing.acked_s == pytest.approx(heard_s)
            await until((tmp_path / "stopped").exists, within_s=10)
            assert time.monotonic() - heard_s < 4.5


# --- cleaning up --------------------------------------------------------------------------------


@pytest.mark.bus
async def test_case_g11_a_release_runs_the_cleanup_and_reports_its_failure(
    nats: NatsServer, tmp_path: Path
) -> None:
    own, folder = a_node(nats, "clean-1", tmp_path)
    log = tmp_path / "log"
    install(folder, "cleanup", f"ls {own.lease_dir}/ending >> {log}; test ! -e {tmp_path}/broken")
    with listening(own.task_socket, folder):
        agent = an_agent(own)
        async with await nats.bus("placer-1", Role.PLACER_BACK) as placer, running(agent):
            await until(lambda: agent.acting.can("cleanup"))
            for name, token in (("l-1", 7), ("l-2", 8)):
                await bind(placer, "clean-1", a_lease(name, token, GPU))
                ended = await placer.ask(
                    subjects.END, nodes.EndAsk(lease=name, token=token), node="clean-1"
                )
                assert ended.released == (name,)
                assert ended.uncleaned == ({} if name == "l-1" else {"l-2": "cleanup exits with 1"})
                assert not list(own.lease_dir.rglob("*.json"))
                (tmp_path / "broken").touch()
            assert log.read_text().split() == ["l-1.json", "l-2.json"]
            twice = await placer.ask(
                subjects.END, nodes.EndAsk(lease="l-2", token=8), node="clean-1"
            )
            assert twice.uncleaned == {"l-2": "cleanup exits with 1"}


@pytest.mark.bus
async def test_a_cleanup_that_takes_long_holds_the_lease_until_it_is_over(
    nats: NatsServer, tmp_path: Path
) -> None:
    """Whether the placer says `end`, or sends the whole set."""
    own, folder = a_node(nats, "slow-1", tmp_path)
    install(folder, "cleanup", f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done")
    with listening(own.task_socket, folder):
        agent = an_agent(own)
        async with await nats.bus("placer-1", Role.PLACER_BACK) as placer, running(agent):
            await until(lambda: agent.acting.can("cleanup"))
            await bind(placer, "slow-1", a_lease("l-1", 7, GPU))
            end = nodes.EndAsk(lease="l-1", token=7)
            waits = await placer.request(subjects.END, end, node="slow-1", timeout_s=5)
            assert isinstance(waits, Refusal)
            assert waits.code is Code.OVERLOADED
            whole = nodes.SetAsk(leases=(), ended=("l-1",))
            still = await placer.ask(subjects.SET, whole, node="slow-1")
            assert still.released == ()
            assert still.lease_version == nodes.lease_set_version({"l-1": 7})
            rival = nodes.BindAsk(lease=a_lease("l-2", 8, GPU))
            assert isinstance(await placer.request(subjects.BIND, rival, node="slow-1"), Refusal)
            (tmp_path / "go").touch()

            async def over() -> bool:
                done = await placer.ask(subjects.SET, whole, node="slow-1")
                return done.released == ("l-1",)

            give_up = time.monotonic() + 10
            while not await over():
                assert time.monotonic() < give_up
                await asyncio.sleep(0.1)
            await bind(placer, "slow-1", a_lease("l-2", 8, GPU))
