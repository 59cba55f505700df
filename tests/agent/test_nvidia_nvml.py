"""NVML's error paths, over a fake with state: what fails, fails alone, and says why."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from quintal_agent.probes import nvidia_gpm
from quintal_agent.probes.nvidia import NvidiaProbe
from quintal_agent.probes.probe import Observation
from tests.agent.fake_nvml import FakeNvml, a_gpu


def probe(library: FakeNvml, **more: str) -> NvidiaProbe:
    return NvidiaProbe(library=library, **more)


def codes(observation: Observation) -> list[str]:
    return [trouble.code for trouble in observation.troubles]


@pytest.mark.parametrize(
    ("init", "code"),
    [
        (12, "no_library"),
        (9, "no_driver"),
        (18, "driver_mismatch"),
        (4, "no_permission"),
        (999, "no_access"),
    ],
)
def test_a_library_that_does_not_start_is_a_reason_and_a_later_try(init: int, code: str) -> None:
    seen = probe(FakeNvml(init=init)).observe()
    assert codes(seen) == [code]
    assert seen.idle
    assert seen.devices == ()


def test_a_mismatch_names_the_loaded_driver(tmp_path: Path) -> None:
    version = tmp_path / "module" / "nvidia" / "version"
    version.parent.mkdir(parents=True)
    version.write_text("570.133.20\n")
    seen = probe(FakeNvml(init=18), sys_root=str(tmp_path)).observe()
    assert "570.133.20" in seen.troubles[0].message


def test_a_driver_that_comes_later_is_found_whole() -> None:
    library = FakeNvml(a_gpu(), init=9)
    held = probe(library)
    assert codes(held.observe()) == ["no_driver"]
    library.init = 0
    assert len(held.observe().devices) == 1


def test_no_device_under_a_loaded_driver_is_a_state_of_its_own() -> None:
    assert codes(probe(FakeNvml()).observe()) == ["no_device"]


def test_a_device_is_told_in_base_units() -> None:
    held = probe(FakeNvml(a_gpu()))
    held.observe()
    seen = held.observe()
    (device,) = seen.devices
    assert (device.uuid, device.pci_address, device.pci_id) == (
        "GPU-0",
        "0000:1b:00.0",
        "10de:2330",
    )
    assert device.memory_bytes == 85_520_809_984
    assert device.readings["power_watts"].value == 68.18
    assert device.readings["energy_joules"].value == 1234.567
    assert device.readings["sm_clock_hertz"].value == 1_980_000_000
    assert device.readings["utilization_percent"].value == 12
    assert (seen.drivers, seen.runtimes) == ({"nvidia": "570.133.20"}, {"cuda": "12.8"})


def test_the_first_utilization_after_the_driver_loads_is_not_believed() -> None:
    device = probe(FakeNvml(a_gpu())).observe().devices[0]
    assert device.readings["utilization_percent"].quality == "unavailable"


def test_case_i03_one_lost_device_leaves_the_others_and_keeps_its_name() -> None:
    library = FakeNvml(*(a_gpu(at) for at in range(4)))
    held = probe(library)
    held.observe()
    library.devices[3]["lost"] = True
    seen = held.observe()
    assert [device.health for device in seen.devices] == ["ok", "ok", "ok", "failed"]
    assert seen.devices[3].uuid == "GPU-3"
    assert {r.quality for r in seen.devices[3].readings.values()} == {"unavailable"}
    assert codes(seen) == ["lost"]


def test_a_device_lost_before_it_was_ever_seen_is_only_a_problem() -> None:
    seen = probe(FakeNvml(a_gpu(0), a_gpu(1, lost=True))).observe()
    assert [device.uuid for device in seen.devices] == ["GPU-0"]
    assert codes(seen) == ["lost"]


def test_a_device_lost_between_two_calls_is_lost() -> None:
    library = FakeNvml(a_gpu())
    held = probe(library)
    held.observe()
    library.devices[0]["PowerUsage"] = pynvml.NVMLError(15)
    assert held.observe().devices[0].health_reason == "lost"


def test_a_symbol_that_an_older_library_lacks_makes_one_field_unsupported() -> None:
    library = FakeNvml(a_gpu())
    library.withheld = {"nvmlDeviceGetTotalEnergyConsumption"}
    readings = probe(library).observe().devices[0].readings
    assert readings["energy_joules"].quality == "unsupported"
    assert readings["power_watts"].quality == "ok"


def test_a_refused_field_is_unavailable_and_the_device_stays() -> None:
    library = FakeNvml(a_gpu())
    library.broken = {"nvmlDeviceGetPowerUsage": 4}
    device = probe(library).observe().devices[0]
    assert device.readings["power_watts"].quality == "unavailable"
    assert device.health == "ok"


def test_the_older_memory_call_serves_where_the_newer_is_missing() -> None:
    old = SimpleNamespace(total=16 * 2**30, used=2**30)
    library = FakeNvml(a_gpu(MemoryInfo_v2=None, MemoryInfo=old))
    assert probe(library).observe().devices[0].memory_bytes == 16 * 2**30


@pytest.mark.parametrize(
    "memory",
    [None, SimpleNamespace(total=0, used=0), SimpleNamespace(total=128 * 2**30, used=5)],
)
def test_unified_memory_is_one_record_however_the_driver_tells_it(
    tmp_path: Path, memory: SimpleNamespace | None
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:       125000000 kB\n")
    library = FakeNvml(a_gpu(Name="NVIDIA GB10", MemoryInfo_v2=memory))
    device = NvidiaProbe(library=library, root=str(tmp_path)).observe().devices[0]
    assert (device.memory_kind, device.memory_bytes) == ("unified", 125_000_000 * 1024)
    assert device.readings["memory_used_bytes"].value is None


def test_mig_instances_are_partitions_and_holes_are_passed_over() -> None:
    def mig(uuid: str, instance: int) -> dict[str, object]:
        memory = SimpleNamespace(total=2**30, used=0)
        return {
            "UUID": uuid, "GpuInstanceId": instance, "MemoryInfo": memory,
            "Name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        }  # fmt: skip

    gpu = a_gpu(
        MigMode=[1, 1], MaxMigDeviceCount=7, UtilizationRates=None,
        migs={0: mig("MIG-a", 3), 2: mig("MIG-b", 5)},
    )  # fmt: skip
    device = probe(FakeNvml(gpu)).observe().devices[0]
    assert [(p.uuid, p.profile) for p in device.partitions] == [
        ("MIG-a", "1g.10gb"), ("MIG-b", "1g.10gb"),
    ]  # fmt: skip
    assert device.readings["utilization_percent"].quality == "unsupported"


class Gpm(FakeNvml):
    """One that can sample its instances: each is as busy as `busy` says, between two samples."""

    def __init__(self, *devices: dict[str, object], busy: dict[int, float]) -> None:
        super().__init__(*devices)
        self.busy = busy
        self.alive: set[int] = set()
        self.of: dict[int, int] = {}
        self.count = 0

    def c_nvmlGpmMetricsGet_t(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0)])

    def nvmlGpmSampleAlloc(self) -> int:  # noqa: N802
        self.count += 1
        self.alive.add(self.count)
        return self.count

    def nvmlGpmSampleFree(self, sample: int) -> None:  # noqa: N802
        self.alive.remove(sample)

    def nvmlGpmMigSampleGet(self, _: object, instance: int, sample: int) -> None:  # noqa: N802
        if instance not in self.busy:
            raise pynvml.NVMLError(3)
        self.of[sample] = instance

    def nvmlGpmMetricsGet(self, asked: Any) -> None:  # noqa: N802
        first, second = self.of[asked.sample1], self.of[asked.sample2]
        assert first == second, "two samples of one instance"
        asked.metrics[0].nvmlReturn = 0
        asked.metrics[0].value = self.busy[first]


def test_the_library_takes_its_samples_as_they_are_kept() -> None:
    """The layout of the real binding: two samples, one metric."""
    asked, sample = pynvml.c_nvmlGpmMetricsGet_t(), pynvml.c_nvmlGpmSample_t()
    asked.sample1, asked.sample2 = sample, sample
    asked.version, asked.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
    asked.metrics[0].metricId = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
    assert (asked.version, asked.metrics[0].metricId) == (1, nvidia_gpm.GRAPHICS_BUSY)


def in_parts(**more: object) -> dict[str, object]:
    def mig(uuid: str, instance: int, slices: int) -> dict[str, object]:
        return {
            "UUID": uuid, "GpuInstanceId": instance, "Name": "H100 MIG x",
            "Attributes_v2": SimpleNamespace(gpuInstanceSliceCount=slices),
        }  # fmt: skip

    return a_gpu(
        MigMode=[1, 1], MaxMigDeviceCount=7, UtilizationRates=None,
        migs={0: mig("MIG-a", 3, 4), 1: mig("MIG-b", 5, 1)}, **more,
    )  # fmt: skip


def test_case_j09_under_mig_the_busy_share_comes_from_the_field_that_knows_instances() -> None:
    library = Gpm(in_parts(), busy={3: 100.0, 5: 50.0})
    looking = probe(library)
    first = looking.observe().devices[0].readings["utilization_percent"]
    assert (first.value, first.quality) == (None, "unavailable")
    second = looking.observe().devices[0].readings["utilization_percent"]
    assert second.value == pytest.approx((100 * 4 + 50) / 7, abs=0.05)
    assert (second.quality, second.derived, second.source) == ("ok", True, "gpm")
    for _ in range(3):
        looking.observe()
    assert len(library.alive) == 2, "a sample an instance is kept, the others are given back"


def test_case_j09_where_no_field_knows_instances_it_is_unsupported_and_no_zero() -> None:
    for library in (Gpm(in_parts(), busy={}), FakeNvml(in_parts())):
        looking = probe(library)
        looking.observe()
        told = looking.observe().devices[0].readings["utilization_percent"]
        assert (told.value, told.quality) == (None, "unsupported")


def test_memory_held_by_processes_is_counted_and_a_hidden_amount_is_not_a_number() -> None:
    processes = [
        SimpleNamespace(pid=10, usedGpuMemory=3 * 2**30),
        SimpleNamespace(pid=11, usedGpuMemory=None),
        SimpleNamespace(pid=12, usedGpuMemory=2**64 - 1),
    ]
    device = probe(FakeNvml(a_gpu(ComputeRunningProcesses=processes))).observe().devices[0]
    assert device.busy_bytes == 3 * 2**30


def test_processes_hidden_by_a_container_still_show_by_their_memory() -> None:
    memory = SimpleNamespace(total=80 * 2**30, reserved=2**29, used=60 * 2**30)
    device = probe(FakeNvml(a_gpu(MemoryInfo_v2=memory))).observe().devices[0]
    assert device.busy_bytes == 60 * 2**30


def test_a_device_that_wants_a_reset_has_failed() -> None:
    library = FakeNvml(a_gpu(UtilizationRates=pynvml.NVMLError(16)))
    assert probe(library).observe().devices[0].health_reason == "reset required"


def test_a_driver_that_goes_away_starts_the_search_anew() -> None:
    library = FakeNvml(a_gpu())
    held = probe(library)
    held.observe()
    library.broken = {"nvmlDeviceGetCount": 1}
    assert held.observe().idle
