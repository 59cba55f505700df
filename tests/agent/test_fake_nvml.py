"""Bad days through NVML's own calling convention: an unmodified probe, a library of our own.

The probe's child finds the fake through LD_LIBRARY_PATH alone. Green here says that layouts, order
of calls and error paths hold; it says nothing about a device.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quintal_agent import floor
from quintal_agent.probes import pci
from quintal_agent.probes.probe import Observation
from quintal_agent.sources import ChildSettings, ChildSource, GatedSource
from tests.agent import nvml
from tests.agent.nvml import State, put_on_bus
from tests.agent.test_sources import Hand

pytestmark = pytest.mark.skipif(
    nvml.COMPILER is None, reason="fake_nvml: no C compiler here to build it with"
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml.build(tmp_path_factory.mktemp("nvml"))


@asynccontextmanager
async def probing(
    state: State,
    library: Path,
    *,
    deadline_s: float = 15.0,
    clock: Hand | None = None,
    sys_root: Path | None = None,
) -> AsyncIterator[ChildSource]:
    """The nvidia probe in its child, as the agent starts it."""
    settings = ChildSettings(
        node="n1", deadline_s=deadline_s, patience_s=60, environment=state.environment(library),
        sys_root=str(sys_root or state.path.parent / "no-sys"),
    )  # fmt: skip
    source = ChildSource("nvidia", settings, clock or Hand())
    try:
        yield source
    finally:
        await source.close()


async def looked(source: ChildSource) -> Observation:
    return (await source.look()).observation


def codes(observation: Observation) -> list[str]:
    return [trouble.code for trouble in observation.troubles]


def health(observation: Observation) -> dict[int, str]:
    return {device.index: device.health for device in observation.devices}


@pytest.mark.parametrize("gpus", [1, 8, 16])
async def test_healthy_devices_are_told_whole(tmp_path: Path, library: Path, gpus: int) -> None:
    state = State(tmp_path / "state", gpus)
    async with probing(state, library) as source:
        seen = await looked(source)
        assert codes(seen) == []
        assert len(seen.devices) == gpus
        last = seen.devices[-1]
        assert last.uuid == f"GPU-00000000-0000-4000-8000-{gpus - 1:012d}"
        assert (last.pci_address, last.pci_id, last.pci_subsystem) == (
            f"0000:{0x10 + gpus - 1:02x}:00.0", "10de:2330", "10de:16c1",
        )  # fmt: skip
        assert last.memory_bytes == nvml.TOTAL
        assert last.readings["memory_reserved_bytes"].value == nvml.RESERVED
        assert last.readings["power_watts"].value == (68_180 + gpus - 1) / 1000
        assert last.readings["sm_clock_hertz"].value == 1_980_000_000
        assert last.process_count == 0
        assert seen.drivers == {"nvidia": "570.133.20"}
        assert seen.runtimes == {"cuda": "12.8"}
        assert source._child is not None
        pid = source._child.pid
        again = await looked(source)
        assert again.devices[0].readings["utilization_percent"].value == 0
        assert source._child.pid == pid, "one child for look after look"


async def test_what_the_library_does_not_know_is_unsupported_and_never_zero(
    tmp_path: Path, library: Path
) -> None:
    state = State(tmp_path / "state", 1)
    state.set({"gpu.0.power": None, "gpu.0.energy": None, "gpu.0.serial": None})
    async with probing(state, library) as source:
        (device,) = (await looked(source)).devices
    assert device.readings["power_watts"].quality == "unsupported"
    assert device.readings["power_watts"].value is None
    assert (device.serial, device.health) == (None, "ok")


@pytest.mark.parametrize("gpus", [1, 8, 16])
async def test_case_i03_a_device_lost_after_a_while_leaves_its_neighbours(
    tmp_path: Path, library: Path, gpus: int
) -> None:
    state = State(tmp_path / "state", gpus)
    sick = gpus // 2
    async with probing(state, library) as source:
        await looked(source)
        state.set({f"ret.gpu.{sick}": 15})
        seen = await looked(source)
    assert health(seen) == {n: "failed" if n == sick else "ok" for n in range(gpus)}
    lost = next(device for device in seen.devices if device.index == sick)
    assert (lost.health_reason, lost.serial) == ("lost", f"16500000{sick:05d}")
    assert {value.quality for value in lost.readings.values()} == {"unavailable"}
    assert codes(seen) == ["lost"]


async def test_a_device_lost_in_the_middle_of_a_look_is_lost(tmp_path: Path, library: Path) -> None:
    state = State(tmp_path / "state", 8)
    async with probing(state, library) as source:
        await looked(source)
        state.set({"ret.gpu.3": 15, "after.3": 0, "ret.nvmlDeviceGetHandleByIndex_v2.3": None})
        seen = await looked(source)
    assert health(seen)[3] == "failed"
    assert len(seen.devices) == 8


async def test_a_device_lost_at_start_is_told_by_the_bus(tmp_path: Path, library: Path) -> None:
    state = State(tmp_path / "state", 8)
    state.set({"ret.gpu.3": 15})
    for gpu in range(8):
        put_on_bus(tmp_path / "sys", gpu)
    async with probing(state, library, sys_root=tmp_path / "sys") as source:
        seen = await looked(source)
    assert len(seen.devices) == 7
    there = floor.accelerators(pci.scan(tmp_path / "sys"))
    (whole,) = floor.laid([seen], there)
    bare = whole.devices[-1]
    assert len(whole.devices) == 8
    assert (bare.pci_address, bare.health_reason) == ("0000:13:00.0", "missing_from_driver")
    assert "missing_from_driver" in codes(whole)


async def test_all_devices_lost_is_not_no_device(tmp_path: Path, library: Path) -> None:
    state = State(tmp_path / "state", 8)
    async with probing(state, library) as source:
        await looked(source)
        state.set({f"ret.gpu.{gpu}": 15 for gpu in range(8)})
        seen = await looked(source)
    assert set(health(seen).values()) == {"failed"}
    assert len(seen.devices) == 8


async def test_a_device_that_wants_a_reset_has_failed(tmp_path: Path, library: Path) -> None:
    state = State(tmp_path / "state", 2)
    state.set({"ret.nvmlDeviceGetUtilizationRates.1": 16, "ret.nvmlDeviceGetTemperature.1": 16})
    async with probing(state, library) as source:
        seen = await looked(source)
    assert health(seen) == {0: "ok", 1: "failed"}
    assert seen.devices[1].health_reason == "reset required"


async def test_a_mismatch_names_both_versions_and_the_bus_keeps_the_devices(
    tmp_path: Path, library: Path
) -> None:
    state = State(tmp_path / "state", 8, init=18)
    version = tmp_path / "sys/module/nvidia"
    version.mkdir(parents=True)
    (version / "version").write_text("570.133.20\n")
    for gpu in range(8):
        put_on_bus(tmp_path / "sys", gpu)
    async with probing(state, library, sys_root=tmp_path / "sys") as source:
        seen = await looked(source)
    (whole,) = floor.laid([seen], floor.accelerators(pci.scan(tmp_path / "sys")))
    assert codes(whole) == ["driver_mismatch"]
    assert "570.133.20" in whole.troubles[0].message
    assert len(whole.devices) == 8
    assert {device.health_reason for device in whole.devices} == {"driver_mismatch"}


@pytest.mark.parametrize("gpus", [1, 8])
async def test_a_driver_that_comes_later_is_found_whole(
    tmp_path: Path, library: Path, gpus: int
) -> None:
    state, clock = State(tmp_path / "state", gpus, init=9), Hand()
    async with probing(state, library, clock=clock) as source:
        assert codes(await looked(source)) == ["no_driver"]
        state.set(init=0)
        clock.at_s += 60
        seen = await looked(source)
        assert len(seen.devices) == gpus
        assert seen.devices[0].readings["power_watts"].quality == "ok"


async def test_a_library_that_comes_later_is_loaded(tmp_path: Path, library: Path) -> None:
    state, clock = State(tmp_path / "state", 1), Hand()
    empty = tmp_path / "lib"
    empty.mkdir()
    async with probing(state, empty, clock=clock) as source:
        assert codes(await looked(source)) == ["no_library"]
        shutil.copy(library / "libnvidia-ml.so.1", empty)
        clock.at_s += 60
        assert len((await looked(source)).devices) == 1


async def test_a_library_that_is_a_directory_is_no_crash(tmp_path: Path) -> None:
    state = State(tmp_path / "state", 1)
    (tmp_path / "lib" / "libnvidia-ml.so.1").mkdir(parents=True)
    async with probing(state, tmp_path / "lib") as source:
        assert codes(await looked(source)) == ["no_library"]


@pytest.mark.parametrize("symbol", ["nvmlInitWithFlags", "nvmlDeviceGetPowerUsage"])
async def test_a_hang_is_ended_at_the_deadline(tmp_path: Path, library: Path, symbol: str) -> None:
    state, clock = State(tmp_path / "state", 1), Hand()
    state.set({f"hang.{symbol}": 1})
    async with probing(state, library, clock=clock, deadline_s=1.5) as source:
        assert codes(await looked(source)) == ["probe_timeout"]
        assert source._child is None
        state.set({f"hang.{symbol}": None})
        clock.at_s += 60
        assert len((await looked(source)).devices) == 1


async def test_a_crash_inside_the_library_is_the_childs_alone(
    tmp_path: Path, library: Path
) -> None:
    state, clock = State(tmp_path / "state", 2), Hand()
    async with probing(state, library, clock=clock) as source:
        await looked(source)
        state.set({"crash.nvmlDeviceGetComputeRunningProcesses_v3": 1})
        seen = await source.look()
        assert codes(seen.observation) == ["probe_crashed"]
        assert not seen.fresh
        assert len(seen.observation.devices) == 2, "the last good look stands"
        state.set({"crash.nvmlDeviceGetComputeRunningProcesses_v3": None})
        clock.at_s += 60
        after = await source.look()
        assert (after.fresh, codes(after.observation)) == (True, [])
        assert source.failures == 1


async def test_a_slow_library_is_waited_for_beside_the_looks(tmp_path: Path, library: Path) -> None:
    state = State(tmp_path / "state", 1)
    state.set({"slow.nvmlDeviceGetCount_v2": 1_500})
    settings = ChildSettings(
        node="n1", deadline_s=15, patience_s=0.2, environment=state.environment(library),
        sys_root=str(tmp_path),
    )  # fmt: skip
    source = ChildSource("nvidia", settings, Hand())
    first = await source.look()
    assert codes(first.observation) == ["probe_timeout"]
    assert source._asking is not None
    await source._asking
    assert len((await source.look()).observation.devices) == 1
    await source.close()


async def test_a_symbol_that_is_missing_costs_its_field(tmp_path: Path) -> None:
    missing = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTotalEnergyConsumption")
    older = nvml.build(tmp_path / "lib", without=missing)
    state = State(tmp_path / "state", 2)
    async with probing(state, older) as source:
        seen = await looked(source)
    assert health(seen) == {0: "ok", 1: "ok"}
    readings = seen.devices[0].readings
    assert readings["energy_joules"].quality == "unsupported"
    assert readings["memory_used_bytes"].value == nvml.RESERVED, "the older accounting"
    assert "memory_reserved_bytes" not in readings


async def test_a_call_that_is_refused_costs_its_field(tmp_path: Path, library: Path) -> None:
    state = State(tmp_path / "state", 2)
    state.set({"ret.nvmlDeviceGetPowerUsage": 4})
    async with probing(state, library) as source:
        seen = await looked(source)
    assert {d.readings["power_watts"].quality for d in seen.devices} == {"unavailable"}
    assert set(health(seen).values()) == {"ok"}


async def test_no_device_is_a_state_of_its_own(tmp_path: Path, library: Path) -> None:
    async with probing(State(tmp_path / "state", 0), library) as source:
        assert codes(await looked(source)) == ["no_device"]


async def test_case_d_partitions_come_and_go_while_it_runs(tmp_path: Path, library: Path) -> None:
    state = State(tmp_path / "state", 8)
    async with probing(state, library) as source:
        assert (await looked(source)).devices[2].partitions == ()
        state.set(
            {
                "gpu.2.mig_mode": 1, "gpu.2.mig_max": 7, "gpu.2.utilization": None,
                "gpu.2.mig.0.uuid": "MIG-a", "gpu.2.mig.0.gi": 1, "gpu.2.mig.0.total": 10 * 2**30,
                "gpu.2.mig.0.name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
                "gpu.2.mig.3.uuid": "MIG-b", "gpu.2.mig.3.gi": 5, "gpu.2.mig.3.total": 20 * 2**30,
                "gpu.2.mig.3.name": "NVIDIA H100 80GB HBM3 MIG 2g.20gb",
            }
        )  # fmt: skip
        split = (await looked(source)).devices[2]
        assert [part.uuid for part in split.partitions] == ["MIG-a", "MIG-b"]
        assert split.readings["utilization_percent"].quality == "unsupported"
        # the same instance number, made anew: another partition
        state.set({"gpu.2.mig.0.uuid": "MIG-c"})
        anew = (await looked(source)).devices[2]
        assert [part.uuid for part in anew.partitions] == ["MIG-c", "MIG-b"]
        state.set({"gpu.2.mig_mode": 0, "gpu.2.utilization": 0})
        assert (await looked(source)).devices[2].partitions == ()


async def test_a_device_taken_out_and_put_back_elsewhere_is_the_same_one(
    tmp_path: Path, library: Path
) -> None:
    state = State(tmp_path / "state", 4)
    async with probing(state, library) as source:
        before = [device.uuid for device in (await looked(source)).devices]
        for index, was in ((1, 2), (2, 3)):  # 1 is gone: the indices behind it shift
            state.put_gpu(index, like=was)
        state.set(count=3)
        shifted = await looked(source)
        assert [device.uuid for device in shifted.devices] == [before[0], before[2], before[3]]
        assert codes(shifted) == []
        state.put_gpu(3, like=1)
        state.set(count=4)
        back = await looked(source)
        assert [device.uuid for device in back.devices][3] == before[1]


async def test_a_device_lost_where_another_was_last_seen_takes_nothing_of_that_one(
    tmp_path: Path, library: Path
) -> None:
    state = State(tmp_path / "state", 4)
    async with probing(state, library) as source:
        before = [device.uuid for device in (await looked(source)).devices]
        for index, was in ((1, 2), (2, 3)):  # 1 is gone: 3 is now at 2
            state.put_gpu(index, like=was)
        state.set({"ret.gpu.3": 15})  # and what stands at 3 now cannot be read
        seen = await looked(source)
    assert [(device.uuid, device.health) for device in seen.devices] == [
        (before[0], "ok"), (before[2], "ok"), (before[3], "ok"),
    ]  # fmt: skip
    assert [(trouble.code, trouble.device) for trouble in seen.troubles] == [("lost", "")]


async def test_two_devices_with_one_uuid_are_both_kept(tmp_path: Path, library: Path) -> None:
    from quintal_agent import report

    state = State(tmp_path / "state", 2)
    state.set({"gpu.1.uuid": state.keys["gpu.0.uuid"]})
    async with probing(state, library) as source:
        seen = await looked(source)
    assert [device.uuid for device in report.devices_of([seen], "n1")] == [
        "n1-pci-0000:10:00.0", "n1-pci-0000:11:00.0",
    ]  # fmt: skip
    assert [problem.code for problem in report.duplicates([seen])] == ["duplicate_device"]


async def test_a_counter_that_was_reset_begins_anew(tmp_path: Path, library: Path) -> None:
    from quintal_agent import readings

    state = State(tmp_path / "state", 1)
    async with probing(state, library) as source:
        first = readings.settle_epochs({}, (await looked(source)).devices, at_ms=1)
        state.set({"gpu.0.energy": 5})
        second = readings.settle_epochs(first, (await looked(source)).devices, at_ms=2)
    (epoch,) = second.values()
    assert (epoch.began_ms, epoch.value) == (2, 0.005)


async def test_a_burst_of_xids_is_read_once(tmp_path: Path, library: Path) -> None:
    state = State(tmp_path / "state", 8)
    async with probing(state, library) as source:
        assert (await looked(source)).events == ()
        state.set({f"xid.{n}": "3:31" for n in range(40)} | {"xid.40": "5:79"})
        said = (await looked(source)).events
        assert [event.code for event in said] == ["xid:31"] * 40 + ["xid:79"]
        assert said[-1].device == "GPU-00000000-0000-4000-8000-000000000005"
        assert (await looked(source)).events == ()


async def test_case_14_a_device_without_events_is_as_healthy_as_any(
    tmp_path: Path, library: Path
) -> None:
    state = State(tmp_path / "state", 2)
    state.set({"gpu.1.event_types": None, "xid.0": "0:79"})
    async with probing(state, library) as source:
        seen = await looked(source)
        assert set(health(seen).values()) == {"ok"}
        assert [event.code for event in seen.events] == ["xid:79"]


def unsupported(state: State) -> None:
    state.set({"ret.nvmlDeviceGetMemoryInfo": 3, "ret.nvmlDeviceGetMemoryInfo_v2": 3})


def zeros(state: State) -> None:
    state.set({"gpu.0.total": 0, "gpu.0.reserved": 0})


def the_hosts(state: State) -> None:
    state.set({"gpu.0.total": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")})


@pytest.mark.parametrize("told", [unsupported, zeros, the_hosts])
async def test_unified_memory_is_one_record_however_it_is_told(
    tmp_path: Path, library: Path, told: Callable[[State], None]
) -> None:
    state = State(tmp_path / "state", 1)
    state.put_gpu(0, name="NVIDIA GB10", pci="0000000F:01:00.0")
    told(state)
    async with probing(state, library) as source:
        (device,) = (await looked(source)).devices
    assert device.memory_kind == "unified"
    assert device.memory_bytes
    assert device.readings["memory_used_bytes"].value is None
    assert device.pci_address == "000f:01:00.0"


async def test_a_struct_of_another_layout_is_not_believed(tmp_path: Path, library: Path) -> None:
    state = State(tmp_path / "state", 2)
    state.set({"gpu.1.processes": f"{2**31}:4096"})
    async with probing(state, library) as source:
        seen = await looked(source)
    assert codes(seen) == ["abi_suspect"]
    assert (seen.devices[0].process_count, seen.devices[1].process_count) == (0, None)
    state.set({"gpu.1.processes": f"100:{nvml.TOTAL * 2}"})
    async with probing(state, library) as source:
        assert codes(await looked(source)) == ["abi_suspect"]


async def test_a_sleeping_device_is_not_opened(tmp_path: Path, library: Path) -> None:
    state = State(tmp_path / "state", 3)
    for gpu in range(3):
        put_on_bus(tmp_path / "sys", gpu)
    async with probing(state, library, sys_root=tmp_path / "sys") as source:
        awake = await looked(source)
        put_on_bus(tmp_path / "sys", 1, suspended=True)
        state.set({"ret.gpu.1": 15})
        seen = await looked(source)
    by_address = {device.pci_address: device for device in seen.devices}
    sleeper = by_address["0000:11:00.0"]
    assert len(seen.devices) == 3
    assert (sleeper.health, sleeper.health_reason) == ("ok", "asleep"), "an open one would be lost"
    assert sleeper.uuid == awake.devices[1].uuid
    assert {value.quality for value in sleeper.readings.values()} == {"unavailable"}
    assert by_address["0000:12:00.0"].readings["power_watts"].quality == "ok"


async def test_a_probe_whose_devices_all_sleep_is_not_asked(tmp_path: Path, library: Path) -> None:
    state = State(tmp_path / "state", 1)
    put_on_bus(tmp_path / "sys", 0)

    def on_bus() -> dict[str, tuple[pci.Function, ...]]:
        return floor.accelerators(pci.scan(tmp_path / "sys"))

    async with probing(state, library, sys_root=tmp_path / "sys") as source:
        gated = GatedSource(source, on_bus)
        await gated.look()
        put_on_bus(tmp_path / "sys", 0, suspended=True)
        state.set({"crash.nvmlDeviceGetCount_v2": 1})
        seen = (await gated.look()).observation
        assert [device.health_reason for device in seen.devices] == ["asleep"]
        assert source.failures == 0
        put_on_bus(tmp_path / "sys", 0)
        state.set({"crash.nvmlDeviceGetCount_v2": None})
        assert (await gated.look()).observation.devices[0].health_reason == ""
