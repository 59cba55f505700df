"""The demo fleet: described as such nodes are, and run by the agent's own code."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from quintal.contracts import nodes, subjects
from quintal.contracts.documents import Document
from quintal.contracts.subjects import Role
from quintal.errors import SetupError
from quintal.identity import resolve
from quintal_agent.demo import fleet
from quintal_agent.demo.__main__ import agents, described
from quintal_agent.report import raw_device
from tests.support.nats import NatsServer
from tests.support.wait import until

ROOT = Path(__file__).parents[2]
STARTER = ROOT / "services" / "catalog" / "quintal_catalog" / "starter"
PYTHONPATH = f"{ROOT}{os.pathsep}{ROOT / 'services/agent'}"


def test_the_fleet_is_wide_enough_to_show_something() -> None:
    nodes_described = described()
    vendors = {device.vendor for node in nodes_described for device in node.devices}
    assert len(nodes_described) >= 14
    assert len(vendors) >= 6
    assert len({node.name for node in nodes_described}) == len(nodes_described)


def test_no_device_appears_twice_in_the_fleet() -> None:
    uuids = [
        device.uuid
        for node in described()
        for device in fleet.observe(node, at_ms=0, held=frozenset()).devices
    ]
    assert len(set(uuids)) == len(uuids)


def test_every_device_is_one_that_the_starter_catalog_knows() -> None:
    models = {}
    for file in sorted(STARTER.glob("*.yaml")):
        for body in yaml.safe_load_all(file.read_text()):
            if isinstance(body, dict) and body.get("kind") == "AcceleratorModel":
                document = Document.model_validate(body)
                models[document.metadata.name] = document.spec
    for node in described():
        for device in fleet.observe(node, at_ms=0, held=frozenset()).devices:
            assert resolve(raw_device(device), models), f"{node.name}: {device.name}"


def test_a_device_works_hard_only_under_a_lease_and_always_the_same_way() -> None:
    node = next(node for node in described() if node.name == "h100-01")
    idle = fleet.observe(node, at_ms=1_000_000, held=frozenset())
    gpu = idle.devices[1]
    busy = fleet.observe(node, at_ms=1_000_000, held=frozenset({gpu.uuid}))
    assert idle.devices[1].readings["utilization_percent"].value == 0
    assert (busy.devices[1].readings["utilization_percent"].value or 0) > 70
    assert busy.devices[2].readings["utilization_percent"].value == 0
    assert busy == fleet.observe(node, at_ms=1_000_000, held=frozenset({gpu.uuid}))
    assert busy != fleet.observe(node, at_ms=1_007_000, held=frozenset({gpu.uuid}))


def test_a_demo_nodes_boot_is_the_machines_and_not_the_processs() -> None:
    assert fleet.boot_id("b1", "n1") == fleet.boot_id("b1", "n1")
    assert fleet.boot_id("b1", "n1") != fleet.boot_id("b2", "n1")
    assert fleet.boot_id("b1", "n1") != fleet.boot_id("b1", "n2")


def test_missing_credentials_are_all_named(tmp_path: Path) -> None:
    env = {
        "QUINTAL_URL": "nats://127.0.0.1:1",
        "QUINTAL_CREDENTIALS_DIR": str(tmp_path),
        "QUINTAL_STATE": str(tmp_path),
    }
    with pytest.raises(SetupError, match=r"h100-01, h100-02.*cpu-01"):
        agents(env, described())
    with pytest.raises(SetupError, match="QUINTAL_CREDENTIALS_DIR"):
        agents({}, described())


def test_the_list_is_printed_without_a_bus() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "quintal_agent.demo", "--list"],
        env={"PYTHONPATH": PYTHONPATH, "PATH": os.environ["PATH"]},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert said.stdout.split() == [node.name for node in described()]


@pytest.mark.bus
@pytest.mark.crash
async def test_the_whole_fleet_comes_back_from_a_kill_under_the_same_boot(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    names = [node.name for node in described()]
    folder = {fresh_nats.access(name, Role.AGENT).credentials.parent for name in names}
    assert len(folder) == 1
    env = os.environ | {
        "PYTHONPATH": PYTHONPATH,
        "QUINTAL_URL": fresh_nats.url,
        "QUINTAL_CREDENTIALS_DIR": str(folder.pop()),
        "QUINTAL_STATE": str(tmp_path / "fleet"),
        "QUINTAL_LOG": "WARNING",
    }
    heard: dict[str, list[nodes.Inventory]] = {}

    def keep(message: nodes.Inventory, _: object) -> None:
        heard.setdefault(message.node, []).append(message)

    async with await fresh_nats.bus("placer-1", Role.PLACER_BACK) as placer:
        await placer.hear(subjects.INVENTORY, keep)
        command = [sys.executable, "-m", "quintal_agent.demo"]
        process = subprocess.Popen(command, env=env)
        try:
            await until(lambda: len(heard) == len(names), within_s=30)
            before = {name: found[0].boot_id for name, found in heard.items()}
            gpu = heard["h200-01"][0].devices[1]
            lease = nodes.BoundLease(
                lease="l-1", token=3, tenant="acme", ttl_ms=60_000,
                devices=(
                    nodes.BoundDevice(uuid=gpu.uuid, index=0, vendor="nvidia", model="m"),
                ),
            )  # fmt: skip
            await placer.ask(subjects.BIND, nodes.BindAsk(lease=lease), node="h200-01")
            process.send_signal(signal.SIGKILL)
            process.wait()
            last = {name: found[-1].sequence for name, found in heard.items()}
            heard.clear()
            process = subprocess.Popen(command, env=env)
            await until(lambda: len(heard) == len(names), within_s=30)
            assert {name: found[0].boot_id for name, found in heard.items()} == before
            assert all(heard[name][0].sequence > last[name] for name in names)
            done = await placer.ask(subjects.BIND, nodes.BindAsk(lease=lease), node="h200-01")
            assert done.lease_version == nodes.lease_set_version({"l-1": 3})
        finally:
            process.send_signal(signal.SIGTERM)
            status = await asyncio.to_thread(process.wait, 15)
        assert status == 0
