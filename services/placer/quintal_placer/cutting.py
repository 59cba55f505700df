"""A model's geometry as the catalog has it, for the engine; and how an operator cuts a card anew.

Never under a lease: the check comes first, then the card is put aside (disputed, so that nobody is
given it meanwhile), then the node's installed task is run by its name. Pure but for nothing: what
asks the agent is in `recutting`.
"""

from __future__ import annotations

from quintal.contracts.documents import AcceleratorModelSpec
from quintal_placer.engine.geometry import Card, Shape


def card_of(spec: AcceleratorModelSpec) -> Card:
    """The model's slices and shapes. One without slices can be cut into nothing."""
    shapes = tuple(
        Shape(p.name, p.placements, p.memory_slices, p.compute_slices, p.parts, p.count_max)
        for p in spec.partitions
        if p.memory_slices
    )
    compute = max((shape.compute_slices for shape in shapes), default=0)
    return Card(spec.memory_slices, compute, shapes)
