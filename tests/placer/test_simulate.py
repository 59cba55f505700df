"""`quintal simulate`: traces, protocols, policies, what a run says of itself."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from quintal.cli.__main__ import with_options
from quintal.cli.choices import Output, chosen
from quintal.errors import SetupError
from quintal.process import chain
from quintal.units import PARTS
from quintal_placer import commands
from quintal_placer.simulate import policies, protocol, run, summary, trace
from quintal_placer.simulate.trace import NodeLine, RequestLine
from quintal_placer.simulate.whatif import changed
from quintal_placer.simulate.yard import Yard, shapes

GIB = 2**30
BIG = [NodeLine(f"big-{n}", "g", 8, 96_000, 512 * GIB, "train", None, 1_000_000, 3 * 10**9)
       for n in range(6)]  # fmt: skip
SMALL = [NodeLine(f"small-{n}", "t", 2, 52_000, 256 * GIB, "serve") for n in range(8)]
FLEET = [*BIG, *SMALL]
CAPACITY = sum(line.cards for line in FLEET) * PARTS

ASKED = [
    *[RequestLine("share", "a", "p", 1, 500_000, 4000, 8 * GIB)] * 30,
    *[RequestLine("odd", "a", "p", 1, 810_000, 3000, 8 * GIB)] * 15,
    *[RequestLine("one", "b", "q", 1, PARTS, 10_000, 32 * GIB)] * 25,
    *[RequestLine("eight", "b", "q", 8, PARTS, 64_000, 64 * GIB)] * 2,
    *[RequestLine("typed", "b", "q", 1, PARTS, 8000, 32 * GIB, ("t",))] * 8,
    *[RequestLine("host", "c", "r", 0, PARTS, 12_000, 16 * GIB)] * 10,
]
KNOWN = policies.list_target(shapes(FLEET, ASKED))


def nought() -> int:
    return 0


def setup(**more: Any) -> run.Setup:
    return run.Setup(FLEET, KNOWN, nought, **more)


def filled(policy: str, seed: int, **more: Any) -> run.Outcome:
    stream = protocol.fill(ASKED, CAPACITY, 1.3, random.Random(seed))
    return run.fill_up(setup(**more), policy, seed, stream)


def test_the_load_is_reached_and_not_passed() -> None:
    for load in (0.4, 1.3):
        stream = protocol.fill(ASKED, CAPACITY, load, random.Random(3))
        demand = sum(line.asked for line in stream)
        assert load * CAPACITY - 8 * PARTS < demand < load * CAPACITY + 8 * PARTS


@pytest.mark.parametrize("policy", commands.NAMES)
def test_a_policy_refuses_nothing_that_fits(policy: str) -> None:
    world = Yard(FLEET, policy, KNOWN, random.Random(1), salt="")
    stream = protocol.fill(ASKED, CAPACITY, 1.3, random.Random(1))
    for number, line in enumerate(stream):
        held = world.place(run._named(line, number))
        rooms = [node for node in world.fleet.nodes.values() if _fits(node, line)]
        assert held is not None or not rooms, (policy, line)
    assert world.allocated == sum(
        PARTS - device.free_parts
        for node in world.fleet.nodes.values()
        for device in node.devices.values()
    )


def _fits(node: Any, line: RequestLine) -> bool:
    devices = node.devices.values()
    if node.cpu_milli - node.cpu_held < line.cpu_milli:
        return False
    if line.models and next(iter(devices)).model not in line.models:
        return False
    return sum(device.free_parts >= line.parts for device in devices) >= line.cards


def test_one_seed_is_one_history() -> None:
    one, two, three = filled("tight", 5), filled("tight", 5), filled("tight", 6)
    assert (one.allocation, one.failures) == (two.allocation, two.failures)
    assert one.allocation != three.allocation


def test_ours_loses_no_more_than_the_published_policy_and_less_than_chance() -> None:
    outs = {name: [filled(name, seed) for seed in range(6)] for name in ("random", "fgd", "tight")}
    told = {name: summary.policy(its)["allocation_percent"]["130"] for name, its in outs.items()}
    assert told["tight"]["mean"] >= told["fgd"]["mean"] - 0.5
    assert told["tight"]["mean"] > told["random"]["mean"]
    assert summary.compared(outs["random"], outs["tight"])["points"]["allocation@130"]["mean"] > 0


def test_a_request_that_no_node_could_ever_hold_is_told_from_one_that_finds_no_room() -> None:
    world = Yard(SMALL, "tight", KNOWN, random.Random(1), salt="")
    assert world.reason(RequestLine("x", cards=4)) == "never_fits"
    for number in range(8):
        assert world.place(RequestLine(f"h{number}", cards=0, cpu_milli=50_000)) is not None
    assert world.reason(RequestLine("x", cards=1, cpu_milli=4000)) == "host"
    large = Yard(BIG, "tight", KNOWN, random.Random(1), salt="")
    for number in range(12):
        assert large.place(RequestLine(f"c{number}", cards=3)) is not None
    assert large.reason(RequestLine("x", cards=4)) == "fragmented"
    for number in range(6):
        assert large.place(RequestLine(f"d{number}", cards=2)) is not None
    assert large.reason(RequestLine("x", cards=4)) == "no_capacity"


def test_who_waits_is_served_when_somebody_leaves_and_lost_at_its_deadline() -> None:
    hour = 3_600_000
    eight = RequestLine("x", "a", "", 8, PARTS, at_ms=0, duration_ms=hour, wait_ms=2 * hour)
    fleet = BIG[:1]
    lines = [eight] * 4
    known = policies.list_target(shapes(fleet, lines))
    out = run.timed(run.Setup(fleet, known, nought), "tight", 1, lines, (0, 4 * hour))
    assert sorted(out.waits_ms) == [0, hour, 2 * hour]
    assert out.placed == 3
    assert out.failures["deadline"] == 1
    assert out.micro == {"a": 3 * 8_000_000}  # unit-hours
    assert out.cost_nano == 3 * 8 * 3 * 10**9
    assert out.mean_allocation == pytest.approx(75.0)
    assert out.lost == pytest.approx(25.0)


def test_with_departures_all_that_left_is_free_again() -> None:
    churn = protocol.Churn(1.0, holdings=3)
    stream = protocol.churn(ASKED, CAPACITY, churn, random.Random(2))
    out = run.timed(setup(), "tight", 2, stream, (churn.from_ms, churn.until_ms))
    assert out.mean_allocation is not None
    assert out.lost is not None
    assert 60 < out.mean_allocation < 100
    assert 0 < out.lost < 40


def test_what_if_changes_the_world_and_says_what_it_does_not_know() -> None:
    more, _ = changed(FLEET, ASKED, "add 2 g")
    assert len(more) == len(FLEET) + 2
    assert len({line.name for line in more}) == len(more)
    left, _ = changed(FLEET, ASKED, "drain serve")
    assert {line.model for line in left} == {"g"}
    _, asked = changed(FLEET, ASKED, "profile p parts=250000 cpu_milli=1000")
    assert {line.parts for line in asked if line.profile == "p"} == {250_000}
    for wrong in ("add 2 h", "drain nowhere", "profile p", "profile z cards=1", "profile p x=1"):
        with pytest.raises(SetupError, match="what-if"):
            changed(FLEET, ASKED, wrong)


OPENB_NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,96000,1024,8,G2\nn2,64000,512,2,P100\n"
OPENB_PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"
    "p1,4000,10,1,460,,LS\np2,8000,0,1,1000,P100|T4,BE\np3,12000,5,0,0,,LS\n"
)


def test_the_public_trace_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(OPENB_NODES)
    (tmp_path / "pods.csv").write_text(OPENB_PODS)
    one, two = trace.nodes(tmp_path / "nodes.csv")
    assert (one.cards, one.cpu_milli, one.memory_bytes, two.model) == (8, 96_000, GIB, "P100")
    share, typed, host = trace.requests(tmp_path / "pods.csv")
    assert (share.parts, share.tenant) == (460_000, "LS")
    assert typed.models == ("P100", "T4")
    assert (host.cards, host.asked) == (0, 0)


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for text, told in (
        ("", "neither"),
        ("a,b\n1,2\n", "neither"),
        (OPENB_NODES.replace("96000", "many"), "x:2"),
        ('{"name": "n", "model": "g", "cards": 1}\n{"name": "m"}\n', "x:2: no model"),
        ('{"name": "n"\n', "x:1: not JSON"),
    ):
        path.write_text(text)
        with pytest.raises(SetupError, match=told):
            trace.nodes(path)
    with pytest.raises(SetupError, match="cannot be read") as none:
        trace.nodes(tmp_path / "none")
    assert chain(none.value).count("No such file") == 1
    path.write_text('{"cards": 2, "parts": 5}\n')
    with pytest.raises(SetupError, match="of one card"):
        trace.requests(path)


def test_the_command_compares_two_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, asked = _written(tmp_path)
    monkeypatch.setattr(chosen, "output", Output.JSON)
    commands.simulate(nodes, asked, seeds=2, load=1.2, compare=("first-fit", "tight"))
    told = json.loads(capsys.readouterr().out)
    assert [each["policy"] for each in told["policies"]] == ["first-fit", "tight"]
    assert [each["seed"] for each in told["policies"][0]["seeds"]] == [1, 2]
    assert set(told["compared"][0]["points"]) >= {"allocation@100", "fragmentation"}
    monkeypatch.setattr(chosen, "output", Output.TABLE)
    commands.simulate(nodes, asked, what_if=["drain serve"])
    out = capsys.readouterr().out
    assert "tight, drain serve" in out
    assert "against tight" in out
    assert with_options(commands.simulate)


def test_a_picture_is_drawn_where_there_is_something_to_draw_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, asked = _written(tmp_path)
    picture = tmp_path / "p.png"
    commands.simulate(nodes, asked, plot=picture)
    told = capsys.readouterr().err
    if picture.exists():
        assert picture.read_bytes().startswith(b"\x89PNG")
    else:
        assert "matplotlib is missing" in told


def _written(folder: Path) -> tuple[Path, Path]:
    nodes, asked = folder / "nodes.jsonl", folder / "requests.jsonl"
    nodes.write_text("\n".join(
        json.dumps({"name": n.name, "model": n.model, "cards": n.cards, "pool": n.pool,
                    "cpu_milli": n.cpu_milli, "memory_bytes": n.memory_bytes, "rating": "1.5"})
        for n in FLEET
    ))  # fmt: skip
    asked.write_text("\n".join(
        json.dumps({"tenant": r.tenant, "cards": r.cards, "parts": r.parts, "profile": r.profile,
                    "cpu_milli": r.cpu_milli, "models": r.models}) for r in ASKED
    ))  # fmt: skip
    return nodes, asked
