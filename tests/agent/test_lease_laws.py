"""Any history of binds, ends and sets: fences never go back, no device twice, repeats are free."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from quintal.contracts.message import Refusal
from quintal.contracts.nodes import BoundLease
from quintal.units import PARTS
from quintal_agent import leases
from quintal_agent.leases import LeaseSet
from tests.agent.builders import a_lease, a_raw

UUIDS = ("GPU-a", "GPU-b", "GPU-c")
NODE = {uuid: a_raw(uuid, index=at) for at, uuid in enumerate(UUIDS)}

leases_of_any_sort = st.builds(
    lambda name, token, uuids, parts: a_lease(f"l-{name}", token, *sorted(uuids), parts=parts),
    st.integers(1, 5),
    st.integers(1, 12),
    st.sets(st.sampled_from(UUIDS), min_size=1, max_size=2),
    st.sampled_from([PARTS, PARTS, 250_000, 600_000]),
)
names = st.integers(1, 5).map(lambda n: f"l-{n}")
acts = st.one_of(
    st.tuples(st.just("bind"), leases_of_any_sort),
    st.tuples(st.just("end"), st.tuples(names, st.integers(1, 12))),
    st.tuples(st.just("boot"), st.none()),
)
histories = st.lists(acts, max_size=30)


def act(state: LeaseSet, what: str, body: object) -> LeaseSet | Refusal:
    match what, body:
        case "bind", BoundLease() as lease:
            return leases.bind(state, lease, NODE)
        case "end", (str() as name, int() as token):
            return leases.end(state, name, token)
    return leases.after_boot(state)


def over(state: LeaseSet) -> dict[str, int]:
    taken: dict[str, int] = {}
    for lease in state.leases.values():
        for device in lease.devices:
            taken[device.uuid] = taken.get(device.uuid, 0) + device.parts
    return {uuid: parts for uuid, parts in taken.items() if parts > PARTS}


@settings(max_examples=300, deadline=None)
@given(histories)
def test_fences_never_go_back_and_no_device_is_held_twice(
    history: list[tuple[str, object]],
) -> None:
    state = LeaseSet()
    for what, body in history:
        after = act(state, what, body)
        if isinstance(after, Refusal):
            continue
        for uuid, fence in state.fences.items():
            assert after.fences[uuid].newest >= fence.newest
            assert after.fences[uuid].alone >= fence.alone
        assert not over(after)
        state = after


@settings(max_examples=300, deadline=None)
@given(histories)
def test_whatever_was_done_is_done_again_without_a_change(
    history: list[tuple[str, object]],
) -> None:
    state = LeaseSet()
    for what, body in history:
        after = act(state, what, body)
        if isinstance(after, Refusal):
            continue
        again = act(after, what, body)
        assert not isinstance(again, Refusal)
        assert again == after
        state = after


@settings(max_examples=200, deadline=None)
@given(histories, st.lists(leases_of_any_sort, max_size=1), st.sets(names))
def test_no_set_of_one_lease_makes_a_device_held_twice(
    history: list[tuple[str, object]], wanted: list[BoundLease], fresh: set[str]
) -> None:
    state = LeaseSet()
    for what, body in history:
        after = act(state, what, body)
        state = state if isinstance(after, Refusal) else after
    before = {uuid: fence.newest for uuid, fence in state.fences.items()}
    done = leases.replace_all(state, wanted, [], frozenset(fresh))
    assert not over(done.leases)
    assert all(done.leases.fences[uuid].newest >= token for uuid, token in before.items())


@settings(max_examples=200, deadline=None)
@given(histories, st.lists(leases_of_any_sort, max_size=4), st.sets(names))
def test_a_set_is_equal_to_the_placers_but_for_what_it_refused(
    history: list[tuple[str, object]], wanted: list[BoundLease], ended: set[str]
) -> None:
    state = LeaseSet()
    for what, body in history:
        after = act(state, what, body)
        state = state if isinstance(after, Refusal) else after
    done = leases.replace_all(state, wanted, sorted(ended))
    names_wanted = {lease.lease for lease in wanted} - ended
    assert set(done.leases.leases) | set(done.refused) == names_wanted
    assert not ended & set(done.leases.leases)
    assert ended <= set(done.released)
    again = leases.replace_all(done.leases, wanted, sorted(ended))
    assert again.leases == done.leases


@settings(max_examples=200, deadline=None)
@given(histories)
def test_no_bind_is_taken_that_is_not_newer_than_what_had_its_device_alone(
    history: list[tuple[str, object]],
) -> None:
    state = LeaseSet()
    alone: dict[str, int] = {}
    for what, body in history:
        after = act(state, what, body)
        if isinstance(after, Refusal):
            continue
        if isinstance(body, BoundLease) and after is not state:
            for device in body.devices:
                assert body.token > alone.get(device.uuid, 0)
                if device.parts == PARTS:
                    alone[device.uuid] = body.token
        state = after
