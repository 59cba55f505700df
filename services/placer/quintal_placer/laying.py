"""From what a node says of its topology to what the engine knows of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from quintal.contracts.ledger import NodeChanged
from quintal.contracts.nodes import Island, NearNics
from quintal_placer.engine.lay import UNKNOWN, Lay, Sets


def lay_of(node: NodeChanged) -> Lay:
    """How the node's devices lie, and which domains between nodes it is in.

    The fabric is the one that its devices tell; where they are in none, or in several, it is the
    node's label `fabric`. The rack is the label `rack`, else the location. Names that people give
    hold within a cluster (and a location); a fabric's own name is the same everywhere.
    """
    told = node.topology
    rack = node.labels.get("rack") or node.location
    lay = Lay(
        islands=_sets(told.islands) if told is not None else None,
        near=_sets(told.nics) if told is not None else None,
        fabric=_fabric(node),
        rack=f"{node.cluster}/{node.location}/{rack}" if rack else "",
    )
    return UNKNOWN if lay == UNKNOWN else lay


def _fabric(node: NodeChanged) -> str:
    fabrics = (node.topology.fabrics if node.topology is not None else None) or ()
    if len(fabrics) == 1:
        return f"{fabrics[0].kind}:{fabrics[0].domain}"
    label = node.labels.get("fabric")
    return f"{node.cluster}/{label}" if label else ""


def _sets(groups: Sequence[Island] | Sequence[NearNics] | None) -> Sets | None:
    return None if groups is None else tuple(group.devices for group in groups)


def island_of(lay: Lay, uuid: str) -> int | None:
    """Which island the device is in; none where it is in none, or nobody knows."""
    return next((at for at, island in enumerate(lay.islands or ()) if uuid in island), None)


def nearest_nics(node: NodeChanged | None, uuid: str) -> tuple[str, ...]:
    """The interfaces of the nearest group that the device is in."""
    groups = (node.topology.nics if node is not None and node.topology is not None else None) or ()
    return next((group.nics for group in groups if uuid in group.devices), ())
