"""Each vendor's output, fact by fact of its format, on small inputs written for the fact."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quintal_agent.probes import boxes
from quintal_agent.probes.probe import Device, Observation
from quintal_agent.probes.table import read_capture

MIB = 2**20
MHZ = 10**6


def read(text: str, vendor: str | None = None) -> Observation:
    return read_capture(text.encode(), vendor)


def devices(text: str) -> tuple[Device, ...]:
    return read(text).devices


def value(device: Device, name: str) -> tuple[float | None, str]:
    reading = device.readings[name]
    return reading.value, reading.quality


def codes(observation: Observation) -> list[str]:
    return [trouble.code for trouble in observation.troubles]


NPU_HEAD = """\
| npu-smi 24.1                       Version: 24.1                       |
+-----------------+---------------+--------------------------------------+
| NPU   Name      | Health        | Power(W)    Temp(C)     Hugepages-Usage(page) |
| Chip  Phy-ID    | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)   |
+=================+===============+======================================+
"""


def npu(*rows: str) -> str:
    return NPU_HEAD + "\n+----+---+---+\n".join(rows) + "\n+====+===+===+\n"


class TestAscend:
    def test_two_dies_of_a_card_are_two_devices_and_the_cards_power_stands_on_the_first(
        self,
    ) -> None:
        first, second = devices(
            npu(
                (
                    "| 3 Ascend910 | OK | 170.2 38 0 / 0 |\n"
                    "| 0 6 | 0000:9D:00.0 | 7 0 / 0 3163/ 65536 |"
                ),
                "| 3 Ascend910 | OK | - 36 0 / 0 |\n| 1 7 | 0000:9F:00.0 | 0 0 / 0 3100 / 65536 |",
            )
        )
        assert value(first, "power_watts") == (170.2, "ok")
        assert value(second, "power_watts") == (None, "unsupported")
        assert (first.index, second.index) == (6, 7)
        assert value(first, "memory_used_bytes") == (3163 * MIB, "ok")
        assert first.memory_bytes == 65536 * MIB

    def test_high_bandwidth_memory_is_the_devices_where_there_is_any(self) -> None:
        head = NPU_HEAD.replace("Chip  Phy-ID", "Chip        ")
        row = "| 0 910B3 | OK | 93.1 37 0 / 0 |\n| 0 | 0000:C1:00.0 | 0 512 / 13553 3314 / 65536 |"
        (device,) = devices(f"{head}{row}\n+==+==+==+\n")
        assert device.memory_bytes == 65536 * MIB
        assert value(device, "memory_used_bytes") == (3314 * MIB, "ok")

    def test_memory_of_size_zero_is_memory_that_is_not_there(self) -> None:
        page = "NPU ID : 1\nChip Count : 1\n\nDDR Capacity(MB) : 0\nChip ID : 0\n"
        (device,) = devices(page)
        assert device.memory_bytes is None

    def test_two_chips_at_one_address_are_told_apart(self) -> None:
        head = NPU_HEAD.replace("Phy-ID", "Device")
        rows = (
            "| 8 310P3 | OK | NA 40 0 / 0 |\n| 0 0 | 0000:0C:00.0 | 0 0 / 0 1 / 2 |",
            "| 8 310P3 | OK | NA 41 0 / 0 |\n| 1 1 | 0000:0C:00.0 | 0 0 / 0 1 / 2 |",
        )
        text = head + "\n+--+--+--+\n".join(rows) + "\n+==+==+==+\n"
        assert len({device.uuid for device in devices(text)}) == 2

    def test_a_chips_line_may_open_its_block_or_close_it(self) -> None:
        opens = (
            "NPU ID : 1\nChip Count : 2\n"
            "Chip ID : 0\nTemperature(C) : 40\n"
            "Chip ID : 1\nTemperature(C) : 50\n"
        )
        closes = (
            "NPU ID : 1\nChip Count : 2\n"
            "Temperature(C) : 40\nChip ID : 0\n"
            "Temperature(C) : 50\nChip ID : 1\n"
        )
        for page in (opens, closes):
            assert [value(d, "temperature_celsius")[0] for d in devices(page)] == [40, 50]

    def test_the_boards_controller_is_no_chip(self) -> None:
        page = (
            "NPU ID : 1\nChip Count : 1\n"
            "Chip ID : 0\nTemperature(C) : 46\n"
            "Chip Name : mcu\nTemperature(C) : 38\n"
        )
        (device,) = devices(page)
        assert value(device, "temperature_celsius") == (46, "ok")

    def test_a_mapping_names_the_logical_ids_and_skips_the_controller(self) -> None:
        page = (
            "NPU ID     Chip ID     Chip Logic ID     Chip Name\n"
            "2          0           5                 Ascend 910\n"
            "2          1           -                 Mcu\n"
        )
        assert [(d.index, d.name) for d in devices(page)] == [(5, "Ascend 910")]

    def test_firmware_that_does_not_fit_degrades(self) -> None:
        page = (
            "NPU ID : 1\nCompatibility : version mismatch\n"
            "Board ID : 0x1\nPCIe Bus Info : 0000:61:00.0\n"
        )
        seen = read(page)
        assert seen.devices[0].health == "degraded"
        assert codes(seen) == ["driver_mismatch"]

    def test_a_word_for_health_that_nobody_knows_is_unknown(self) -> None:
        row = "| 0 910 | Resting | 90 37 0 / 0 |\n| 0 0 | 0000:C1:00.0 | 0 0 / 0 1 / 2 |"
        assert devices(npu(row))[0].health == "unknown"


def amd(body: Any) -> tuple[Device, ...]:
    return devices(json.dumps(body))


class TestAmd:
    @pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"gpu_data": rows}])
    def test_the_root_may_be_a_list_or_an_object(self, wrap: Any) -> None:
        row = {"gpu": 0, "power": {"socket_power": {"value": 90, "unit": "W"}}}
        (device,) = amd(wrap([row]))
        assert value(device, "power_watts") == (90, "ok")

    def test_a_key_is_an_object_on_one_device_and_a_word_on_the_next(self) -> None:
        rows = [
            {"gpu": 0, "usage": {"gfx_activity": {"value": 4, "unit": "%"}, "umc_activity": "N/A"}},
            {"gpu": 1, "usage": {"gfx_activity": "N/A", "umc_activity": "N/A"}},
        ]
        first, second = amd(rows)
        assert value(first, "utilization_percent") == (4, "ok")
        assert value(second, "utilization_percent") == (None, "unsupported")

    @pytest.mark.parametrize(
        "limit",
        [
            {"socket_power": {"value": 750, "unit": "W"}},
            {"ppt0": {"socket_power_limit": {"value": 750, "unit": "W"}}},
        ],
    )
    def test_the_power_limit_is_found_under_every_name(self, limit: Any) -> None:
        (device,) = amd([{"gpu": 0, "limit": limit, "asic": {"market_name": "M"}}])
        assert value(device, "power_limit_watts") == (750, "ok")

    @pytest.mark.parametrize("key", ["size", "vram_size"])
    def test_its_megabytes_are_counted_in_two_to_the_twenty(self, key: str) -> None:
        (device,) = amd([{"gpu": 0, "vram": {key: {"value": 196592, "unit": "MB"}}}])
        assert device.memory_bytes == 196592 * MIB

    def test_a_partition_that_is_all_ones_is_none(self) -> None:
        (device,) = amd(
            [{"gpu": 0, "bdf": "0000:26:00.0", "kfd_id": 1, "partition_id": 4294967295}]
        )
        assert device.uuid == "pci-0000:26:00.0"

    def test_what_a_package_draws_stands_on_its_first_partition(self) -> None:
        rows = [
            {
                "gpu": number,
                "bdf": f"0000:09:00.{number}",
                "partition_id": number,
                "power": {"socket_power": {"value": 400, "unit": "W"}},
                "usage": {"gfx_activity": {"value": 10 + number, "unit": "%"}},
                "vram": {"size": {"value": 1024, "unit": "MB"}},
            }
            for number in range(2)
        ]
        first, second = amd(rows)
        assert value(first, "power_watts") == (400, "ok")
        assert "power_watts" not in second.readings
        assert (first.memory_bytes, second.memory_bytes) == (1024 * MIB, None)
        assert value(second, "utilization_percent") == (11, "ok")

    @pytest.mark.parametrize(
        "listed",
        [
            [{"process_info": "No running processes detected"}],
            "No running processes detected",
            [],
        ],
    )
    def test_idle_is_a_sentence_and_no_process(self, listed: Any) -> None:
        (device,) = amd([{"gpu": 0, "process_list": listed}])
        assert device.processes == ()

    def test_the_indented_text_is_the_same_tree(self) -> None:
        text = "GPU: 0\n    POWER:\n        SOCKET_POWER: 90 W\n    ASIC:\n        MARKET_NAME: M\n"
        (device,) = devices(text)
        assert (device.name, value(device, "power_watts")) == ("M", (90, "ok"))

    @pytest.mark.parametrize(
        "key",
        [
            "Average Graphics Package Power (W)",
            "Current Socket Graphics Package Power (W)",
        ],
    )
    def test_rocm_smis_power_has_a_name_per_family(self, key: str) -> None:
        (device,) = amd({"card0": {key: "133.0"}, "system": {"Driver version": "6.1"}})
        assert value(device, "power_watts") == (133, "ok")

    def test_power_of_the_second_die_is_the_firsts(self) -> None:
        card = {"Average Graphics Package Power (W)": "N/A (Secondary die)"}
        (device,) = amd({"card1": card})
        assert value(device, "power_watts") == (None, "unsupported")

    def test_an_accumulator_is_no_utilization(self) -> None:
        (device,) = amd({"card0": {"GFX Activity": "2938475", "Memory Activity": "9384"}})
        assert not device.readings

    def test_memory_in_use_comes_from_the_bytes_and_not_from_a_rounded_share(self) -> None:
        card = {
            "GPU Memory Allocated (VRAM%)": "0",
            "VRAM Total Memory (B)": "1000",
            "VRAM Total Used Memory (B)": "750",
        }
        (device,) = amd({"card0": card})
        assert value(device, "memory_used_bytes") == (750, "ok")


class TestHygon:
    def test_json_without_commas_is_read_all_the_same(self) -> None:
        text = (
            '{"card0": {"HCU use (%)": "3.0""Average Graphics Package Power '
            '(W)": "91.0", "": "", "": ""}}'
        )
        (device,) = devices(text)
        assert read(text).vendor == "hygon"
        assert value(device, "power_watts") == (91, "ok")

    def test_the_unit_is_the_keys(self) -> None:
        text = (
            '{"card0": {"HCU use (%)": "0", "vram Total Memory (MiB)": "64", '
            '"vram Total Used Memory (MiB)": "1"}}'
        )
        (device,) = devices(text)
        assert device.memory_bytes == 64 * MIB
        assert value(device, "memory_used_bytes") == (MIB, "ok")


class TestIntel:
    def test_a_metric_that_is_not_printed_is_not_there(self) -> None:
        text = (
            '{"device_id": 2, "device_level": [{"metrics_type": "XPUM_STATS_POWER", '
            '"value": 46.5}]}'
        )
        (device,) = devices(text)
        assert device.index == 2
        assert value(device, "power_watts") == (46.5, "ok")
        assert "utilization_percent" not in device.readings

    def test_a_uuid_that_is_made_of_the_slot_names_nothing(self) -> None:
        entry = {
            "device_id": 1,
            "device_name": "Intel X",
            "pci_bdf_address": "0000:27:00.0",
            "uuid": "00000000-0000-0027-0000-0000e2238086",
            "pci_device_id": "0x20a",
        }
        (device,) = devices(json.dumps({"device_list": [entry]}))
        assert (device.uuid, device.pci_id) == ("pci-0000:27:00.0", "8086:020a")

    def test_a_first_sample_without_a_value_is_not_yet_there_and_never_zero(self) -> None:
        text = (
            "Timestamp, DeviceId, GPU Utilization (%), GPU Power (W)\n"
            "06:14:46.000,    0, N/A, 31.2\n"
        )
        (device,) = devices(text)
        assert value(device, "utilization_percent") == (None, "unavailable")
        assert value(device, "power_watts") == (31.2, "ok")

    def test_a_stream_that_is_never_closed_is_read_to_its_last_whole_sample(self) -> None:
        sample = (
            '{"rc6": {"value": 1}, "power": {"GPU": 12.5}, "engines": {"Render/3D": {"busy": 7.5}}}'
        )
        (device,) = devices(f"[\n{sample},\n{sample}")
        assert value(device, "utilization_percent") == (7.5, "ok")

    def test_kunlunxins_tool_of_the_same_name_is_not_intels(self) -> None:
        text = (
            "| DevID | PCI Addr | Model | SN | INODE | UseRate | L3 | Memory |\n"
            "| 0 | 0000:53:00.0 | R300 | 02K | /dev/xpu0 | 5 % | 0 / 63 MB | 7 / 32768 MB |\n"
        )
        seen = read(text)
        assert seen.vendor == "kunlunxin"
        assert seen.devices[0].memory_bytes == 32768 * MIB, "the cache is not the memory"


class TestGaudi:
    def test_the_csvs_values_bear_their_units_and_its_uuid_is_a_boards_code(self) -> None:
        text = (
            "index, uuid, bus_id, name, memory.total [MiB], memory.used [MiB], "
            "utilization.aip [%], power.draw [W]\n"
            "0, 01P0-HL2080A0-15, 0000:19:00.0, HL-225, 98304 MiB, 768 MiB, 3 %, 90 W\n"
        )
        seen = read(text)
        (device,) = seen.devices
        assert (seen.vendor, device.uuid) == ("intel", "pci-0000:19:00.0")
        assert (device.memory_bytes, value(device, "power_watts")) == (98304 * MIB, (90, "ok"))

    def test_borders_that_shift_with_a_digit_more_shift_no_value(self) -> None:
        text = (
            "| HL-SMI Version:   hl-1.18.0-fw-53.1.1.1  |\n"
            "|---+---+---|\n"
            "| AIP  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |\n"
            "| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | AIP-Util  Compute M. |\n"
            "|===+===+===|\n"
            "|   0  HL-325   N/A  | 0000:21:00.0     N/A |                   0  |\n"
            "| N/A   43C   N/A   264W / 900W |    672MiB / 131072MiB |     0%           N/A|\n"
            "|---+---+---|\n"
        )
        (device,) = devices(text)
        assert device.memory_bytes == 131072 * MIB
        assert value(device, "utilization_percent") == (0, "ok")


class TestNeuron:
    def test_a_banner_before_the_json_is_kept_as_a_problem(self) -> None:
        text = "NOTICE: an old driver\n" + json.dumps(
            [{"neuron_device": 0, "bdf": "cc:00.0"}], indent=1
        )
        seen = read(text)
        assert codes(seen) == ["tool_said"]
        assert seen.devices[0].pci_address == "0000:cc:00.0"

    def test_a_section_with_an_error_is_unavailable(self) -> None:
        body = {
            "neuron_runtime_data": [
                {
                    "pid": 7,
                    "report": {
                        "neuroncore_counters": {
                            "neuroncores_in_use": {"0": {"neuroncore_utilization": 50}},
                            "error": "timed out",
                        }
                    },
                }
            ],
            "neuron_hardware_info": {"neuron_device_count": 1, "neuroncore_per_device_count": 2},
        }
        seen = read(json.dumps(body))
        assert codes(seen) == ["section_unavailable"]
        assert "utilization_percent" not in seen.devices[0].readings

    def test_a_mean_over_cores_is_derived(self) -> None:
        cores = {"0": {"neuroncore_utilization": 10}, "1": {"neuroncore_utilization": 30}}
        body = {
            "neuron_runtime_data": [
                {"report": {"neuroncore_counters": {"neuroncores_in_use": cores, "error": ""}}}
            ],
            "neuron_hardware_info": {"neuron_device_count": 1, "neuroncore_per_device_count": 2},
        }
        (device,) = devices(json.dumps(body))
        assert device.readings["utilization_percent"].value == 20
        assert device.readings["utilization_percent"].derived

    def test_sections_may_be_null(self) -> None:
        body = {"neuron_runtime_data": None, "neuron_hardware_info": None, "system_data": None}
        assert read(json.dumps(body)).devices == ()


TPU = """\
TPU Chips
| Chip        | Type         | Devices | PID  |
|-------------|--------------|---------|------|
| /dev/accel0 | TPU v4 chip  | 1       | {pid} |
TPU Runtime Utilization
| {head} | HBM Usage (GiB)      | Duty cycle |
|--------|----------------------|------------|
| {id}   | {hbm} | {duty} |
TensorCore Utilization
| Core ID | TensorCore Utilization |
|---------|------------------------|
| {id}    | {core} |
"""


def tpu(**more: str) -> Device:
    told = {"pid": "12", "head": "Chip", "id": "0", "hbm": "1.00 GiB / 32.00 GiB", "duty": "5.00%"}
    (device,) = devices(TPU.format(**{**told, "core": "4.00%", **more}))
    return device


class TestTpu:
    def test_zeros_while_the_cores_are_busy_are_no_values(self) -> None:
        device = tpu(hbm="0.00 GiB / 32.00 GiB", duty="0.00%", core="80.00%")
        assert value(device, "memory_used_bytes") == (None, "unavailable")
        assert value(device, "duty_cycle_percent") == (None, "unavailable")
        assert value(device, "utilization_percent") == (80, "ok")

    def test_zeros_of_an_idle_chip_are_values(self) -> None:
        device = tpu(hbm="0.00 GiB / 32.00 GiB", duty="0.00%", core="0.00%")
        assert value(device, "memory_used_bytes") == (0, "ok")

    def test_without_a_program_nothing_is_known(self) -> None:
        device = tpu(pid="None", hbm="N/A", duty="N/A")
        assert value(device, "memory_used_bytes") == (None, "unavailable")
        assert (device.memory_bytes, device.processes) == (None, ())

    def test_ids_of_the_slice_are_taken_by_their_order(self) -> None:
        assert value(tpu(head="Device", id="12"), "duty_cycle_percent") == (5, "ok")

    def test_the_environment_says_how_many_chips_there_are(self) -> None:
        text = "TPU_ACCELERATOR_TYPE=v5p-8\nTPU_CHIPS_PER_HOST_BOUNDS=2,2,1\nTPU_WORKER_ID=0\n"
        found = devices(text)
        assert [device.name for device in found] == ["TPU v5p"] * 4

    def test_the_container_of_device_nodes_is_no_device(self) -> None:
        assert len(devices("/dev/vfio/0\n/dev/vfio/1\n/dev/vfio/vfio\n")) == 2


NVSMI = """\
| NVIDIA-SMI 590.1     Driver Version: 590.1    CUDA Version: 13.1 |
+----------------------+------------------+--------------------+
| GPU  Name     Persistence-M | Bus-Id   Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap |  Memory-Usage | GPU-Util  Compute M. |
|======================+==================+====================|
"""


class TestNvidia:
    def test_a_sentence_before_the_table_is_that_devices_loss(self) -> None:
        text = (
            "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.\n"
            + NVSMI
            + "| 0 NVIDIA X On | 00000000:1B:00.0 Off | 0 |\n"
            "| N/A 42C P0 98W / 700W | 59MiB / 81559MiB | 3% Default |\n+--+--+--+\n"
        )
        seen = read(text)
        assert [(t.code, t.device) for t in seen.troubles] == [("lost", "0000:3b:00.0")]
        assert value(seen.devices[0], "power_watts") == (98, "ok")

    def test_case_i03_a_cell_with_an_error_is_that_devices_health_and_no_number(self) -> None:
        text = NVSMI + (
            "| 0 NVIDIA X On | 00000000:1B:00.0 Off | 0 |\n"
            "| ERR! ERR! ERR! ERR! / 700W | 59MiB / 81559MiB | ERR! Default |\n+--+--+--+\n"
            "| 1 NVIDIA X On | 00000000:1C:00.0 Off | 0 |\n"
            "| N/A 42C P0 98W / 700W | 59MiB / 81559MiB | 3% Default |\n+--+--+--+\n"
        )
        bad, good = devices(text)
        assert (bad.health, value(bad, "utilization_percent")) == ("failed", (None, "unavailable"))
        assert (good.health, value(good, "utilization_percent")) == ("ok", (3, "ok"))

    def test_csv_without_units_takes_them_from_the_header(self) -> None:
        text = "index, uuid, memory.total [MiB], power.draw [W]\n0, GPU-1, 81559, 71.15\n"
        (device,) = devices(text)
        assert device.memory_bytes == 81559 * MIB
        assert value(device, "power_watts") == (71.15, "ok")

    def test_rows_that_are_there_are_read_beside_a_sentence(self) -> None:
        text = (
            "index, uuid, utilization.gpu [%]\n"
            "0, GPU-1, 4 %\nUnable to determine the device handle\n"
        )
        seen = read(text)
        assert len(seen.devices) == 1
        assert codes(seen) == ["tool_said"]

    def test_a_topology_row_with_a_cell_too_many_and_a_header_under_escape_codes(self) -> None:
        text = (
            "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
            "GPU0\t X \tNV18\tPXB\t0-23\t0\t\tN/A\nGPU1\tNV18\tX \tSYS\t24-47\t1\t\tN/A\n"
            "NIC0\tPXB\tSYS\t X \t\t\t\nLegend:\n  X = Self\n"
        )
        seen = read(text)
        assert [device.numa_node for device in seen.devices] == [0, 1]
        assert {(link.a, link.b): link.kind for link in seen.links} == {
            ("GPU0", "GPU1"): "NV18",
            ("GPU0", "NIC0"): "PXB",
            ("GPU1", "GPU0"): "NV18",
            ("GPU1", "NIC0"): "SYS",
            ("NIC0", "GPU0"): "PXB",
            ("NIC0", "GPU1"): "SYS",
        }

    def test_instances_that_share_a_memory_count_it_once(self) -> None:
        text = NVSMI + (
            "| 0 NVIDIA X On | 00000000:1B:00.0 Off | On |\n"
            "| N/A 42C P0 98W / 700W | 59MiB / 81559MiB | N/A Default |\n+--+--+--+\n"
            "| MIG devices: |\n+--+--+\n"
            "| GPU  GI  CI  MIG | Shared Memory-Usage |\n"
            "|  ID  ID  Dev | Shared BAR1-Usage |\n"
            "|==+==|\n"
            "| 0 2 0 0 | 26MiB / 40448MiB |\n|  | 0MiB / 9MiB |\n+--+--+\n"
            "| 0 2 1 1 | 26MiB / 40448MiB |\n|  | 0MiB / 9MiB |\n+--+--+\n"
        )
        (device,) = devices(text)
        assert [part.memory_bytes for part in device.partitions] == [40448 * MIB, None]

    @pytest.mark.parametrize(
        "line",
        [
            "[ 13.1] NVRM: Xid (PCI:0000:01:00): 79, pid=0, GPU has fallen off",
            "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU",
            "6,3,22,-;NVRM: Xid (PCI:0000:01:00): 79, Channel ID 9",
        ],
    )
    def test_an_xid_record_is_an_event_with_its_device(self, line: str) -> None:
        (event,) = read(line + "\n").events
        assert (event.code, event.device) == ("xid:79", "0000:01:00.0")


class TestOthers:
    def test_a_pair_has_one_unit_for_both(self) -> None:
        text = (
            "| MX-SMI 2.2.8 Kernel Mode Driver Version: 3.0.11 |\n|--+--+--|\n"
            "| GPU NAME Persistence-M | Bus-id | GPU-Util |\n"
            "| Temp Pwr:Usage/Cap Perf | Memory-Usage | GPU-State |\n|==+==+==|\n"
            "| 0 MetaX N260 Off | 0000:01:00.0 | 0% |\n"
            "| 37C 29W / NA P0 | 666/65536 MiB | Not Available(3) |\n+--+--+--+\n"
        )
        (device,) = devices(text)
        assert value(device, "memory_used_bytes") == (666 * MIB, "ok")
        assert value(device, "power_limit_watts") == (None, "unsupported")
        assert device.health == "failed"

    def test_fewer_lanes_than_the_slot_has_degrade(self) -> None:
        text = (
            "mthreads-gmi:2.0   Driver Version:5.1\n---\n"
            "0    MTT S4000   |00000000:18:00.0   |7%   512MiB(49152MiB)\n"
            "     Physical    |4x(16x)            |48C  YES\n---\n"
        )
        (device,) = devices(text)
        assert (device.health, value(device, "memory_used_bytes")) == (
            "degraded",
            (512 * MIB, "ok"),
        )

    def test_a_card_whose_numbers_are_sentinels_is_dead_and_its_neighbour_is_not(self) -> None:
        head = "|  IX-ML: 3.0.1 Driver Version: 3.0.1 CUDA Version: N/A |\n+--+--+--+\n"
        row = (
            "| {n} Iluvatar BI-V100 | 00000000:{n}1:00.0 | 25MHz 33MHz |\n"
            "| 0% {t} P0 {w}W / 250 | 513MiB / 32768MiB | 100% Default |\n+--+--+--+\n"
        )
        dead, well = devices(
            head + row.format(n=1, t="0C", w=65535) + row.format(n=2, t="40C", w=200)
        )
        assert dead.health == "failed"
        assert {reading.value for reading in dead.readings.values()} == {None}
        assert value(well, "power_watts") == (200, "ok")

    def test_virtual_memory_is_not_the_cards(self) -> None:
        text = (
            "| CNMON v4.9 Driver v4.9 |\n+--+--+--+\n"
            "| Card VF Name Firmware | Inited Driver | Util Ecc-Error |\n"
            "| Fan Temp Pwr:Usage/Cap | Memory-Usage | Mode |\n|==+==+==|\n"
            "| 0 / MLU290 v1.0 | On N/A | 7% 0 |\n"
            "| 0% 40C 90 W/ 350 W | 12 MiB/ 31000 MiB | FULL |\n"
            "|   |  0 MiB/ 1048576 MiB | |\n+--+--+--+\n"
        )
        (device,) = devices(text)
        assert device.memory_bytes == 31000 * MIB

    def test_one_sign_for_degrees_is_a_degree(self) -> None:
        text = (
            "| EFSMI: 1.6 Driver Ver: 1.6 |\n+--+--+--+\n"
            "| DEV NAME | FW VER | BUS-ID ECC |\n"
            "| TEMP Lpm Pwr(Usage/Cap) | Mem GCU Virt | DUsed SN |\n"
            "|==|\n"
            "| 0 Enflame S60G | 31.5 | 00:2e:00.0 Disable |\n"
            "| 34\u2103 LP0 105W 300W | 23552MiB SRIOV | 5% A1 |\n"
            "+--+--+--+\n"
        )
        (device,) = devices(text)
        assert value(device, "temperature_celsius") == (34, "ok")
        assert (device.pci_address, device.memory_bytes) == ("0000:2e:00.0", 23552 * MIB)

    def test_two_chips_of_a_board_are_two_devices_though_one_has_no_bus_id(self) -> None:
        board = {"board_type": "n300 L", "board_id": "77", "bus_id": "0000:01:00.0"}
        other = {**board, "board_type": "n300 R", "bus_id": "N/A"}
        entries = [{"board_info": board, "telemetry": {"power": " 12.0"}}, {"board_info": other}]
        left, right = devices(json.dumps({"device_info": entries}))
        assert left.uuid != right.uuid
        assert value(left, "power_watts") == (12, "ok")

    def test_an_empty_list_is_a_tool_that_works_and_no_device(self) -> None:
        assert codes(read('{"device_info": []}')) == ["no_device"]

    def test_case_a17_a_management_chips_display_is_ignored_with_a_note(self) -> None:
        text = (
            "03:00.0 VGA compatible controller [0300]: Huawei Hi1710 [iBMC VGA] "
            "[19e5:1711] (rev 01)\n"
            "06:00.0 3D controller [0302]: NVIDIA Corporation GA102GL [A10] [10de:2236] (rev a1)\n"
            "c1:00.0 Processing accelerators [1200]: Huawei Ascend [19e5:d802] (rev 20)\n"
        )
        seen = read(text)
        assert [device.vendor for device in seen.devices] == ["nvidia", "huawei"]
        assert codes(seen) == ["display_ignored"]

    @pytest.mark.parametrize(
        ("head", "row", "pid", "name", "size"),
        [
            ("| GPU GI CI PID Type Process name GPU Memory |", "| 0 N/A N/A 17 C a b 5MiB |",
             17, "a b", 5 * MIB),
            ("| GPU GI CI PID Type Process name GPU Memory |", "| 0 N/A N/A 17 G N/A N/A |",
             17, "", None),
            ("| GPU PID Process name Usage(MiB) |", "| 0 17 python 5 |", 17, "python", 5 * MIB),
            ("| AIP PID Type Process name Usage |", "| 0 17 C python 5Mib |",
             17, "python", 5 * MIB),
            ("| Card MI PID Command Line MLU Memory Usage |", "| 0 / 17 python x.py 5 MiB |",
             17, "python x.py", 5 * MIB),
        ],
    )  # fmt: skip
    def test_a_process_is_read_by_the_header_above_it(
        self, head: str, row: str, pid: int, name: str, size: int | None
    ) -> None:
        (process,) = boxes.processes(f"{head}\n|==|\n{row}\n+--+\n")[0]
        assert (process.pid, process.name, process.memory_bytes) == (pid, name, size)

    @pytest.mark.parametrize("row", ["| No running processes found |", "| 0 N/A N/A N/A N/A |"])
    def test_a_row_without_a_process_is_none(self, row: str) -> None:
        assert boxes.processes(f"| AIP PID Type Process name Usage |\n{row}\n") == {}

    def test_a_list_of_cards_is_a_device_each(self) -> None:
        page = "Total Count : 2\nNPU ID : 0\nProduct Name : X\nNPU ID : 32\n"
        assert len({device.uuid for device in devices(page)}) == 2
