"""Cutting a card anew: never under a lease, and nobody is given it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from quintal.contracts import placement
from quintal.contracts.message import Refusal
from quintal.contracts.nodes import TaskDone
from quintal.errors import Code
from quintal_placer.cutting import planned
from quintal_placer.recutting import Recutting
from tests.placer.cut import card, partition, site
from tests.placer.site import Site, inventory, only


class Runner:
    """An agent's task runner: what was run, and what came of it."""

    def __init__(self, answer: Any, then: Callable[[], Any] = lambda: None) -> None:
        self.ran: list[str] = []
        self._answer, self._then = answer, then

    async def task(self, _: str, name: str, __: int) -> Any:
        self.ran.append(name)
        self._then()
        return self._answer


class Durable:
    """A desk whose appends are durable at once."""

    def __init__(self, place: Site) -> None:
        self.state, self.writer, self._place = place.state, place.writer, place

    def commit(self, records: Any) -> asyncio.Future[int]:
        self._place.apply(*records)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(7)
        return done


DONE = TaskDone(name="t", exit_status=0)


def ask(layout: str = "2x3g.40gb", **more: Any) -> placement.PartitionAsk:
    return placement.PartitionAsk(node="n1", device="0", layout=layout, **more)


def cut(place: Site, runner: Runner, **more: Any) -> Any:
    desk: Any = Durable(place)
    hands: Any = runner
    recutting = Recutting(desk, hands, report_s=0.5)
    return asyncio.run(recutting.partition(ask(run=True, **more)))


def disputed(place: Site) -> str:
    return place.state.fleet.nodes["n1"].devices["GPU-n1-0"].disputed


def reported(place: Site, *profiles: str) -> Callable[[], Any]:
    return lambda: place.report(inventory("n1", card("n1", 0, *profiles)))


def test_case_h06_a_card_under_a_lease_is_not_cut_and_nothing_is_touched() -> None:
    place = site(card("n1"))
    held = place.granted(cards=1, accelerator=only("cut-80"))
    runner = Runner(DONE)
    refused = cut(place, runner)
    assert refused.code == "conflict"
    assert refused.details == {"leases": [held.lease]}
    assert runner.ran == []
    assert not disputed(place)
    place.end(held)
    assert planned(place.state, ask()) is not None
    assert cut(place, runner).code == "conflict"  # it ends, and its agent has not let go
    assert runner.ran == []


def test_a_node_that_nobody_knows_is_said_to_be_none() -> None:
    place = site(card("n1"))
    told = planned(place.state, placement.PartitionAsk(node="n2", device="0", layout="whole"))
    assert isinstance(told, Refusal)
    assert (told.code, told.message) == ("not_found", "no such node: n2")


def test_a_plan_says_what_would_be_and_does_nothing() -> None:
    place = site(card("n1"))
    plan = planned(place.state, ask("7x1g.10gb"))
    assert not isinstance(plan, Refusal)
    assert plan.told.details["overhead_parts"] == 125_000
    assert plan.told.details["task"] == "partition-0-7x1g.10gb"
    assert [start for _, start in plan.told.details["placements"]] == [0, 1, 2, 3, 4, 5, 6]


def test_the_card_is_nobodys_until_its_agent_reports_it_cut() -> None:
    place = site(card("n1"))
    seen: list[Any] = []

    def meanwhile() -> None:
        seen.append(place.ask(cards=1, accelerator=only("cut-80")))
        reported(place, "3g.40gb", "3g.40gb")()
        seen.append(place.ask(**partition("3g.40gb")))

    done = cut(place, Runner(DONE, meanwhile))
    assert isinstance(done, placement.Done), done
    assert [refused.code for refused in seen] == ["disputed", "disputed"]
    assert not disputed(place)
    assert len(place.granted(**partition("3g.40gb", 2)).devices) == 2


def test_a_node_that_does_not_act_is_left_as_it_was() -> None:
    place = site(card("n1"))
    refused = cut(place, Runner(Refusal(code=Code.NOT_ENABLED, message="no task runner")))
    assert refused.code == "not_enabled"
    assert not disputed(place)
    place.granted(cards=1, accelerator=only("cut-80"))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (TaskDone(name="t", exit_status=3, output="in use"), "exit status 3: in use"),
        (TaskDone(name="t", exit_status=None), "ended at its deadline"),
        (None, "nobody knows"),
    ],
)
def test_a_card_whose_task_failed_stays_aside_with_the_reason(answer: Any, told: str) -> None:
    place = site(card("n1"))
    refused = cut(place, Runner(answer))
    assert refused.code == "adapter_error"
    assert told in disputed(place)
    assert cut(place, Runner(DONE)).code == "disputed"


def test_a_task_that_says_it_did_and_did_not_is_not_believed() -> None:
    place = site(card("n1"))
    refused = cut(place, Runner(DONE))
    assert refused.code == "adapter_error"
    assert "does not report" in disputed(place)


def test_a_layout_that_the_model_has_not_is_refused_with_those_that_it_has() -> None:
    refused = planned(site(card("n1")).state, ask("9x9g"))
    assert isinstance(refused, Refusal)
    assert "7x1g.10gb, 2x3g.40gb, whole" in refused.message
