"""Whether any model of the catalog could meet a profile, and if none, why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from quintal.contracts.documents import (
    AcceleratorModelSpec,
    AcceleratorNeed,
    ProfileSpec,
    count_range,
    memory_range,
)
from quintal_catalog.sources import Path

NONE_SHOWN: Final = 4
"""Reasons that a message lists; the commonest first."""


def unmet(
    profile: ProfileSpec, models: Mapping[str, AcceleratorModelSpec], whose: str = "the catalog"
) -> Iterator[tuple[Path, str]]:
    """(path, why) of each need of the profile that none of these models could ever meet."""
    workload_class = profile.workload_class
    if not profile.alternatives:
        low, high = count_range(profile.cards)
        reasons = _reasons(profile.accelerator, workload_class, (low, high), (models, whose))
        if reasons is not None:
            yield ("spec", "accelerator"), reasons
    for index, alternative in enumerate(profile.alternatives):
        cards = alternative.cards
        reasons = _reasons(alternative.accelerator, workload_class, (cards, cards), (models, whose))
        if reasons is not None:
            yield ("spec", "alternatives", index), reasons


def _reasons(
    need: AcceleratorNeed,
    workload_class: str,
    cards: tuple[int, int | None],
    among: tuple[Mapping[str, AcceleratorModelSpec], str],
) -> str | None:
    models, whose = among
    counted: Counter[str] = Counter()
    for name, spec in models.items():
        reason = why_not(name, spec, need, workload_class, cards)
        if reason is None:
            return None
        counted[reason] += 1
    told = "; ".join(
        f"{count} {'is' if count == 1 else 'are'} ruled out: {reason}"
        for reason, count in counted.most_common(NONE_SHOWN)
    )
    return f"no model of {whose} could ever meet this ({told or 'it has no models'})"


def why_not(
    name: str,
    spec: AcceleratorModelSpec,
    need: AcceleratorNeed,
    workload_class: str,
    cards: tuple[int, int | None],
) -> str | None:
    """The first thing that rules this model out, in the order of the need's own fields."""
    low, high = memory_range(need.memory)
    missing = [feature for feature in need.features if feature not in spec.features]
    checks = (
        (spec.kind == need.kind, f"it is of kind {spec.kind}"),
        (not need.models or name in need.models, "its name is not asked for"),
        (not need.families or spec.family in need.families, "its family is not asked for"),
        (not need.vendors or spec.vendor in need.vendors, "its vendor is not asked for"),
        (
            not need.memory or low <= spec.memory_bytes <= (high or spec.memory_bytes),
            f"its memory lies outside {need.memory}",
        ),
        (not missing, f"it lacks {', '.join(missing)}"),
        (_rated(spec, workload_class, need.precision), f"it is unrated in {workload_class}"),
        (_legal(spec, cards), "it cannot be had in that number of cards"),
    )
    return next((reason for holds, reason in checks if not holds), None)


def _rated(spec: AcceleratorModelSpec, workload_class: str, precision: str) -> bool:
    return any(
        rating.workload_class == workload_class and rating.precision in {"", precision}
        for rating in spec.ratings
    )


def _legal(spec: AcceleratorModelSpec, cards: tuple[int, int | None]) -> bool:
    low, high = cards
    counts = spec.legal_counts
    return not counts or any(low <= count <= (high or count) for count in counts)
