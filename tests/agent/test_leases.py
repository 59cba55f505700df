"""The lease set: what a bind, an end and a whole set do, and why one is refused."""

from __future__ import annotations

from quintal.contracts.message import Refusal
from quintal.contracts.nodes import DeviceHealth, RawPartition
from quintal.errors import Code
from quintal_agent import leases
from quintal_agent.leases import Fence, LeaseSet
from tests.agent.builders import GPU, a_lease, a_raw

NODE = {GPU: a_raw(), "GPU-b": a_raw("GPU-b", index=1)}


def bound(*held: object) -> LeaseSet:
    state = LeaseSet()
    for lease in held:
        after = leases.bind(state, lease, NODE)  # type: ignore[arg-type]
        assert isinstance(after, LeaseSet), after
        state = after
    return state


def refused(state: LeaseSet, lease: object, devices: object = NODE) -> Refusal:
    after = leases.bind(state, lease, devices)  # type: ignore[arg-type]
    assert isinstance(after, Refusal), "was taken"
    return after


def test_a_bind_keeps_the_lease_and_raises_the_fence() -> None:
    state = bound(a_lease("l-1", 7))
    assert state.held == {GPU}
    assert state.fences[GPU] == Fence(newest=7, alone=7)
    assert state.version != LeaseSet().version


def test_the_same_bind_again_changes_nothing() -> None:
    state = bound(a_lease("l-1", 7))
    assert leases.bind(state, a_lease("l-1", 7), NODE) is state


def test_case_h03_the_same_token_with_other_content_is_a_conflict() -> None:
    state = bound(a_lease("l-1", 7))
    assert refused(state, a_lease("l-1", 7, "GPU-b")).code is Code.CONFLICT


def test_case_h03_an_older_token_is_refused_even_when_the_device_is_free() -> None:
    state = leases.end(bound(a_lease("l-2", 9)), "l-2", 9)
    assert isinstance(state, LeaseSet)
    refusal = refused(state, a_lease("l-1", 8))
    assert refusal.code is Code.CONFLICT
    assert refusal.details["token"] == 9


def test_an_ended_lease_does_not_come_back_with_its_delayed_bind() -> None:
    state = leases.end(bound(a_lease("l-1", 7)), "l-1", 7)
    assert isinstance(state, LeaseSet)
    assert refused(state, a_lease("l-1", 7)).details.get("ended") is True


def test_a_delayed_bind_of_a_lease_that_ended_before_it_came_is_refused() -> None:
    state = leases.end(LeaseSet(), "l-1", 7)
    assert isinstance(state, LeaseSet)
    assert refused(state, a_lease("l-1", 7, parts=100)).code is Code.CONFLICT


def test_case_h02_a_device_that_a_live_lease_holds_is_not_shared() -> None:
    refusal = refused(bound(a_lease("l-1", 7)), a_lease("l-2", 8))
    assert refusal.code is Code.CONFLICT
    assert refusal.details["lease"] == "l-1"


def test_shares_of_one_device_come_in_any_order_and_never_exceed_it() -> None:
    state = bound(a_lease("l-2", 9, parts=600_000), a_lease("l-1", 8, parts=400_000))
    assert set(state.leases) == {"l-1", "l-2"}
    assert refused(state, a_lease("l-3", 10, parts=1)).code is Code.CONFLICT


def test_a_share_must_be_newer_than_the_last_lease_that_had_the_device_alone() -> None:
    state = leases.end(bound(a_lease("l-1", 7)), "l-1", 7)
    assert isinstance(state, LeaseSet)
    assert refused(state, a_lease("l-2", 6, parts=10)).code is Code.CONFLICT


def test_case_h05_a_whole_and_its_partitions_are_never_both_held() -> None:
    parts = (RawPartition(uuid="MIG-1"), RawPartition(uuid="MIG-2"))
    node = {GPU: a_raw(partitions=parts)}
    one = leases.bind(LeaseSet(), a_lease("l-1", 1, partition="MIG-1"), node)
    assert isinstance(one, LeaseSet)
    assert refused(one, a_lease("l-2", 2), node).code is Code.CONFLICT
    two = leases.bind(one, a_lease("l-3", 3, partition="MIG-2"), node)
    assert isinstance(two, LeaseSet)
    whole = leases.bind(LeaseSet(), a_lease("l-4", 4), node)
    assert isinstance(whole, LeaseSet)
    assert refused(whole, a_lease("l-5", 5, partition="MIG-1"), node).code is Code.CONFLICT


def test_case_h04_a_device_in_foreign_use_is_refused_and_says_what_is_free() -> None:
    gib = 2**30
    node = {GPU: a_raw(memory_bytes=80 * gib, foreign_bytes=60 * gib)}
    refusal = refused(LeaseSet(), a_lease(), node)
    assert refusal.code is Code.FOREIGN_USE
    assert refusal.details["free_bytes"] == 20 * gib


def test_an_adopted_lease_takes_a_device_in_foreign_use() -> None:
    node = {GPU: a_raw(foreign_bytes=2**30)}
    assert isinstance(leases.bind(LeaseSet(), a_lease(adopted=True), node), LeaseSet)


def test_case_g10_nothing_is_bound_before_the_first_look() -> None:
    assert refused(LeaseSet(), a_lease(), None).code is Code.INVENTORY_MISSING
    assert refused(LeaseSet(), a_lease("l", 1, "GPU-z")).code is Code.INVENTORY_MISSING


def test_a_failed_device_is_not_bound() -> None:
    node = {GPU: a_raw(health=DeviceHealth.FAILED, health_reason="lost")}
    assert refused(LeaseSet(), a_lease(), node).code is Code.ADAPTER_ERROR


def test_the_end_of_an_unknown_lease_is_done() -> None:
    assert isinstance(leases.end(LeaseSet(), "l-9", 3), LeaseSet)


def test_an_end_that_is_older_than_the_bind_does_not_end_it() -> None:
    state = bound(a_lease("l-1", 7))
    assert isinstance(leases.end(state, "l-1", 6), Refusal)


def test_a_whole_set_adds_what_is_missing_and_drops_what_ended() -> None:
    state = bound(a_lease("l-1", 1, GPU))
    done = leases.replace_all(state, [a_lease("l-2", 2, "GPU-b")], ["l-1", "l-0"])
    assert set(done.leases.leases) == {"l-2"}
    assert done.released == ("l-1", "l-0")
    assert done.leases.fences["GPU-b"].newest == 2


def test_a_whole_set_drops_what_it_does_not_name() -> None:
    done = leases.replace_all(bound(a_lease("l-1", 1)), [], [])
    assert not done.leases.leases
    assert done.released == ("l-1",)


def test_a_set_that_is_older_than_a_bind_does_not_undo_it() -> None:
    state = bound(a_lease("l-1", 1))
    first = leases.replace_all(state, [], [], frozenset({"l-1"}))
    assert set(first.leases.leases) == {"l-1"}
    assert first.released == ()
    again = leases.replace_all(first.leases, [], [])
    assert not again.leases.leases


def test_a_lease_dropped_by_mistake_comes_back_with_the_next_set() -> None:
    dropped = leases.replace_all(bound(a_lease("l-1", 1)), [], [])
    back = leases.replace_all(dropped.leases, [a_lease("l-1", 1)], [])
    assert set(back.leases.leases) == {"l-1"}


def test_a_fresh_lease_gives_way_where_the_set_needs_its_device() -> None:
    state = bound(a_lease("l-1", 1))
    done = leases.replace_all(state, [a_lease("l-2", 2)], [], frozenset({"l-1"}))
    assert set(done.leases.leases) == {"l-2"}
    assert done.released == ("l-1",)


def test_case_h04_a_set_that_comes_before_the_bind_does_not_hide_foreign_use() -> None:
    early = leases.replace_all(LeaseSet(), [a_lease("l-1", 1)], []).leases
    busy = {GPU: a_raw(foreign_bytes=2**30)}
    assert refused(early, a_lease("l-1", 1), busy).code is Code.FOREIGN_USE


def test_a_deposed_placers_set_brings_nothing_back() -> None:
    state = leases.end(bound(a_lease("l-1", 1)), "l-1", 1)
    assert isinstance(state, LeaseSet)
    state = leases.bind(state, a_lease("l-2", 2), NODE)
    assert isinstance(state, LeaseSet)
    done = leases.replace_all(state, [a_lease("l-1", 1), a_lease("l-2", 2)], [])
    assert done.refused == ("l-1",)
    assert set(done.leases.leases) == {"l-2"}


def test_a_reboot_ends_every_lease_and_no_fence() -> None:
    state = leases.after_boot(bound(a_lease("l-1", 7)))
    assert not state.leases
    assert refused(state, a_lease("l-0", 7)).code is Code.CONFLICT
    assert isinstance(leases.bind(state, a_lease("l-3", 8), NODE), LeaseSet)
