"""`fence: strict`: which nodes may have such a lease, and who tells them that they were heard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quintal.contracts import nodes, subjects
from quintal.contracts.subjects import Role
from quintal_placer import snapshots
from quintal_placer.state import PlacerState
from tests.placer.site import Site, inventory, models, quota
from tests.placer.town import town
from tests.placer.world import cards, doc, until
from tests.support.nats import NatsServer

STRICT = doc("Profile", "careful", **{"class": "train_llm", "cards": "1..8", "fence": "strict"})


def a_site(tasks: tuple[str, ...] | None) -> Site:
    its = inventory("n1", *cards("n1", "A-80", 8), tasks=tasks)
    return Site([*models(), *quota("ml"), STRICT], its)


def test_a_strict_lease_goes_only_where_work_can_be_ended() -> None:
    assert a_site(("accept", "fence")).granted(profile="careful").fence == "strict"
    for tasks in (None, (), ("cleanup",)):
        site = a_site(tasks)
        told = site.refused(profile="careful")
        assert (told.code, told.verdict, told.owner) == ("not_enabled", "not_now", "infrastructure")
        assert [(reason.code, reason.count) for reason in told.reasons] == [("not_enabled", 1)]
        assert site.granted().fence == "keep", "others may go there"


def test_a_node_that_gets_the_task_later_is_eligible_from_then_on_also_after_a_restart() -> None:
    site = a_site(())
    assert site.refused(profile="careful").code == "not_enabled"
    its = inventory("n1", *cards("n1", "A-80", 8), tasks=("fence",))
    site.report(its)
    again = PlacerState()
    again.adopt_catalog(site.state.catalog)
    snapshots.fill(again, snapshots.dump(site.state, 1))
    assert again.fleet.nodes["n1"].fences
    assert site.granted(profile="careful").fence == "strict"


@pytest.mark.bus
@pytest.mark.timeout(60)
async def test_the_leader_tells_a_node_that_wants_to_know_that_it_was_heard(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """That node, of that beat; and nobody else."""
    async with town(fresh_nats, tmp_path, devices={"n1": cards("n1", "BIG-80", 1)}) as its:
        other = await its.bus("n2", Role.AGENT)
        heard: list[tuple[str, int]] = []

        def note(word: nodes.Heard, _: Any) -> None:
            heard.append((word.node, word.sequence))

        await its.agents["n1"].bus.hear(subjects.HEARD, note, node="n1")
        await other.hear(subjects.HEARD, note, node="n2")
        for sequence, wants in ((1001, False), (1002, True)):
            beat = nodes.Heartbeat(
                node="n1", boot_id="boot-1", sequence=sequence, at_ms=1, wants_word=wants
            )
            await its.agents["n1"].bus.publish(subjects.HEARTBEAT, beat, node="n1")

        async def told() -> bool:
            return bool(heard)

        await until(told)
        assert heard == [("n1", 1002)]
