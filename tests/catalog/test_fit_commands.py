"""`check` at a place, `portability`, `can-run`: as a person types them, nodes on a real bus."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintal.bus import Bus
from quintal.contracts import subjects
from quintal.contracts.subjects import Role
from tests.catalog.given import SMALL
from tests.catalog.test_commands import Shell, shell
from tests.catalog.test_software import CARDS, CHAT, FLEET, work
from tests.support.nats import NatsServer

pytestmark = pytest.mark.bus

__all__ = ["shell"]


async def report(nats: NatsServer) -> None:
    """The nodes report what they have, each under its own name."""
    for inventory in FLEET:
        reach = nats.access(inventory.node, Role.AGENT)
        async with await Bus.connect(reach) as bus:
            await bus.publish(subjects.INVENTORY, inventory, node=inventory.node)
            await bus.flush()


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return name


async def test_a_workload_is_checked_before_it_is_applied_and_the_failing_bound_told(
    shell: Shell, fresh_nats: NatsServer
) -> None:
    await report(fresh_nats)
    write(shell.directory, "all.yaml", SMALL + "---\n" + CARDS)
    assert (await shell.quintal("apply", "-f", "all.yaml")).code == 0
    chat = write(shell.directory, "chat.yaml", work(CHAT, "chat"))

    good = await shell.quintal("check", "-f", chat, "--node", "r1")
    assert good.code == 0, good.err
    assert "runs on node r1" in good.out
    bad = await shell.quintal("check", "-f", chat, "--node", "r2", "-o", "json")
    assert bad.code == 3, bad.err
    (row,) = bad.json["rows"]
    assert (row["bound"], row["passing"]) == ("driver red 4.9 is not >=5", "driver red >=5")
    assert row["owner"] == "infrastructure"
    pool = await shell.quintal("check", "-f", chat, "--pool", "sea")
    assert pool.code == 3
    assert "runtime redrun does not run on sea-80gb" in pool.out
    stack = write(shell.directory, "stack.yaml", "drivers: {red: 5.10}\n")
    under = await shell.quintal("check", "-f", chat, "--stack", stack, "-o", "json")
    assert under.code == 0, under.err
    assert under.json["rows"][0]["software"] == {"driver red": "5.10"}, "and not 5.1"

    plain = await shell.quintal("check", "-f", chat)
    assert plain.code == 0
    assert "no faults" in plain.out
    both = await shell.quintal("check", "-f", chat, "--node", "r1", "--pool", "red")
    assert both.code == 2
    nowhere = await shell.quintal("check", "-f", chat, "--node", "r9")
    assert nowhere.code == 3
    assert "no device of node r9 is known" in nowhere.err


async def test_portability_and_can_run_tell_of_the_fleet_as_reported(
    shell: Shell, fresh_nats: NatsServer
) -> None:
    await report(fresh_nats)
    write(shell.directory, "all.yaml", SMALL + "---\n" + CARDS + work(CHAT, "chat"))
    assert (await shell.quintal("apply", "-f", "all.yaml")).code == 0
    found = await shell.quintal("portability", "chat", "-o", "json")
    assert found.code == 0, found.err
    assert found.json["open_percent"] == "20.0"
    assert [row["outcome"] for row in found.json["rows"]] == ["runs", "after_conversion", "no"]
    told = await shell.quintal("portability", "chat")
    assert "open to it: 2 of 10 units of train_llm (20.0 %)" in told.out
    node = await shell.quintal("can-run", "r1", "-o", "json")
    assert [row["accepted"] for row in node.json["rows"]] == [True]
    pool = await shell.quintal("can-run", "sea")
    assert "no" in pool.out.split()
    unknown = await shell.quintal("portability", "chatt")
    assert unknown.code == 3
    assert "did you mean 'chat'?" in unknown.err


async def test_a_tenant_asks_for_itself_and_sees_only_pools_that_are_open_to_it(
    shell: Shell, fresh_nats: NatsServer
) -> None:
    await report(fresh_nats)
    write(shell.directory, "all.yaml", SMALL + "---\n" + CARDS + work(CHAT, "chat"))
    assert (await shell.quintal("apply", "-f", "all.yaml")).code == 0
    reach = fresh_nats.access("blue", Role.TENANT)
    blue = Shell({**shell.env, "QUINTAL_CREDENTIALS": str(reach.credentials)}, shell.directory)
    found = await blue.quintal("portability", "chat", "-o", "json")
    assert found.code == 0, found.err
    assert {row["pool"] for row in found.json["rows"]} == {"red"}
    assert "sea" not in found.out
    closed = await blue.quintal("can-run", "s1")
    assert closed.code == 3
    assert "none you may see" in closed.err
