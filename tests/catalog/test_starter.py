"""The starter catalog: valid, complete, and each device is what it says it is."""

from __future__ import annotations

import time
from decimal import Decimal
from pathlib import Path

import pytest

from quintal.contracts.documents import Catalog, Document, memory_range
from quintal.contracts.nodes import RawDevice
from quintal.identity import pool_of, resolve
from quintal.units import CLASSES, PARTS
from quintal_catalog.canonical import canonical
from quintal_catalog.first import starter
from quintal_catalog.judging import judge
from tests.catalog.given import NOW_MS

JUDGEMENT = judge(Catalog(), starter(), (), NOW_MS)
STARTER = Catalog(tuple(JUDGEMENT.documents.values()), revision=1)
MIB = 2**20


def device(
    name: str, mib: int | None, vendor: str, pci: str | None = None, machine: str | None = None
) -> RawDevice:
    memory = None if mib is None else mib * MIB
    return RawDevice(
        uuid="u", index=0, vendor=vendor, name=name, memory_bytes=memory, pci_id=pci,
        architecture=machine,
    )  # fmt: skip


def model(
    name: str, mib: int | None, vendor: str, pci: str | None = None, machine: str | None = None
) -> str | None:
    return resolve(device(name, mib, vendor, pci, machine), STARTER.models)


def test_the_starter_catalog_has_neither_fault_nor_warning() -> None:
    assert JUDGEMENT.faults == ()


def test_it_loads_fast_enough_to_switch_while_others_wait() -> None:
    stored = [canonical(each) for each in STARTER.documents.values()]
    before = time.perf_counter()
    Catalog(tuple(Document.model_validate_json(each) for each in stored))
    assert time.perf_counter() - before < 0.5


def test_it_has_at_least_120_models_of_at_least_ten_vendors_with_their_sources() -> None:
    assert len(STARTER.models) >= 120
    assert len({spec.vendor for spec in STARTER.models.values()}) >= 10
    assert all(spec.sources for spec in STARTER.models.values())


def test_the_reference_card_is_one_in_every_class() -> None:
    for workload_class in CLASSES:
        rating = STARTER.rating("nvidia-h100-sxm5-80gb", workload_class)
        assert rating is not None
        assert rating.micro == 1_000_000


def test_every_rating_says_what_it_rests_on_and_no_estimate_passes_for_a_measurement() -> None:
    for name, spec in STARTER.models.items():
        for rating in spec.ratings:
            assert rating.evidence, name
            assert rating.micro > 0, name
            assert ("MLPerf" in rating.evidence) or rating.provenance != "benchmark"
            if rating.workload_class == "scientific" and name != "nvidia-h100-sxm5-80gb":
                assert rating.provenance in {"roofline", "derived"}


def test_a_b200_is_worth_less_to_whom_does_not_use_fp4() -> None:
    with_fp4 = STARTER.rating("nvidia-b200-sxm6-180gb", "llm_large", "fp4")
    without = STARTER.rating("nvidia-b200-sxm6-180gb", "llm_large")
    assert with_fp4 is not None
    assert without is not None
    assert with_fp4.value == Decimal("3.7262")
    assert without.value == Decimal("2.1575")


def test_no_silent_fp64_where_the_card_has_it_only_by_name() -> None:
    assert "fp64" in STARTER.models["nvidia-a100-sxm4-80gb"].features
    for name in ("nvidia-h20-96gb", "nvidia-b300-sxm6-288gb", "amd-rx-7900-xtx-24gb"):
        assert "fp64" not in STARTER.models[name].features


def test_slices_of_a_card_never_exceed_it_and_name_a_model_that_rates_them() -> None:
    shapes = STARTER.models["nvidia-h100-sxm5-80gb"].partitions
    assert [shape.name for shape in shapes] == [
        "1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"
    ]  # fmt: skip
    cut = [spec for spec in STARTER.models.values() if spec.partitions]
    assert len(cut) > 25
    for spec in cut:
        for shape in spec.partitions:
            assert shape.parts * shape.count_max <= PARTS
            assert shape.count_max in {1, len(shape.placements)}
            assert shape.model is not None
            assert STARTER.models[shape.model].ratings


def test_every_layout_and_its_stated_remainder_are_exactly_one_card_in_parts() -> None:
    seen = 0
    for name, spec in STARTER.models.items():
        parts = {shape.name: shape.parts for shape in spec.partitions}
        for layout in spec.layouts:
            seen += 1
            used = sum(parts[shape] * count for shape, count in layout.shapes.items())
            assert used + layout.overhead_parts == PARTS, (name, layout.name)
    assert seen > 150


def test_seven_slices_and_their_remainder_are_one_card() -> None:
    for card, slice_ in (
        ("nvidia-a100-sxm4-80gb", "1g.10gb"),
        ("nvidia-h100-sxm5-80gb", "1g.10gb"),
        ("nvidia-h200-sxm5-141gb", "1g.18gb"),
        ("nvidia-b200-sxm6-180gb", "1g.23gb"),
    ):
        spec = STARTER.models[card]
        shape = next(each for each in spec.partitions if each.name == slice_)
        layout = next(each for each in spec.layouts if each.shapes == {slice_: 7})
        assert 7 * shape.parts + layout.overhead_parts == PARTS
        assert layout.overhead_parts == 125_000


def test_an_mi300x_is_one_two_four_or_eight_devices_and_nothing_is_left_over() -> None:
    modes = {each.mode: each for each in STARTER.models["amd-mi300x-192gb"].layouts}
    counts = {mode: next(iter(each.shapes.values())) for mode, each in modes.items()}
    assert counts == {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}
    assert all(each.overhead_parts == 0 for each in modes.values())


def test_a_slice_is_worth_its_parent_times_its_share_of_compute() -> None:
    whole = STARTER.rating("nvidia-a100-sxm4-80gb", "train_other")
    part = STARTER.rating("nvidia-a100-sxm4-80gb-mig-3g.40gb", "train_other")
    assert whole is not None
    assert part is not None
    assert part.provenance == "derived"
    assert abs(part.value - whole.value * 42 / 108) < Decimal("0.000001")
    measured = STARTER.rating("nvidia-a100-sxm4-80gb-mig-1g.10gb", "vision")
    assert measured is not None
    assert measured.provenance == "benchmark", "what was measured on a slice stands"
    for workload_class in ("train_llm", "llm_large"):
        assert STARTER.rating("nvidia-a100-sxm4-80gb-mig-3g.40gb", workload_class) is None


def test_an_l40s_stands_below_an_a100_80gb_in_standard_inference_units() -> None:
    """In the small class it is the other way round: so the classes are never mixed."""

    def siu(model: str) -> Decimal:
        rating = STARTER.rating(model, "llm_large")
        assert rating is not None
        return rating.value

    assert siu("nvidia-l40s-48gb") < siu("nvidia-a100-sxm4-80gb")
    assert siu("nvidia-l40s-48gb") < siu("nvidia-a100-pcie-80gb")


def test_a_tpu_is_had_in_the_slices_that_its_host_is_wired_for() -> None:
    assert STARTER.models["google-tpu-v5e"].legal_counts == (1, 4, 8)
    assert "4x4" in STARTER.models["google-tpu-v5e"].legal_shapes
    assert "1x1" not in STARTER.models["google-tpu-v5p"].legal_shapes


def test_every_profile_has_a_model_a_quota_of_each_tenant_and_a_price() -> None:
    charged = {price.workload_class for price in STARTER.prices["standard"].prices}
    for profile in STARTER.profiles.values():
        assert profile.workload_class in charged
        for tenant in STARTER.tenants:
            capped = {cap.workload_class for cap in STARTER.quotas[tenant].caps}
            assert profile.workload_class in capped


def test_three_tenants_of_two_projects_and_one_default_priority() -> None:
    assert set(STARTER.tenants) == {"vision", "language", "climate"}
    assert all(len(spec.projects) == 2 for spec in STARTER.tenants.values())
    assert [name for name, spec in STARTER.priorities.items() if spec.default] == ["normal"]


@pytest.mark.parametrize(
    ("name", "mib", "vendor", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "nvidia", "nvidia-h100-sxm5-80gb"),
        ("NVIDIA H100 PCIe", 81559, "nvidia", "nvidia-h100-pcie-80gb"),
        ("NVIDIA H100 NVL", 95830, "nvidia", "nvidia-h100-nvl-94gb"),
        ("NVIDIA H200", 143771, "nvidia", "nvidia-h200-sxm5-141gb"),
        ("NVIDIA H200 NVL", 143771, "nvidia", "nvidia-h200-nvl-141gb"),
        ("NVIDIA B200", 183359, "nvidia", "nvidia-b200-sxm6-180gb"),
        ("NVIDIA GB200", 189471, "nvidia", "nvidia-gb200-186gb"),
        ("NVIDIA A100-SXM4-80GB", 81920, "nvidia", "nvidia-a100-sxm4-80gb"),
        ("NVIDIA A100-SXM4-40GB", 40960, "nvidia", "nvidia-a100-sxm4-40gb"),
        ("A100-SXM4-40GB", 40536, "nvidia", "nvidia-a100-sxm4-40gb"),
        ("NVIDIA A100 80GB PCIe", 81920, "nvidia", "nvidia-a100-pcie-80gb"),
        ("NVIDIA A10G", 23028, "nvidia", "nvidia-a10g-24gb"),
        ("NVIDIA L40S", 46068, "nvidia", "nvidia-l40s-48gb"),
        ("NVIDIA L4", 23034, "nvidia", "nvidia-l4-24gb"),
        ("Tesla T4", 15360, "nvidia", "nvidia-t4-16gb"),
        ("Tesla V100-SXM2-16GB", 16160, "nvidia", "nvidia-v100-sxm2-16gb"),
        ("NVIDIA GeForce RTX 3090", 24576, "nvidia", "nvidia-rtx-3090-24gb"),
        ("NVIDIA GeForce RTX 4090", 24564, "nvidia", "nvidia-rtx-4090-24gb"),
        ("NVIDIA GeForce RTX 4090 D", 24564, "nvidia", "nvidia-rtx-4090d-24gb"),
        ("NVIDIA GeForce RTX 5090 D", 32607, "nvidia", "nvidia-rtx-5090d-32gb"),
        ("NVIDIA GH200 480GB", 97871, "nvidia", "nvidia-gh200-96gb"),
        ("NVIDIA GB10", None, "nvidia", "nvidia-gb10-128gb"),
        ("NVIDIA A100-SXM4-80GB MIG 2g.20gb", 19968, "nvidia",
         "nvidia-a100-sxm4-80gb-mig-2g.20gb"),
        ("AMD Instinct MI300X OAM", 196592, "amd", "amd-mi300x-192gb"),
        ("AMD Instinct MI300X", 196592, "amd", "amd-mi300x-192gb"),
        ("AMD Instinct MI308X OAM", 196592, "amd", "amd-mi308x-192gb"),
        ("AMD Instinct MI325X", 262128, "amd", "amd-mi325x-256gb"),
        ("AMD Instinct MI250X", 65520, "amd", "amd-mi250x-128gb"),
        ("AMD Instinct MI210", 65520, "amd", "amd-mi210-64gb"),
        ("HL-205", 32768, "intel", "intel-gaudi1-32gb"),
        ("HL-225", 98304, "intel", "intel-gaudi2-96gb"),
        ("HL-225B", 98304, "intel", "intel-gaudi2-96gb"),
        ("HL-325", 131072, "intel", "intel-gaudi3-128gb"),
        ("Intel(R) Data Center GPU Max 1550", 131072, "intel", "intel-max-1550-128gb"),
        ("910B2", 65536, "huawei", "huawei-ascend-910b2-64gb"),
        ("910B4", 32768, "huawei", "huawei-ascend-910b4-32gb"),
        ("910B4-1", 65536, "huawei", "huawei-ascend-910b4-1-64gb"),
        ("310P3", 21527, "huawei", "huawei-ascend-310p-24gb"),
        ("310P3", 44280, "huawei", "huawei-ascend-310p-duo-96gb"),
        ("Ascend910", 65536, "huawei", "huawei-ascend-910c-128gb"),
        ("TPU v5p", None, "google", "google-tpu-v5p"),
        ("TPU v5 lite", None, "google", "google-tpu-v5e"),
        ("trn1", 32768, "aws", "aws-trainium1"),
        ("Trainium2", 98304, "aws", "aws-trainium2"),
        ("K100_AI", 65520, "hygon", "hygon-dcu-k100-ai-64gb"),
        ("MXC500", 65536, "metax", "metax-c500-64gb"),
        ("PPU-ZW810E", 98304, "thead", "thead-ppu-zw810e-96gb"),
        ("n300 R", 12288, "tenstorrent", "tenstorrent-n300"),
        ("AMD EPYC 9654 96-Core Processor", 515000, "cpu", "cpu-epyc-9654"),
    ],
)  # fmt: skip
def test_a_device_as_its_tool_prints_it_is_the_model_it_is(
    name: str, mib: int | None, vendor: str, expected: str
) -> None:
    assert model(name, mib, vendor) == expected


@pytest.mark.parametrize(
    ("name", "mib", "vendor", "why"),
    [
        ("NVIDIA GeForce RTX 4090", 49140, "nvidia", "a modified board with twice the memory"),
        ("Radeon Instinct MI50", 32752, "amd", "a board with twice the memory and the same id"),
        ("NVIDIA A100-SXM-64GB", 65536, "nvidia", "a custom card of one site"),
        ("NVIDIA A40-48Q", 49152, "nvidia", "a virtual GPU of a guest"),
        ("NVIDIA H100 80GB HBM3", None, "nvidia", "its memory is not known"),
        ("QAic", 16384, "qualcomm", "the tool's name stands for three boards"),
        ("H100", 81559, "nvidia", "SXM and PCIe would both be it"),
        ("NVIDIA H100 80GB HBM3", 81559, "amd", "another vendor's tool"),
    ],
)
def test_what_may_be_two_things_is_none(name: str, mib: int | None, vendor: str, why: str) -> None:
    assert model(name, mib, vendor) is None, why


def test_case_a02_two_models_of_one_vendor_are_never_merged() -> None:
    one = model("NVIDIA A10", 23028, "nvidia")
    other = model("NVIDIA A10G", 23028, "nvidia")
    assert (one, other) == ("nvidia-a10-24gb", "nvidia-a10g-24gb")
    assert STARTER.models[one or ""].family != STARTER.models[other or ""].family


def test_case_a07_h20_is_never_h200_whatever_its_memory() -> None:
    assert model("NVIDIA H20", 97871, "nvidia") == "nvidia-h20-96gb"
    assert model("NVIDIA H200", 143771, "nvidia") == "nvidia-h200-sxm5-141gb"
    assert model("NVIDIA H20-3e", 143771, "nvidia") == "nvidia-h20-3e-141gb"
    assert model("NVIDIA H20", 143771, "nvidia") is None
    assert model("NVIDIA H200", 97871, "nvidia") is None
    assert STARTER.models["nvidia-h20-96gb"].family == "nvidia-h20"
    assert STARTER.models["nvidia-h200-sxm5-141gb"].family == "nvidia-h200"


@pytest.mark.parametrize("name", ["A10", "a10", "NVIDIA A10", "nvidia  a10", "nvidia-a10-24gb"])
def test_case_a08_a_model_has_one_id_whatever_the_case_or_the_prefix(name: str) -> None:
    assert model(name, 23028, "nvidia") == "nvidia-a10-24gb"


def test_a_card_without_a_name_is_known_by_its_pci_id_and_memory() -> None:
    assert model("", 196592, "amd", "1002:74a1") == "amd-mi300x-192gb"
    assert model("", 65520, "amd", "1002:740c") is None
    assert model("", 32752, "amd", "1002:66a1") is None


def test_a_processor_that_nobody_listed_is_rated_low_by_its_machine() -> None:
    assert model("Some CPU @ 2.0GHz", 65536, "cpu", machine="x86_64") == "cpu-x86-64"
    assert model("", 65536, "cpu", machine="aarch64") == "cpu-aarch64"
    listed = "Intel(R) Xeon(R) Platinum 8480+"
    assert model(listed, 65536, "cpu", machine="x86_64") == "cpu-8480plus"
    generic = STARTER.rating("cpu-x86-64", "scientific")
    assert generic is not None
    assert (generic.per, generic.provenance) == ("core", "roofline")
    for name, spec in STARTER.models.items():
        if spec.kind == "cpu" and (rating := STARTER.rating(name, "scientific")):
            assert rating.value >= generic.value


@pytest.mark.parametrize(
    ("name", "vendor", "pool"),
    [
        ("nvidia-l4-24gb", "nvidia", "nvidia"),
        ("amd-mi300x-192gb", "amd", "amd"),
        ("intel-gaudi2-96gb", "intel", "gaudi"),
        ("intel-max-1550-128gb", "intel", "intel-gpu"),
        ("huawei-ascend-910b2-64gb", "huawei", "ascend"),
        ("google-tpu-v5p", "google", "tpu"),
        ("aws-trainium1", "aws", "neuron"),
        ("metax-c500-64gb", "metax", "other"),
        ("cpu-epyc-9654", "cpu", "cpu"),
        (None, "cpu", "cpu"),
        (None, "nvidia", "nvidia"),
    ],
)
def test_each_ecosystem_has_its_pool(name: str | None, vendor: str, pool: str) -> None:
    found = pool_of(
        STARTER, model=name, vendor=vendor, node="n", cluster="c", location="l", labels={}
    )
    assert found == pool


def test_every_device_of_the_demo_fleet_is_a_model_with_a_rating_in_its_profiles_classes() -> None:
    import yaml

    from quintal_agent.demo import fleet

    text = (Path(fleet.__file__).parent / "fleet.yaml").read_text(encoding="utf-8")
    nodes = fleet.nodes_in(yaml.safe_load(text))
    vendors = set()
    for node in nodes:
        assert model(node.cpu, 1024, "cpu", machine="x86_64") is not None
        for each in node.devices:
            raw = device(each.name, each.memory_bytes // MIB, each.vendor, each.pci_id)
            found = resolve(raw, STARTER.models)
            assert found is not None, (node.name, each.name)
            assert STARTER.models[found].ratings
            vendors.add(each.vendor)
    assert len(vendors) >= 5


def test_every_name_of_every_rule_resolves_at_the_low_end_of_its_memory() -> None:
    names = {name for spec in STARTER.models.values() for rule in spec.match for name in rule.names}
    for name in names:
        for spec in STARTER.models.values():
            for rule in spec.match:
                low = memory_range(rule.memory)[0] // MIB + 1 if rule.memory else None
                if name in rule.names:
                    assert model(name, low, rule.vendor) is not None, name
