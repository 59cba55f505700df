"""What can be wrong with accelerator models: ratings, partitions, rules that match one device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from quintal.contracts.documents import (
    AcceleratorModelSpec,
    Catalog,
    MatchRule,
    PartitionProfile,
    Rating,
    memory_range,
)
from quintal.units import PARTS
from quintal_catalog.finding import Finding
from quintal_catalog.sources import Path

REFERENCE: Final = "nvidia-h100-sxm5-80gb"
"""The card that is 1 in every class: a unit is what it delivers."""

ENDLESS: Final = 2**63


def models(catalog: Catalog) -> Iterator[Finding]:
    """Each model by itself, then any two that one device could match."""
    for (kind, name), document in catalog.documents.items():
        if kind == "AcceleratorModel":
            key = (kind, name)
            yield from ratings(key, name, document.spec.ratings)
            yield from _partitions(key, document.spec)
            yield from _layouts(key, document.spec)
            yield from _apart(key, document.spec)
    yield from _same_rules(catalog)


def ratings(key: tuple[str, str], model: str, rated: tuple[Rating, ...]) -> Iterator[Finding]:
    """Ratings of one model as one document gives them."""
    seen: set[tuple[str, str, str]] = set()
    for index, rating in enumerate(rated):
        path: Path = ("spec", "ratings", index)
        what = (rating.workload_class, rating.precision, rating.provenance)
        if what in seen:
            yield Finding(key, path, f"a second {rating.provenance} rating for {what[0]}")
        seen.add(what)
        if rating.value <= 0:
            message = "a rating is above 0; what is not known is left out"
            yield Finding(key, (*path, "value"), message)
        low = rating.low80 if rating.low80 is not None else rating.value
        high = rating.high80 if rating.high80 is not None else rating.value
        if not low <= rating.value <= high:
            yield Finding(key, path, f"the value {rating.value} lies outside {low}..{high}")
        if model == REFERENCE and not rating.precision and rating.value != 1:
            message = f"{REFERENCE} is the reference: 1 in every class, by definition"
            yield Finding(key, (*path, "value"), message)


def _partitions(key: tuple[str, str], spec: AcceleratorModelSpec) -> Iterator[Finding]:
    for index, shape in enumerate(spec.partitions):
        path: Path = ("spec", "partitions", index)
        if shape.parts * shape.count_max > PARTS:
            message = f"{shape.count_max} x {shape.parts} parts are more than the whole's {PARTS}"
            yield Finding(key, path, message)
        if spec.memory_bytes and shape.memory_bytes > spec.memory_bytes:
            yield Finding(key, path, f"{shape.name} has more memory than the whole device")
    doubled = [name for name, n in Counter(p.name for p in spec.partitions).items() if n > 1]
    if doubled:
        yield Finding(key, ("spec", "partitions"), f"{doubled[0]} stands twice")


def _layouts(key: tuple[str, str], spec: AcceleratorModelSpec) -> Iterator[Finding]:
    """A layout's shapes and its remainder are the whole device, and can stand side by side."""
    shapes = {shape.name: shape for shape in spec.partitions}
    for index, layout in enumerate(spec.layouts):
        path: Path = ("spec", "layouts", index)
        unknown = [name for name in layout.shapes if name not in shapes]
        if unknown:
            yield Finding(key, (*path, "shapes"), f"there is no partition {unknown[0]!r}")
            continue
        used = sum(shapes[name].parts * count for name, count in layout.shapes.items())
        if used + layout.overhead_parts != PARTS:
            message = f"{used} parts and {layout.overhead_parts} left over are not {PARTS}"
            yield Finding(key, (*path, "overhead_parts"), message)
        wanted = [shapes[name] for name, count in layout.shapes.items() for _ in range(count)]
        over = [name for name, count in layout.shapes.items() if count > shapes[name].count_max]
        if over:
            message = f"{layout.shapes[over[0]]} x {over[0]}: at most {shapes[over[0]].count_max}"
            yield Finding(key, (*path, "shapes"), message)
        elif spec.memory_slices and not side_by_side(wanted, spec.memory_slices):
            yield Finding(key, (*path, "shapes"), "these do not fit side by side")


def _apart(key: tuple[str, str], spec: AcceleratorModelSpec) -> Iterator[Finding]:
    """Shares and whole sets that agree with themselves and with the legal counts."""
    shares = spec.shares
    if shares is not None and shares.smallest_milli % shares.step_milli:
        message = f"{shares.smallest_milli} is no multiple of the step, {shares.step_milli}"
        yield Finding(key, ("spec", "shares", "smallest_milli"), message)
    if shares is not None and 1000 % shares.step_milli:
        message = f"a whole card, 1000 milli, is no multiple of {shares.step_milli}"
        yield Finding(key, ("spec", "shares", "step_milli"), message)
    if shares is not None and (spec.kind == "cpu" or spec.together > 1):
        message = "a CPU is asked for by its cores" if spec.kind == "cpu" else "a die is not shared"
        yield Finding(key, ("spec", "shares"), message)
    odd = [count for count in spec.legal_counts if count % spec.together]
    if odd:
        message = f"{odd[0]} are no whole cards of {spec.together} devices"
        yield Finding(key, ("spec", "legal_counts"), message)
    for index, shape in enumerate(spec.legal_shapes):
        if not re.fullmatch(r"\d{1,4}(x\d{1,4}){0,2}", shape):
            yield Finding(key, ("spec", "legal_shapes", index), f"{shape!r} is no shape like 2x2")


def side_by_side(shapes: list[PartitionProfile], slices: int, taken: int = 0) -> bool:
    """Whether all of these find a place; `taken` is a mask of memory slices in use."""
    if not shapes:
        return True
    shape, rest = max(shapes, key=lambda each: each.memory_slices), list(shapes)
    rest.remove(shape)
    for start in shape.placements:
        mask = ((1 << shape.memory_slices) - 1) << start
        free = not mask & taken and start + shape.memory_slices <= slices
        if free and side_by_side(rest, slices, taken | mask):
            return True
    return False


def _same_rules(catalog: Catalog) -> Iterator[Finding]:
    """Two models that one device could match with equal right: it would resolve to neither."""
    buckets: dict[tuple[Any, ...], list[tuple[str, int, MatchRule]]] = {}
    told: set[tuple[str, int, str]] = set()
    for name, spec in catalog.models.items():
        for index, rule in enumerate(spec.match):
            for word in _words(rule):
                bucket = buckets.setdefault(word, [])
                for other, _, its in bucket:
                    mark = (name, index, other)
                    if other == name or mark in told or not _both(rule, its):
                        continue
                    told.add(mark)
                    message = f"AcceleratorModel {other!r} has the same match rule ({word[-1]})"
                    yield Finding(("AcceleratorModel", name), ("spec", "match", index), message)
                bucket.append((name, index, rule))


def _words(rule: MatchRule) -> Iterator[tuple[Any, ...]]:
    """What two rules must share to be able to hold for one device."""
    given = (
        rule.vendor,
        bool(rule.names),
        bool(rule.pci_ids),
        bool(rule.memory),
        bool(rule.architectures),
    )
    words: tuple[str, ...] = rule.names or rule.pci_ids or rule.architectures
    for word in dict.fromkeys(" ".join(word.split()).casefold() for word in words):
        yield (*given, word)


def _both(one: MatchRule, other: MatchRule) -> bool:
    low, high = memory_range(one.memory)
    its_low, its_high = memory_range(other.memory)
    overlap = low <= (its_high or ENDLESS) and its_low <= (high or ENDLESS)
    return (
        overlap
        and share(one.pci_ids, other.pci_ids)
        and share(one.architectures, other.architectures)
    )


def share(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether something can be in both lists; an empty one holds everything."""
    return not one or not other or bool({*map(str.lower, one)} & {*map(str.lower, other)})
