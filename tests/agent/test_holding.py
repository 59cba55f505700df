"""Leases held against processes: foreign use, held for nothing, shared, gone."""

from __future__ import annotations

from quintal.contracts.nodes import SetAsk, lease_set_version
from quintal_agent import holding, leases, readings, report
from quintal_agent.leases import LeaseSet
from quintal_agent.probes.probe import Process
from tests.agent.builders import GPU, a_device, a_lease, reading, seen

GIB = 2**30
BUSY = a_device(busy_bytes=60 * GIB, process_count=1)
EMPTY = a_device(busy_bytes=0, process_count=0)
HIDDEN = a_device()


def told(*outside: object, wanted: tuple[object, ...] = ()) -> LeaseSet:
    ask = SetAsk(leases=(*outside, *wanted))  # type: ignore[arg-type]
    return leases.replace_all(LeaseSet(), ask.leases, ()).leases


def test_what_an_outside_schedulers_lease_runs_is_not_foreign() -> None:
    state = told(a_lease("l-1", 1, bind="none", adopted=True))
    assert state.held == {GPU}
    assert holding.foreign_bytes(BUSY, held=state.held, least=1) == 0
    assert holding.foreign_bytes(BUSY, held=frozenset(), least=1) == 60 * GIB


def test_a_lease_that_is_only_told_of_is_neither_bound_nor_in_the_version() -> None:
    state = told(a_lease("l-1", 5, bind="none"))
    assert state.leases == {}
    assert state.fences == {}
    assert state.version == lease_set_version({})
    assert state.outside_version == lease_set_version({"l-1": 5})
    assert told().outside_version == lease_set_version({})


def test_a_bind_beside_an_outside_lease_is_the_placers_matter() -> None:
    state = told(a_lease("l-1", 5, bind="none"))
    raw = {GPU: report.raw_device(EMPTY)}
    bound = leases.bind(state, a_lease("l-2", 6), raw)
    assert isinstance(bound, LeaseSet)
    assert set(bound.outside) == {"l-1"}


def test_a_reboot_forgets_the_leases_it_was_told_of() -> None:
    assert leases.after_boot(told(a_lease("l-1", 5, bind="none"))).outside == {}


def test_case_j10_a_lease_without_a_process_is_held_idle_since_it_was_seen() -> None:
    held = frozenset({GPU})
    since = holding.settle_idle({}, [EMPTY], held=held, at_ms=1_000)
    since = holding.settle_idle(since, [EMPTY], held=held, at_ms=61_000)
    assert since == {GPU: 1_000}
    value = holding.idle_reading(EMPTY, since, held=held, at_ms=61_000)
    assert (value.value, value.quality, value.derived) == (60, "ok", True)
    assert holding.idle_problems(since, at_ms=61_000, after_s=600) == ()
    (problem,) = holding.idle_problems(since, at_ms=700_000, after_s=600)
    assert (problem.code, problem.device) == ("held_idle", GPU)


def test_case_j10_work_ends_the_idle_time_and_an_unheld_device_has_none() -> None:
    held = frozenset({GPU})
    since = {GPU: 1_000}
    assert holding.settle_idle(since, [BUSY], held=held, at_ms=2_000) == {}
    assert holding.idle_reading(BUSY, {}, held=held, at_ms=2_000).value == 0
    assert holding.settle_idle(since, [EMPTY], held=frozenset(), at_ms=2_000) == {}
    unheld = holding.idle_reading(EMPTY, {}, held=frozenset(), at_ms=2_000)
    assert (unheld.value, unheld.quality) == (None, "unsupported")


def test_case_j10_where_processes_are_hidden_nobody_is_called_idle() -> None:
    held = frozenset({GPU})
    assert holding.settle_idle({}, [HIDDEN], held=held, at_ms=1) == {}
    assert holding.idle_reading(HIDDEN, {}, held=held, at_ms=1).quality == "unsupported"


def test_a_small_process_is_still_a_process() -> None:
    small = a_device(processes=(Process(pid=7, memory_bytes=4096),), busy_bytes=4096)
    assert holding.in_use(small) is True


def test_case_j07_a_shared_devices_number_is_told_once_and_of_the_device() -> None:
    shares = [a_lease(f"l-{n}", n + 1, parts=250_000) for n in range(4)]
    state = told(wanted=tuple(shares))
    assert len(state.leases) == 4
    device = a_device(readings={"utilization_percent": reading(99)})
    message = readings.telemetry(
        (device,), {}, node="n1", boot_id="b", sequence=1, at_ms=1, period_ms=1
    )
    assert message.devices == (GPU,)
    assert message.columns["utilization_percent"] == (99,)
    assert "l-0" not in message.model_dump_json()


def test_a_lease_whose_device_or_partition_is_gone_is_told() -> None:
    lost = a_lease("l-1", 1)
    part = a_lease("l-2", 2, "GPU-b", partition="MIG-a")
    there = {"GPU-b": frozenset({"MIG-c"})}
    assert [(p.code, p.device) for p in holding.missing([lost, part], there)] == [
        ("held_missing", GPU), ("held_missing", "GPU-b"),
    ]  # fmt: skip
    assert holding.missing([part], {"GPU-b": frozenset({"MIG-a"})}) == ()


def test_two_devices_of_one_identity_are_named_by_their_addresses() -> None:
    twins = seen(
        a_device("board-7", pci_address="0000:01:00.0"),
        a_device("board-7", index=1, pci_address="0000:02:00.0"),
        a_device("board-8", index=2, pci_address="0000:03:00.0"),
    )
    assert [device.uuid for device in report.devices_of([twins], "n1")] == [
        "n1-pci-0000:01:00.0", "n1-pci-0000:02:00.0", "board-8",
    ]  # fmt: skip
    assert [p.device for p in report.duplicates([twins])] == ["board-7"]
