"""How many of each profile still fit, and how much of what is free they could not use. Pure.

By cards, CPU and memory of open nodes, from packing's columns; software, network, quota and taints
may keep a request out of what is counted here. `Rooms` keeps the newest answers for Prometheus: it
is called once a round of housekeeping and does a little each time, since reading ten thousand
nodes at once would hold up a decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from quintal.contracts import placement
from quintal.contracts.documents import ProfileSpec, count_range
from quintal.contracts.placement import PlaceAsk
from quintal_placer import asking, demand
from quintal_placer.engine.packing.columns import Home
from quintal_placer.engine.packing.packer import Packing
from quintal_placer.engine.packing.score import fitting_cards
from quintal_placer.engine.packing.shapes import WHOLE, Shape
from quintal_placer.state import PlacerState

NODES_A_ROUND: Final = 100
ROUNDS_A_PROFILE: Final = 5
PROFILES_MAX: Final = 200
"""Published at most, in order of name."""


def rooms(state: PlacerState, pool: str | None = None) -> tuple[placement.RoomRow, ...]:
    """Every profile of the catalog, by pool; a pool in which none fits says 0."""
    packing = state.fleet.packing
    packing.renew(state.fleet.nodes)
    shapes = demand.Shapes(state.catalog)
    return tuple(
        row
        for name, spec in sorted(state.catalog.profiles.items())
        for row in _of_profile(state, shapes, name, spec)
        if pool in {None, row.pool}
    )


def fragments(state: PlacerState, pool: str | None = None) -> tuple[placement.FragmentRow, ...]:
    """What is free of each model and pool, and what requests like those of late could use of it."""
    packing = state.fleet.packing
    packing.renew(state.fleet.nodes)
    columns, standing, target = packing.columns, packing.standing, packing.demand.target
    asking_cards = sum(count for shape, count in target.shapes if shape.cards)
    ahead = float(standing.prepared.counts.sum())
    found = []
    for home in sorted(columns.homes()):
        rows = columns.rows(home)
        known = asking_cards and ahead
        found.append(
            placement.FragmentRow(
                pool=home.pool,
                model=home.model,
                free_parts=int(standing.free[rows].sum()),
                usable_parts=int(standing.usable[rows].sum() // ahead) if known else None,
                stranded_parts=int(standing.stranded[rows].sum()) if known else None,
            )
        )
    return tuple(row for row in found if pool in {None, row.pool})


class Rooms:
    """The newest of both, a little of it renewed at a time."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[placement.RoomRow, ...]] = {}
        """By profile."""
        self.fragments: tuple[placement.FragmentRow, ...] = ()
        self._round = 0
        self._names: list[str] = []
        self._shapes: tuple[int, demand.Shapes] | None = None

    def step(self, state: PlacerState) -> None:
        """One round's part of the work."""
        state.fleet.packing.renew(state.fleet.nodes, most=NODES_A_ROUND)
        self._round += 1
        if self._round % ROUNDS_A_PROFILE or state.fleet.packing.stale:
            return
        if not self._names:
            self.fragments = fragments(state)
            self._names = sorted(state.catalog.profiles, reverse=True)[-PROFILES_MAX:]
            self.rows = {name: self.rows[name] for name in self._names if name in self.rows}
            return
        name = self._names.pop()
        spec = state.catalog.profiles.get(name)
        if spec is not None:
            self.rows[name] = tuple(_of_profile(state, self._of(state), name, spec))

    def _of(self, state: PlacerState) -> demand.Shapes:
        if self._shapes is None or self._shapes[0] != state.adopted[0]:
            self._shapes = state.adopted[0], demand.Shapes(state.catalog)
        return self._shapes[1]


def _of_profile(
    state: PlacerState, shapes: demand.Shapes, name: str, spec: ProfileSpec
) -> Iterator[placement.RoomRow]:
    ask = PlaceAsk(request_id="room", profile=name)
    wanted = asking.wanted(state.catalog, ask)
    if wanted is None:
        return
    nodes = max(1, count_range(spec.nodes)[0])
    cut = asking.cut_need(wanted[0])
    shape = shapes.of(ask)
    if cut.partition:
        fitting = _partitions(state, cut.partition, wanted[1])
    elif shape is not None:
        fitting = _cards(state, shape)
    else:
        return
    for pool, count in sorted(fitting.items()):
        yield placement.RoomRow(
            profile=name, pool=pool, cards=wanted[1], nodes=nodes, fits=count // nodes
        )


def _cards(state: PlacerState, shape: Shape) -> dict[str, int]:
    """Pool -> on how many nodes, one lease after the other."""
    packing = state.fleet.packing
    found: dict[str, int] = {}
    for home in sorted(packing.columns.homes()):
        spec = state.catalog.models.get(home.model)
        legal = spec.legal_counts if spec is not None else ()
        if (shape.models and home.model not in shape.models) or spec is None:
            continue
        if legal and shape.cards not in legal:
            continue
        found[home.pool] = found.get(home.pool, 0) + copies(packing, home, shape)
    return found


def copies(packing: Packing, home: Home, shape: Shape) -> int:
    """How many of the shape fit beside each other on the home's nodes."""
    columns, standing = packing.columns, packing.standing
    rows = columns.rows(home)
    rows = rows[np.isfinite(fitting_cards(columns, standing, rows, shape))]
    rows = rows[columns.cpu[rows] >= 0]
    if shape.parts < WHOLE:
        fits = np.floor(columns.parts[rows] / shape.parts).sum(axis=1)
    else:
        fits = np.floor(standing.full[rows] / shape.cards)
    for left, asked in (
        (columns.cpu[rows], shape.cpu_milli),
        (columns.memory[rows], shape.memory_bytes),
    ):
        if asked:
            fits = np.minimum(fits, np.floor(left / asked))
    return int(fits.sum())


def _partitions(state: PlacerState, profile: str, count: int) -> dict[str, int]:
    """Pool -> on how many nodes; partitions of one lease lie on one node."""
    found: dict[str, int] = {}
    for node in state.fleet.nodes.values():
        its: dict[str, int] = {}
        for device in node.devices.values():
            if device.partitions and device.usable and node.open:
                its[device.pool] = its.get(device.pool, 0) + len(device.free_partitions(profile))
        for pool, free in its.items():
            found[pool] = found.get(pool, 0) + free // count
    return found
