"""The command's manners: exit codes, one line per error, units as people read them."""

from __future__ import annotations

import importlib
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from quintal.cli import fleet, render
from quintal.cli.__main__ import TABLE, _load, run
from quintal.cli.choices import Chosen, Output, chosen
from quintal.cli.placement import _member, _topology, duration_ms
from quintal.contracts.message import Reason, Refusal
from quintal.contracts.nodes import Island, Topology
from quintal.contracts.placement import DeviceView, NodeView, PartView
from quintal.errors import Code, Owner

CPU_MS_MAX = 150
"""More than a bare interpreter."""


@pytest.fixture(autouse=True)
def _as_chosen_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("QUINTAL_DATA", "QUINTAL_URL", "QUINTAL_AS", "QUINTAL_TENANT"):
        monkeypatch.delenv(name, raising=False)
    chosen.forget()


def test_done_is_0_failed_is_1_and_wrong_usage_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == 0
    assert run(["--version"]) == 0
    assert run(["nodes"]) == 1
    assert run(["nodes", "--bogus"]) == 2
    assert run(["bogus"]) == 2
    assert run(["place", "--tenant", "vision"]) == 2
    assert run(["place", "p", "--tenant", "vision", "--ttl", "soon"]) == 2
    assert run(["place", "p", "--tenant", "vision", "--prefer", "isle"]) == 2


def test_an_error_is_one_line_that_names_the_thing_and_the_way_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run(["nodes", "--data", "here"])
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.splitlines()
    assert line == (
        f"quintal: no installation in {tmp_path}/here: start one with `quintal up --data"
        f" {tmp_path}/here`"
    )


def test_a_refusal_says_code_message_owner_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    reason = Reason(code=Code.CORDONED, count=2, names=("n1", "n2"), pool="gpu", message="fans")
    said = Refusal(
        code=Code.NO_CAPACITY, message="nothing free", owner=Owner.INFRASTRUCTURE,
        verdict="not_now", reasons=(reason,),
    )  # fmt: skip
    render.refusal(said)
    head, line = capsys.readouterr().err.splitlines()
    assert head == "refused: no_capacity (not_now): nothing free  [infrastructure's move]"
    assert line.split() == ["2", "x", "cordoned", "in", "gpu", "-", "fans", "[infrastructure]:",
                            "n1,", "n2"]  # fmt: skip
    chosen.output = Output.JSON
    render.refusal(said)
    assert json.loads(capsys.readouterr().out)["code"] == "no_capacity"


def test_an_option_of_all_commands_may_stand_before_the_command_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["-o", "json", "--as", "nodes", "version"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": "0.1.0"}
    assert chosen.principal == "nodes"


def test_what_one_command_line_chose_is_not_the_next_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever calls `run` twice in a process, as a notebook does."""
    assert run(["version", "-o", "json", "--as", "ops"]) == 0
    assert run(["version"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "quintal 0.1.0"
    assert chosen == Chosen()
    assert run(["-o", "json", "version", "-o", "yaml"]) == 0
    assert capsys.readouterr().out == "version: 0.1.0\n"
    assert run(["-o"]) == 2


def test_a_free_cpu_is_no_free_card() -> None:
    def device(vendor: str, index: int) -> DeviceView:
        return DeviceView(
            node="n1", uuid=f"{vendor}-{index}", index=index, vendor=vendor, name="x", pool="p",
            state="free",
        )  # fmt: skip

    cards = (device("nvidia", 0), device("nvidia", 1), device("cpu", 0))
    assert fleet._free(NodeView(node="n1", liveness="ready", devices=cards)) == 2
    assert fleet._free(NodeView(node="n2", liveness="ready", devices=cards[2:])) == 1


@pytest.mark.parametrize(
    ("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)], ids=["json", "yaml"]
)
def test_every_form_says_the_same(
    output: str, read: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["version", "-o", output]) == 0
    assert read(capsys.readouterr().out) == {"version": "0.1.0"}  # type: ignore[operator]


@pytest.mark.parametrize(
    ("micro", "workload_class", "shown"),
    [
        (1_000_000, "train_llm", "1 STU"),
        (2_500_000, "llm_large", "2.5 SIU"),
        (1, "vision", "0.000001 vision"),
        (100_000_000, "train_llm", "100 STU"),
        (0, "train_llm", "0 STU"),
    ],
)
def test_micro_units_are_shown_exactly(micro: int, workload_class: str, shown: str) -> None:
    assert render.units(micro, workload_class) == shown


def test_durations_are_read_and_shown() -> None:
    assert [duration_ms(text) for text in ("250ms", "30s", "5m", "2h", "45")] == [
        250, 30_000, 300_000, 7_200_000, 45_000,
    ]  # fmt: skip
    assert [render.duration(ms) for ms in (None, 59_000, 61_000, 7_260_000, 90_000_000)] == [
        "-", "59s", "1m 1s", "2h 1m", "1d 1h",
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_command_of_the_table_is_there_and_says_what_it_does(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _load(name, TABLE[name][0]) is not None
    assert run([name, "--help"]) == 0
    assert "Usage: quintal " + name in capsys.readouterr().out


def test_every_command_that_a_room_has_is_in_the_table() -> None:
    rooms = {room for room, _ in TABLE.values() if room}
    for room in sorted(rooms):
        has = importlib.import_module(f"quintal.cli.{room}").COMMANDS
        assert set(has) == {name for name, (its, _) in TABLE.items() if its == room}, room


def test_a_card_in_parts_is_shown_part_by_part() -> None:
    slice_ = PartView(parts=125_000, state="leased", lease="l1", profile="1g.10gb", index=3)
    shared = PartView(parts=250_000, state="leased", lease="l2", tenant="bio")
    parts = {"leased": 375_000, "free": 500_000, "partition_overhead": 125_000}
    device = DeviceView(
        node="n1", uuid="u", index=0, vendor="nvidia", name="x", pool="p", state="leased",
        parts=parts, partitions=(slice_,), shares=(shared,),
    )  # fmt: skip
    assert "leased 37%, free 50%, partition_overhead 12%" in fleet._device(device)
    one, other = fleet._parts(device)
    assert one[1:3] == ("0.3", "  1g.10gb")
    assert other[1:3] == ("0", "  250 milli")


@pytest.mark.parametrize("words", [["--help"], ["version"]], ids=["help", "version"])
def test_a_start_costs_little_more_than_a_bare_interpreter(words: list[str]) -> None:
    bare = min(cpu_ms([sys.executable, "-c", "pass"]) for _ in range(3))
    ours = min(cpu_ms([sys.executable, "-m", "quintal.cli", *words]) for _ in range(5))
    assert ours - bare <= CPU_MS_MAX, f"{ours - bare:.0f} ms more"


def cpu_ms(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def test_who_speaks_as_one_tenant_does_not_ask_for_anothers_quota(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    auth = tmp_path / "here" / "auth"
    auth.mkdir(parents=True)
    (auth / "principals.json").write_text(json.dumps({"vision": "tenant", "language": "tenant"}))
    (tmp_path / "here" / "system.json").write_text("{}")
    assert run(["quota", "--data", "here", "--as", "vision", "--tenant", "language"]) == 1
    assert "vision speaks for itself alone" in capsys.readouterr().err


def test_the_doctor_asks_nobody_over_a_server_that_does_not_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["doctor", "--data", "here", "-o", "json"]) == 1
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert rows["server reachable"]["ok"] is False
    for name in ("services answer", "fleet and ledger"):
        assert rows[name] == {
            "check": name,
            "ok": None,
            "found": "not asked: the server is not reachable",
        }


def test_topology_is_asked_for_by_flags() -> None:
    assert _topology(None, [], island=True, nic=False) == {"island": "required"}
    assert _topology("rack", ["nic"], island=False, nic=False) == {
        "domain": "required", "over": "rack", "nic": "preferred",
    }  # fmt: skip
    assert _topology(None, ["fabric", "island"], island=True, nic=False) == {
        "island": "required", "domain": "preferred", "over": "fabric",
    }  # fmt: skip
    with pytest.raises(typer.BadParameter, match="one sort of domain"):
        _topology("rack", ["fabric"], island=False, nic=False)
    assert [_member("8x2"), _member("4")] == [{"cards": 8, "nodes": 2}, {"cards": 4, "nodes": 1}]
    with pytest.raises(typer.BadParameter, match="8x2"):
        _member("many")


def test_a_nodes_islands_are_counted_by_kind() -> None:
    islands = tuple(
        Island(kind="nvlink", bandwidth="NV4", devices=(f"{at}-a", f"{at}-b")) for at in range(2)
    )
    node = NodeView(node="n1", liveness="ready", topology=Topology(islands=islands))
    assert fleet._islands(node) == "2 x 2 nvlink NV4"
    assert fleet._islands(NodeView(node="n2", liveness="ready")) is None
