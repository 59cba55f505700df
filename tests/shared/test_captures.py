"""Every captured file beside the checkout, under a shuffled name: read, or refused by name.

Checked against captures; a green run proves parsing and nothing about a device. Expected values
(`expected.txt`) were written down by reading the files; the check of all numbers goes a second way
through the text, by a plain search.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from quintal.contracts.nodes import Quality, RawDevice
from quintal_agent.commands import probe
from quintal_agent.document import document
from quintal_agent.probes import captured
from quintal_agent.probes.probe import Observation
from quintal_agent.probes.table import read_capture
from quintal_agent.report import raw_device
from tests.shared.captures import ROOT, VENDORS, index

ENTRIES = index()
FILES = [entry["file"] for entry in ENTRIES]
EXPECTED = Path(__file__).with_name("expected.txt")

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not ENTRIES, reason="no captures beside the checkout (../shared)"),
]

MEBI = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "MHz": 10**6}
FACTORS = {
    "bytes": (1, 2**10, 2**20, 2**30, 10**6, 10**9),
    "hertz": (1, 10**6),
    "watts": (1, 0.001, 1e-6),
    "joules": (1, 0.001, 1e-6),
}


@cache
def seen(file: str) -> Observation:
    return read_capture((ROOT / file).read_bytes())


@cache
def numbers(file: str) -> frozenset[float]:
    text = captured.text((ROOT / file).read_bytes())
    return frozenset(float(found) for found in re.findall(r"\d+(?:\.\d+)?", text))


def stands(value: float, unit: str, raw: frozenset[float]) -> bool:
    """Whether some number of the text is this value, in some unit of its quantity."""
    return any(
        any(abs(value - number * factor) < 1e-6 * max(1, abs(value)) for number in raw)
        for factor in FACTORS.get(unit, (1,))
    )


def parsed() -> Iterator[tuple[str, list[list[str]]]]:
    file = ""
    lines: list[list[str]] = []
    for line in EXPECTED.read_text().splitlines():
        if line.startswith("#"):
            continue
        if not line.startswith(" "):
            if file:
                yield file, lines
            file, lines = line, []
        else:
            lines.append(line.split(maxsplit=2))
    yield file, lines


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["file"])
def test_every_file_is_read_or_refused_by_name(entry: dict[str, str]) -> None:
    observation = seen(entry["file"])
    assert observation.tool
    assert observation.vendor == VENDORS.get(entry["vendor"], entry["vendor"])
    assert not any(trouble.code == "unparsed" for trouble in observation.troubles)
    said = any((observation.devices, observation.troubles, observation.events))
    assert said or observation.drivers or observation.runtimes
    for trouble in observation.troubles:
        assert trouble.code != "not_read" or trouble.raw, "refused without its text"
    names = [device.uuid for device in observation.devices]
    assert len(set(names)) == len(names), "two devices bear one name"
    for device in observation.devices:
        raw = raw_device(device)
        assert RawDevice.model_validate_json(raw.model_dump_json()) == raw
        for value in device.readings.values():
            assert (value.value is not None) == (value.quality == Quality.OK)


@pytest.mark.parametrize("file", FILES)
def test_every_number_stands_in_the_raw_text_or_is_marked_derived(file: str) -> None:
    raw = numbers(file)
    body: dict[str, Any] = document(seen(file))
    for device in body["devices"]:
        for name, reading in device["readings"].items():
            if reading["value"] is not None and not reading.get("derived"):
                unit = name.rpartition("_")[2]
                assert stands(reading["value"], unit, raw), (name, reading)
        sizes = [device["memory_bytes"]]
        sizes += [part["memory_bytes"] for part in device["partitions"]]
        sizes += [process["memory_bytes"] for process in device["processes"]]
        for size in sizes:
            assert size is None or stands(size, "bytes", raw), size
        for whole in (device["cores"], device["numa_node"]):
            assert whole is None or float(whole) in raw
        for process in device["processes"]:
            assert float(process["pid"]) in raw


def test_the_command_finds_vendor_and_tool_under_shuffled_names(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(probe)
    chance = random.Random(6)
    for entry in ENTRIES:
        path = tmp_path / f"{chance.getrandbits(64):016x}"
        path.write_bytes((ROOT / entry["file"]).read_bytes())
        said = CliRunner().invoke(app, ["--from", str(path), "-o", "json"])
        assert said.exit_code == 0, (entry["file"], said.stderr)
        body = json.loads(said.stdout)
        assert body["vendor"] == VENDORS.get(entry["vendor"], entry["vendor"]), entry["file"]
        path.unlink()


CASES = dict(parsed())


def test_at_least_sixty_files_have_expected_values() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("file", CASES)
def test_the_values_are_those_that_a_person_reads(file: str) -> None:
    observation = seen(file)
    for what, *rest in CASES[file]:
        match what:
            case "devices":
                assert len(observation.devices) == int(rest[0])
            case "driver":
                assert observation.drivers.get(rest[0]) == rest[1]
            case "runtime":
                assert observation.runtimes.get(rest[0]) == rest[1]
            case "problem":
                assert rest[0] in [trouble.code for trouble in observation.troubles]
            case "links":
                assert len(observation.links) == int(rest[0])
            case "event":
                assert [e.code for e in observation.events].count(rest[0]) == int(rest[1])
            case _:
                _device(observation, int(what), *rest)


def _device(observation: Observation, place: int, field: str, value: str) -> None:
    device = observation.devices[place]
    plain = {
        "name": device.name,
        "address": device.pci_address,
        "pci": device.pci_id,
        "serial": device.serial,
        "health": device.health,
        "architecture": device.architecture,
        "numa": device.numa_node,
        "cores": device.cores,
        "index": device.index,
        "partitions": len(device.partitions),
        "processes": len(device.processes),
    }
    if field in plain:
        assert str(plain[field] if plain[field] is not None else "-") == value, (place, field)
        return
    number, _, unit = value.partition(" ")
    if field == "memory":
        expected = None if number == "-" else int(float(number) * MEBI[unit])
        assert device.memory_bytes == expected, place
        return
    reading = device.readings[field]
    if number == "-":
        assert (reading.value, reading.quality) == (None, unit), (place, field)
    else:
        assert reading.value == pytest.approx(float(number) * MEBI.get(unit, 1)), (place, field)
