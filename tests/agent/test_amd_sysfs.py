"""AMD's cards out of a tree of /sys that the test wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintal_agent.probes.amd_smi import parse
from quintal_agent.probes.amd_sysfs import AmdProbe, observe
from quintal_agent.probes.probe import Device, Observation, Value
from quintal_agent.probes.tool import ToolProbe

AT = "0000:26:00.0"

FILES = {
    "vendor": "0x1002", "device": "0x74a1", "unique_id": "a1b2c3d4e5f60718",
    "gpu_busy_percent": "37", "mem_info_vram_total": "206141652992",
    "mem_info_vram_used": "298844160", "numa_node": "1",
    "hwmon/hwmon3/power1_average": "133000000", "hwmon/hwmon3/power1_cap": "750000000",
    "hwmon/hwmon3/temp1_label": "edge", "hwmon/hwmon3/temp1_input": "35000",
    "hwmon/hwmon3/temp2_label": "junction", "hwmon/hwmon3/temp2_input": "41000",
    "hwmon/hwmon3/freq1_input": "131000000",
}  # fmt: skip


class Tool(ToolProbe):
    """A tool that says what the test wants."""

    def __init__(self, said: Observation) -> None:
        super().__init__("amd", parse, ())
        self.said = said
        self.asked = 0

    def observe(self) -> Observation:
        self.asked += 1
        return self.said


SILENT = Observation("amd", "amd-smi")


def card(root: Path, number: int, at: str, driver: str = "amdgpu", **files: str) -> Path:
    folder = root / "devices/pci0000:00" / at
    for name, said in {**FILES, **{k.replace("__", "/"): v for k, v in files.items()}}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{said}\n")
    drivers = root / "bus/pci/drivers" / driver
    drivers.mkdir(parents=True, exist_ok=True)
    (folder / "driver").symlink_to(drivers)
    bus = root / "bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / at).symlink_to(folder)
    drm = root / f"class/drm/card{number}"
    drm.mkdir(parents=True)
    (drm / "device").symlink_to(folder)
    (root / f"class/drm/card{number}-DP-1").mkdir()
    return folder


def value(device: Device, name: str) -> tuple[float | None, str]:
    reading = device.readings[name]
    return reading.value, reading.quality


def test_a_card_is_read_in_base_units(tmp_path: Path) -> None:
    card(tmp_path, 1, AT)
    (device,) = observe(tmp_path)
    assert (device.uuid, device.pci_address, device.pci_id) == ("a1b2c3d4e5f60718", AT, "1002:74a1")
    assert (device.memory_bytes, device.numa_node) == (206141652992, 1)
    assert value(device, "power_watts") == (133, "ok")
    assert value(device, "power_limit_watts") == (750, "ok")
    assert value(device, "temperature_celsius") == (35, "ok")
    assert value(device, "hotspot_temperature_celsius") == (41, "ok")
    assert value(device, "sm_clock_hertz") == (131_000_000, "ok")
    assert value(device, "memory_utilization_percent") == (None, "unsupported")


def test_the_display_of_a_management_chip_is_passed_over(tmp_path: Path) -> None:
    card(tmp_path, 0, "0000:03:00.0", driver="ast")
    card(tmp_path, 1, AT)
    assert [device.pci_address for device in observe(tmp_path)] == [AT]


def test_a_file_that_refuses_is_unavailable_and_its_neighbours_stay(tmp_path: Path) -> None:
    folder = card(tmp_path, 1, AT)
    (folder / "gpu_busy_percent").unlink()
    (folder / "gpu_busy_percent").mkdir()
    (device,) = observe(tmp_path)
    assert value(device, "utilization_percent") == (None, "unavailable")
    assert value(device, "memory_used_bytes") == (298844160, "ok")


def test_a_card_that_sleeps_is_not_woken(tmp_path: Path) -> None:
    folder = card(tmp_path, 1, AT)
    (folder / "power").mkdir()
    (folder / "power/runtime_status").write_text("suspended\n")
    (device,) = observe(tmp_path)
    assert device.health_reason == "asleep"
    assert {reading.quality for reading in device.readings.values()} == {"unavailable"}


def test_the_compute_drivers_topology_says_cores_and_architecture(tmp_path: Path) -> None:
    card(tmp_path, 1, AT)
    node = tmp_path / "class/kfd/kfd/topology/nodes/2"
    node.mkdir(parents=True)
    (node / "properties").write_text(
        "simd_count 1216\nsimd_per_cu 4\ngfx_target_version 90402\nlocation_id 9728\ndomain 0\n"
    )
    (device,) = observe(tmp_path)
    assert (device.cores, device.architecture) == (304, "gfx942")


def test_a_uuid_of_zeros_leaves_the_address(tmp_path: Path) -> None:
    card(tmp_path, 1, AT, unique_id="0000000000000000")
    assert observe(tmp_path)[0].uuid == f"pci-{AT}"


def test_what_the_tool_leaves_out_comes_from_sys_and_what_sys_lacks_from_the_tool(
    tmp_path: Path,
) -> None:
    card(tmp_path, 1, AT)
    nothing = Value(quality="unsupported", raw="N/A")
    named = Device(
        "x", 0, "amd", "MI300X", pci_address=AT,
        readings={"power_watts": nothing, "fan_percent": Value(4)},
    )  # fmt: skip
    tool = Tool(Observation("amd", "amd-smi", (named,)))
    probe = AmdProbe(sys_root=str(tmp_path), tool=tool)
    (device,) = probe.observe().devices
    assert (device.name, value(device, "power_watts")) == ("MI300X", (133, "ok"))
    assert device.readings["fan_percent"].source == "amd-smi"
    probe.observe()
    assert tool.asked == 1, "a process per look is not for free"


@pytest.mark.parametrize("said", ["gpu busy", "", "-1e999"])
def test_a_file_with_nonsense_is_no_number(tmp_path: Path, said: str) -> None:
    card(tmp_path, 1, AT, gpu_busy_percent=said)
    assert value(observe(tmp_path)[0], "utilization_percent")[0] is None


def test_no_card_is_what_the_tool_says_of_it(tmp_path: Path) -> None:
    probe = AmdProbe(sys_root=str(tmp_path), tool=Tool(SILENT))
    assert probe.observe() is SILENT


def test_case_j06_readings_need_no_tool_neither_the_hosts_nor_one_in_a_users_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are collected by the agent, from /sys: what an image has or lacks is no matter."""
    card(tmp_path, 0, AT)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    seen = AmdProbe(sys_root=str(tmp_path)).observe()
    (device,) = seen.devices
    told = {name: (value.value, value.quality) for name, value in device.readings.items()}
    assert told["utilization_percent"] == (37, "ok")
    assert told["power_watts"] == (133, "ok")
    assert told["memory_used_bytes"] == (298844160, "ok")
