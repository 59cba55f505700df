"""Outputs that were damaged on the way: cut, flipped, shuffled, dressed up, blown up.

Whatever comes, a reader answers with an observation that fits through the pipe and on the wire, or
with one ValueError; and it answers soon. Seeds are small texts of our own, and the captures where
they lie beside the checkout.
"""

from __future__ import annotations

import json
import math
import random
import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from quintal.contracts.nodes import Quality, RawDevice
from quintal_agent.document import document
from quintal_agent.probes.probe import decode, encode
from quintal_agent.probes.table import VENDORS, read_capture
from quintal_agent.report import raw_device

SOON_S = 3.0

SEEDS = Path(__file__).with_name("outputs.txt").read_text().split("====\n")[1:]

ROOT = Path(__file__).parents[3] / "shared" / "data" / "probes"
CAPTURES = [
    path.read_bytes()
    for path in sorted(ROOT.rglob("*"))
    if path.is_file() and path.name != "INDEX.tsv" and path.stat().st_size < 30_000
]

BUSY = settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def holds(data: bytes) -> None:
    """What must hold whatever came in."""
    began = time.perf_counter()
    try:
        seen = read_capture(data)
    except ValueError:
        return
    finally:
        assert time.perf_counter() - began < SOON_S
    assert decode(encode(seen)) == seen
    json.dumps(document(seen), allow_nan=False)
    names = [device.uuid for device in seen.devices]
    assert len(set(names)) == len(names)
    for device in seen.devices:
        raw = raw_device(device)
        assert RawDevice.model_validate_json(raw.model_dump_json()) == raw
        for name, reading in device.readings.items():
            assert reading.quality in set(Quality)
            assert (reading.value is None) == (reading.quality != Quality.OK), name
            assert reading.value is None or math.isfinite(reading.value)
            if name.endswith("_percent") and reading.value is not None:
                assert 0 <= reading.value <= 100


def seeds() -> st.SearchStrategy[bytes]:
    return st.sampled_from([seed.encode() for seed in SEEDS] + CAPTURES)


@pytest.mark.parametrize("seed", SEEDS, ids=range(len(SEEDS)))
def test_every_seed_is_understood(seed: str) -> None:
    seen = read_capture(seed.encode())
    assert not any(trouble.code == "unparsed" for trouble in seen.troubles), seen.troubles
    assert seen.devices or seen.events or seen.drivers
    holds(seed.encode())


def test_every_reader_has_a_seed() -> None:
    tools = {read_capture(seed.encode()).vendor for seed in SEEDS}
    rows = {vendor.name for vendor in VENDORS} - {"cpu", "gaudi"}
    assert rows <= tools


@BUSY
@given(seeds(), st.floats(0, 1))
def test_cut_anywhere(seed: bytes, share: float) -> None:
    holds(seed[: int(len(seed) * share)])


@BUSY
@given(seeds(), st.floats(0, 1))
def test_its_beginning_lost(seed: bytes, share: float) -> None:
    holds(seed[int(len(seed) * share) :])


@BUSY
@given(seeds(), st.randoms(use_true_random=False))
def test_bits_flipped(seed: bytes, chance: random.Random) -> None:
    damaged = bytearray(seed)
    for _ in range(chance.randint(1, 20)):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    holds(bytes(damaged))


@BUSY
@given(seeds(), st.sampled_from([9, 20, 400, 5_000]), st.sampled_from(["9", "-9", "9e9", "0.0"]))
def test_numbers_made_huge(seed: bytes, digits: int, digit: str) -> None:
    text = seed.decode("utf-8", "replace")
    holds(re.sub(r"\d+", lambda _: digit * digits, text, count=40).encode())


@BUSY
@given(seeds(), st.randoms(use_true_random=False))
def test_columns_swapped_and_cells_lost(seed: bytes, chance: random.Random) -> None:
    lines = seed.decode("utf-8", "replace").split("\n")
    for place, line in enumerate(lines):
        by = "|" if "|" in line else "," if "," in line else "\t" if "\t" in line else " "
        cells = line.split(by)
        if chance.random() < 0.5:
            chance.shuffle(cells)
        if chance.random() < 0.2:
            del cells[chance.randrange(len(cells))]
        lines[place] = by.join(cells)
    holds("\n".join(lines).encode())


@BUSY
@given(
    seeds(), st.sampled_from(["utf-16", "utf-16-be", "gb18030", "latin-1", "utf-8-sig", "cp037"])
)
def test_in_another_encoding(seed: bytes, encoding: str) -> None:
    holds(seed.decode("utf-8", "replace").encode(encoding, "replace"))


@BUSY
@given(
    seeds(),
    st.text(max_size=200),
    st.sampled_from(["\x1b[4m", "\x1b[0;31m", "\r", "\0", "\x1b]0;x\x07"]),
)
def test_under_a_banner_and_escape_codes(seed: bytes, banner: str, code: str) -> None:
    text = seed.decode("utf-8", "replace").replace(" ", f" {code}", 30)
    holds(f"{banner}\n{text}".encode("utf-8", "replace"))


@BUSY
@given(seeds(), seeds())
def test_two_outputs_in_one(first: bytes, second: bytes) -> None:
    holds(first + b"\n" + second)


@BUSY
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([
        "gpu", "gpu_data", "card0", "device_info", "device_list", "neuron_device",
        "manufacturer",
        "devices_distances", "appendix", "bdf", "board_info", "telemetry", "power", "usage",
        "value",
        "device_level", "metrics_type", "engines", "rc6", "process_list",
        "partition_profiles",
        "neuron_runtime_data", "neuron_hardware_info", "memory_size", "connected_to", "vram",
        "system",
    ]), inner, max_size=5),
    max_leaves=20,
))  # fmt: skip
def test_json_of_any_shape_under_known_keys(body: object) -> None:
    holds(json.dumps(body).encode())


@pytest.mark.parametrize("opener", ["[", '{"card0":', '[{"gpu":', "[[[1,", "<topology><object>"])
def test_nests_without_end(opener: str) -> None:
    holds((opener * 50_000).encode())


@pytest.mark.parametrize(
    "text", ["| a " * 100_000, "1:" * 200_000, "-" * 1_000_000, "[\n" * 50_000, "\t" * 10**6]
)
def test_long_lines_are_read_soon(text: str) -> None:
    holds(text.encode())
    holds(("NVIDIA-SMI Memory-Usage\n| GPU Bus-Id | Memory-Usage |\n" + text).encode())
    holds(('{"card0": {"GPU use (%)": ' + text).encode())
    holds(("GPU: 0\n    POWER:\n" + text).encode())
    holds(("TPU Chips\nLibtpu version: " + text).encode())
