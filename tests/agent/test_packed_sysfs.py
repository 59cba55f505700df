"""Trees of /sys that somebody packed, and Intel's cards in one that lies open."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from quintal_agent.probes import intel_sysfs
from quintal_agent.probes.probe import Observation
from quintal_agent.probes.table import read_capture

TTAR = """\
# Archive created by ttar -C fixtures -c -f fixtures.ttar sys/
# ttar - - - -
Path: sys/class/drm/card0/device/gpu_busy_percent
Lines: 1
4
Mode: 644
# ttar - - - -
Path: sys/class/drm/card0/device/mem_info_vram_total
Lines: 1
8573157376
Mode: 644
# ttar - - - -
Path: sys/class/drm/card0/device/mem_info_vram_used
Lines: 1
1490378752EOF
Mode: 644
# ttar - - - -
Path: sys/class/drm/card0/device/unique_id
Lines: 1
0123456789abcdef
Mode: 644
"""


def test_a_tree_packed_as_text_shows_amds_card() -> None:
    (device,) = read_capture(TTAR.encode()).devices
    assert (device.vendor, device.uuid) == ("amd", "0123456789abcdef")
    assert device.memory_bytes == 8573157376
    assert device.readings["utilization_percent"].value == 4
    assert device.readings["memory_used_bytes"].value == 1490378752


def packed(files: dict[str, str], mode: str) -> Observation:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode=mode) as archive:  # type: ignore[call-overload]
        for name, said in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(said)
            archive.addfile(info, io.BytesIO(said.encode()))
    return read_capture(body.getvalue())


def test_a_packed_tree_shows_the_functions_on_its_bus() -> None:
    folder = "box/sys/devices/pci0000:00/0000:01:00.0"
    files = {
        f"{folder}/vendor": "0x10de\n",
        f"{folder}/device": "0x2236\n",
        f"{folder}/class": "0x030200\n",
        f"{folder}/numa_node": "1\n",
    }
    for mode in ("w", "w:gz", "w:bz2"):
        (device,) = packed(files, mode).devices
        assert (device.vendor, device.pci_address) == ("nvidia", "0000:01:00.0")
        assert (device.pci_id, device.numa_node, device.health) == ("10de:2236", 1, "unknown")


def test_a_tree_without_an_accelerator_is_refused_by_name() -> None:
    seen = packed({"box/sys/class/dmi/id/product_name": "Box 7\n"}, "w")
    assert [trouble.code for trouble in seen.troubles] == ["not_read"]
    assert "Box 7" in seen.troubles[0].message


def card(root: Path, number: int, at: str, driver: str, files: dict[str, str]) -> None:
    folder = root / "devices/pci0000:00" / at
    for name, said in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{said}\n")
    folder.mkdir(parents=True, exist_ok=True)
    drivers = root / "bus/pci/drivers" / driver
    drivers.mkdir(parents=True, exist_ok=True)
    (folder / "driver").symlink_to(drivers)
    drm = root / f"class/drm/card{number}"
    drm.mkdir(parents=True)
    (drm / "device").symlink_to(folder)


def test_intels_cards_are_read_and_the_processors_own_picture_is_not(tmp_path: Path) -> None:
    card(tmp_path, 0, "0000:00:02.0", "i915", {"device": "0x4680"})
    card(tmp_path, 1, "0000:03:00.0", "ast", {"device": "0x2000"})
    files = {
        "device": "0xe223",
        "numa_node": "0",
        "tile0/gt0/freq0/act_freq": "1100",
        "hwmon/hwmon2/energy1_input": "123000000",
        "hwmon/hwmon2/power1_max": "190000000",
    }
    card(tmp_path, 2, "0000:23:00.0", "xe", files)
    (device,) = intel_sysfs.observe(tmp_path)
    assert (device.uuid, device.pci_id) == ("pci-0000:23:00.0", "8086:e223")
    read = {name: value.value for name, value in device.readings.items()}
    assert read == {
        "sm_clock_hertz": 1_100_000_000,
        "energy_joules": 123,
        "power_limit_watts": 190,
    }
