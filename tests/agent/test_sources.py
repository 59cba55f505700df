"""Probes in child processes: slow, silent, dying and absent ones; real processes all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from quintal_agent.probes.probe import (
    Device,
    Disk,
    Host,
    Network,
    Observation,
    Part,
    Trouble,
    Value,
    decode,
    encode,
)
from quintal_agent.sources import ChildSettings, ChildSource
from tests.agent.builders import a_device, seen

WHOLE = Observation(
    "nvidia", "nvml",
    (Device("GPU-a", 0, "nvidia", "X", partitions=(Part("MIG-1"),),
            readings={"power_watts": Value(1.5), "energy_joules": Value(quality="unsupported")}),),
    (Trouble("lost", "words", "GPU-b"),), {"nvidia": "1"}, {"cuda": "2"}, {},
    Host("h", 1000, 2, disks=(Disk("/", "ext4", 2, 1),), networks=(Network("e0", None, "m"),)),
)  # fmt: skip


class Hand:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.at_s = 1_000.0

    def now_ms(self) -> int:
        return int(self.at_s * 1000)

    def monotonic_s(self) -> float:
        return self.at_s


def child(script: str, clock: Hand, deadline_s: float = 2.0) -> ChildSource:
    settings = ChildSettings(
        node="n1", deadline_s=deadline_s, environment=dict(os.environ),
        command=(sys.executable, "-c", script),
    )  # fmt: skip
    return ChildSource("nvidia", settings, clock)


def answering(observation: Observation, then: str = "") -> str:
    line = encode(observation).decode()
    return (
        "import sys, time, os\n"
        f"line = {line!r}\n"
        "for turn, _ in enumerate(sys.stdin):\n"
        f"    {then or 'pass'}\n"
        "    sys.stdout.write(line); sys.stdout.flush()\n"
    )


def test_an_observation_goes_through_a_pipe_unchanged() -> None:
    assert decode(encode(WHOLE)) == WHOLE
    with pytest.raises(ValueError, match="no observation"):
        decode(b'{"vendor": "x"}')


async def test_a_child_answers_look_after_look() -> None:
    source = child(answering(WHOLE), Hand())
    assert (await source.look()).observation == WHOLE
    assert (await source.look()).observation == WHOLE
    await source.close()


async def test_a_child_past_its_deadline_is_killed_and_its_last_look_ages() -> None:
    clock = Hand()
    source = child(answering(WHOLE, "turn and time.sleep(60)"), clock, deadline_s=0.5)
    first = await source.look()
    pid = source._child.pid if source._child else 0
    clock.at_s += 30
    late = await source.look()
    assert (first.age_s, late.age_s) == (0, 30)
    assert late.observation.devices == WHOLE.devices
    assert [t.code for t in late.observation.troubles] == ["lost", "probe_timeout"]
    assert (first.fresh, late.fresh) == (True, False)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    await source.close()


async def test_a_child_that_fails_is_started_again_after_a_wait_that_grows() -> None:
    clock = Hand()
    source = child("import sys; sys.exit(3)", clock)
    assert [t.code for t in (await source.look()).observation.troubles] == ["probe_crashed"]
    waited = source._not_before_s - clock.at_s
    await source.look()
    assert source.failures == 1, "tried again without waiting"
    clock.at_s += waited
    await source.look()
    assert source.failures == 2
    assert source._not_before_s - clock.at_s == 2 * waited
    await source.close()


async def test_a_child_that_prints_nonsense_is_not_believed() -> None:
    source = child("for _ in iter(input, None): print('hello')", Hand())
    assert [t.code for t in (await source.look()).observation.troubles] == ["probe_failed"]
    await source.close()


async def test_a_probe_with_nothing_to_look_at_leaves_no_child_behind() -> None:
    clock = Hand()
    idle = Observation("nvidia", "nvml", troubles=(Trouble("no_driver", "x"),), idle=True)
    source = child(answering(idle), clock)
    await source.look()
    assert source._child is None
    clock.at_s += 1
    again = await source.look()
    assert [t.code for t in again.observation.troubles] == ["no_driver"]
    assert again.age_s == 0
    await source.close()


async def test_a_driver_that_goes_away_does_not_make_its_devices_vanish() -> None:
    gone = Observation("nvidia", "nvml", troubles=(Trouble("driver_mismatch", "x"),), idle=True)
    lines = [encode(seen(a_device())).decode(), encode(gone).decode()]
    script = (
        "import sys\n"
        f"lines = {lines!r}\n"
        "for turn, _ in enumerate(sys.stdin):\n"
        "    sys.stdout.write(lines[turn]); sys.stdout.flush()\n"
    )
    source = child(script, Hand())
    await source.look()
    (device,) = (await source.look()).observation.devices
    assert (device.uuid, device.health, device.health_reason) == (
        "GPU-a",
        "failed",
        "driver_mismatch",
    )
    await source.close()


async def test_the_hosts_own_probe_answers_from_its_child() -> None:
    root = Path(__file__).parents[2]
    path = f"{root}{os.pathsep}{root / 'services/agent'}"
    settings = ChildSettings(node="n1", environment={**os.environ, "PYTHONPATH": path})
    source = ChildSource("cpu", settings, Hand())
    first = (await source.look()).observation
    second = (await source.look()).observation
    await source.close()
    assert first.devices[0].uuid == "cpu-n1"
    assert first.devices[0].readings["utilization_percent"].quality == "unavailable"
    assert second.devices[0].readings["utilization_percent"].quality == "ok"
    assert second.host is not None
    assert second.host.cpu_milli >= 1000
    assert second.host.memory_bytes > 0


async def test_a_childs_environment_holds_no_credentials() -> None:
    script = (
        "import os, sys, json\n"
        "kept = [k for k in os.environ if k.startswith(('QUINTAL_', 'NOTIFY'))]\n"
        f"body = json.loads({encode(WHOLE).decode()!r}); body['tool'] = ' '.join(kept)\n"
        "for _ in sys.stdin: print(json.dumps(body), flush=True)\n"
    )
    settings = ChildSettings(
        node="n1", command=(sys.executable, "-c", script),
        environment={**os.environ, "QUINTAL_CREDENTIALS": "/x.creds", "NOTIFY_SOCKET": "/y"},
    )  # fmt: skip
    source = ChildSource("nvidia", settings, Hand())
    assert (await source.look()).observation.tool == ""
    await source.close()


def test_a_probes_child_loads_neither_pydantic_nor_the_bus() -> None:
    import subprocess

    code = (
        "import sys, quintal_agent.probes.child, quintal_agent.probes.host, "
        "quintal_agent.probes.nvidia, quintal_agent.probes.nvidia_xml\n"
        "print([m for m in ('pydantic', 'nats', 'yaml', 'pynvml', 'asyncio') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == "[]"


async def test_case_6_a_child_that_outlives_its_kill_is_abandoned_and_no_second_is_started() -> (
    None
):
    clock = Hand()
    started: list[object] = []
    settings = ChildSettings(
        node="n1", deadline_s=0.3, patience_s=5, environment=dict(os.environ),
        command=(sys.executable, "-c", "import time; time.sleep(60)"),
        kill=started.append, dies_within_s=0.1,
    )  # fmt: skip
    source = ChildSource("nvidia", settings, clock)
    await source.look()
    (child,) = started
    assert source._is_stuck()
    for _ in range(5):
        clock.at_s += 600
        look = await source.look()
        assert [t.code for t in look.observation.troubles] == ["probe_timeout"]
    assert started == [child], "nothing was started beside it, so that nothing more was killed"
    child.kill()  # type: ignore[attr-defined]
    await child.wait()  # type: ignore[attr-defined]
    assert not source._is_stuck()
    await source.close()


async def test_a_flood_of_output_ends_the_child_and_not_us() -> None:
    flood = "import sys\nfor _ in sys.stdin:\n  while True: sys.stdout.write('x' * 65536)"
    source = child(flood, Hand(), deadline_s=20)
    assert [t.code for t in (await source.look()).observation.troubles] == ["probe_failed"]
    assert source._child is None


async def test_a_flood_of_complaints_is_read_and_its_end_is_the_reason() -> None:
    script = (
        "import sys\n"
        "for n in range(20000): print('warning', n, file=sys.stderr)\n"
        "print('the library is of another age', file=sys.stderr); sys.exit(4)\n"
    )
    source = child(script, Hand(), deadline_s=20)
    (trouble,) = (await source.look()).observation.troubles
    assert trouble.code == "probe_crashed"
    assert "of another age" in trouble.message
    assert sum(map(len, source._words)) <= 4096


async def test_case_8_a_slow_probe_is_never_asked_twice_at_once() -> None:
    asks = "import sys, time\nline = {line!r}\nfor n, _ in enumerate(sys.stdin):\n"
    script = asks.format(line=encode(WHOLE).decode()) + (
        "    time.sleep(0.6 if n else 0)\n    sys.stdout.write(line); sys.stdout.flush()\n"
    )
    clock = Hand()
    settings = ChildSettings(
        node="n1", deadline_s=5, patience_s=0.1, environment=dict(os.environ),
        command=(sys.executable, "-c", script),
    )  # fmt: skip
    source = ChildSource("nvidia", settings, clock)
    while not (await source.look()).fresh:
        pass
    late = [await source.look() for _ in range(3)]
    assert [look.fresh for look in late] == [False, False, False]
    assert source._asking is not None
    await source._asking
    assert (await source.look()).fresh
    assert source.duration_s is not None
    await source.close()
