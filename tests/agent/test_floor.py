"""What stands on the PCI bus, from a /sys of the test's own, held against what tools list."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintal_agent import floor
from quintal_agent.probes import pci
from quintal_agent.probes.probe import Observation, Trouble
from quintal_agent.probes.signs import has_sign
from quintal_agent.report import devices_of
from tests.agent.builders import a_device, seen
from tests.agent.nvml import put_on_bus


def on_bus(root: Path, address: str, vendor: str, class_code: str, **files: str) -> Path:
    folder = root / "bus/pci/devices" / address
    (folder / "power").mkdir(parents=True)
    body = {"vendor": f"0x{vendor}", "device": "0x1234", "class": f"0x{class_code}00"} | files
    for name, text in body.items():
        (folder / name).write_text(f"{text}\n")
    return folder


def there(root: Path) -> dict[str, tuple[pci.Function, ...]]:
    return floor.accelerators(pci.scan(root))


def test_the_bus_is_read_from_the_kernels_memory(tmp_path: Path) -> None:
    folder = put_on_bus(tmp_path, 3)
    (folder / "driver").symlink_to("../../../../bus/pci/drivers/nvidia")
    (function,) = pci.scan(tmp_path)
    assert (function.address, function.pci_id, function.subsystem) == (
        "0000:13:00.0", "10de:2330", "10de:16c1",
    )  # fmt: skip
    assert (function.class_code, function.driver, function.numa_node) == ("0302", "nvidia", 0)
    assert not function.suspended


def test_a_machine_without_pci_has_an_empty_bus(tmp_path: Path) -> None:
    assert pci.scan(tmp_path / "nowhere") == ()


@pytest.mark.parametrize(
    ("vendor", "class_code", "whose"),
    [
        ("10de", "0300", "nvidia"),
        ("10de", "0403", None),  # its sound function
        ("1002", "1200", "amd"),
        ("19e5", "1200", "huawei"),
        ("19e5", "0300", None),
        ("1a03", "0300", None),
        ("1da3", "1200", "gaudi"),
        ("8086", "0380", "intel"),
        ("8086", "0604", None),
    ],
)
def test_vendor_and_class_together_make_an_accelerator(
    tmp_path: Path, vendor: str, class_code: str, whose: str | None
) -> None:
    on_bus(tmp_path, "0000:41:00.0", vendor, class_code)
    assert set(there(tmp_path)) == ({whose} if whose else set())


def test_case_a17_a_management_controllers_display_is_noted_and_real_ones_are_kept(
    tmp_path: Path,
) -> None:
    on_bus(tmp_path, "0000:02:00.0", "19e5", "0300")
    put_on_bus(tmp_path, 0)
    functions = pci.scan(tmp_path)
    assert [note.code for note in floor.notes(functions)] == ["not_an_accelerator"]
    assert set(floor.accelerators(functions)) == {"nvidia"}


def test_the_processors_own_display_is_no_accelerator(tmp_path: Path) -> None:
    on_bus(tmp_path, "0000:00:02.0", "8086", "0300")
    on_bus(tmp_path, "0000:c1:00.0", "1002", "0300", boot_vga="1")
    on_bus(tmp_path, "0000:03:00.0", "1002", "0300", boot_vga="0")
    assert {v: [f.address for f in fs] for v, fs in there(tmp_path).items()} == {
        "amd": ["0000:03:00.0"]
    }


def test_a_virtual_function_is_not_a_device_beside_its_physical_one(tmp_path: Path) -> None:
    on_bus(tmp_path, "0000:03:00.0", "1002", "1200")
    virtual = on_bus(tmp_path, "0000:03:02.0", "1002", "1200")
    (virtual / "physfn").symlink_to("../0000:03:00.0")
    assert [f.address for f in there(tmp_path)["amd"]] == ["0000:03:00.0"]


def test_a_device_that_the_driver_leaves_out_is_told_and_kept(tmp_path: Path) -> None:
    for gpu in range(3):
        put_on_bus(tmp_path, gpu)
    listed = seen(
        a_device("GPU-0", pci_address="0000:10:00.0"),
        a_device("GPU-2", index=1, pci_address="0000:12:00.0"),
    )
    (whole,) = floor.laid([listed], there(tmp_path))
    missing = devices_of([whole], "n1")[2]
    assert (missing.uuid, missing.health, missing.health_reason) == (
        "n1-pci-0000:11:00.0", "failed", "missing_from_driver",
    )  # fmt: skip
    assert missing.pci_id == "10de:2330"
    assert missing.readings == {}
    assert [t.code for t in whole.troubles] == ["missing_from_driver"]


@pytest.mark.parametrize("code", ["no_driver", "no_library", "driver_mismatch", "no_access"])
def test_devices_on_the_bus_stay_under_the_reason_why_nobody_can_see_them(
    tmp_path: Path, code: str
) -> None:
    put_on_bus(tmp_path, 0)
    blind = Observation("nvidia", "nvml", troubles=(Trouble(code, "x"),), idle=True)
    (whole,) = floor.laid([blind], there(tmp_path))
    assert [(d.health, d.health_reason) for d in whole.devices] == [("failed", code)]
    assert [t.code for t in whole.troubles] == [code], "said once"


def test_no_device_is_not_said_where_the_bus_has_some(tmp_path: Path) -> None:
    put_on_bus(tmp_path, 0)
    none = Observation("nvidia", "nvml", troubles=(Trouble("no_device", "x"),), idle=True)
    (whole,) = floor.laid([none], there(tmp_path))
    assert [t.code for t in whole.troubles] == ["missing_from_driver"]


def test_a_vendor_nobody_looks_for_is_shown_and_not_granted(tmp_path: Path) -> None:
    on_bus(tmp_path, "0000:03:00.0", "1e52", "1200")
    cpu, extra = floor.laid([seen(a_device("cpu-n1", vendor="cpu"), vendor="cpu")], there(tmp_path))
    assert [d.vendor for d in cpu.devices] == ["cpu"]
    assert [(d.vendor, d.health, d.health_reason) for d in extra.devices] == [
        ("tenstorrent", "unknown", "no_probe")
    ]


def test_a_device_handed_to_a_guest_is_not_a_lost_one(tmp_path: Path) -> None:
    folder = put_on_bus(tmp_path, 0)
    (folder / "driver").symlink_to("../../../../bus/pci/drivers/vfio-pci")
    (whole,) = floor.laid([seen()], there(tmp_path))
    assert [(d.health, d.health_reason) for d in whole.devices] == [
        ("unknown", "passed_through: vfio-pci")
    ]


def test_a_tool_that_tells_no_addresses_is_compared_by_number(tmp_path: Path) -> None:
    for gpu in range(3):
        put_on_bus(tmp_path, gpu)
    (whole,) = floor.laid([seen(a_device("GPU-0"), a_device("GPU-1", index=1))], there(tmp_path))
    assert len(whole.devices) == 2
    assert [t.code for t in whole.troubles] == ["missing_from_driver"]
    (equal,) = floor.laid([seen(*(a_device(f"GPU-{n}") for n in range(3)))], there(tmp_path))
    assert equal.troubles == ()


def test_case_68_one_vendors_failure_stays_within_it(tmp_path: Path) -> None:
    put_on_bus(tmp_path, 0)
    on_bus(tmp_path, "0000:03:00.0", "1002", "1200")
    good = seen(a_device("GPU-0", pci_address="0000:10:00.0"))
    bad = Observation("amd", "amdsmi", troubles=(Trouble("probe_crashed", "x"),))
    nvidia, amd = floor.laid([good, bad], there(tmp_path))
    assert nvidia == good
    assert [(d.health, d.health_reason) for d in amd.devices] == [("failed", "probe_crashed")]


def test_a_sleeping_device_is_seen_on_the_bus_without_being_opened(tmp_path: Path) -> None:
    put_on_bus(tmp_path, 0, suspended=True)
    assert pci.asleep("0000:10:00.0", tmp_path)
    assert not pci.asleep("0000:11:00.0", tmp_path)
    (whole,) = floor.laid([seen()], there(tmp_path))
    assert [(d.health, d.health_reason) for d in whole.devices] == [("unknown", "asleep")]


def test_a_vendor_without_a_sign_of_life_is_not_looked_for(tmp_path: Path) -> None:
    assert not has_sign("aws", str(tmp_path))
    (tmp_path / "neuron0").touch()
    assert has_sign("aws", str(tmp_path))
    assert not has_sign("metax", str(tmp_path))
    assert has_sign("cpu", str(tmp_path))
    assert has_sign("a-third-party", str(tmp_path))
