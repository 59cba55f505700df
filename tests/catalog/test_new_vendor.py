"""A vendor that this release has never heard of: one YAML file, and nothing is started again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from quintal.auth import Authority
from quintal.bus import Bus
from quintal.contracts import nodes
from quintal.contracts.subjects import Role
from quintal.up.layout import Layout, local_access
from tests.chaos.system import free_port
from tests.placer.world import ScriptedAgent
from tests.up.test_up import SERVICES, Run

pytestmark = [pytest.mark.bus, pytest.mark.engine, pytest.mark.timeout(240)]

CARD = """\
apiVersion: quintal/v1
kind: AcceleratorModel
metadata: {name: orionix-o1-96gb}
spec:
  vendor: orionix
  family: orionix-o1
  title: Orionix O1 96GB
  memory_bytes: 103079215104
  memory_bandwidth_gbs: 2400
  tdp_watts: 500
  tflops: {bf16: 500, fp8: 1000}
  features: [bf16, fp8]
  runtime: orx
  match:
  - {vendor: orionix, names: [Orionix O1], memory: 90GiB..97GiB}
  estimate: [train_llm, llm_large]
  confidence: D
  sources: [the vendor's sheet]
"""

FAR = """\
apiVersion: quintal/v1
kind: Profile
metadata: {name: far-away}
spec:
  class: train_llm
  accelerator: {families: [nvidia-b200]}
"""

NODE = "n-orion"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path / "data", "--port", str(free_port()))
    yield made
    if made.process.poll() is None:
        made.stop()


def cards() -> tuple[nodes.RawDevice, ...]:
    return tuple(
        nodes.RawDevice(
            uuid=f"ORX-{index}",
            index=index,
            vendor="orionix",
            name="Orionix O1",
            memory_bytes=96 * 2**30,
        )
        for index in range(2)
    )


async def until(run: Run, *words: str, what: Any, within_s: float = 30) -> Any:
    """Ask the command again until its answer is so."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + within_s
    while True:
        found = await asyncio.to_thread(run.json, *words)
        if what(found):
            return found
        assert loop.time() < give_up, found
        await asyncio.sleep(0.3)


def states(fleet: Any) -> list[tuple[str | None, str]]:
    return [
        (device["model"], device["state"])
        for node in fleet["nodes"]
        if node["node"] == NODE
        for device in node["devices"]
    ]


async def test_an_unknown_card_is_shown_named_by_one_file_granted_and_metered(
    run: Run, tmp_path: Path
) -> None:
    await asyncio.to_thread(run.ready)
    pids = {name: run.pid(name) for name in SERVICES}
    Authority(Layout(run.data).auth).issue(NODE, Role.AGENT)
    bus = await Bus.connect(local_access(run.data, NODE))
    agent = ScriptedAgent(bus, NODE, cards())
    await agent.start()
    try:
        shown = await until(run, "devices", NODE, what=lambda fleet: len(states(fleet)) == 2)
        assert {model for model, _ in states(shown)} == {None}
        table = (await asyncio.to_thread(run.quintal, "devices", NODE)).stdout
        assert "? Orionix O1" in table, "it is shown whole, by the name its tool gives"
        refused = await asyncio.to_thread(
            run.quintal,
            "place", "training-standard", "--tenant", "language", "--model",
            "orionix-o1-96gb",
        )  # fmt: skip
        assert refused.returncode == 3

        (tmp_path / "card.yaml").write_text(CARD)
        applied = await asyncio.to_thread(run.quintal, "apply", "-f", str(tmp_path / "card.yaml"))
        assert applied.returncode == 0, applied.stderr
        free = [("orionix-o1-96gb", "free")] * 2
        await until(run, "devices", NODE, what=lambda fleet: states(fleet) == free)

        (tmp_path / "profile.yaml").write_text(FAR)
        far = await asyncio.to_thread(run.json, "apply", "-f", str(tmp_path / "profile.yaml"))
        (warning,) = far["warnings"]
        assert warning["document"] == "Profile/far-away"
        assert warning["message"].startswith("no model of the fleet could ever meet this")

        placed = await asyncio.to_thread(
            run.json,
            "place", "training-standard", "--tenant", "language", "--model",
            "orionix-o1-96gb", "--cards", "2",
        )  # fmt: skip
        assert [device["node"] for device in placed["devices"]] == [NODE, NODE]
        assert agent.binds >= 1
        await asyncio.sleep(1.5)
        released = await asyncio.to_thread(
            run.quintal, "release", placed["lease"], "--tenant", "language"
        )
        assert released.returncode == 0, released.stderr

        used = await until(
            run, "usage", "--by", "model",
            what=lambda said: any(r["group"]["model"] == "orionix-o1-96gb" for r in said["rows"]),
        )  # fmt: skip
        (row,) = [r for r in used["rows"] if r["group"]["model"] == "orionix-o1-96gb"]
        assert row["class"] == "train_llm"
        assert Decimal(row["quantity"]) > 0
        assert row["estimated_quantity"] == row["quantity"], "a formula rates it, and that is told"
        assert Decimal(row["cost"]) > 0
        assert {name: run.pid(name) for name in SERVICES} == pids, "nothing was started again"
        assert all(Path(f"/proc/{pid}").exists() for pid in pids.values())
    finally:
        await agent.stop()
    assert await asyncio.to_thread(run.stop) == 0
