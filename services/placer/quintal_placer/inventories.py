"""What nodes said last, read from the stream; by a standby ahead of time.

Whoever takes the lead must know what every node has. The ledger has nearly all of it, and to hold
ten thousand inventories against it takes seconds, in which nobody would be answered. So a standby
does that while another leads: an inventory of which the ledger has all is settled, and of what
remains (and of what comes later) a new leader makes records at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Final

from quintal.bus import Bus, Stored
from quintal.contracts import nodes, subjects
from quintal_placer import facts
from quintal_placer.state import PlacerState

log = logging.getLogger(__name__)

STREAM: Final = "INVENTORY"
AT_ONCE: Final = 200
"""Inventories that one look holds against the ledger: a standby must not miss a beat over it."""

BREATH: Final = 50
"""Inventories that a new leader takes in before it looks up: its beats and its connection wait."""


class Inventories:
    """The stream, read to its end each time, and each message once."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._read_to = 0
        self._unsettled: dict[str, nodes.Inventory] = {}

    async def ahead(self, state: PlacerState) -> list[nodes.Inventory]:
        """Read what is new; gives those of which the ledger has all now. Raises BusUnavailable."""
        async for inventory in self._unread():
            self._unsettled.pop(inventory.node, None)  # the newest goes last
            self._unsettled[inventory.node] = inventory
        return list(self._settle(state))

    def _settle(self, state: PlacerState) -> Iterator[nodes.Inventory]:
        for inventory in list(islice(self._unsettled.values(), AT_ONCE)):
            del self._unsettled[inventory.node]
            if facts.inventory_records(state, inventory, state.at_ms):
                self._unsettled[inventory.node] = inventory  # looked at again after all others
            else:
                yield inventory

    async def unsettled(self) -> AsyncIterator[nodes.Inventory]:
        """Those of which the ledger may not have all, then what is new. Raises BusUnavailable."""
        while self._unsettled:
            for node in list(islice(self._unsettled, BREATH)):
                yield self._unsettled.pop(node)
            await asyncio.sleep(0)
        async for inventory in self._unread():
            yield inventory

    async def _unread(self) -> AsyncIterator[nodes.Inventory]:
        async for stored in self._bus.read_all(STREAM, self._read_to + 1):
            self._read_to = stored.sequence
            inventory = _inventory(stored)
            if inventory is not None:
                yield inventory


def _inventory(stored: Stored) -> nodes.Inventory | None:
    """What the message says; none where it breaks its contract, or speaks of another node."""
    try:
        inventory = subjects.INVENTORY.message.validate_json(stored.data)
    except ValueError as exc:
        log.warning("%s breaks its contract: %s", stored.subject, exc)
        return None
    return inventory if stored.subject == subjects.INVENTORY.subject(node=inventory.node) else None
