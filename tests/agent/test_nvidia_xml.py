"""`nvidia-smi -q -x`, rule by rule, on small documents written for the rule."""

from __future__ import annotations

import pytest

from quintal_agent.document import document
from quintal_agent.probes import nvidia_xml
from quintal_agent.probes.probe import Device, Observation
from quintal_agent.probes.table import read_capture

GIB = 2**30
DEPRECATED = "Requested functionality has been deprecated"


def in_new_power(which: str, text: str) -> str:
    leaf = f"{which}_power_draw"
    return f"<gpu_power_readings><{leaf}>{text}</{leaf}></gpu_power_readings>"


def gpu(body: str = "", *, bus: str = "00000000:1B:00.0", uuid: str | None = "GPU-1") -> str:
    name = "" if uuid is None else f"<uuid>{uuid}</uuid>"
    return f'<gpu id="{bus}"><product_name>NVIDIA Test</product_name>{name}{body}</gpu>'


def log(*gpus: str, head: str = "", dtd: int = 12) -> bytes:
    return (
        '<?xml version="1.0" ?>'
        f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{dtd}.dtd">'
        f"<nvidia_smi_log>{head}{''.join(gpus)}</nvidia_smi_log>"
    ).encode()


def one(body: str, **more: str) -> Device:
    (device,) = nvidia_xml.parse(log(gpu(body, **more))).devices
    return device


def value(device: Device, name: str) -> tuple[float | None, str]:
    reading = device.readings[name]
    return reading.value, reading.quality


def codes(observation: Observation) -> list[str]:
    return [trouble.code for trouble in observation.troubles]


def test_a_schema_nobody_has_seen_is_read_by_its_elements() -> None:
    body = "<temperature><gpu_temp>41 C</gpu_temp></temperature>"
    (device,) = nvidia_xml.parse(log(gpu(body), dtd=99)).devices
    assert value(device, "temperature_celsius") == (41, "ok")


@pytest.mark.parametrize(
    "body",
    [
        "<power_readings><power_draw>68.18 W</power_draw></power_readings>",
        "<gpu_power_readings><power_draw> 68.18 W </power_draw></gpu_power_readings>",
        in_new_power("average", "68.18 W") + in_new_power("instant", "70.00 W"),
        in_new_power("average", "N/A") + in_new_power("instant", "68.18 W"),
    ],
)
def test_power_is_found_under_every_name_it_has_had(body: str) -> None:
    assert value(one(body), "power_watts") == (68.18, "ok")


def test_module_power_is_not_the_devices() -> None:
    body = (
        "<gpu_power_readings><average_power_draw>N/A</average_power_draw></gpu_power_readings>"
        "<module_power_readings><average_power_draw>900 W</average_power_draw>"
        "</module_power_readings>"
    )
    assert value(one(body), "power_watts") == (None, "unsupported")


@pytest.mark.parametrize("limit", ["enforced_power_limit", "power_limit"])
def test_the_power_limit_is_found_under_its_old_names(limit: str) -> None:
    body = f"<power_readings><{limit}>350.00 W</{limit}></power_readings>"
    assert value(one(body), "power_limit_watts") == (350, "ok")


@pytest.mark.parametrize(
    ("text", "quality"),
    [
        ("N/A", "unsupported"),
        ("[N/A]", "unsupported"),
        ("[Not Supported]", "unsupported"),
        ("[Function Not Found]", "unsupported"),
        ("Requested functionality has been deprecated", "unsupported"),
        ("-", "unsupported"),
        ("", "unsupported"),
        ("Insufficient Permissions", "unavailable"),
        ("ERR!", "unavailable"),
        ("[Unknown Error]", "unavailable"),
        ("[GPU requires reset]", "unavailable"),
        ("Not Available(3)", "unavailable"),
        ("some words of a later driver", "unavailable"),
    ],
)
def test_case_j01_a_word_is_never_a_number(text: str, quality: str) -> None:
    device = one(f"<utilization><gpu_util>{text}</gpu_util></utilization>")
    assert value(device, "utilization_percent") == (None, quality)


def test_case_j05_zero_is_a_value_and_absence_is_none() -> None:
    device = one("<utilization><gpu_util>0 %</gpu_util></utilization>")
    assert value(device, "utilization_percent") == (0, "ok")
    assert value(device, "memory_utilization_percent") == (None, "unsupported")


@pytest.mark.parametrize("text", ["140737488355328 %", "1.4e16 %", "4294967295 %", "-1 %"])
def test_case_j02_a_number_out_of_range_is_dropped_and_its_neighbours_stay(text: str) -> None:
    device = one(
        f"<utilization><gpu_util>{text}</gpu_util><memory_util>7 %</memory_util></utilization>"
    )
    assert value(device, "utilization_percent") == (None, "out_of_range")
    assert device.readings["utilization_percent"].raw == text
    assert value(device, "memory_utilization_percent") == (7, "ok")


def test_the_margin_to_the_limit_is_no_temperature() -> None:
    body = (
        "<temperature><gpu_temp>N/A</gpu_temp><gpu_temp_tlimit>59 C</gpu_temp_tlimit></temperature>"
    )
    device = one(body)
    assert value(device, "temperature_celsius") == (None, "unsupported")
    assert all(reading.value != 59 for reading in device.readings.values())


def test_units_come_from_the_text() -> None:
    body = (
        "<fb_memory_usage><total>80 GiB</total><used>512 MiB</used></fb_memory_usage>"
        "<clocks><sm_clock>1980 MHz</sm_clock></clocks>"
    )
    device = one(body)
    assert device.memory_bytes == 80 * GIB
    assert value(device, "memory_used_bytes") == (512 * 2**20, "ok")
    assert value(device, "sm_clock_hertz") == (1_980_000_000, "ok")


LOST = (
    "<fb_memory_usage><total>GPU is lost</total><used>GPU is lost</used></fb_memory_usage>"
    "<utilization><gpu_util>GPU is lost</gpu_util></utilization>"
    "<temperature><gpu_temp>GPU is lost</gpu_temp><memory_temp>34 C</memory_temp></temperature>"
)


def test_case_i03_a_lost_device_fails_alone_and_keeps_its_identity() -> None:
    busy = "<utilization><gpu_util>44 %</gpu_util></utilization>"
    seen = nvidia_xml.parse(
        log(gpu(busy, uuid="GPU-1"), gpu(LOST, uuid="GPU-2"), gpu(busy, uuid="GPU-3"))
    )
    assert [device.health for device in seen.devices] == ["ok", "failed", "ok"]
    lost = seen.devices[1]
    assert (lost.uuid, lost.health_reason, lost.memory_kind) == ("GPU-2", "lost", "device")
    assert {reading.quality for reading in lost.readings.values()} == {"unavailable"}
    assert [reading.value for reading in lost.readings.values() if reading.value is not None] == []
    assert codes(seen) == ["lost"]


@pytest.mark.parametrize(
    ("body", "health"),
    [
        ("<gpu_recovery_action>None</gpu_recovery_action>", "ok"),
        ("<gpu_recovery_action>N/A</gpu_recovery_action>", "ok"),
        ("<gpu_recovery_action>Reset</gpu_recovery_action>", "failed"),
        ("<gpu_recovery_action>Drain and Reset</gpu_recovery_action>", "degraded"),
        ("<gpu_reset_status><reset_required>Yes</reset_required></gpu_reset_status>", "failed"),
        (
            f"<gpu_reset_status><reset_required>{DEPRECATED}</reset_required></gpu_reset_status>",
            "ok",
        ),
        ("<remapped_rows>N/A</remapped_rows>", "ok"),
        (
            "<remapped_rows><remapped_row_pending>Yes</remapped_row_pending></remapped_rows>",
            "degraded",
        ),
    ],
)
def test_health_is_what_the_driver_asks_for(body: str, health: str) -> None:
    assert one(body).health == health


def test_devices_that_the_driver_counts_and_does_not_describe_are_told() -> None:
    seen = nvidia_xml.parse(log(gpu(), head="<attached_gpus>4</attached_gpus>"))
    assert len(seen.devices) == 1
    assert codes(seen) == ["not_reported"]


def test_without_a_uuid_the_address_is_the_identity() -> None:
    assert one("", uuid="N/A").uuid == "pci-0000:1b:00.0"
    shared = nvidia_xml.parse(log(gpu(bus="00000000:1B:00.0"), gpu(bus="00000000:1C:00.0")))
    assert len({device.uuid for device in shared.devices}) == 2


def test_pci_is_written_as_the_kernel_writes_it() -> None:
    body = (
        "<pci><pci_bus_id>00010000:1B:00.0</pci_bus_id><pci_device_id>233010DE</pci_device_id>"
        "<pci_sub_system_id>16C110DE</pci_sub_system_id></pci>"
    )
    device = one(body)
    assert device.pci_address == "10000:1b:00.0"
    assert (device.pci_id, device.pci_subsystem) == ("10de:2330", "10de:16c1")


def test_mig_devices_are_partitions_and_shared_memory_counts_once() -> None:
    def mig(index: int, instance: int, compute: int) -> str:
        return (
            f"<mig_device><index>{index}</index><gpu_instance_id>{instance}</gpu_instance_id>"
            f"<compute_instance_id>{compute}</compute_instance_id>"
            "<fb_memory_usage><total>19968 MiB</total></fb_memory_usage></mig_device>"
        )

    device = one(
        "<utilization><gpu_util>N/A</gpu_util></utilization>"
        f"<mig_devices>{mig(0, 3, 0)}{mig(1, 3, 1)}{mig(2, 5, 0)}</mig_devices>"
    )
    assert [part.memory_bytes for part in device.partitions] == [19968 * 2**20, None, 19968 * 2**20]
    assert len({part.uuid for part in device.partitions}) == 3
    assert value(device, "utilization_percent") == (None, "unsupported")


def test_mig_devices_none_is_no_partition() -> None:
    assert one("<mig_devices>\n None\n </mig_devices>").partitions == ()


def test_memory_that_the_driver_does_not_count_is_the_hosts() -> None:
    body = "<fb_memory_usage><total>N/A</total><used>N/A</used></fb_memory_usage>"
    device = one(body)
    assert (device.memory_kind, device.memory_bytes) == ("unified", None)


def test_a_document_that_breaks_off_gives_what_came_whole() -> None:
    whole = log(gpu(uuid="GPU-1"), gpu(uuid="GPU-2"))
    seen = nvidia_xml.parse(whole[: whole.index(b"GPU-2")])
    assert [device.uuid for device in seen.devices] == ["GPU-1"]
    assert codes(seen) == ["truncated"]


def test_entities_are_refused_and_the_dtd_is_not_fetched() -> None:
    bomb = b'<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaa">]><nvidia_smi_log>&a;</nvidia_smi_log>'
    with pytest.raises(ValueError, match="refused"):
        nvidia_xml.parse(bomb)


def test_a_warning_before_the_document_does_no_harm() -> None:
    seen = read_capture(b"WARNING: infoROM is corrupted at gpu 0\n" + log(gpu()))
    assert len(seen.devices) == 1


def test_no_device_is_a_state_with_a_reason() -> None:
    assert codes(nvidia_xml.parse(log())) == ["no_device"]


def test_content_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="no vendor's output"):
        read_capture(b"Filesystem 1K-blocks")
    with pytest.raises(ValueError, match="no output of nvidia's tools"):
        read_capture(b"{}", "nvidia")


def test_the_document_has_the_fields_that_are_promised() -> None:
    body = document(nvidia_xml.parse(log(gpu(), head="<driver_version>570.1</driver_version>")))
    assert {"vendor", "tool", "devices", "problems"} <= set(body)
    assert {
        "index", "uuid", "name", "model", "memory_bytes", "memory_kind", "health", "partitions",
        "readings",
    } <= set(body["devices"][0])  # fmt: skip
    assert body["devices"][0]["model"] is None
    assert body["drivers"] == {"nvidia": "570.1"}
