"""From timed runs to a rating and its band. Pure.

What is measured is what a class's formula rests on: how fast matrices multiply, how fast memory
moves. A ratio needs a reference. The best is the same measurement on the reference card. Without
one its nominal figures stand in; no card sustains those, so such a value is a floor, and the band
reaches up to where the reference would sustain only `SUSTAINED` of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Final

from quintal.roofline import REFERENCE

SUSTAINED: Final = Decimal("0.6")
"""The least of its nominal rate that a data-centre card is seen to sustain in large products."""

SPREAD_LEAST: Final = Decimal("0.05")
"""Two days differ by about this much, however alike the runs of one day are."""

_EXACT: Final = Context(prec=28)
_STEP: Final = Decimal("0.000001")

NOMINAL: Final = {
    "bf16": REFERENCE["c16"],
    "fp16": REFERENCE["c16"],
    "fp64": REFERENCE["fp64"],
    "bandwidth": REFERENCE["bandwidth"],
}
"""TFLOPS and GB/s of the reference card; fp64 without matrix units, as the class counts it."""

NEEDS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "scientific": (("fp64", "0.5"), ("bandwidth", "0.5")),
    "llm_decode": (("bandwidth", "1"),),
    "llm_small": (("compute16", "1"),),
    "train_other": (("compute16", "0.45"), ("bandwidth", "0.55")),
}
"""Classes that one device's compute and bandwidth decide, and with which exponents. The others
rest on how several cards work together, which this does not measure."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One thing done several times: how much work each time was, and how long each took."""

    name: str
    """A precision, for a product of matrices; or `bandwidth`."""
    work: int
    """Operations, or bytes read and written."""
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rate:
    """What a number of runs came to: TFLOPS, or GB/s."""

    name: str
    value: Decimal
    """The median."""
    spread: Decimal
    """From the slowest to the fastest run, as a share of the median."""
    repeats: int


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured of one device."""

    device: str
    computed_by: str
    threads: int
    """Of a processor, which is rated by the thread; 1 for anything else."""
    rates: tuple[Rate, ...]
    clocks: Mapping[str, int]
    """Megahertz by clock, where they are known."""
    date: str


def rate(timed: Timed) -> Rate:
    """The median rate. Raises ValueError where nothing was measured."""
    if not timed.seconds or min(timed.seconds) <= 0:
        raise ValueError(f"{timed.name}: no run took measurable time")
    middle = statistics.median(timed.seconds)
    scale = 1e9 if timed.name == "bandwidth" else 1e12
    return Rate(
        name=timed.name,
        value=_decimal(timed.work / middle / scale),
        spread=_decimal((max(timed.seconds) - min(timed.seconds)) / middle),
        repeats=len(timed.seconds),
    )


def _decimal(value: float) -> Decimal:
    return Decimal(repr(value)).quantize(_STEP, ROUND_HALF_EVEN)


def ratings(measured: Measured, reference: Measured | None = None) -> list[dict[str, Any]]:
    """A rating in each class that the measurements reach, as a document has it."""
    own = _figures(measured)
    base = _figures(reference) if reference is not None else _nominal(own)
    spread = max([SPREAD_LEAST, *(each.spread for each in measured.rates)])
    found = []
    for workload_class, factors in NEEDS.items():
        ratio = _ratio(own, base, factors)
        if ratio is None or ratio < _STEP * measured.threads:
            continue
        value = _EXACT.divide(ratio, Decimal(measured.threads))
        top = value if reference is not None else _EXACT.divide(value, SUSTAINED)
        found.append(
            {
                "class": workload_class,
                "value": _step(value),
                "low80": _step(_EXACT.divide(value, 1 + spread)),
                "high80": _step(_EXACT.multiply(top, 1 + spread)),
                "provenance": "measured",
                "evidence": _evidence(measured, reference, factors),
                "date": measured.date,
                **({"per": "core"} if measured.threads > 1 else {}),
            }
        )
    return found


def _figures(measured: Measured) -> dict[str, Decimal]:
    """Rates by name, with the 16-bit one that the device has (else its best of 32 bits)."""
    found = {each.name: each.value for each in measured.rates}
    for name in ("bf16", "fp16", "fp32"):
        if name in found:
            found["compute16"] = found[name]
            break
    return found


def _nominal(own: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {**NOMINAL, "compute16": NOMINAL["bf16"]} if own else {}


def _ratio(
    own: Mapping[str, Decimal], base: Mapping[str, Decimal], factors: tuple[tuple[str, str], ...]
) -> Decimal | None:
    total = Decimal(1)
    for name, exponent in factors:
        if name not in own or name not in base:
            return None
        part = _EXACT.divide(own[name], base[name])
        if part <= 0:
            return None
        total = _EXACT.multiply(total, _EXACT.power(part, Decimal(exponent)))
    return total


def _step(value: Decimal) -> Decimal:
    return value.quantize(_STEP, ROUND_HALF_EVEN).normalize()


def _evidence(
    measured: Measured, reference: Measured | None, factors: tuple[tuple[str, str], ...]
) -> str:
    wanted = {name for name, _ in factors}
    if "compute16" in wanted:
        wanted |= {"bf16", "fp16", "fp32"}
    parts = [
        f"{each.name} {each.value:.4g} {'GB/s' if each.name == 'bandwidth' else 'TFLOPS'} "
        f"({each.repeats} runs, spread {each.spread * 100:.1f} %)"
        for each in measured.rates
        if each.name in wanted
    ]
    by = "the same on the reference card" if reference else "nominal figures of the reference card"
    floor = "" if reference else ", so a floor"
    clocks = ", ".join(f"{name} {mhz} MHz" for name, mhz in measured.clocks.items())
    where = f"{measured.device} with {measured.computed_by}" + (f", {clocks}" if clocks else "")
    return f"calibrated on {where}: {'; '.join(parts)}; against {by}{floor}"


def document(model: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """The document that `quintal apply` takes."""
    return {
        "apiVersion": "quintal/v1",
        "kind": "Rating",
        "metadata": {"name": f"{model}-calibrated"},
        "spec": {"model": model, "ratings": found},
    }


def plain(measured: Measured) -> dict[str, Any]:
    """As JSON, so that it can be the reference of another run."""
    return {
        "device": measured.device,
        "library": measured.computed_by,
        "threads": measured.threads,
        "date": measured.date,
        "clocks": dict(measured.clocks),
        "rates": {
            each.name: {
                "value": str(each.value),
                "spread": str(each.spread),
                "repeats": each.repeats,
            }
            for each in measured.rates
        },
    }


def read(found: Mapping[str, Any]) -> Measured:
    """What `plain` wrote. Raises KeyError, TypeError or ArithmeticError where it did not."""
    return Measured(
        device=str(found["device"]),
        computed_by=str(found["library"]),
        threads=int(found["threads"]),
        rates=tuple(
            Rate(name, Decimal(each["value"]), Decimal(each["spread"]), int(each["repeats"]))
            for name, each in found["rates"].items()
        ),
        clocks={str(name): int(mhz) for name, mhz in found.get("clocks", {}).items()},
        date=str(found["date"]),
    )
