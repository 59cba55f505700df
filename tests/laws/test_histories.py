"""Histories written by hand, one for each way to break a law: what the generated ones come upon.

Each file in `tests/mutants` breaks the placer once and names the test of here that must then fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quintal.contracts import ledger, placement
from quintal.contracts.message import Refusal
from quintal.units import MS_PER_HOUR
from quintal_placer.engine.leases import State
from tests.laws.house import HALVES, House, Replica, cut, restored
from tests.laws.memory import MemoryAgent
from tests.laws.virtual import BASE_MS
from tests.placer.world import cards

pytestmark = pytest.mark.laws


@pytest.fixture
def house() -> Iterator[House]:
    built = House()
    yield built
    try:
        built.check()
    finally:
        built.close()


def ask(request_id: str, **more: Any) -> placement.PlaceAsk:
    return placement.PlaceAsk.model_validate(
        {"request_id": request_id, "profile": "train", "ttl_ms": 30_000, **more}
    )


def leader(house: House) -> Replica:
    found = house.leader
    assert found is not None
    return found


def begun(house: House, request: placement.PlaceAsk, tenant: str = "ml") -> asyncio.Task[Any]:
    """A request under way; the world goes on for a moment."""
    replica = leader(house)
    task = house.start(replica, house.place(replica, tenant, request))
    house.loop.spin()
    return task


def answer(house: House, request: placement.PlaceAsk, tenant: str = "ml") -> Any:
    task = begun(house, request, tenant)
    house.loop.spin(3)
    return task.result()


def lease(house: House, request_id: str, tenant: str = "ml", **more: Any) -> placement.Lease:
    found = answer(house, ask(request_id, **more), tenant)
    assert isinstance(found, placement.Lease), found
    return found


def done(house: House, act: Callable[[Replica], Any]) -> Any:
    """What the leader answers to an act."""
    replica = leader(house)
    task = house.start(replica, act(replica))
    house.loop.spin()
    return task.result()


def release(house: House, its: placement.Lease) -> placement.Lease:
    to_release = placement.ReleaseAsk(lease=its.lease)
    found = done(house, lambda r: house.release(r, its.tenant, to_release))
    assert isinstance(found, placement.Lease)
    return found


def state_of(house: House, its: placement.Lease) -> State:
    return house.auditor.state.leases[its.lease].state


def keys(its: placement.Lease) -> set[str]:
    return {device.uuid for device in its.devices}


BIG = {"accelerator": {"models": ["big-80"]}}


# --- law 1 ------------------------------------------------------------------------------------


def test_law_1_every_device_goes_to_one_lease_only(house: House) -> None:
    found = [answer(house, ask(f"r{i}", **BIG), "ml") for i in range(8)]
    leases = [one for one in found if isinstance(one, placement.Lease)]
    assert len(set().union(*map(keys, leases))) == len(leases) == 5  # the cap in cards


def test_law_1_a_cpu_adopted_as_a_device_is_not_given_by_the_core_as_well(house: House) -> None:
    adopted = done(
        house,
        lambda r: house.adopt(
            r,
            placement.AdoptAsk.model_validate(
                {
                    "request_id": "a",
                    "tenant": "ml",
                    "node": "n4",
                    "devices": ("CPU-n4",),
                    "class": "train_llm",
                }
            ),
        ),
    )
    assert isinstance(adopted, placement.Lease)
    need = {"accelerator": {"vendors": ["amd"]}, "node": {"cpu_milli": 1_000}}
    assert isinstance(answer(house, ask("r", **need)), Refusal)


def test_a_released_device_is_given_again_only_after_its_agent_acknowledged(house: House) -> None:
    first = lease(house, "one", cards=4, **BIG)
    house.agents["n1"].mood = "silent, not done"
    assert release(house, first).state == "ending"
    house.pass_time(5)
    assert isinstance(answer(house, ask("two", cards=4, **BIG)), Refusal)
    house.agents["n1"].mood = "well"
    for _ in range(4):
        house.pass_time(5)
    assert keys(lease(house, "three", cards=4, **BIG)) == keys(first)


def test_an_expired_device_is_given_again_only_after_its_agent_acknowledged(house: House) -> None:
    first = lease(house, "one", cards=4, **BIG)
    house.agents["n1"].mood = "silent, not done"
    for _ in range(8):
        house.pass_time(5)
    assert state_of(house, first) is State.ENDING
    house.agents["n1"].mood = "slow"
    house.heartbeat("n1")
    assert isinstance(answer(house, ask("two", cards=4, **BIG)), Refusal)


def test_an_unclear_bind_keeps_its_devices_until_the_agent_has_spoken(house: House) -> None:
    house.agents["n2"].mood = "silent, done"
    found = lease(house, "one", cards=2, **BIG)
    assert {device.node for device in found.devices} == {"n1"}
    held = [le for le in house.auditor.state.leases.values() if le.reason == "bind_unknown"]
    assert [le.nodes for le in held] == [("n2",)]
    assert held[0].state is State.ENDING


# --- law 2 ------------------------------------------------------------------------------------


def test_law_2_no_reply_leaves_before_the_append(house: House) -> None:
    house.book.fates.append("held")
    task = begun(house, ask("one", bind="none"))
    assert not task.done()
    house.book.deliver()
    house.loop.spin()
    assert isinstance(task.result(), placement.Lease)


def test_law_2_a_reply_that_is_lost_is_asked_for_by_sending_the_same_group(house: House) -> None:
    house.book.fates.extend(["reply lost", "reply lost"])
    found = lease(house, "one", bind="none")
    grants = [r for g in house.auditor.groups for r in g.transitions if r.kind == "granted"]
    assert [grant.lease for grant in grants] == [found.lease]


def test_law_2_an_append_that_a_read_does_not_show_is_not_taken_for_lost(house: House) -> None:
    """It is on its way, and the next try finds it there."""
    house.book.fates.extend(["late", "lost", "lost"])
    task = begun(house, ask("one", bind="none"))
    house.book.deliver()
    house.loop.spin(2)
    assert isinstance(task.result(), placement.Lease)


def test_law_2_a_conflict_is_no_acknowledgement(house: House) -> None:
    """The old leader wakes after a takeover: its client hears nothing from it."""
    old = leader(house)
    house.lead(1 - house.replicas.index(old))
    assert leader(house) is not old
    task = house.start(old, house.place(old, "ml", ask("one", bind="none")))
    house.loop.spin(2)
    assert task.cancelled() or not task.done() or task.result() is None
    assert house.deposed == 1
    assert old.promises is None


def test_law_2_a_late_append_of_the_old_leader_meets_the_fence(house: House) -> None:
    old = leader(house)
    house.book.fates.extend(["late"])
    house.start(old, house.place(old, "ml", ask("one", bind="none")))
    house.loop.spin(0.01)
    stored = len(house.book.messages)
    new = house.replicas[1 - house.replicas.index(old)]
    old.stop()
    house.start(new, new.take_over())
    house.loop.spin()
    house.book.deliver()
    assert house.auditor.groups[stored].writer == new.name
    assert not house.auditor.state.live


def test_law_2_an_acknowledged_deadline_outlasts_a_takeover(house: House) -> None:
    """Renewals are not in the ledger: the new leader gives one full ttl from its takeover."""
    first = lease(house, "one")
    house.pass_time(5)
    house.pass_time(20)
    renewed = done(house, lambda r: house.renew(r, "ml", placement.RenewAsk(lease=first.lease)))
    assert renewed.expires_in_ms == 30_000
    house.lead(1)
    for _ in range(5):
        house.pass_time(5)
    assert state_of(house, first) is State.BOUND
    for _ in range(3):
        house.pass_time(5)
    assert state_of(house, first) in {State.ENDING, State.ENDED}


def test_law_2_nothing_expires_while_nothing_can_be_appended(house: House) -> None:
    first = lease(house, "one")
    house.pass_time(5)
    house.book.fates.extend(["full"] * 60)
    house.operate(lambda state, at_ms: [ledger.Tick(at_ms=at_ms)])
    house.loop.spin(62)
    for _ in range(3):
        house.pass_time(5)
    assert state_of(house, first) is State.BOUND


def test_law_2_nobody_is_told_of_a_lease_whose_bind_is_still_under_way(house: House) -> None:
    """However many binds before it had no answer: what is told is what came of the last one."""
    for agent in house.agents.values():
        agent.mood = "silent, not done"
    replica = leader(house)
    task = house.start(replica, house.place(replica, "ml", ask("one")))
    house.pass_time(9)
    assert task.done()
    assert isinstance(task.result(), Refusal)
    assert not house.told


# --- law 3 ------------------------------------------------------------------------------------


def test_law_3_the_same_request_is_the_same_lease_also_after_a_takeover(house: House) -> None:
    first = lease(house, "one")
    assert lease(house, "one").lease == first.lease
    house.lead(1)
    assert lease(house, "one").lease == first.lease
    assert len(house.auditor.state.live) == 1


def test_law_3_the_order_in_which_a_request_says_it_is_no_other_content(house: House) -> None:
    first = lease(house, "one", labels={"a": "1", "b": "2"})
    assert lease(house, "one", labels={"b": "2", "a": "1"}).lease == first.lease
    house.lead(1)
    assert lease(house, "one", labels={"b": "2", "a": "1"}).lease == first.lease


def test_law_3_other_content_under_the_same_id_is_a_conflict(house: House) -> None:
    lease(house, "one")
    found = answer(house, ask("one", cards=2))
    assert isinstance(found, Refusal)
    assert found.code == "conflict"


def test_law_3_another_tenants_id_is_another_request(house: House) -> None:
    assert lease(house, "one", "ml").lease != lease(house, "one", "bio", cards=2).lease


def test_law_3_a_refusal_and_a_dry_run_consume_no_id(house: House) -> None:
    assert isinstance(answer(house, ask("one", cards=8)), Refusal)
    assert isinstance(answer(house, ask("one", cards=2)), placement.Lease)


def test_law_3_whoever_waited_for_a_bind_on_a_retired_node_is_told_what_the_id_decided_since(
    house: House,
) -> None:
    """Both asked the same under one id: one of them must not be told that there is nothing."""
    first = ask("r1", accelerator={"models": ["mid-40", "big-80"]}, objective="ordered")
    house.agents["n3"].mood = "silent, done"
    waiting = begun(house, first)
    house.retire("n3")
    house.loop.spin()
    second = answer(house, first)
    assert isinstance(second, placement.Lease)
    house.loop.spin(15)
    assert waiting.result().lease == second.lease


def test_law_3_a_request_whose_lease_was_never_bound_may_be_asked_again(house: House) -> None:
    for agent in house.agents.values():
        agent.mood = "absent"
    assert isinstance(answer(house, ask("one")), Refusal)
    for agent in house.agents.values():
        agent.mood = "well"
    assert isinstance(answer(house, ask("one", cards=2)), placement.Lease)


# --- law 4 ------------------------------------------------------------------------------------


def test_law_4_requests_at_once_do_not_pass_a_cap_together(house: House) -> None:
    replica = leader(house)
    tasks = [
        house.start(replica, house.place(replica, "bio", ask(f"r{i}", **BIG))) for i in range(6)
    ]
    house.loop.spin(3)
    granted = [t.result() for t in tasks if isinstance(t.result(), placement.Lease)]
    assert len(granted) == 3
    refused = [t.result() for t in tasks if isinstance(t.result(), Refusal)]
    assert {r.code.value for r in refused} == {"quota_exceeded"}


def test_law_4_a_cap_in_cards_holds_where_units_would_do(house: House) -> None:
    assert isinstance(answer(house, ask("one", cards=4, **BIG)), placement.Lease)
    found = answer(house, ask("two", cards=2, **BIG))
    assert isinstance(found, Refusal)
    assert found.code == "model_quota_exceeded"


def test_law_4_an_ending_lease_holds_no_quota_and_wakes_the_queue(house: House) -> None:
    """Its agent is silent: the devices wait, and the quota is free for others at once."""
    first = lease(house, "one", "bio", cards=2, **BIG)
    node = first.devices[0].node
    waiting = answer(
        house, ask("two", cards=2, wait={"mode": "queue", "deadline_ms": 60_000}, **BIG), "bio"
    )
    assert isinstance(waiting, placement.Pending)
    house.pass_time(1)
    house.agents[node].mood = "silent, not done"
    assert release(house, first).state == "ending"
    house.pass_time(1)
    assert house.auditor.state.leases[waiting.lease].state is State.BOUND


# --- the queue --------------------------------------------------------------------------------


def waits(house: House, request_id: str, tenant: str = "ml", **more: Any) -> placement.Pending:
    wait = {"mode": "queue", "deadline_ms": 60_000}
    found = answer(house, ask(request_id, wait=wait, **more), tenant)
    assert isinstance(found, placement.Pending), found
    return found


def stored(house: House, its: placement.Pending) -> State:
    return house.auditor.state.leases[its.lease].state


def test_what_is_let_go_goes_to_who_waits_and_not_to_who_comes_in_the_same_moment(
    house: House,
) -> None:
    """No round of housekeeping comes between the end and the next request."""
    first = lease(house, "one", cards=4, **BIG)
    big = waits(house, "two", cards=4, **BIG)
    replica = leader(house)
    assert replica.promises is not None
    house.start(replica, house.release(replica, "ml", placement.ReleaseAsk(lease=first.lease)))
    house.loop.spin(0.01)
    house.loop.act(lambda: replica.promises and replica.promises.ends.send_ends(1e9))
    house.loop.spin(0.01)
    assert house.auditor.state.leases[first.lease].state is State.ENDED
    late = house.start(replica, house.place(replica, "bio", ask("three", cards=3, **BIG)))
    house.loop.spin(3)
    assert isinstance(late.result(), Refusal)
    assert stored(house, big) is State.BOUND


def test_who_wants_little_does_not_take_it_from_who_waits_for_much(house: House) -> None:
    """And whoever wants something else passes freely; a higher priority goes first."""
    lease(house, "one", "bio", cards=1, constraints={"nodes": ["n1"]}, **BIG)
    much = waits(house, "much", cards=4, **BIG)
    little = answer(house, ask("little", constraints={"nodes": ["n1"]}, **BIG), "bio")
    assert isinstance(little, Refusal)
    assert little.code == "no_capacity"
    assert "came before" in " ".join(reason.message for reason in little.reasons)
    elsewhere = lease(house, "elsewhere", "bio", cards=2, **BIG)
    assert {device.node for device in elsewhere.devices} == {"n2"}, "n2 has too few for the other"
    assert lease(house, "other", "ml", accelerator={"models": ["mid-40"]}).state == "bound"
    first = {"priority": "high", "constraints": {"nodes": ["n1"]}, **BIG}
    assert lease(house, "first", "ml", **first).state == "bound"
    assert stored(house, much) is State.QUEUED


def test_who_waits_for_its_own_cap_holds_back_only_what_counts_against_it(house: House) -> None:
    held = lease(house, "one", "bio", cards=2, **BIG)
    capped = waits(house, "two", "bio", cards=2, **BIG)
    assert isinstance(answer(house, ask("three", cards=1, **BIG), "bio"), Refusal)
    assert lease(house, "theirs", "ml", cards=1, **BIG).state == "bound"
    release(house, held)
    for _ in range(2):
        house.pass_time(1)
    assert stored(house, capped) is State.BOUND


def test_who_waits_for_a_node_that_is_cordoned_holds_nobody_back(house: House) -> None:
    house.cordon("n1", on=True)
    house.loop.spin()
    much = waits(house, "much", cards=4, **BIG)
    assert lease(house, "little", "bio", cards=2, **BIG).state == "bound"
    house.cordon("n1", on=False)
    house.pass_time(1)
    assert stored(house, much) is State.BOUND


def test_within_a_priority_first_come_is_first_served_and_places_say_so(house: House) -> None:
    held = lease(house, "held", cards=4, **BIG)
    first = waits(house, "first", cards=3, **BIG)
    second = waits(house, "second", "bio", cards=3, **BIG)
    urgent = waits(house, "urgent", "bio", cards=4, priority="high", **BIG)
    assert [its.queue_place for its in (first, second, urgent)] == [1, 2, 1]
    line = leader(house).state.line
    assert list(line) == [urgent.lease, first.lease, second.lease]
    release(house, held)
    for _ in range(2):
        house.pass_time(1)
    order = [le for le in (urgent, first, second) if stored(house, le) is State.BOUND]
    assert order == [first], "the urgent one is over its cap, and its tenant's second behind it"


def test_a_queued_request_that_no_agent_takes_waits_on_with_its_turn(house: House) -> None:
    held = lease(house, "held", cards=4, **BIG)
    first = waits(house, "first", cards=4, **BIG)
    second = waits(house, "second", cards=3, **BIG)
    house.agents["n1"].mood = "well"
    release(house, held)
    house.loop.spin(0.01)
    house.agents["n1"].mood = "busy"
    house.pass_time(1)
    assert stored(house, first) is State.FAILED
    again = house.auditor.state.by_request["ml", "first"]
    assert again != first.lease
    assert list(house.auditor.state.line) == [again, second.lease]
    house.agents["n1"].mood = "well"
    for _ in range(4):
        house.pass_time(1)
    assert house.auditor.state.leases[again].state is State.BOUND
    assert house.auditor.state.by_request["ml", "first"] == again


# --- law 5 ------------------------------------------------------------------------------------


def test_law_5_a_gang_is_whole_or_nothing(house: House) -> None:
    """Case E01, too: of two gangs that each need all, one is complete and one holds nothing."""
    wait = {"mode": "queue", "deadline_ms": 60_000}
    whole = answer(house, ask("one", cards=2, nodes=2, wait=wait, **BIG))
    assert isinstance(whole, placement.Lease)
    assert {device.node for device in whole.devices} == {"n1", "n2"}
    waits = answer(house, ask("two", cards=2, nodes=2, wait=wait, **BIG), "bio")
    assert not isinstance(waits, placement.Lease)
    free = [d for n in house.auditor.state.fleet.nodes.values() for d in n.devices.values()]
    assert {d.holder for d in free} == {None, whole.lease}


def test_law_5_a_gang_of_which_one_agent_refuses_holds_nothing(house: House) -> None:
    """What its other agent took is nobody's until that agent has let go of it."""
    house.agents["n2"].mood = "refuses"
    gang = begun(house, ask("one", cards=2, nodes=2, **BIG))
    house.loop.spin(3)
    assert isinstance(gang.result(), Refusal)
    other = lease(house, "two", cards=4, **BIG)
    assert {device.node for device in other.devices} == {"n1"}
    assert set(house.agents["n1"].leases) == {other.lease}
    release(house, other)
    for _ in range(3):
        house.pass_time(5)
    devices = [d for n in house.auditor.state.fleet.nodes.values() for d in n.devices.values()]
    assert all(device.holder is None for device in devices)


def test_law_1_after_a_takeover_no_refusal_says_that_the_agent_holds_nothing(house: House) -> None:
    """It took the lease from the leader before, and refuses it now: a device of it has failed."""
    house.agents["n2"].mood = "silent, done"
    begun(house, ask("one", cards=1, nodes=2, **BIG))
    (held,) = house.agents["n2"].leases.values()
    house.agents["n2"].sick.add(held.devices[0].uuid)
    house.lead(1)
    house.pass_time(3)
    house.agents["n2"].mood = "well"
    house.pass_time(5)
    assert held.lease not in house.agents["n2"].leases
    assert house.auditor.state.leases[held.lease].state is State.ENDED


def test_case_e04_a_gang_whose_node_boots_anew_is_repaired_before_who_came_meanwhile(
    house: House,
) -> None:
    """Its other node is let go at once; nobody of equal priority gets it while n2 is away."""
    gang = lease(house, "gang", cards=2, nodes=2, **BIG)
    house.gone.add("n2")
    house.agents["n2"].reboot()
    house.report("n2")
    house.agents["n2"].mood = "absent"
    house.pass_time(8)
    waits = {"wait": {"mode": "queue", "deadline_ms": 600_000}}
    again = ask("again", cards=2, nodes=2, repairs=gang.lease, **BIG, **waits)
    assert isinstance(answer(house, again), placement.Pending)
    refused = answer(house, ask("newcomer", cards=3, **BIG), "bio")
    assert isinstance(refused, Refusal)
    assert "kept for a gang" in refused.message
    assert house.auditor.state.queue, "it waits and holds nothing"
    house.agents["n2"].mood = "well"
    for _ in range(4):
        house.heartbeat("n2")
        house.pass_time(3)
    found = house.auditor.state.by_request["ml", "again"]
    whole = house.auditor.state.leases[found]
    assert (whole.state, len(whole.nodes)) == (State.BOUND, 2)
    assert house.auditor.state.broken == {}


def test_law_11_a_snapshot_keeps_for_how_long_a_broken_gang_is_waited_for(house: House) -> None:
    """For its ttl, which a renewal had made longer than what was granted."""
    gang = lease(house, "gang", cards=2, nodes=2, **BIG)
    longer = placement.RenewAsk(lease=gang.lease, ttl_ms=60_000)
    assert isinstance(done(house, lambda r: house.renew(r, "ml", longer)), placement.Lease)
    house.gone.add("n2")
    house.agents["n2"].reboot()
    house.report("n2")
    house.agents["n2"].mood = "absent"
    for _ in range(8):
        house.pass_time(5)
    assert house.auditor.state.leases[gang.lease].state is State.ENDED
    refused = answer(house, ask("newcomer", cards=3, **BIG), "bio")
    assert isinstance(refused, Refusal)
    assert "kept for a gang" in refused.message
    again = restored(house.auditor.state, len(house.book.messages))
    assert again.leases[gang.lease].ttl_ms == 60_000
    house.check_replay()


def test_a_gang_that_one_agent_refuses_is_placed_elsewhere_at_once(house: House) -> None:
    """It waits for nobody's acknowledgement where the rest of the fleet has room."""
    for name in ("n1", "n2", "n3"):
        house.agents[name].ends_slowly = True
    house.agents["n2"].mood = "busy"
    alternatives = [
        {"accelerator": {"models": [model]}, "cards": cards, "nodes": nodes}
        for model, cards, nodes in (("big-80", 1, 2), ("mid-40", 1, 1))
    ]
    replica = leader(house)
    task = house.start(replica, house.place(replica, "ml", ask("one", alternatives=alternatives)))
    house.loop.spin(1.5)  # sooner than any agent lets go
    found = task.result()
    assert isinstance(found, placement.Lease)
    assert {device.node for device in found.devices} == {"n3"}
    assert [le.nodes for le in house.auditor.state.ending.values()] == [("n2", "n1")]


def test_a_gang_that_needs_what_its_own_agents_took_is_placed_once_they_let_go(
    house: House,
) -> None:
    house.agents["n2"].mood = "busy"
    house.agents["n5"] = MemoryAgent("n5", cards("n5", "BIG-80", 4))
    house.report("n5")
    house.loop.spin()
    found = lease(house, "one", cards=2, nodes=2, **BIG)
    assert {device.node for device in found.devices} == {"n1", "n5"}


def test_a_refusal_that_passes_disputes_no_device(house: House) -> None:
    """Case G09: its node is left alone for a while, for longer each time, and then asked again."""
    house.agents["n1"].mood = "busy"
    house.agents["n2"].mood = "busy"
    for number in range(8):  # in two and a half seconds
        assert isinstance(begun(house, ask(f"r{number}", **BIG)).result(), Refusal)
    assert [house.agents[name].binds for name in ("n1", "n2")] == [2, 2]
    nodes = house.auditor.state.fleet.nodes
    assert not any(d.disputed for name in ("n1", "n2") for d in nodes[name].devices.values())
    house.agents["n1"].mood = house.agents["n2"].mood = "well"
    house.pass_time(16)
    assert lease(house, "later", **BIG).state == "bound"


# --- law 6 ------------------------------------------------------------------------------------


def test_law_6_nothing_goes_to_a_cordoned_node(house: House) -> None:
    house.cordon("n1", on=True)
    house.loop.spin()
    found = answer(house, ask("one", cards=4, **BIG))
    assert isinstance(found, Refusal)
    assert found.code == "cordoned"


def test_law_6_a_device_that_an_agent_refused_is_nobodys_until_it_is_cleared(
    house: House,
) -> None:
    house.agents["n2"].mood = "refuses"
    found = lease(house, "one", cards=2, **BIG)
    assert {device.node for device in found.devices} == {"n1"}
    disputed = house.auditor.state.fleet.nodes["n2"].devices.values()
    assert all(device.disputed for device in disputed)


def test_law_6_a_card_seen_on_two_nodes_is_granted_on_neither(house: House) -> None:
    """Also where one of the two was lost when the other reported it, and comes back."""
    for _ in range(2):
        house.agents["n2"].mood = "silent, not done"
        for _ in range(4):
            house.pass_time(7)
    assert house.auditor.state.fleet.nodes["n2"].liveness == "lost"
    mine = house.agents["n1"].devices
    house.agents["n1"].devices = (*mine, house.agents["n2"].devices[0])
    house.report("n1")
    house.loop.spin()
    house.agents["n2"].mood = "well"
    for _ in range(4):
        house.pass_time(3)
    nodes = house.auditor.state.fleet.nodes
    assert nodes["n2"].liveness == "ready"
    uuid = house.agents["n2"].devices[0].uuid
    assert nodes["n1"].devices[uuid].disputed
    assert nodes["n2"].devices[uuid].disputed


# --- health -----------------------------------------------------------------------------------


def on(policy: str) -> dict[str, Any]:
    return {"profile": f"train-{policy}", "ttl_ms": 60_000, **BIG}


def fail_first(house: House, its: placement.Lease, *, well: bool = False) -> ledger.AnyRecord:
    """Its first device fails, or recovers; the record that says so."""
    house.fails(its.devices[0].node, its.devices[0].uuid, well=well)
    house.loop.spin()
    records = [r for g in house.auditor.groups for r in g.transitions]
    return [r for r in records if isinstance(r, ledger.DeviceHealthChanged)][-1]


def renew(house: House, its: placement.Lease) -> Any:
    return done(house, lambda r: house.renew(r, "ml", placement.RenewAsk(lease=its.lease)))


def shown(house: House, its: placement.Lease) -> placement.Lease:
    promises = leader(house).promises
    assert promises is not None
    return promises.desk.view(leader(house).state.leases[its.lease])


def test_a_failed_device_is_shown_on_its_lease_and_changes_nothing_by_default(house: House) -> None:
    first = lease(house, "one", **BIG)
    fail_first(house, first)
    device = first.devices[0]
    assert shown(house, first).unhealthy == (f"{device.node}/{device.uuid}",)
    assert isinstance(renew(house, first), placement.Lease)
    assert state_of(house, first) is State.BOUND
    fail_first(house, first, well=True)
    assert shown(house, first).unhealthy == ()


def test_law_8_a_lease_that_is_evicted_is_paid_until_its_device_had_failed(house: House) -> None:
    first = lease(house, "one", **on("evict"))
    house.pass_time(7)
    record = fail_first(house, first)
    ended = house.auditor.state.leases[first.lease]
    assert (ended.reason, ended.effective_ms) == ("revoked", record.at_ms)
    assert "failed" in shown(house, first).reason
    for _ in range(2):
        house.pass_time(1)
    assert state_of(house, first) is State.ENDED
    others = [lease(house, f"r{i}", **BIG) for i in range(5)]
    assert first.devices[0].uuid not in {uuid for its in others for uuid in keys(its)}


def test_law_8_a_lease_that_is_drained_is_renewed_no_more_and_paid_until_its_deadline(
    house: House,
) -> None:
    first = lease(house, "one", **on("drain"))
    house.pass_time(7)
    assert isinstance(renew(house, first), placement.Lease)
    deadline_ms = leader(house).state.leases[first.lease].deadline_ms
    fail_first(house, first)
    refused = renew(house, first)
    assert isinstance(refused, Refusal)
    assert refused.code == "device_unhealthy"
    notice_ms = shown(house, first).notice_in_ms
    assert notice_ms is not None
    assert notice_ms <= 60_000
    for _ in range(9):
        house.pass_time(7)
    ended = house.auditor.state.leases[first.lease]
    assert (ended.reason, ended.effective_ms) == ("expired", deadline_ms)


def test_a_device_that_recovers_withdraws_the_notice(house: House) -> None:
    first = lease(house, "one", **on("drain"))
    fail_first(house, first)
    assert isinstance(renew(house, first), Refusal)
    house.lead(1)  # whoever leads knows of it
    assert isinstance(renew(house, first), Refusal)
    fail_first(house, first, well=True)
    assert isinstance(renew(house, first), placement.Lease)
    assert shown(house, first).notice_in_ms is None


def test_a_leader_that_fell_between_the_failure_and_its_consequence_is_made_good_for(
    house: House,
) -> None:
    first = lease(house, "one", **on("evict"))
    node, uuid = first.devices[0].node, first.devices[0].uuid
    house.agents[node].sick.add(uuid)
    house.sick.add(uuid)
    house.inventories[node] = house.agents[node].inventory()
    house.operate(
        lambda state, at_ms: [
            ledger.DeviceHealthChanged(at_ms=at_ms, node=node, uuid=uuid, health="failed")
        ]
    )
    house.loop.spin()
    assert state_of(house, first) is State.BOUND
    house.lead(1)
    assert state_of(house, first) in {State.ENDING, State.ENDED}
    assert house.auditor.state.leases[first.lease].reason == "revoked"


def test_case_g11_a_release_whose_cleanup_fails_says_so_and_leaves_its_devices_to_nobody(
    house: House,
) -> None:
    house.agents["n1"].cleans_badly = True
    first = lease(house, "one", cards=4, **BIG)
    release(house, first)
    for _ in range(2):
        house.pass_time(1)
    assert state_of(house, first) is State.ENDED
    assert shown(house, first).reason == "released; the cleanup on n1 failed"
    refused = answer(house, ask("two", cards=4, **BIG))
    assert isinstance(refused, Refusal)
    assert refused.code == "disputed"
    house.check_replay()


# --- laws 8 and 9, the placer's part ----------------------------------------------------------


def test_law_8_an_expiry_counts_as_of_its_deadline(house: House) -> None:
    first = lease(house, "one")
    house.pass_time(33)
    ended = house.auditor.state.leases[first.lease]
    granted = next(r for g in house.auditor.groups for r in g.transitions if r.kind == "granted")
    assert ended.effective_ms == granted.at_ms + 30_000
    assert ended.ending_ms is not None
    assert ended.ending_ms > ended.effective_ms


def test_law_8_a_reboot_counts_as_of_the_last_heartbeat(house: House) -> None:
    first = lease(house, "one", ttl_ms=60_000)
    node = first.devices[0].node
    house.pass_time(2)
    heard_ms = leader(house).state.fleet.nodes[node].heard_ms
    house.loop.spin(5)
    house.gone.add(node)
    house.agents[node].reboot()
    house.report(node)
    house.loop.spin()
    assert house.auditor.state.leases[first.lease].effective_ms == heard_ms
    assert state_of(house, first) is State.ENDED


def test_law_9_every_full_hour_has_its_census_also_over_a_takeover(house: House) -> None:
    hour_ms = (BASE_MS // MS_PER_HOUR + 1) * MS_PER_HOUR
    left_s = (hour_ms - house.auditor.state.at_ms) / 1000
    house.loop.spin(left_s - 10)
    house.operate(lambda state, at_ms: [ledger.Tick(at_ms=at_ms)])
    house.loop.spin(1)
    house.replicas[0].stop()
    house.loop.spin(20)
    house.lead(1)
    records = [r for g in house.auditor.groups for r in g.transitions]
    censuses = [r for r in records if isinstance(r, ledger.Census)]
    assert [c.at_ms for c in censuses] == [hour_ms]
    assert sum(row.total for row in censuses[0].rows) == 12_000_000


# --- law 11 -----------------------------------------------------------------------------------


def test_law_11_a_snapshot_keeps_who_cordoned_what_and_who_waits(house: House) -> None:
    lease(house, "one", cards=4, **BIG)
    house.cordon("n2", on=True)
    wait = {"mode": "queue", "deadline_ms": 60_000}
    assert isinstance(answer(house, ask("two", cards=2, wait=wait, **BIG)), placement.Pending)
    house.check_replay()


def test_law_11_a_lease_that_waited_and_took_what_an_older_one_left_is_restored(
    house: House,
) -> None:
    """Snapshots list leases by when they took devices, not by when they asked."""
    first = lease(house, "one", cards=3, **BIG)
    wait = {"mode": "queue", "deadline_ms": 60_000}
    waits = answer(house, ask("two", cards=4, wait=wait, **BIG))
    assert isinstance(waits, placement.Pending)
    gang = lease(house, "three", cards=1, nodes=2, priority="high", **BIG)
    house.agents["n2"].mood = "silent, not done"
    release(house, first)
    release(house, gang)
    for _ in range(3):
        house.pass_time(1)
    assert house.auditor.state.leases[waits.lease].state is State.BOUND
    assert house.auditor.state.leases[gang.lease].waiting == {"n2"}
    assert keys(gang) & {d.uuid for d in house.auditor.state.leases[waits.lease].devices}
    house.check_replay()


def test_law_11_equal_choices_fall_to_names_and_not_to_the_order_of_history(house: House) -> None:
    """n2 and n1 change places in the index; what is chosen stays."""
    house.cordon("n2", on=True)
    house.cordon("n1", on=True)
    house.loop.spin()
    house.cordon("n1", on=False)
    house.cordon("n2", on=False)
    house.loop.spin()
    house.check_replay()


def test_law_11_who_is_cancelled_while_the_ledger_stalls_is_told_so(house: House) -> None:
    """The dry run said that it would wait; it did, until its tenant took it back."""
    lease(house, "one", cards=4, **BIG)
    house.book.fates.append("full")
    wait = {"mode": "queue", "deadline_ms": 60_000}
    waits = begun(house, ask("three", cards=4, wait=wait, **BIG))
    assert not waits.done()
    replica = leader(house)
    back = placement.CancelAsk(request_id="three")
    house.start(replica, house.cancel(replica, "ml", back))
    house.loop.spin(3)
    assert waits.result().state == "cancelled"


def test_law_11_a_snapshot_keeps_what_is_known_of_a_partition_that_is_gone(house: House) -> None:
    """An earlier lease of it has ended; it lives on under the one that holds it."""
    agent = house.agents["n3"]
    whole = agent.devices
    agent.devices = (cut(whole[0], HALVES, 1), *whole[1:])
    house.report("n3")
    house.loop.spin()
    half = {"accelerator": {"partition": "half"}}
    release(house, lease(house, "one", **half))
    house.pass_time(3)
    second = lease(house, "two", **half)
    agent.devices = whole
    house.report("n3")
    house.loop.spin()
    assert second.devices[0].partition is not None
    again = restored(house.auditor.state, len(house.book.messages))
    held = again.fleet.nodes["n3"].devices[second.devices[0].uuid].partitions
    assert held is not None
    kept = held[second.devices[0].partition]
    assert (kept.profile, kept.missing) == ("half", True)
    house.check_replay()
