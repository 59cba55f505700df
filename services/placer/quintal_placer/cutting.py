"""What cutting a card anew comes to: the plan, or why not. Pure.

Under a lease nothing is cut: that is looked at before anything else is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quintal.contracts import placement
from quintal.contracts.documents import AcceleratorModelSpec
from quintal.contracts.message import Refusal
from quintal.errors import Code, Owner
from quintal_placer.engine.devices import Device
from quintal_placer.engine.geometry import Card, Place, Shape, laid_out
from quintal_placer.state import PlacerState

WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Plan:
    """How a device is to be cut, and by which task."""

    device: Device
    layout: str
    shapes: dict[str, int]
    places: tuple[Place, ...]
    overhead_parts: int
    task: str

    @property
    def told(self) -> placement.Done:
        """What would be done."""
        shapes = (
            ", ".join(f"{count} x {name}" for name, count in self.shapes.items()) or "one whole"
        )
        where = [[place.shape.name, place.start] for place in self.places]
        return placement.Done(
            message=f"{self.device.node}/{self.device.uuid} would be {shapes}, by task {self.task}",
            nodes=(self.device.node,),
            details={
                "device": self.device.uuid, "layout": self.layout, "shapes": self.shapes,
                "placements": where, "overhead_parts": self.overhead_parts, "task": self.task,
            },
        )  # fmt: skip

    def holds(self, device: Device) -> bool:
        """Whether the device is reported as it is to be."""
        counts: dict[str, int] = {}
        for partition in (device.partitions or {}).values():
            counts[partition.profile] = counts.get(partition.profile, 0) + 1
        return counts == self.shapes


def card_of(spec: AcceleratorModelSpec) -> Card:
    """The model's slices and shapes. One without slices can be cut into nothing.

    Its compute slices are as many as its largest shape, or any of its layouts, has.
    """
    shapes = tuple(
        Shape(p.name, p.placements, p.memory_slices, p.compute_slices, p.parts, p.count_max)
        for p in spec.partitions
        if p.memory_slices
    )
    each = {shape.name: shape.compute_slices for shape in shapes}
    sums = (
        sum(each.get(name, 0) * count for name, count in layout.shapes.items())
        for layout in spec.layouts
    )
    compute = max([0, *each.values(), *sums])
    return Card(spec.memory_slices, compute, shapes)


def planned(state: PlacerState, ask: placement.PartitionAsk) -> Plan | Refusal:
    """What the ask comes to now; a lease on the device bars it, whatever else is right."""
    if ask.node not in state.fleet.nodes:
        return Refusal(code=Code.NOT_FOUND, message=f"no such node: {ask.node}")
    node = state.fleet.nodes.get(ask.node)
    device = _named(list(node.devices.values()), ask.device) if node else None
    if device is None:
        return Refusal(code=Code.NOT_FOUND, message=f"{ask.node} has no device {ask.device}")
    if device.holders:
        return Refusal(
            code=Code.CONFLICT,
            message=f"{device.uuid} is held by {', '.join(device.holders)}: nothing is cut under a "
            "lease; drain the node, or wait for its end",
            owner=Owner.INFRASTRUCTURE,
            details={"leases": list(device.holders)},
        )
    if device.disputed:
        return Refusal(
            code=Code.DISPUTED,
            message=f"{device.uuid} is put aside ({device.disputed}): clear that first",
            owner=Owner.INFRASTRUCTURE,
        )
    spec = state.catalog.models.get(device.model or "")
    layouts = {layout.name: layout for layout in spec.layouts} if spec else {}
    layout = layouts.get(ask.layout)
    if spec is None or (layout is None and ask.layout != WHOLE):
        known = ", ".join((*layouts, WHOLE))
        named = device.model or device.name
        return Refusal(
            code=Code.INVALID_REQUEST, message=f"{named} has no layout {ask.layout}: {known}"
        )
    shapes = dict(layout.shapes) if layout is not None else {}
    task = ask.task or f"partition-{device.index}-{_slug(ask.layout)}"[:64]
    places = laid_out(card_of(spec), shapes)
    over = layout.overhead_parts if layout is not None else 0
    if spec.memory_slices and places is None:
        return Refusal(
            code=Code.INVALID_REQUEST, message=f"layout {ask.layout} does not lie side by side"
        )
    return Plan(device, ask.layout, shapes, places or (), over, task)


def _slug(layout: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", layout.casefold()).strip("-")


def _named(devices: list[Device], name: str) -> Device | None:
    """By uuid, or by a display index that one accelerator alone has."""
    by_uuid = next((device for device in devices if device.uuid == name), None)
    if by_uuid is not None or not name.isdecimal():
        return by_uuid
    found = [d for d in devices if d.index == int(name) and d.kind != "cpu"]
    return found[0] if len(found) == 1 else None
