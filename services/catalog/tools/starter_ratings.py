"""What one model delivers in each class, with what each figure rests on.

The scientific class has no benchmark here. Its rating is the geometric mean of two ratios to the
reference card: dense *vector* fp64 (33.5 TFLOPS) and memory bandwidth (3350 GB/s). Matrix units
are left out on purpose, since most codes of that kind do not use them. The band is a factor of
1.65 either way, by judgement. A device whose fp64 rate is not known has no rating.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from quintal.roofline import Figures, estimate
from tools import starter_tables as tables

REFERENCE: Final = "nvidia-h100-sxm5-80gb"
REFERENCE_FP64: Final = Decimal("33.5")
REFERENCE_BANDWIDTH: Final = Decimal(3350)
SCIENTIFIC_BAND: Final = Decimal("1.65")

Row = dict[str, str]


def ratings_of(row: Row, ratings: list[Row], share: int) -> list[dict[str, Any]]:
    """All ratings of a model, for one device as its tool counts them."""
    cores, threads = _cores(row)
    made = [_rating(row, rating, share, cores * threads) for rating in ratings]
    made += _without_fp4(row, made)
    if row["form_factor"] != "MIG" and (rating := _scientific(row, share, cores * threads)):
        made.append(rating)
    return made


def _cores(row: Row) -> tuple[int, int]:
    """Cores and threads a core of a socket; 1, 1 for what is no CPU."""
    if not row["key"].startswith("cpu-"):
        return 1, 1
    if row["key"] in tables.THREADS:
        known: tuple[int, int] = tables.THREADS[row["key"]]
        return known
    return int(row["variant"].split()[0]), tables.X86_THREADS


def _rating(row: Row, rating: Row, share: int, threads: int) -> dict[str, Any]:
    key, text = row["key"], rating["provenance"]
    made: dict[str, Any] = {
        "class": tables.CLASSES.get(rating["rating_class"], rating["rating_class"]),
        "value": step(rating["rating_vs_h100_sxm"], share * threads),
        "low80": step(rating["low80"], share * threads),
        "high80": step(rating["high80"], share * threads),
    }
    if text == "mlperf-measured":
        made["provenance"] = "benchmark"
        cells = rating["mlperf_cells"]
        made["evidence"] = (
            f"MLPerf {rating['mlperf_rounds']}, {cells} {'cell' if cells == '1' else 'cells'}, "
            f"chained to the reference card; not an official MLPerf result"
        )
    else:
        made["provenance"] = "derived" if text.startswith("derived") else "roofline"
        made["evidence"] = _estimate(row, made) or text
    if key == REFERENCE:
        made |= {"value": Decimal(1), "low80": Decimal(1), "high80": Decimal(1)}
        made["evidence"] += "; 1 by definition"
    return _counted(made, share, threads)


def _estimate(row: Row, made: dict[str, Any]) -> str | None:
    """What the formula says of itself, where the table's figure is the formula's."""
    if made["provenance"] != "roofline" or row["key"].startswith("cpu-"):
        return None
    columns = {p: f"{p}_tops" if p == "int8" else f"{p}_tflops" for p in _PEAKS}
    link = _known(row["interconnect_bandwidth_gbs"])
    if link is not None and row["interconnect_convention"].startswith("unidirectional"):
        link *= 2
    figures = Figures(
        tflops={p: value for p, c in columns.items() if (value := _known(row[c])) is not None},
        bandwidth_gbs=_known(row["memory_bandwidth_gbs"]),
        interconnect_gbs=link,
        watts=_known(row["tdp_w"]),
        cuda=row["runtime"].startswith("cuda"),
        confidence=row["confidence"],
    )
    found = estimate(figures, made["class"])
    return found.evidence if found is not None else None


_PEAKS: Final = ("fp16", "bf16", "fp8", "int8", "fp4")


def _known(text: str) -> Decimal | None:
    return Decimal(text) if text else None


def _counted(made: dict[str, Any], share: int, threads: int) -> dict[str, Any]:
    if share > 1:
        made["evidence"] += f"; module / {share}"
    if threads > 1:
        made["evidence"] += f"; socket / {threads} hardware threads"
        made["per"] = "core"
    return made


def step(value: str | Decimal, divisor: int = 1) -> Decimal:
    """To the micro-unit, the smallest step that a rating has."""
    return (Decimal(value) / divisor).quantize(Decimal("0.000001")).normalize()


def _without_fp4(row: Row, made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Large-model inference is rated with FP4 where the card has it; without, it is like training.

    The reference precision of that class is fp8, and it holds when a request names none: so the
    FP4 figure is kept for `fp4` alone.
    """
    if not row["fp4_tflops"]:
        return []
    by_class = {rating["class"]: rating for rating in made}
    large, train = by_class.get("llm_large"), by_class.get("train_llm")
    if large is None:
        return []
    large["precision"] = "fp4"
    if train is None:
        return []
    base = min(large, train, key=lambda rating: rating["value"])
    other = dict(base)
    other.pop("precision", None)
    other["class"] = "llm_large"
    other["provenance"] = "roofline" if base["provenance"] == "roofline" else "derived"
    other["evidence"] = f"without fp4, taken as the lesser of training and fp4 ({base['evidence']})"
    return [other]


def _scientific(row: Row, share: int, threads: int) -> dict[str, Any] | None:
    if not row["fp64_tflops"] or not row["memory_bandwidth_gbs"]:
        return None
    compute = Decimal(row["fp64_tflops"]) / REFERENCE_FP64
    bandwidth = Decimal(row["memory_bandwidth_gbs"]) / REFERENCE_BANDWIDTH
    value = (compute * bandwidth).sqrt()
    low, high = value / SCIENTIFIC_BAND, value * SCIENTIFIC_BAND
    evidence = "estimate, not measured: geometric mean of vector fp64 and bandwidth ratios"
    if row["key"] == REFERENCE:
        low = high = value
        evidence += "; 1 by definition"
    made = {
        "class": "scientific",
        "value": step(value, share * threads),
        "low80": step(low, share * threads),
        "high80": step(high, share * threads),
        "provenance": "roofline",
        "evidence": evidence,
    }
    return _counted(made, share, threads)
