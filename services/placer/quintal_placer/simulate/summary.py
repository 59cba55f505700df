"""Many runs as one answer: mean and spread over the seeds, each run beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev
from typing import Any, Final

from quintal_placer.simulate.run import Outcome

POINTS: Final = (90, 100, 130)
"""Percents of arrived demand at which the allocation is told."""


def policy(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What one policy came to over its seeds."""
    reached = max((at for out in outcomes for at in out.allocation), default=0)
    points = [at for at in POINTS if at <= reached] or ([reached] if reached else [])
    failures: Counter[str] = Counter()
    for out in outcomes:
        failures.update(out.failures)
    found: dict[str, Any] = {
        "policy": outcomes[0].policy,
        "allocation_percent": {str(at): _spread(out.at(at) for out in outcomes) for at in points},
        "fragmentation_percent": _spread(out.fragmentation for out in outcomes),
        "placed": _spread(out.placed for out in outcomes),
        "failures": {code: _rounded(n / len(outcomes)) for code, n in sorted(failures.items())},
        "decision_us": {
            "p50": _rounded(fmean(percentile(out.decision_ns, 50) for out in outcomes) / 1000),
            "p99": _rounded(fmean(percentile(out.decision_ns, 99) for out in outcomes) / 1000),
        },
        "curve": _curve(outcomes),
        "units": _units(outcomes),
        "cost": _rounded(fmean(out.cost_nano for out in outcomes) / 10**9),
        "seeds": [_seed(out, points) for out in outcomes],
    }
    if outcomes[0].mean_allocation is not None:
        found["mean_allocation_percent"] = _spread(out.mean_allocation for out in outcomes)
        found["lost_percent"] = _spread(out.lost for out in outcomes)
        waits = [ms for out in outcomes for ms in out.waits_ms]
        found["wait_ms"] = {"p50": percentile(waits, 50), "p99": percentile(waits, 99)}
    return found


def compared(one: Sequence[Outcome], two: Sequence[Outcome]) -> dict[str, Any]:
    """Two policies (or worlds) on the same seeds: what the second brings over the first."""
    return {
        "from": one[0].policy,
        "to": two[0].policy,
        "points": {
            what: _spread(b - a for a, b in pairs if a is not None and b is not None)
            for what, pairs in _pairs(one, two).items()
        },
    }


def _pairs(
    one: Sequence[Outcome], two: Sequence[Outcome]
) -> dict[str, list[tuple[float | None, float | None]]]:
    both = list(zip(one, two, strict=True))
    pairs: dict[str, list[tuple[float | None, float | None]]] = {}
    if one[0].mean_allocation is None:
        pairs = {f"allocation@{at}": [(a.at(at), b.at(at)) for a, b in both] for at in POINTS}
    else:
        pairs["mean_allocation"] = [(a.mean_allocation, b.mean_allocation) for a, b in both]
        pairs["lost"] = [(a.lost, b.lost) for a, b in both]
    pairs["fragmentation"] = [(a.fragmentation, b.fragmentation) for a, b in both]
    return pairs


def percentile(values: Sequence[int], percent: int) -> int:
    """The smallest value that so many percent do not pass; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0


def _seed(out: Outcome, points: Sequence[int]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "seed": out.seed,
        "arrivals": out.arrivals,
        "demand_percent": _rounded(out.demand),
        "placed": out.placed,
        "fragmentation_percent": _rounded(out.fragmentation),
    }
    if out.mean_allocation is not None:
        told["mean_allocation_percent"] = _rounded(out.mean_allocation)
        told["lost_percent"] = _rounded(out.lost or 0.0)
    told["allocation_percent"] = {
        str(at): _rounded(value) for at in points if (value := out.at(at)) is not None
    }
    return told


def _curve(outcomes: Sequence[Outcome]) -> dict[str, float]:
    bins: dict[int, list[float]] = {}
    for out in outcomes:
        for at, value in out.allocation.items():
            bins.setdefault(at, []).append(value)
    return {str(at): _rounded(fmean(seen)) for at, seen in sorted(bins.items())}


def _units(outcomes: Sequence[Outcome]) -> dict[str, float]:
    tenants = sorted({tenant for out in outcomes for tenant in out.micro})
    return {
        tenant: _rounded(fmean(out.micro.get(tenant, 0) for out in outcomes) / 10**6)
        for tenant in tenants
    }


def _spread(values: Iterable[float | None]) -> dict[str, float]:
    known = [float(value) for value in values if value is not None]
    if not known:
        return {}
    return {"mean": _rounded(fmean(known)), "sd": _rounded(pstdev(known))}


def _rounded(value: float) -> float:
    return round(value, 2)
