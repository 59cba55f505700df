"""Looks in a row: what is kept, what is told, and what a restart must not forget."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from quintal.contracts.nodes import DeviceHealth
from quintal.settings import Access
from quintal_agent import report
from quintal_agent.kmsg import KernelLog
from quintal_agent.leases import LeaseSet, bind
from quintal_agent.lookout import Lookout, OnBus
from quintal_agent.probes.probe import Event
from quintal_agent.report import ProbeState, Sighting
from tests.agent.builders import GPU, Scripted, a_device, a_lease, reading, seen, settings
from tests.agent.nvml import put_on_bus
from tests.agent.test_sources import Hand
from tests.support.wait import until

NONE = LeaseSet()


def on_watch(folder: Path, *sources: Scripted, **more: object) -> Lookout:
    own = settings(Access("nats://h:1", folder / "n1.creds", "n1"), folder)
    own.state.mkdir(exist_ok=True)
    clock = more.pop("clock", Hand())
    return Lookout(own, sources, report.Identity("n1", "boot-1"), clock, **more)  # type: ignore[arg-type]


async def test_case_i02_a_new_process_keeps_a_bad_device_bad_until_looks_pass(
    tmp_path: Path,
) -> None:
    source = Scripted(seen(a_device(health="failed", health_reason="lost")))
    first = on_watch(tmp_path, source)
    await first.start()
    await first.look(NONE)
    source.observation = seen(a_device())
    second = on_watch(tmp_path, source)
    await second.start()
    for _ in range(2):
        await second.look(NONE)
        assert second.seen.health[GPU].health is DeviceHealth.FAILED
    await second.look(NONE)
    assert second.seen.health[GPU].health is DeviceHealth.OK
    third = on_watch(tmp_path, source)
    await third.start()
    await third.look(NONE)
    assert third.seen.health[GPU].health is DeviceHealth.OK, "and well is kept too"


async def test_case_i02_a_device_that_shows_up_late_is_still_under_its_taint(
    tmp_path: Path,
) -> None:
    source = Scripted(seen(a_device(health="failed", health_reason="lost")))
    first = on_watch(tmp_path, source)
    await first.start()
    await first.look(NONE)
    source.observation = seen()
    second = on_watch(tmp_path, source)
    await second.start()
    for _ in range(5):
        await second.look(NONE)
    source.observation = seen(a_device())
    await second.look(NONE)
    assert second.seen.health[GPU].health is DeviceHealth.FAILED


async def test_case_16_a_device_taken_out_is_told_once_and_the_others_stay(tmp_path: Path) -> None:
    source = Scripted(seen(a_device(), a_device("GPU-b", index=1)))
    watch = on_watch(tmp_path, source)
    await watch.look(NONE)
    watch.news.clear()
    source.observation = seen(a_device("GPU-b", index=0))
    await watch.look(NONE)
    await watch.look(NONE)
    assert [(e.device, e.after, e.message) for e in watch.news] == [
        (GPU, DeviceHealth.UNKNOWN, "no longer there")
    ]
    assert set(watch.seen.health) == {"GPU-b"}


async def test_an_event_of_the_kernels_log_reaches_its_device_and_health(tmp_path: Path) -> None:
    source = Scripted(seen(a_device(pci_address="0000:1b:00.0")))
    happened: list[Event] = []

    def kernel() -> tuple[Event, ...]:
        now = tuple(happened)
        happened.clear()
        return now

    watch = on_watch(tmp_path, source, kernel=kernel)
    await watch.look(NONE)
    happened.append(Event("xid:79", "0000:1b:00.0", "fell off"))
    await watch.look(NONE)
    assert [(e.kind, e.code, e.device, e.boot_id) for e in watch.news] == [
        ("vendor_event", "xid:79", GPU, "boot-1"),
        ("transition", "xid:79", GPU, "boot-1"),
    ]
    for _ in range(3):
        await watch.look(NONE)
    assert watch.seen.health[GPU].health is DeviceHealth.OK, "the present state decides"


async def test_an_old_sample_is_never_said_as_a_new_one(tmp_path: Path) -> None:
    class Late(Scripted):
        async def look(self) -> Sighting:
            return Sighting(self.observation, 3.0, fresh=False)

    late = Late(seen(a_device(readings={"power_watts": reading(70.0)})))
    good = Scripted(seen(a_device("GPU-b", readings={"power_watts": reading(80.0)})))
    watch = on_watch(tmp_path, late, good)
    await watch.look(NONE)
    said = watch.telemetry(NONE, sequence=1)
    assert said.columns["power_watts"] == (70.0, 80.0)
    assert [q.value for q in said.qualities["power_watts"]] == ["stale"], "the rest is ok"


async def test_held_idle_is_a_column_only_where_something_is_held(tmp_path: Path) -> None:
    clock = Hand()
    device = a_device(busy_bytes=0, process_count=0)
    watch = on_watch(tmp_path, Scripted(seen(device)), clock=clock)
    await watch.look(NONE)
    assert "held_idle_seconds" not in watch.telemetry(NONE, sequence=1).columns
    held = bind(NONE, a_lease(), watch.raw_devices())
    assert isinstance(held, LeaseSet)
    await watch.look(held)
    clock.at_s += 700
    await watch.look(held)
    assert watch.telemetry(held, sequence=2).columns["held_idle_seconds"] == (700,)
    assert "held_idle" in {p.code for p in watch.inventory(held, sequence=3).problems}


async def test_an_inventory_tells_how_its_probes_are_doing(tmp_path: Path) -> None:
    class Told(Scripted):
        async def look(self) -> Sighting:
            state = ProbeState("nvidia", "nvml 12", 0.25, 3, 7.0)
            return Sighting(self.observation, probe=state)

    watch = on_watch(tmp_path, Told(seen(a_device())))
    await watch.look(NONE)
    inventory = watch.inventory(NONE, sequence=1)
    (probe,) = inventory.probes
    assert (probe.duration_ms, probe.failures, probe.last_good_age_ms) == (250, 3, 7_000)
    assert report.fingerprint(inventory) == report.fingerprint(
        inventory.model_copy(update={"probes": ()})
    ), "how long a look takes is no change"


async def test_the_bus_is_looked_at_before_the_vendors_are(tmp_path: Path) -> None:
    put_on_bus(tmp_path / "sys", 0)
    put_on_bus(tmp_path / "sys", 1)
    source = Scripted(seen(a_device(pci_address="0000:10:00.0")))
    watch = on_watch(tmp_path, source, bus=OnBus(str(tmp_path / "sys")))
    await watch.look(NONE)
    inventory = watch.inventory(NONE, sequence=1)
    assert [(d.uuid, d.health.value) for d in inventory.devices] == [
        (GPU, "ok"), ("n1-pci-0000:11:00.0", "failed"),
    ]  # fmt: skip
    assert "missing_from_driver" in {problem.code for problem in inventory.problems}


async def test_a_disk_that_refuses_does_not_stop_the_looks(tmp_path: Path) -> None:
    source = Scripted(seen(a_device(health="failed", health_reason="lost")))
    watch = on_watch(tmp_path, source)
    (tmp_path / "state" / "health.json").mkdir()
    await watch.look(NONE)
    assert watch.seen.health[GPU].health is DeviceHealth.FAILED


async def test_the_kernels_log_is_read_as_it_grows(tmp_path: Path) -> None:
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    kernel = KernelLog(pipe)
    kernel.open(asyncio.get_running_loop())
    writer = os.open(pipe, os.O_WRONLY)
    os.write(writer, b"6,1,1,-;nothing\n4,2,2,-;NVRM: Xid (PCI:0000:1b:00): 48, pid=1, DBE\n")
    found: list[Event] = []

    def came() -> bool:
        found.extend(kernel.take())
        return bool(found)

    await until(came)
    assert [(event.code, event.device) for event in found] == [("xid:48", "0000:1b:00.0")]
    os.close(writer)
    kernel.close()


@pytest.mark.parametrize("path", ["absent", None])
async def test_a_kernel_log_that_cannot_be_read_is_no_fault(
    tmp_path: Path, path: str | None
) -> None:
    kernel = KernelLog(tmp_path / path if path else None)
    kernel.open(asyncio.get_running_loop())
    assert kernel.take() == ()
    kernel.close()


async def test_a_frozen_energy_counter_under_power_is_stuck(tmp_path: Path) -> None:
    clock = Hand()
    device = a_device(readings={"energy_joules": reading(5.0), "power_watts": reading(300.0)})
    watch = on_watch(tmp_path, source := Scripted(seen(device)), clock=clock)
    await watch.look(NONE)
    clock.at_s += 121
    await watch.look(NONE)
    said = watch.telemetry(NONE, sequence=1)
    assert [q.value for q in said.qualities["energy_joules"]] == ["stale"]
    grown = replace(device, readings={**device.readings, "energy_joules": reading(6.0)})
    source.observation = seen(grown)
    await watch.look(NONE)
    assert "energy_joules" not in watch.telemetry(NONE, sequence=2).qualities
