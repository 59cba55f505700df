"""The rules that hold for every vendor's output, one test or more per rule.

Each is kept by a mutant in `tests/mutants/probe-rule-*.patch` or was broken once by hand.
"""

from __future__ import annotations

import json

import pytest

from quintal_agent.document import document
from quintal_agent.probes import captured, values
from quintal_agent.probes.probe import Device, Observation
from quintal_agent.probes.table import READABLE, read_capture
from quintal_agent.readings import settle_epochs

NOT_NUMBERS = [
    "N/A", "[N/A]", "[Not Supported]", "NA", "-", "None", "null", "", "n/a (Secondary die)",
    "Requested functionality has been deprecated", "[Function Not Found]",
    "Insufficient Permissions", "GPU is lost", "[GPU is lost]", "ERR!", "[Unknown Error]",
    "[GPU requires reset]", "Not Available(3)", "warming up", "1.2.3", "0x1f", "\u221e",
]  # fmt: skip

SENTINELS = [
    ("power_watts", "65535 W"),
    ("power_watts", "65535"),
    ("temperature_celsius", "65535 C"),
    ("temperature_celsius", "4294967295"),
    ("temperature_celsius", "0 C"),
    ("power_watts", "0.0"),
    ("energy_joules", "0.0 J"),
    ("utilization_percent", "4294967295 %"),
    ("utilization_percent", "65535"),
    ("utilization_percent", "1.4e16 %"),
    ("memory_used_bytes", "18446744073709551615 B"),
    ("memory_used_bytes", "4294967295 MB"),
    ("sm_clock_hertz", "65535 MHz"),
    ("pcie_replay_count", "18446744073709551615"),
]


def read(text: str) -> Observation:
    return read_capture(text.encode())


def two_rocm_cards(**card: str) -> str:
    good = {"GPU use (%)": "5", "PCI Bus": "0000:07:00.0"}
    return json.dumps({"card0": {**good, **card}, "card1": {**good, "PCI Bus": "0000:08:00.0"}})


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_rule_1_a_word_is_no_number_and_keeps_its_text(text: str) -> None:
    value = values.read("utilization_percent", text)
    assert value.value is None
    assert value.quality in {"unsupported", "unavailable"}
    assert value.raw == text.strip()


def test_rule_1_zero_is_a_value_and_what_is_not_printed_is_not_asked() -> None:
    (device, _) = read(two_rocm_cards(**{"GPU use (%)": "0"})).devices
    assert device.readings["utilization_percent"].value == 0
    assert "power_watts" not in device.readings


@pytest.mark.parametrize(("name", "text"), SENTINELS)
def test_rule_2_a_number_that_cannot_be_is_dropped_and_not_clamped(name: str, text: str) -> None:
    value = values.read(name, text)
    assert (value.value, value.quality, value.raw) == (None, "out_of_range", text)


def test_rule_2_the_largest_sixteen_bit_number_may_be_a_size() -> None:
    assert values.read("memory_used_bytes", "65535 MiB").value == 65535 * 2**20


def test_rule_3_no_number_of_a_package_stands_on_two_devices() -> None:
    rows = [
        {"gpu": n, "bdf": f"0000:09:00.{n}", "power": {"socket_power": {"value": 9, "unit": "W"}}}
        for n in range(3)
    ]
    drawn = [d.readings["power_watts"].value for d in read(json.dumps(rows)).devices if d.readings]
    assert drawn == [9]


@pytest.mark.parametrize(
    "uuid", ["00000000-0000-0000-0000-000000000000", "N/A", "", None, "<redacted>", "GPU-000"]
)
def test_rule_4_what_names_nothing_is_no_identity(uuid: str | None) -> None:
    assert captured.identity(uuid=uuid, at="0000:09:00.0", index=4) == "pci-0000:09:00.0"
    assert captured.identity(uuid=uuid, at="0000:09:00.0", serial="7") == "pci-0000:09:00.0-7"


def test_rule_4_a_device_keeps_its_name_where_the_indices_shift() -> None:
    before = read(two_rocm_cards()).devices
    text = two_rocm_cards().replace('"card0"', '"gone"').replace('"card1"', '"card0"')
    (after,) = read(text).devices
    assert (after.index, after.uuid) == (0, before[1].uuid)


def test_rule_4_a_uuid_that_two_devices_bear_names_neither() -> None:
    text = "index, uuid, pci.bus_id\n0, GPU-7, 00000000:01:00.0\n1, GPU-7, 00000000:02:00.0\n"
    assert [d.uuid for d in read(text).devices] == ["pci-0000:01:00.0", "pci-0000:02:00.0"]


def test_rule_5_an_accumulator_is_no_utilization() -> None:
    device = read(two_rocm_cards(**{"GFX Activity": "99"})).devices[0]
    assert device.readings["utilization_percent"].value == 5


def test_rule_5_a_counter_that_falls_begins_an_epoch() -> None:
    def at(joules: float) -> tuple[Device, ...]:
        reading = values.read("energy_joules", f"{joules} J")
        return (Device("a", 0, "nvidia", "", readings={"energy_joules": reading}),)

    first = settle_epochs({}, at(900.0), at_ms=1)
    grown = settle_epochs(first, at(950.0), at_ms=2)
    fallen = settle_epochs(grown, at(3.0), at_ms=3)
    assert (grown["a"].began_ms, fallen["a"].began_ms) == (1, 3)


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("49120MiB", "", 49120 * 2**20),
        ("512Mib", "", 512 * 2**20),
        ("1 MB", "", 10**6),
        ("1 GB", "", 10**9),
        ("7", "MiB", 7 * 2**20),
        ("7 GiB", "MiB", 7 * 2**30),
        ("7", "", 7),
    ],
)
def test_rule_6_the_unit_is_the_cells_or_else_the_headers(
    text: str, unit: str, number: int
) -> None:
    assert values.read("memory_used_bytes", text, unit).value == number


def test_rule_6_a_unit_that_nobody_knows_is_no_unit() -> None:
    assert values.read("power_watts", "7 hp").quality == "unavailable"


@pytest.mark.parametrize("order", [("power.draw [W]", "utilization.gpu [%]"), None])
def test_rule_7_columns_are_found_by_their_headers(order: tuple[str, str] | None) -> None:
    heads = order or ("utilization.gpu [%]", "power.draw [W]")
    cells = ("71 W", "4 %") if order else ("4 %", "71 W")
    text = f"uuid, {heads[0]}, {heads[1]}\nGPU-1, {cells[0]}, {cells[1]}\n"
    (device,) = read(text).devices
    assert device.readings["power_watts"].value == 71
    assert device.readings["utilization_percent"].value == 4


def test_rule_7_a_layout_that_nobody_knows_is_named_and_its_text_kept() -> None:
    text = "| MX-SMI 9.9 |\n| a new layout altogether |\n"
    seen = read(text)
    (trouble,) = seen.troubles
    assert (seen.devices, trouble.code, trouble.raw) == ((), "unparsed", text)
    assert document(seen)["problems"][0]["raw"] == text


def test_rule_8_one_bad_field_removes_no_device_and_one_bad_device_no_other() -> None:
    text = two_rocm_cards(**{"GPU use (%)": "ERR!", "VRAM Total Memory (B)": "lots"})
    bad, good = read(text).devices
    assert bad.readings["utilization_percent"].quality == "unavailable"
    assert good.readings["utilization_percent"].value == 5


def test_rule_8_an_entry_that_is_no_device_is_passed_over() -> None:
    text = json.dumps({"device_info": [None, 7, {"board_info": {"bus_id": "0000:01:00.0"}}]})
    assert len(read(text).devices) == 1


def test_rule_10_escape_codes_and_a_banner_change_nothing() -> None:
    plain = read(two_rocm_cards())
    dressed = "\x1b[1mWARNING: be quiet\x1b[0m\r\n" + two_rocm_cards().replace("{", "{\x1b[0m", 1)
    assert read(dressed).devices == plain.devices


def test_rule_11_a_tool_is_told_by_what_it_prints() -> None:
    ixsmi = "| IX-ML: 3.0 Driver Version: 3.0 CUDA Version: N/A |\n+-+\n"
    table = (
        "| GPU Name | Bus-Id | Clock-SM Clock-Mem |\n"
        "| Fan Temp Perf Pwr:Usage/Cap | Memory-Usage | GPU-Util Compute M. |\n|==|\n"
        "| 0 BI-V100 | 00000000:14:00.0 | 1500MHz 1200MHz |\n"
        "| 0% 31C P0 54W / 250W | 513MiB / 32768MiB | 0% Default |\n+-+\n"
    )
    assert read(ixsmi + table).vendor == "iluvatar"
    nvidia = "| NVIDIA-SMI 590 Driver Version: 590 |\n+-+\n" + table
    assert read(nvidia).vendor == "nvidia"


def test_rule_12_no_device_is_said_with_a_reason() -> None:
    seen = read('{"card_list": {}, "device_info": []}')
    assert (seen.devices, [t.code for t in seen.troubles]) == ((), ["no_device"])


@pytest.mark.parametrize("vendor", READABLE)
def test_another_vendors_text_is_refused_by_the_vendor_that_was_named(vendor: str) -> None:
    with pytest.raises(ValueError, match=f"no output of {vendor}'s tools"):
        read_capture(b"buy milk", vendor)


@pytest.mark.parametrize("alias", ["ascend", "habana", "neuron", "tpu"])
def test_a_vendor_answers_to_the_name_that_people_know(alias: str) -> None:
    with pytest.raises(ValueError, match="no output of"):
        read_capture(b"buy milk", alias)
