"""One vendor, one row: and a third party adds its own without touching ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quintal_agent.probes import pci
from quintal_agent.probes.table import NAMES, READABLE, live_probe, read_capture, vendor_named

ACME = """
from quintal_agent.probes.probe import Device, Observation
from quintal_agent.probes.table import Vendor

VENDOR = Vendor("acme", live="acme:Probe", captures=("acme",))

def recognises(data):
    return data.startswith(b"ACME")

def parse(data):
    return Observation("acme", "acme-smi", (Device("a1", 0, "acme", "A1"),))

class Probe:
    def __init__(self, *, node, sys_root):
        pass
    def observe(self):
        return parse(b"")
"""

ASK = (
    "from quintal_agent.probes.table import NAMES, live_probe, read_capture\n"
    "print(NAMES[-1], read_capture(b'ACME 1').devices[0].name,\n"
    "      live_probe('acme', node='n', sys_root='/sys').observe().tool, 'nvidia' in NAMES)\n"
)


def test_a_third_party_adds_a_vendor_and_a_broken_one_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "acme.py").write_text(ACME)
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[quintal.probes]\nacme = acme:VENDOR\nbroken = no_such_module:VENDOR\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    said = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == ["acme", "A1", "acme-smi", "True"]
    assert "broken" in said.stderr


def test_every_vendor_on_the_bus_has_a_row() -> None:
    assert {*pci.VENDORS, "aws"} <= set(READABLE)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cpu"])
def test_every_live_probe_is_made_and_rests_where_its_tool_is_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = live_probe(name, node="n", sys_root=str(tmp_path)).observe()
    assert (seen.devices, seen.idle) == ((), True)
    assert seen.troubles


def test_case_d03_a_reader_that_breaks_is_named_and_the_others_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from quintal_agent.probes import metax

    def breaks(data: bytes) -> None:
        raise KeyError(len(data))

    monkeypatch.setattr(metax, "parse", breaks)
    seen = read_capture(b"| MX-SMI 2 |\n")
    assert (seen.vendor, seen.tool) == ("metax", "metax")
    assert seen.troubles[0].message == "metax: KeyError"


def test_a_vendor_that_is_not_there_is_a_list_of_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"there are cpu, nvidia.*thead"):
        vendor_named("acme")
