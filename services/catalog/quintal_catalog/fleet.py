"""The fleet as the catalog needs it: which models under which software, from what agents reported.

The catalog promises nothing, so that the last report of each node will do: a node that is lost
or retired is still told of, until its report is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import ValidationError

from quintal import identity
from quintal.compatibility import StackKey, stack_key
from quintal.contracts import subjects
from quintal.contracts.documents import Catalog
from quintal.contracts.nodes import Inventory
from quintal.jetstream import Stored


class Reports(Protocol):
    """What reading the fleet needs of the bus."""

    def read_all(self, stream: str, from_sequence: int = 1) -> AsyncIterator[Stored]:
        """What the stream keeps from a sequence on. Raises BusUnavailable."""


class FleetReader:
    """The newest inventory of each node; reads only what came since it last looked."""

    def __init__(self, bus: Reports) -> None:
        self._bus = bus
        self._by_node: dict[str, Inventory] = {}
        self._next = 1

    async def inventories(self) -> tuple[Inventory, ...]:
        """All of them, by node. Raises BusUnavailable."""
        async for stored in self._bus.read_all("INVENTORY", self._next):
            self._next = stored.sequence + 1
            try:
                inventory = subjects.INVENTORY.message.validate_json(stored.data)
            except ValidationError:
                continue
            # The subject is the agent's own by its credentials; the field is only what it says.
            if stored.subject == subjects.INVENTORY.subject(node=inventory.node):
                self._by_node[inventory.node] = inventory
        return tuple(self._by_node[name] for name in sorted(self._by_node))


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """What nodes have in common that decides: pool, model, software."""

    pool: str
    model: str
    stack: StackKey


@dataclass(slots=True)
class Held:
    """How much of a place there is."""

    nodes: set[str] = field(default_factory=set)
    devices: int = 0
    cores: int = 0
    """Of CPUs, which are rated by the core."""


def places(catalog: Catalog, inventories: Iterable[Inventory]) -> dict[Place, Held]:
    """Devices that the catalog names, by pool, model and software; unknown ones are left out."""
    found: dict[Place, Held] = {}
    for inventory in inventories:
        stack = stack_key(inventory.stack)
        for raw in inventory.devices:
            model = identity.resolve(raw, catalog.models)
            if model is None:
                continue
            pool = identity.pool_of(
                catalog,
                model=model,
                vendor=raw.vendor,
                node=inventory.node,
                cluster=inventory.cluster,
                location=inventory.location,
                labels=inventory.labels,
            )
            held = found.setdefault(Place(pool, model, stack), Held())
            held.nodes.add(inventory.node)
            held.devices += 1
            held.cores += raw.cores or 0
    return dict(sorted(found.items()))
