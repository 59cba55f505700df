"""What a model can be had in: counts, shapes, shares, partitions; else which lie nearest. Pure.

What no model that is asked for can be had in is refused when it is asked, by name: no wait and no
other state of the fleet would mend it.
"""

from __future__ import annotations

from math import prod

from quintal.contracts.documents import AcceleratorModelSpec, AcceleratorNeed, PartitionProfile
from quintal.units import parse_bytes

NAMED_MAX = 12
"""Profiles of a model that are named where one was asked for that it has not."""


def partition_of(spec: AcceleratorModelSpec, name: str) -> PartitionProfile | None:
    """The model's partition of this name, whatever its case."""
    wanted = name.casefold()
    return next((p for p in spec.partitions if p.name.casefold() == wanted), None)


def illegal_part(name: str, spec: AcceleratorModelSpec, need: AcceleratorNeed) -> str:
    """Why the model is not had in this part, and in which it is; empty where it is."""
    if need.partition and partition_of(spec, need.partition) is None:
        known = ", ".join(p.name for p in spec.partitions[:NAMED_MAX])
        return f"{name}: no partition {need.partition}" + (f"; it has {known}" if known else "")
    share = need.share
    if share is None or share.compute_milli == 1000:  # noqa: PLR2004 - the whole card
        return ""
    legal = spec.shares
    if legal is None or spec.kind == "cpu":
        return f"{name}: is not shared, whole cards only"
    if not legal.allows(share.compute_milli):
        nearest = " or ".join(map(str, legal.nearest(share.compute_milli)))
        return f"{name}: no share of {share.compute_milli} milli; the nearest is {nearest}"
    if share.memory and spec.memory_bytes and parse_bytes(share.memory) > spec.memory_bytes:
        return f"{name}: less memory than {share.memory}"
    return ""


def illegal_count(
    name: str, spec: AcceleratorModelSpec, need: AcceleratorNeed, cards: int, nodes: int
) -> str:
    """Why so many of the model, or in this shape, are not had; and which are."""
    if need.partition or need.share is not None:
        return ""
    if need.shape and need.shape not in spec.legal_shapes:
        nearest = _nearest_shapes(need.shape, spec.legal_shapes)
        told = f"; the nearest is {' or '.join(nearest)}" if nearest else "; it has no shapes"
        return f"{name}: no shape {need.shape}{told}"
    if need.shape and chips(need.shape) != cards * nodes:
        return f"{name}: {need.shape} is {chips(need.shape)} cards, {cards} x {nodes} are asked"
    if cards % spec.together:
        whole = cards - cards % spec.together
        near = " or ".join(str(count) for count in (whole, whole + spec.together) if count)
        return (
            f"{name}: {spec.together} devices are one card, and are not given apart; the nearest "
            f"to {cards} is {near}"
        )
    if spec.legal_counts and cards not in spec.legal_counts:
        below = [n for n in spec.legal_counts if n < cards][-1:]
        above = [n for n in spec.legal_counts if n > cards][:1]
        nearest = [str(n) for n in (*below, *above)]
        legal = ", ".join(map(str, spec.legal_counts))
        return (
            f"{name}: is granted by {legal} cards only; the nearest to {cards} is "
            f"{' or '.join(nearest)}"
        )
    return ""


def chips(shape: str) -> int:
    """How many cards a shape has: `2x4` has 8."""
    return prod(int(side) for side in shape.split("x"))


def _nearest_shapes(shape: str, legal: tuple[str, ...]) -> list[str]:
    """The next smaller and the next larger one."""
    size = chips(shape)
    ordered = sorted(legal, key=lambda its: (chips(its), its))
    below = [its for its in ordered if chips(its) < size][-1:]
    above = [its for its in ordered if chips(its) >= size][:1]
    return [*below, *above]
