"""Vendors' tools run for real as small scripts: slow, loud, broken, in a strange environment."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

import pytest

from quintal_agent.probes import metax, tool
from quintal_agent.probes.probe import Device, Observation, Value
from quintal_agent.probes.tenstorrent import parse
from quintal_agent.probes.tool import ToolProbe, merge

GOOD = '{"device_info": [{"board_info": {"bus_id": "0000:01:00.0", "board_type": "n150"}}]}'


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def script(path: Path, body: str, name: str = "tt-smi") -> None:
    file = path / name
    file.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def look(deadline_s: float = 5.0, *, lines: int = 0) -> Observation:
    return ToolProbe(
        "tenstorrent", parse, (("tt-smi", "-s"),), lines=lines, deadline_s=deadline_s
    ).observe()


def codes(observation: Observation) -> list[str]:
    return [trouble.code for trouble in observation.troubles]


def test_a_tool_that_works_is_read(path: Path) -> None:
    script(path, f"print('''{GOOD}''')")
    seen = look()
    assert (len(seen.devices), codes(seen), seen.idle) == (1, [], False)


def test_a_tool_that_is_not_there_lets_the_probe_rest() -> None:
    seen = ToolProbe("x", parse, (("no-such-tool-at-all",),)).observe()
    assert (codes(seen), seen.idle) == (["no_library"], True)


def test_a_tool_past_its_deadline_is_ended_with_its_children(path: Path) -> None:
    script(path, "import subprocess; subprocess.Popen(['sleep', '60']); time.sleep(60)")
    began = time.perf_counter()
    seen = look(deadline_s=0.5)
    assert codes(seen) == ["probe_timeout"]
    assert time.perf_counter() - began < 5


def test_a_flood_is_cut_and_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "OUTPUT_BYTES_MAX", 4096)
    script(path, "\nwhile True: sys.stdout.write('x ' * 65536)")
    seen = look(deadline_s=10)
    assert seen.devices == ()
    assert codes(seen) == ["unparsed"]
    assert len(seen.troubles[0].raw) == 4096


def test_a_loud_stderr_does_not_block_it_and_is_kept_apart(path: Path) -> None:
    script(path, f"sys.stderr.write('warning ' * 100000); print('''{GOOD}''')")
    seen = look()
    assert (len(seen.devices), codes(seen)) == (1, ["tool_said"])


def test_rows_of_a_tool_that_ends_with_an_error_are_kept(path: Path) -> None:
    script(path, f"print('''{GOOD}'''); sys.exit(9)")
    seen = look()
    assert (len(seen.devices), codes(seen)) == (1, ["tool_failed"])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("Permission denied: run me as root", "no_permission"),
        ("Driver/library version mismatch", "driver_mismatch"),
        ("driver not loaded", "no_driver"),
        ("something else", "unparsed"),
    ],
)
def test_a_refusal_is_a_reason_though_the_tool_ends_well(path: Path, words: str, code: str) -> None:
    script(path, f"sys.stderr.write('{words}')")
    assert codes(look()) == [code]


def test_it_runs_without_a_terminal_in_the_locale_c_with_stdin_closed(path: Path) -> None:
    script(
        path,
        "assert os.environ['LC_ALL'] == 'C' and os.environ['TERM'] == 'dumb'\n"
        "assert not sys.stdin.read() and not sys.stdout.isatty()\n"
        f"print('''{GOOD}''')",
    )
    assert codes(look()) == []


def test_a_tool_that_prints_on_and_on_is_ended_after_its_first_line(path: Path) -> None:
    script(path, f"\nwhile True: print('''{GOOD}''', flush=True); time.sleep(0.1)")
    assert len(look(lines=1).devices) == 1


def test_what_cannot_be_started_is_said(path: Path) -> None:
    (path / "tt-smi").write_text("not a program")
    (path / "tt-smi").chmod(0o755)
    assert codes(look()) == ["no_permission"]


def test_a_vendors_row_makes_its_probe(path: Path) -> None:
    probe = metax.live(node="n", sys_root="/sys")
    assert codes(probe.observe()) == ["no_library"]


def test_two_commands_fill_one_another_by_address_and_not_by_place() -> None:
    def device(at: str, index: int, **more: float) -> Device:
        readings = {name: Value(number) for name, number in more.items()}
        return Device(f"pci-{at}", index, "x", "", pci_address=at, readings=readings)

    first = Observation("x", "list", (device("a", 0), device("b", 1, power_watts=5)))
    other = Observation("x", "stats", (device("b", 0, power_watts=6, fan_percent=3),))
    merged = merge("x", (first, other))
    assert merged.tool == "list, stats"
    assert [len(d.readings) for d in merged.devices] == [0, 2]
    assert merged.devices[1].readings["power_watts"].value == 5, "the first command stands"
