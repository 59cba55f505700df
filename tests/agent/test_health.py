"""Health over looks, restarts and events; and what a vendor's event makes of its device."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintal.contracts.nodes import DeviceHealth
from quintal_agent import events, health
from quintal_agent.health import Fault, Settled
from quintal_agent.probes.probe import Device, Event
from quintal_agent.state import HealthFile
from tests.agent.builders import GPU, a_device

OK, FAILED = DeviceHealth.OK, DeviceHealth.FAILED
GOOD = (a_device(),)
LOST = (a_device(health="failed", health_reason="lost"),)
DOUBT = (a_device(health="failed", health_reason="unreadable: unknown error"),)


def after(*looks: tuple[Device, ...], known: dict[str, Settled] | None = None) -> DeviceHealth:
    state = known or {}
    for devices in looks:
        state = health.settle_health(state, devices)
    return state[GPU].health


def test_what_the_device_itself_says_is_believed_at_once() -> None:
    assert after(GOOD, LOST) is FAILED


def test_one_doubt_is_not_a_fault_and_two_in_a_row_are() -> None:
    assert after(GOOD, DOUBT) is OK
    assert after(GOOD, DOUBT, GOOD, DOUBT) is OK
    assert after(GOOD, DOUBT, DOUBT) is FAILED


def test_a_doubt_at_first_sight_is_no_health() -> None:
    assert after(DOUBT) is FAILED


def test_case_i01_a_device_comes_back_after_clean_looks() -> None:
    assert after(GOOD, LOST, GOOD, GOOD) is FAILED
    assert after(GOOD, LOST, GOOD, GOOD, GOOD) is OK
    assert after(GOOD, LOST, GOOD, GOOD, LOST, GOOD, GOOD) is FAILED


def test_case_i02_a_restart_makes_no_bad_device_well(tmp_path: Path) -> None:
    file = HealthFile(tmp_path)
    file.save({GPU: Settled(FAILED, "lost"), "GPU-b": Settled(OK)})
    kept = HealthFile(tmp_path).load()
    assert kept == {GPU: Settled(FAILED, "lost")}
    assert after(GOOD, known=kept) is FAILED
    assert after(GOOD, GOOD, GOOD, known=kept) is OK


def test_case_i02_a_bad_device_that_is_not_there_yet_is_remembered() -> None:
    kept = {GPU: Settled(FAILED, "lost"), "GPU-b": Settled(OK)}
    assert health.taints(kept, ()) == {GPU: kept[GPU]}
    assert health.taints(kept, GOOD) == {}


@pytest.mark.parametrize("content", [b"", b"\0", b"[]", b'{"unhealthy": {"a": 1}}'])
def test_a_damaged_file_of_health_is_an_empty_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "health.json").write_bytes(content)
    assert HealthFile(tmp_path).load() == {}


def test_case_15_an_applications_xid_is_told_and_changes_nothing() -> None:
    for code in (13, 31, 43, 45, 68, 109):
        assert events.faults([Event(f"xid:{code}", GPU)], events.CLASSES) == {}


def test_case_12_an_event_of_an_unhealthy_class_fails_its_device_until_looks_pass() -> None:
    found = events.faults([Event("xid:79", GPU)], events.CLASSES)
    assert found == {GPU: Fault(FAILED, "xid:79")}
    state = health.settle_health({GPU: Settled(OK)}, GOOD, found)
    assert state[GPU] == Settled(FAILED, "xid:79")
    assert after(GOOD, GOOD, GOOD, known=state) is OK


def test_the_worse_of_two_events_holds_and_the_present_state_over_both() -> None:
    both = [Event("xid:79", GPU), Event("xid:63", GPU)]
    assert events.faults(both, events.CLASSES)[GPU].health is FAILED
    assert events.faults(both[::-1], events.CLASSES)[GPU].health is FAILED
    found = events.faults(both, events.CLASSES)
    assert health.settle_health({}, LOST, found)[GPU].reason == "lost"


def test_the_classes_are_a_setting() -> None:
    classes = {**events.CLASSES, "xid:79": "note", "xid:31": "degraded"}
    assert events.faults([Event("xid:79", GPU)], classes) == {}  # type: ignore[arg-type]
    found = events.faults([Event("xid:31", GPU)], classes)  # type: ignore[arg-type]
    assert found[GPU].health is DeviceHealth.DEGRADED


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:1b:00): 79, pid=0, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:1B:00): 79, pid='<unknown>', name=<unknown>, gone",
        "[  12.345678] NVRM: Xid (PCI:0000:1b:00): 79, gone",
        "4,812,99182,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, name=python, gone",
    ],
)
def test_every_spelling_of_an_xid_finds_its_device(line: str) -> None:
    device = a_device(pci_address="0000:1b:00.0")
    (event,) = events.placed(events.in_kernel_line(line), (device,))
    assert (event.code, event.device) == ("xid:79", GPU)


def test_an_amd_memory_error_is_an_event_too() -> None:
    line = (
        "4,1,2,-;amdgpu 0000:0c:00.0: amdgpu: socket: 0, die: 0 "
        "3 uncorrectable hardware errors detected in umc block"
    )
    (event,) = events.in_kernel_line(line)
    assert (event.code, event.device) == ("ras:uncorrectable", "0000:0c:00.0")
    none = line.replace("3 uncorrectable", "0 uncorrectable")
    assert events.in_kernel_line(none) == ()


def test_any_other_line_is_no_event() -> None:
    assert events.in_kernel_line("6,1,2,-;usb 1-1: new high-speed device") == ()


def test_a_burst_is_one_event_with_its_count() -> None:
    burst = [Event("xid:31", GPU, "MMU fault")] * 40
    (event,) = events.placed(burst, GOOD)
    assert event.message == "MMU fault (40 times)"


def test_an_event_is_told_with_its_time_and_boot() -> None:
    said = events.told(Event("xid:79", GPU, "gone"), node="n1", boot_id="boot-1", at_ms=7)
    assert (said.kind, said.code, said.boot_id, said.at_ms) == (
        "vendor_event",
        "xid:79",
        "boot-1",
        7,
    )
