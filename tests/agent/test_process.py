"""`python -m quintal_agent` and its settings: this host, for real."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from quintal.contracts import nodes, subjects
from quintal.contracts.subjects import Role
from quintal.errors import SetupError
from quintal_agent import settings
from quintal_agent.state import boot_id
from tests.support.nats import NatsServer
from tests.support.wait import until

ROOT = Path(__file__).parents[2]
PYTHONPATH = f"{ROOT}{os.pathsep}{ROOT / 'services/agent'}"


def env_of(folder: Path, **more: str) -> dict[str, str]:
    credentials = folder / "node-7.creds"
    credentials.write_text("x")
    return {
        "QUINTAL_URL": "nats://h:1",
        "QUINTAL_CREDENTIALS": str(credentials),
        "QUINTAL_STATE": str(folder / "state"),
    } | more


def test_the_credentials_name_the_node_unless_something_else_does(tmp_path: Path) -> None:
    assert settings.read(env_of(tmp_path)).node == "node-7"
    assert settings.read(env_of(tmp_path, QUINTAL_NODE="other")).node == "other"


def test_the_beats_are_the_designs_unless_set(tmp_path: Path) -> None:
    read = settings.read(env_of(tmp_path, QUINTAL_HEARTBEAT_S="0.5"))
    assert (read.beats.heartbeat_s, read.beats.telemetry_s, read.beats.inventory_s) == (
        0.5,
        10,
        600,
    )
    assert read.beats.jitter == 0.2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("QUINTAL_NODE", "a.b"),
        ("QUINTAL_HEARTBEAT_S", "soon"),
        ("QUINTAL_HEARTBEAT_S", "-1"),
        ("QUINTAL_LABELS", "rack"),
        ("QUINTAL_PROBES", "nvidea"),
        ("QUINTAL_FOREIGN_BYTES", "1GB"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(SetupError, match=text):
        settings.read(env_of(tmp_path, **{name: text}))


def test_where_and_what_the_node_is_comes_from_its_environment(tmp_path: Path) -> None:
    read = settings.read(
        env_of(
            tmp_path, QUINTAL_CLUSTER="north", QUINTAL_LABELS="b=2, a=1", QUINTAL_PROBES="cpu",
            QUINTAL_LEASE_DIR="/somewhere",
        )
    )  # fmt: skip
    assert (read.cluster, read.labels) == ("north", (("a", "1"), ("b", "2")))
    assert (read.probes, read.lease_dir) == (("cpu",), Path("/somewhere"))


@pytest.mark.bus
async def test_this_host_reports_itself_and_stops_when_told(
    nats: NatsServer, tmp_path: Path
) -> None:
    access = nats.access("this-host", Role.AGENT)
    heard: list[nodes.Inventory] = []
    beside = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    beside.bind(str(tmp_path / "notify"))
    beside.settimeout(20)
    async with await nats.bus("placer-1", Role.PLACER_BACK) as placer:
        await placer.hear(subjects.INVENTORY, lambda m, _: heard.append(m), node="this-host")
        await placer.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "quintal_agent"],
            env=os.environ | {
                "PYTHONPATH": PYTHONPATH,
                "QUINTAL_URL": access.url,
                "QUINTAL_CREDENTIALS": str(access.credentials),
                "QUINTAL_STATE": str(tmp_path / "state"),
                "QUINTAL_LEASE_DIR": str(tmp_path / "leases"),
                "NOTIFY_SOCKET": str(tmp_path / "notify"),
            },
        )  # fmt: skip
        try:
            assert await asyncio.to_thread(beside.recv, 100) == b"READY=1"
            await until(lambda: heard)
        finally:
            process.send_signal(signal.SIGTERM)
            status = await asyncio.to_thread(process.wait, 15)
            beside.close()
    assert status == 0
    host = heard[0]
    assert host.boot_id == boot_id()
    assert host.cpu_milli >= 1000
    assert host.memory_bytes > 2**28
    assert host.stack.kernel == os.uname().release
    cpu = next(device for device in host.devices if device.vendor == "cpu")
    assert cpu.uuid == "cpu-this-host"
    assert cpu.cores == host.cpu_milli // 1000
