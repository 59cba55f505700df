"""Every captured `nvidia-smi -q -x` beside the checkout: a valid document, and no number made up.

Checked against captures; a green run proves parsing and nothing about a device.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from quintal.contracts.nodes import DeviceHealth, Quality, RawDevice
from quintal_agent.document import document
from quintal_agent.probes.table import read_capture
from quintal_agent.report import raw_device

ROOT = Path(__file__).parents[3] / "shared" / "data" / "probes" / "nvidia"
CAPTURES = sorted(ROOT.glob("nvidia-smi-xml*/*.xml"))

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not CAPTURES, reason="no captures beside the checkout (../shared)"),
]

FACTORS = {
    "bytes": {"MiB": 2**20, "GiB": 2**30, "KiB": 2**10, "B": 1},
    "hertz": {"MHz": 10**6},
    "watts": {"W": 1},
    "celsius": {"C": 1},
    "percent": {"%": 1},
    "joules": {"J": 1},
}


def numbers_in(text: str, unit_word: str) -> set[float]:
    """Every number of the text with a unit of that sort, in base units; found by a plain search."""
    found = set()
    for unit, factor in FACTORS[unit_word].items():
        pattern = rf"(-?\d+(?:\.\d+)?)\s*{re.escape(unit)}\b" if unit != "%" else r"(-?\d+)\s*%"
        found |= {round(float(number) * factor, 6) for number in re.findall(pattern, text)}
    return found


def sections(text: str) -> list[str]:
    return re.findall(r"<gpu id=.*?</gpu>", text, re.DOTALL)


def read(path: Path) -> tuple[str, dict[str, Any]]:
    data = path.read_bytes()
    return data.decode(), json.loads(json.dumps(document(read_capture(data))))


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_every_capture_is_a_valid_document(path: Path) -> None:
    text, body = read(path)
    assert body["vendor"] == "nvidia"
    assert len(body["devices"]) == len(sections(text)) > 0
    for device in body["devices"]:
        assert device["uuid"]
        assert device["name"] in text
        assert device["health"] in {health.value for health in DeviceHealth}
        for reading in device["readings"].values():
            quality = Quality(reading["quality"])
            assert (reading["value"] is not None) == (quality in {Quality.OK, Quality.IMPLAUSIBLE})
    for device in read_capture(path.read_bytes()).devices:
        raw = raw_device(device)
        assert RawDevice.model_validate_json(raw.model_dump_json()) == raw


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_every_number_stands_in_its_own_devices_raw_text(path: Path) -> None:
    text, body = read(path)
    for device, section in zip(body["devices"], sections(text), strict=True):
        for name, reading in device["readings"].items():
            if reading["value"] is None or reading.get("derived"):
                continue
            unit_word = name.rpartition("_")[2]
            assert round(float(reading["value"]), 6) in numbers_in(section, unit_word), name
        sizes = [device["memory_bytes"], *(part["memory_bytes"] for part in device["partitions"])]
        for size in sizes:
            assert size is None or float(size) in numbers_in(section, "bytes")
        if device["pci_address"]:
            assert device["pci_address"] in section.lower()
        if device["serial"]:
            assert device["serial"] in section


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_readings_equal_what_a_plain_search_by_path_finds(path: Path) -> None:
    """A second way through the file, by regular expressions over the element that holds it."""
    text, body = read(path)
    paths = {
        "temperature_celsius": r"<temperature>.*?<gpu_temp>(\d+) C",
        "utilization_percent": r"<utilization>.*?<gpu_util>(\d+) %",
        "memory_used_bytes": r"</mig_devices>.*?<fb_memory_usage>.*?<used>(\d+) MiB",
        "sm_clock_hertz": r"<clocks>.*?<sm_clock>(\d+) MHz",
    }
    factors = {"memory_used_bytes": 2**20, "sm_clock_hertz": 10**6}
    for device, section in zip(body["devices"], sections(text), strict=True):
        if device["health_reason"] == "lost" or "</mig_devices>" not in section:
            continue
        for name, pattern in paths.items():
            element = re.search(pattern, section, re.DOTALL)
            expected = int(element[1]) * factors.get(name, 1) if element else None
            if name == "utilization_percent" and re.search(r"<gpu_util>N/A", section):
                expected = None
            assert device["readings"][name]["value"] == expected, name


def test_the_lost_device_is_failed_and_its_neighbour_reads_on() -> None:
    _, body = read(ROOT / "nvidia-smi-xml-mock" / "gb200-lost.xml")
    first, lost = body["devices"]
    assert first["readings"]["utilization_percent"]["value"] is not None
    assert first["health"] != "failed"
    assert (lost["health"], lost["memory_bytes"]) == ("failed", None)
    assert {reading["value"] for reading in lost["readings"].values()} == {None}
    assert {reading["quality"] for reading in lost["readings"].values()} == {"unavailable"}


def test_a_degraded_fabric_degrades_its_device_alone() -> None:
    _, body = read(ROOT / "nvidia-smi-xml-mock" / "gb200-fabric-degraded.xml")
    assert [device["health"] for device in body["devices"]] == ["ok", "degraded"]


def test_four_mig_instances_and_three_devices_not_described() -> None:
    _, body = read(ROOT / "nvidia-smi-xml" / "telegraf-a100-sxm4-v12.xml")
    (device,) = body["devices"]
    assert len(device["partitions"]) == 4
    assert len({part["uuid"] for part in device["partitions"]}) == 4
    assert [problem["code"] for problem in body["problems"]] == ["not_reported"]
    assert device["readings"]["utilization_percent"]["quality"] == "unsupported"
