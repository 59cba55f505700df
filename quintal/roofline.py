"""An estimate of a rating from a card's figures, for cards that nobody has measured.

The formulas were fitted to 17 to 28 measured cards a class, most of them of one vendor, with the
form chosen after the data had been seen. `ERRORS` says how far they were off when each card was
predicted from the others. For inference they are no better than the plain ratio of TFLOPS, and an
`Estimate` says so. Hence an estimate never stands where a measurement, a benchmark, or a slice
derived from a measured parent does, and it always carries a band.

All figures are ratios to the reference card. Pure, in decimals: the same figures give the same
estimate on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Final

_STEP: Final = Decimal("0.000001")
_CONTEXT: Final = Context(prec=28)

REFERENCE: Final = {
    "c16": Decimal("989.4"),
    "c8": Decimal("1978.9"),
    "bandwidth": Decimal(3350),
    "interconnect": Decimal(900),
    "watts": Decimal(700),
    "fp64": Decimal("33.5"),
}
"""H100 SXM5 80GB: dense TFLOPS, GB/s, GB/s both ways, watts, vector fp64 TFLOPS."""

PCIE_GBS: Final = Decimal(64)
"""The interconnect of a card that names none."""

WATTS_UNKNOWN: Final = Decimal(300)
"""What the formula that needs watts takes where none are known."""

PRIOR: Final = Decimal("0.8")
"""Other ecosystems than CUDA came out this much lower in the LLM classes: 1.16 to 1.66 times
over-predicted without it."""

PRIOR_CLASSES: Final = frozenset({"train_llm", "llm_large"})

_OTHER_ECOSYSTEM: Final = Decimal("1.15")
_OUTSIDE: Final = Decimal("1.3")
_CONFIDENCE: Final = {
    "A": Decimal(1),
    "B": Decimal("1.03"),
    "C": Decimal("1.1"),
    "D": Decimal("1.25"),
}


@dataclass(frozen=True, slots=True)
class Error:
    """How far a class's formula was off on cards it had not seen, as factors: 1.2 is 20 %."""

    cards: int
    mean: Decimal
    median: Decimal
    p80: Decimal
    worst: Decimal
    tflops_mean: Decimal
    """The same for the plain ratio of bf16 TFLOPS."""

    @property
    def no_better_than_tflops(self) -> bool:
        """Whether the formula earned nothing over the plain ratio."""
        return self.mean >= self.tflops_mean


def _error(cards: int, *factors: str) -> Error:
    return Error(cards, *map(Decimal, factors))


ERRORS: Final[Mapping[str, Error]] = {
    "train_llm": _error(23, "1.181", "1.203", "1.259", "1.438", "1.336"),
    "train_other": _error(21, "1.131", "1.097", "1.239", "1.352", "1.325"),
    "vision": _error(28, "1.200", "1.170", "1.399", "1.728", "1.316"),
    "llm_small": _error(17, "1.274", "1.137", "1.601", "1.889", "1.258"),
    "llm_large": _error(19, "1.233", "1.195", "1.436", "1.879", "1.495"),
}
"""Each card predicted from all others. Fitted on one vendor and tried on the rest, the inference
formulas were off by 1.33 to 1.42, the plain ratio by 1.35 to 1.40."""

TRANSFER_NO_BETTER: Final = frozenset({"llm_small", "llm_large", "vision"})
"""Classes in which, on vendors it was not fitted on, the formula is no better than TFLOPS."""

_BAND: Final = {
    "train_llm": Decimal("1.26"),
    "train_other": Decimal("1.24"),
    "vision": Decimal("1.40"),
    "llm_small": Decimal("1.60"),
    "llm_large": Decimal("1.44"),
    "llm_decode": Decimal("1.5"),
    "scientific": Decimal("1.65"),
}
"""The 80 % factor. The last two are by judgement: three cards, and none, were measured."""

DOMAIN: Final[Mapping[str, tuple[Decimal, Decimal]]] = {
    "train_llm": (Decimal("0.414"), Decimal("2.37")),
    "train_other": (Decimal("0.317"), Decimal("1.773")),
    "vision": (Decimal("0.244"), Decimal("6.18")),
    "llm_small": (Decimal("0.414"), Decimal("1.773")),
    "llm_large": (Decimal("0.4715"), Decimal("1.773")),
}
"""Compute over bandwidth, as the measured cards of the class had it, a quarter more at each end.
Outside of it the formula is extrapolation."""

CLASSES: Final = tuple(_BAND)


@dataclass(frozen=True, slots=True)
class Figures:
    """What is known of one device: dense TFLOPS by precision, GB/s, watts. Unknown is none."""

    tflops: Mapping[str, Decimal]
    bandwidth_gbs: Decimal | None = None
    interconnect_gbs: Decimal | None = None
    """Both directions together."""
    watts: Decimal | None = None
    cuda: bool = True
    confidence: str = "D"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A rating by formula, its 80 % band, and what to say of it."""

    value: Decimal
    low80: Decimal
    high80: Decimal
    evidence: str
    outside: bool = False
    """The card lies outside of what the formula was fitted on."""


@dataclass(frozen=True, slots=True)
class _Ratios:
    c16: Decimal | None
    c8: Decimal | None
    c4: Decimal | None
    bandwidth: Decimal | None
    interconnect: Decimal
    watts: Decimal | None


def estimate(figures: Figures, workload_class: str, *, fp4: bool = True) -> Estimate | None:
    """The estimate in a class; none where the figures that its formula needs are not known.

    `fp4=False` is the card as one uses it who does not run FP4.
    """
    ratios = _ratios(figures, fp4=fp4)
    if workload_class == "llm_decode":
        return _plain(workload_class, ratios.bandwidth, "memory bandwidth ratio")
    if workload_class == "scientific":
        return _plain(workload_class, _science(figures, ratios), "fp64 and bandwidth")
    value = _formula(ratios, workload_class)
    if value is None:
        return None
    prior = PRIOR if not figures.cuda and workload_class in PRIOR_CLASSES else Decimal(1)
    return _banded(figures, workload_class, _times(value, prior), ratios)


def _ratios(figures: Figures, *, fp4: bool) -> _Ratios:
    peaks = figures.tflops
    c16 = peaks.get("bf16", peaks.get("fp16"))
    eights = [peaks[name] for name in ("fp8", "int8") if name in peaks]
    c8 = max([*eights, *([c16] if c16 is not None else [])], default=None)
    c4 = c8
    if fp4 and c8 is not None and "fp4" in peaks:
        c4 = _CONTEXT.sqrt(_times(c8, peaks["fp4"]))
    return _Ratios(
        c16=_over(c16, "c16"),
        c8=_over(c8, "c8"),
        c4=_over(c4, "c8"),
        bandwidth=_over(figures.bandwidth_gbs, "bandwidth"),
        interconnect=_CONTEXT.divide(
            max(figures.interconnect_gbs or PCIE_GBS, PCIE_GBS), REFERENCE["interconnect"]
        ),
        watts=_over(figures.watts, "watts"),
    )


def _over(value: Decimal | None, name: str) -> Decimal | None:
    return None if value is None else _CONTEXT.divide(value, REFERENCE[name])


def _formula(r: _Ratios, workload_class: str) -> Decimal | None:
    c16, c8 = _held(r.c16, r.watts), _held(r.c8, r.watts)
    match workload_class:
        case "train_llm":
            return _product((c16, "1"), (r.interconnect, "0.3"))
        case "train_other":
            return _product((c16, "0.45"), (r.bandwidth, "0.55"))
        case "vision":
            return _product((c8, "0.65"), (r.bandwidth, "0.35"))
        case "llm_small":
            return c16
        case "llm_large":
            watts = r.watts or _CONTEXT.divide(WATTS_UNKNOWN, REFERENCE["watts"])
            return _product((r.c4, "0.7"), (r.bandwidth, "0.1"), (watts, "0.75"))
        case _:
            return None


def _held(compute: Decimal | None, watts: Decimal | None) -> Decimal | None:
    """Peaks are given at boost clocks: a card with fewer watts for each does not hold them."""
    if compute is None or watts is None or watts >= compute:
        return compute
    return _times(compute, _CONTEXT.sqrt(_CONTEXT.divide(watts, compute)))


def _product(*factors: tuple[Decimal | None, str]) -> Decimal | None:
    total = Decimal(1)
    for base, exponent in factors:
        if base is None or base <= 0:
            return None
        total = _times(total, _CONTEXT.power(base, Decimal(exponent)))
    return total


def _science(figures: Figures, ratios: _Ratios) -> Decimal | None:
    return _product((_over(figures.tflops.get("fp64"), "fp64"), "0.5"), (ratios.bandwidth, "0.5"))


def _plain(workload_class: str, value: Decimal | None, words: str) -> Estimate | None:
    if value is None:
        return None
    factor = _BAND[workload_class]
    return Estimate(
        _step(value),
        _step(_CONTEXT.divide(value, factor)),
        _step(_times(value, factor)),
        f"estimate by formula, not measured: {words}",
    )


def _banded(figures: Figures, workload_class: str, value: Decimal, r: _Ratios) -> Estimate:
    factor = _times(_BAND[workload_class], _CONFIDENCE[figures.confidence])
    if not figures.cuda:
        factor = _times(factor, _OTHER_ECOSYSTEM)
    error = ERRORS[workload_class]
    words = (
        f"estimate by formula, not measured: off by {error.mean} on average, {error.worst} worst"
    )
    if workload_class in PRIOR_CLASSES and not figures.cuda:
        words += f"; x {PRIOR} for its ecosystem"
    if error.no_better_than_tflops or (not figures.cuda and workload_class in TRANSFER_NO_BETTER):
        words += "; no better than the ratio of TFLOPS"
    low, high = DOMAIN[workload_class]
    inside = (
        r.c16 is None or r.bandwidth is None or low <= _CONTEXT.divide(r.c16, r.bandwidth) <= high
    )
    found = Estimate(
        _step(value), _step(_CONTEXT.divide(value, factor)), _step(_times(value, factor)), words
    )
    if inside:
        return found
    return _outside(found, workload_class, value, factor, r.bandwidth)


def _outside(
    found: Estimate, workload_class: str, value: Decimal, factor: Decimal, bandwidth: Decimal | None
) -> Estimate:
    """For LLM inference the mean of formula and bandwidth, with a band over both; else wider."""
    words = f"{found.evidence}; outside of the cards it was fitted on: measure before you bill"
    if workload_class.startswith("llm_") and bandwidth is not None:
        low, high = sorted((value, bandwidth))
        return Estimate(
            _step(_CONTEXT.sqrt(_times(value, bandwidth))),
            _step(_CONTEXT.divide(low, _OUTSIDE)),
            _step(_times(high, _OUTSIDE)),
            f"{words}; mean of formula and bandwidth",
            outside=True,
        )
    wide = _times(factor, _OUTSIDE)
    return replace(
        found,
        low80=_step(_CONTEXT.divide(value, wide)),
        high80=_step(_times(value, wide)),
        evidence=words,
        outside=True,
    )


def _times(one: Decimal, other: Decimal) -> Decimal:
    return _CONTEXT.multiply(one, other)


def _step(value: Decimal) -> Decimal:
    """To the micro-unit."""
    return value.quantize(_STEP, ROUND_HALF_EVEN, context=_CONTEXT)
