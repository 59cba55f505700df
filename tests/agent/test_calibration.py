"""From timed runs to a rating: the arithmetic by hand, and a real run on this processor."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from quintal.cli.choices import Output, chosen
from quintal.contracts.documents import Document
from quintal.errors import SetupError
from quintal_agent.calibration import arithmetic, backends
from quintal_agent.calibration.arithmetic import Measured, Rate, Timed
from quintal_agent.calibration.measuring import timed


def measured(threads: int = 1, spread: str = "0.01", **rates: str) -> Measured:
    return Measured(
        device="a card",
        computed_by="a library",
        threads=threads,
        rates=tuple(
            Rate(name, Decimal(value), Decimal(spread), 5) for name, value in rates.items()
        ),
        clocks={},
        date="2026-11-30",
    )


def by_class(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["class"]: each for each in found}


def test_a_rate_is_the_median_and_its_spread_is_told() -> None:
    found = arithmetic.rate(Timed("fp32", 2 * 10**12, (1.0, 2.0, 4.0)))
    assert (found.value, found.spread, found.repeats) == (Decimal(1), Decimal("1.5"), 3)
    moved = arithmetic.rate(Timed("bandwidth", 10**10, (0.1, 0.1, 0.1)))
    assert (moved.value, moved.spread) == (Decimal(100), Decimal(0))


def test_runs_that_took_no_time_are_an_error_and_no_infinite_rate() -> None:
    with pytest.raises(ValueError, match="no run took measurable time"):
        arithmetic.rate(Timed("fp32", 1, (0.0, 0.1)))
    with pytest.raises(ValueError, match="no run took measurable time"):
        arithmetic.rate(Timed("fp32", 1, ()))


def test_against_the_same_on_the_reference_card_it_is_the_plain_ratio() -> None:
    reference = measured(bf16="600", fp64="50", bandwidth="3000")
    half = measured(bf16="300", fp64="25", bandwidth="1500")
    found = by_class(arithmetic.ratings(half, reference))
    assert {name: each["value"] for name, each in found.items()} == {
        "scientific": Decimal("0.5"), "llm_decode": Decimal("0.5"), "llm_small": Decimal("0.5"),
        "train_other": Decimal("0.5"),
    }  # fmt: skip
    assert all(each["provenance"] == "measured" for each in found.values())
    decode = found["llm_decode"]
    assert (decode["low80"], decode["high80"]) == (Decimal("0.47619"), Decimal("0.525"))


def test_against_nominal_figures_the_value_is_a_floor_and_the_band_says_so() -> None:
    found = by_class(arithmetic.ratings(measured(bandwidth="1675")))
    decode = found["llm_decode"]
    assert decode["value"] == Decimal("0.5")
    assert decode["high80"] > Decimal("0.5") / Decimal("0.6")
    assert "so a floor" in decode["evidence"]
    assert set(found) == {"llm_decode"}, "a class whose figures were not measured is left out"


def test_classes_that_rest_on_several_cards_are_not_proposed() -> None:
    found = by_class(arithmetic.ratings(measured(bf16="600", fp64="30", bandwidth="3000")))
    assert not {"train_llm", "llm_large", "vision"} & set(found)


def test_runs_that_differ_widely_widen_the_band() -> None:
    calm, wild = (measured(spread=spread, bandwidth="1675") for spread in ("0.01", "0.4"))
    (one,), (other,) = arithmetic.ratings(calm), arithmetic.ratings(wild)
    assert other["low80"] < one["low80"]
    assert other["value"] == one["value"]


def test_a_processor_is_rated_by_the_thread() -> None:
    (found,) = arithmetic.ratings(measured(threads=64, bandwidth="335"))
    assert found["per"] == "core"
    assert found["value"] == Decimal("0.001562")


def test_what_is_printed_can_be_the_reference_of_another_run() -> None:
    one = measured(bf16="600.5", bandwidth="3000")
    assert arithmetic.read(json.loads(json.dumps(arithmetic.plain(one)))) == one


class Stepping:
    """Each look at it is half a second later."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic_s(self) -> float:
        self.now += 0.5
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


class Partial:
    """A device that knows two precisions by name, and fails at one."""

    name = "partial 1"
    device = "a card"
    cpu = False
    precisions = ("fp64", "fp32")

    def product(self, precision: str, size: int) -> backends.Run:
        if precision == "fp64":
            raise RuntimeError("not implemented for double\nwith a long story")
        return lambda: None

    def copy(self, count: int) -> backends.Run:
        return lambda: None


def test_a_precision_that_the_device_lacks_is_left_out_and_said() -> None:
    said: list[str] = []
    found = list(timed(Partial(), Stepping(), 3, said.append))
    assert [each.name for each in found] == ["fp32", "bandwidth"]
    assert "fp64: left out: not implemented for double" in said


def test_without_any_library_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "ORDER", ("no_such_torch", "no_such_numpy"))
    with pytest.raises(SetupError, match="pip install numpy"):
        backends.backend(None, 0)


def test_a_real_run_on_this_processor_gives_a_document_that_apply_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy", reason="numpy, which this run computes with, is not installed")
    from quintal_agent.calibration import command, measuring

    monkeypatch.setattr(measuring, "LONG_ENOUGH_S", 0.001)
    monkeypatch.setattr(measuring, "COPY_BYTES", 16 * 2**20)
    monkeypatch.setattr(chosen, "output", Output.TABLE)
    target = tmp_path / "rating.yaml"
    command.calibrate(model="cpu-x86-64", library="numpy", repeats=3, write=target)
    assert "proposed for cpu-x86-64, not in force yet" in capsys.readouterr().out
    document = Document.model_validate(yaml.safe_load(target.read_text()))
    assert document.key == ("Rating", "cpu-x86-64-calibrated")
    classes = {rating.workload_class for rating in document.spec.ratings}
    assert "scientific" in classes
    for rating in document.spec.ratings:
        assert rating.provenance == "measured"
        assert rating.low80 <= rating.value <= rating.high80
        assert "3 runs, spread" in rating.evidence


def test_the_agent_loads_none_of_the_libraries() -> None:
    import subprocess
    import sys

    code = (
        "import sys, quintal_agent.app, quintal_agent.calibration.command as _;"
        "print([name for name in ('torch', 'cupy', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
