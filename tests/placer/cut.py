"""Models that can be cut and shared, and cards of them, for tests of parts of cards."""

from __future__ import annotations

from typing import Any

from quintal.contracts import nodes
from quintal.contracts.documents import Document
from quintal.contracts.nodes import RawDevice, RawPartition
from tests.placer.site import Site, inventory, models, quota
from tests.placer.world import GIB, doc, model

SEVENTH = {"parts": 125_000, "memory_bytes": 10 * GIB}
PROFILES: list[dict[str, Any]] = [
    {"name": "1g.10gb", **SEVENTH, "count_max": 7, "placements": [0, 1, 2, 3, 4, 5, 6],
     "compute_slices": 1, "memory_slices": 1, "model": "slice-10"},
    {"name": "2g.20gb", "parts": 250_000, "memory_bytes": 20 * GIB, "count_max": 3,
     "placements": [0, 2, 4], "compute_slices": 2, "memory_slices": 2},
    {"name": "3g.40gb", "parts": 500_000, "memory_bytes": 40 * GIB, "count_max": 2,
     "placements": [0, 4], "compute_slices": 3, "memory_slices": 4},
    {"name": "4g.40gb", "parts": 500_000, "memory_bytes": 40 * GIB, "count_max": 1,
     "placements": [0], "compute_slices": 4, "memory_slices": 4},
]  # fmt: skip
LAYOUTS = [
    {"name": "7x1g.10gb", "shapes": {"1g.10gb": 7}, "overhead_parts": 125_000},
    {"name": "2x3g.40gb", "shapes": {"3g.40gb": 2}, "overhead_parts": 0},
]


def cut_model(**more: Any) -> Document:
    """`cut-80`: 80 GiB, shared by twentieths, and cut as MIG cuts seven slices of eight."""
    whole = model("cut-80", memory=80, family="cut", train_llm="1").spec.model_dump(mode="json")
    spec = {
        **whole, "partitions": PROFILES, "layouts": LAYOUTS, "memory_slices": 8,
        "shares": {"smallest_milli": 100, "step_milli": 50}, **more,
    }  # fmt: skip
    return doc("AcceleratorModel", "cut-80", **spec)


def slice_model() -> Document:
    """What a slice of one delivers by itself: more than its part of the parent."""
    return doc(
        "AcceleratorModel", "slice-10", vendor="nvidia", family="cut", memory_bytes=10 * GIB,
        ratings=[{"class": "train_llm", "value": "0.15", "provenance": "measured"}],
    )  # fmt: skip


def documents(*caps: dict[str, Any], **more: Any) -> list[Document]:
    return [*models(), cut_model(**more), slice_model(), *quota("ml", *caps), *quota("bio")]


def card(node: str, index: int = 0, *profiles: str, memory: int = 80) -> RawDevice:
    """A card, and its partitions by their profiles."""
    uuid = f"GPU-{node}-{index}"
    return RawDevice(
        uuid=uuid, index=index, vendor="nvidia", name="CUT-80", memory_bytes=memory * GIB,
        partitions=tuple(
            RawPartition(uuid=f"MIG-{node}-{index}-{place}", profile=name, index=place)
            for place, name in enumerate(profiles)
        ),
    )  # fmt: skip


def site(*cards: RawDevice, caps: tuple[dict[str, Any], ...] = (), **more: Any) -> Site:
    """One node `n1` with these cards."""
    return Site(documents(*caps, **more), inventory("n1", *cards))


def fleet(**its: tuple[RawDevice, ...]) -> Site:
    """Several nodes."""
    found: list[nodes.Inventory] = [inventory(name, *cards) for name, cards in its.items()]
    return Site(documents(), *found)


def share(milli: int, memory: str = "", **more: Any) -> dict[str, Any]:
    need = {"compute_milli": milli, **({"memory": memory} if memory else {})}
    return {"accelerator": {"models": ["cut-80"], "share": need}, **more}


def partition(profile: str, cards: int = 1, **more: Any) -> dict[str, Any]:
    return {"accelerator": {"partition": profile}, "cards": cards, **more}
