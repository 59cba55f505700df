"""The formula reproduces the estimates of the table of ratings, value and band."""

from __future__ import annotations

import csv
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest

from quintal.roofline import Figures, estimate

pytestmark = pytest.mark.shared

TABLES = Path(__file__).parents[3] / "shared" / "data" / "accelerators"
CLASSES = {"vision_bert": "vision", "llm_decode_batch1": "llm_decode"}

if not TABLES.is_dir():
    pytest.skip("the tables are not beside this checkout", allow_module_level=True)


def rows(name: str) -> list[dict[str, str]]:
    with (TABLES / name).open(newline="") as file:
        return list(csv.DictReader(file))


def figures(row: dict[str, str]) -> Figures:
    def number(name: str) -> Decimal | None:
        return Decimal(row[name]) if row[name] else None

    columns = {
        p: f"{p}_tops" if p == "int8" else f"{p}_tflops"
        for p in ("fp16", "bf16", "fp8", "int8", "fp4")
    }
    link = number("interconnect_bandwidth_gbs")
    if link is not None and row["interconnect_convention"].startswith("unidirectional"):
        link *= 2
    return Figures(
        tflops={p: value for p, c in columns.items() if (value := number(c)) is not None},
        bandwidth_gbs=number("memory_bandwidth_gbs"),
        interconnect_gbs=link,
        watts=number("tdp_w"),
        cuda=row["runtime"].startswith("cuda"),
        confidence=row["confidence"],
    )


def test_each_estimate_of_the_table_comes_out_of_the_code_within_rounding() -> None:
    cards = {row["key"]: row for row in rows("accelerators.csv")}
    seen: Counter[str] = Counter()
    wrong = []
    for row in rows("device_ratings.csv"):
        if not row["provenance"].startswith("roofline") or row["key"].startswith("cpu-"):
            continue
        name = CLASSES.get(row["rating_class"], row["rating_class"])
        found = estimate(figures(cards[row["key"]]), name)
        assert found is not None, row["key"]
        seen[name] += 1
        told = [Decimal(row[field]) for field in ("rating_vs_h100_sxm", "low80", "high80")]
        made = [found.value, found.low80, found.high80]
        for one, other in zip(told, made, strict=True):
            if abs(one - other) > max(Decimal("0.00011"), one / 400):
                wrong.append((row["key"], name, told, made))
                break
        assert found.outside == ("OUT" in row["provenance"] or "outside" in row["provenance"])
    assert wrong == []
    assert sum(seen.values()) > 600
    assert len(seen) == 6


def test_the_published_errors_are_the_tables() -> None:
    from quintal.roofline import ERRORS

    table = {(row["class"], row["method"]): row for row in rows("roofline_errors.csv")}
    for name, error in ERRORS.items():
        its = {"vision": "vision_bert"}.get(name, name)
        refit, naive = table[its, "LOO refit"], table[its, "naive bf16 TFLOPS"]
        told = (error.cards, error.mean, error.median, error.p80, error.worst, error.tflops_mean)
        assert told == (
            int(refit["devices"]),
            *(
                Decimal(refit[f])
                for f in ("mean_abs_factor", "median_factor", "p80_factor", "worst_factor")
            ),
            Decimal(naive["mean_abs_factor"]),
        )
