"""A fleet without agents, bus or ledger: the engine decides, and what it chose is held at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

import numpy as np

from quintal.units import PARTS
from quintal_placer.engine import placing
from quintal_placer.engine.asks import Ask, Offer, Option, Share
from quintal_placer.engine.fleet import Device, Fleet, Node
from quintal_placer.engine.packing.columns import order_of
from quintal_placer.engine.packing.packer import Packing
from quintal_placer.engine.packing.shapes import Shape, Target
from quintal_placer.engine.pieces import Piece
from quintal_placer.engine.placing import Chosen
from quintal_placer.engine.quota import Quotas
from quintal_placer.simulate import policies
from quintal_placer.simulate.policies import AnyFit, Clustering
from quintal_placer.simulate.trace import NodeLine, RequestLine

CLASS: Final = "simulated"
"""Of workload: a described fleet rates each model once."""

Reason = Literal["never_fits", "host", "fragmented", "no_capacity"]


@dataclass(slots=True)
class Held:
    """What one request holds."""

    line: RequestLine
    node: str
    model: str
    pieces: tuple[Piece, ...]
    micro: int
    price_nano: int
    """Of an hour; 0 where the model has no price."""


class Yard:
    """The fleet, and who holds what of it."""

    def __init__(
        self, nodes: Sequence[NodeLine], policy: str, known: Target, chance: Random, *, salt: str
    ) -> None:
        self.fleet = Fleet()
        self.fleet.packing = Packing(lambda name: order_of(f"{salt}{name}"))
        self._quotas = Quotas()
        self._chance = chance
        self._count = 0
        self._asks: dict[tuple[object, ...], Ask | None] = {}
        self._offers = _offers(nodes)
        for line in nodes:
            self.add(line)
        packing = self.fleet.packing
        self._policy = policies.made(policy, packing, known, chance)
        packing.use(self._policy)
        packing.always = policy != policies.TIGHT
        self.capacity = sum(line.cards for line in nodes) * PARTS
        self.allocated = 0
        """Parts that are held."""

    def add(self, line: NodeLine) -> None:
        """One more node."""
        node = Node(line.name, cpu_milli=line.cpu_milli, memory_bytes=line.memory_bytes)
        for index in range(line.cards):
            uuid = f"{line.name}/{index}"
            node.devices[uuid] = Device(
                line.name, uuid, index, "", line.model, line.model, line.pool,
                memory_bytes=line.card_memory_bytes,
                smallest_parts=1,
            )  # fmt: skip
        self.fleet.nodes[line.name] = node
        self.fleet.touch(line.name)

    def place(self, line: RequestLine) -> Held | None:
        """Where the engine puts it, held at once; none where it fits nowhere."""
        ask = self._ask(line)
        if ask is None:
            return None
        chosen = placing.decide(self.fleet, self._quotas, ask)
        return self._hold(line, chosen) if isinstance(chosen, Chosen) else None

    def saw(self, line: RequestLine) -> None:
        """Into the history goes what was granted, as in the ledger."""
        self.fleet.packing.demand.saw(self.shape(line))

    def shape(self, line: RequestLine) -> Shape:
        """The request as the history counts it."""
        return _shape(line, self._offers.keys())

    def let_go(self, held: Held) -> None:
        """It holds nothing any more."""
        node = self.fleet.nodes[held.node]
        for piece in held.pieces:
            piece.device.let_go(held.line.name)
        node.cpu_held -= held.line.cpu_milli
        node.memory_held -= held.line.memory_bytes
        self.allocated -= held.line.asked
        self._moved(held, -1)

    def reason(self, line: RequestLine) -> Reason:
        """Why nothing took it, from the columns: one word for what `explain` would spell out."""
        packing = self.fleet.packing
        packing.renew(self.fleet.nodes)
        columns, count = packing.columns, packing.columns.count
        admissible = np.ones(count, np.bool_)
        if line.models:
            wanted = [n for n, model in enumerate(columns.models) if model in line.models]
            admissible = np.isin(columns.model[:count], wanted)
        large = columns.cards[:count] >= line.cards
        large &= columns.host[:count, 0] >= line.cpu_milli
        large &= columns.host[:count, 1] >= line.memory_bytes
        if not (admissible & large).any():
            return "never_fits"
        parts = columns.parts[:count]
        if line.parts < PARTS:
            cards = (parts >= line.parts).any(axis=1)
        else:
            cards = (parts == PARTS).sum(axis=1) >= line.cards
        if (admissible & cards).any():
            return "host"
        return "fragmented" if parts[admissible].sum() >= line.asked else "no_capacity"

    def _ask(self, line: RequestLine) -> Ask | None:
        key = (
            line.tenant, line.cards, line.parts, line.cpu_milli, line.memory_bytes, line.models
        )  # fmt: skip
        if key not in self._asks:
            offers = tuple(
                offer
                for name, offer in self._offers.items()
                if not line.models or name in line.models
            )
            option = Option(
                offers, line.cards, share=Share(line.parts) if line.parts < PARTS else None
            )
            self._asks[key] = Ask(
                line.tenant, CLASS, (option,),
                cpu_milli=line.cpu_milli, memory_bytes=line.memory_bytes, shape=(key[1:],),
            ) if offers else None  # fmt: skip
        return self._asks[key]

    def _hold(self, line: RequestLine, chosen: Chosen) -> Held:
        (pick,) = chosen.picks
        pieces = pick.pieces
        if isinstance(self._policy, AnyFit) and line.parts < PARTS:
            pieces = (self._any_card(pieces[0]),)
        node = self.fleet.nodes[pick.node]
        for piece in pieces:
            piece.device.hold(line.name, piece.parts, None)
        node.cpu_held += line.cpu_milli
        node.memory_held += line.memory_bytes
        self.allocated += line.asked
        price = (chosen.offer.price_nano or 0) * line.asked // PARTS
        held = Held(line, pick.node, chosen.offer.model, pieces, chosen.micro, price)
        self._moved(held, 1)
        return held

    def _moved(self, held: Held, by: int) -> None:
        if isinstance(self._policy, Clustering):
            self._policy.moved(held.node, held.model, self.shape(held.line), by)
        self.fleet.reheld(held.node)

    def _any_card(self, piece: Piece) -> Piece:
        node = self.fleet.nodes[piece.device.node]
        having = [
            device
            for device in node.devices.values()
            if device.free_parts >= piece.parts and device.model == piece.device.model
        ]
        return piece._replace(device=self._chance.choice(having))


def shapes(nodes: Sequence[NodeLine], lines: Iterable[RequestLine]) -> list[Shape]:
    """A list as the history would count it."""
    models = {line.model for line in nodes}
    return [_shape(line, models) for line in lines]


def _shape(line: RequestLine, models: Collection[str]) -> Shape:
    named = () if not line.models or set(models) <= set(line.models) else line.models
    return Shape(line.cards, line.parts, line.cpu_milli, line.memory_bytes, named)


def _offers(nodes: Sequence[NodeLine]) -> dict[str, Offer]:
    found = {line.model: line for line in nodes}
    return {
        model: Offer(
            model, model, "accelerator", line.rating_micro, price_nano=line.price_nano
        )
        for model, line in sorted(found.items())
    }  # fmt: skip
