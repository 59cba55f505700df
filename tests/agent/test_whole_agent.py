"""The unmodified agent process on a node with vendors of two kinds, one of them broken."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quintal.contracts import nodes
from quintal.contracts.subjects import Role
from tests.agent import nvml
from tests.agent.nvml import State, put_on_bus
from tests.agent.test_floor import on_bus
from tests.agent.test_live import Heard, listening
from tests.agent.test_process import PYTHONPATH
from tests.support.nats import NatsServer
from tests.support.wait import until

pytestmark = [
    pytest.mark.bus,
    pytest.mark.skipif(
        nvml.COMPILER is None, reason="fake_nvml: no C compiler here to build it with"
    ),
]


@asynccontextmanager
async def an_agent_of(
    nats: NatsServer, folder: Path, node: str, state: State, **environment: str
) -> AsyncIterator[tuple[Heard, subprocess.Popen[bytes]]]:
    """The agent's own process; what a placer and a meter hear of it."""
    access = nats.access(node, Role.AGENT)
    placer, meter, heard = await listening(nats)
    async with placer, meter:
        process = subprocess.Popen(
            [sys.executable, "-m", "quintal_agent"],
            env={
                **state.environment(nvml.build(folder / "lib")), "PYTHONPATH": PYTHONPATH,
                "QUINTAL_URL": access.url, "QUINTAL_CREDENTIALS": str(access.credentials),
                "QUINTAL_STATE": str(folder / "agent"), "QUINTAL_LEASE_DIR": str(folder / "leases"),
                "QUINTAL_SYS_ROOT": str(folder / "sys"), "QUINTAL_TELEMETRY_S": "0.5",
                "QUINTAL_PROBE_DEADLINE_S": "4", "QUINTAL_KERNEL_LOG": "off",
                "QUINTAL_TASK_SOCKET": str(folder / "no.sock"), **environment,
            },
        )  # fmt: skip
        try:
            await until(lambda: of(heard, node), within_s=30)
            yield heard, process
        finally:
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 20) == 0


def of(heard: Heard, node: str) -> list[nodes.Inventory]:
    return [inventory for inventory in heard.inventories if inventory.node == node]


def by_vendor(inventory: nodes.Inventory, vendor: str) -> list[str]:
    return [device.health.value for device in inventory.devices if device.vendor == vendor]


async def test_one_vendors_failure_stays_within_it_and_its_devices_are_kept(
    nats: NatsServer, tmp_path: Path
) -> None:
    state = State(tmp_path / "state", 8)
    for gpu in range(8):
        put_on_bus(tmp_path / "sys", gpu)
    on_bus(tmp_path / "sys", "0000:c1:00.0", "1ed5", "0302")  # a card whose tool is not installed
    async with an_agent_of(nats, tmp_path, "mixed-1", state) as (heard, _):
        first = of(heard, "mixed-1")[0]
        assert by_vendor(first, "nvidia") == ["ok"] * 8
        assert by_vendor(first, "mthreads") in (["failed"], ["unknown"])
        assert by_vendor(first, "cpu") == ["ok"]
        assert first.tasks is None
        assert {probe.vendor for probe in first.probes} >= {"cpu", "nvidia"}
        state.set({"ret.gpu.3": 15, "xid.0": "3:79"})
        await until(lambda: [e for e in heard.health if e.node == "mixed-1"], within_s=20)
        await until(lambda: "failed" in by_vendor(of(heard, "mixed-1")[-1], "nvidia"), within_s=20)
        last = of(heard, "mixed-1")[-1]
        assert by_vendor(last, "nvidia").count("ok") == 7
        kinds = {(event.kind, event.code) for event in heard.health if event.node == "mixed-1"}
        assert ("vendor_event", "xid:79") in kinds


async def test_a_crashing_library_costs_no_neighbour_and_comes_back(
    nats: NatsServer, tmp_path: Path
) -> None:
    state = State(tmp_path / "state", 2)
    async with an_agent_of(nats, tmp_path, "crash-1", state) as (heard, process):
        state.set({"crash.nvmlDeviceGetCount_v2": 1})

        def codes() -> set[str]:
            return {problem.code for problem in of(heard, "crash-1")[-1].problems}

        await until(lambda: "probe_crashed" in codes(), within_s=20)
        assert process.poll() is None
        devices = [d for d in of(heard, "crash-1")[-1].devices if d.vendor == "nvidia"]
        assert len(devices) == 2, "they stay under the identity they had"
        state.set({"crash.nvmlDeviceGetCount_v2": None})
        await until(lambda: "probe_crashed" not in codes(), within_s=30)


async def test_an_agent_that_is_killed_takes_its_probes_with_it(
    nats: NatsServer, tmp_path: Path
) -> None:
    state = State(tmp_path / "state", 1)
    access = nats.access("kill-1", Role.AGENT)
    process = subprocess.Popen(
        [sys.executable, "-m", "quintal_agent"],
        env={
            **state.environment(nvml.build(tmp_path / "lib")), "PYTHONPATH": PYTHONPATH,
            "QUINTAL_URL": access.url, "QUINTAL_CREDENTIALS": str(access.credentials),
            "QUINTAL_STATE": str(tmp_path / "agent"), "QUINTAL_LEASE_DIR": str(tmp_path / "l"),
            "QUINTAL_SYS_ROOT": str(tmp_path / "sys"),
        },
    )  # fmt: skip

    def children() -> list[int]:
        path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        return [int(word) for word in path.read_text().split()]

    await until(lambda: len(children()) == 2, within_s=30)
    probes = children()
    process.kill()
    await asyncio.to_thread(process.wait)

    def gone(pid: int) -> bool:
        try:
            return ") Z " in Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return True

    await until(lambda: all(gone(pid) for pid in probes), within_s=15)
