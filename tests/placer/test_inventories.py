"""What a standby reads ahead, so that who takes the lead need not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from quintal.bus import Stored
from quintal.contracts import nodes
from quintal_placer.inventories import Inventories
from tests.placer.site import Site, inventory
from tests.placer.world import GIB, small_catalog


class Stream:
    """The stream of inventories: the last message of each node, by sequence."""

    def __init__(self) -> None:
        self.messages: dict[str, Stored] = {}
        self.read = 0
        self._last = 0

    def add(self, subject: str, data: bytes) -> None:
        self._last += 1
        self.messages[subject] = Stored(self._last, subject, data)

    def say(self, found: nodes.Inventory) -> None:
        self.add(f"quintal.v1.inventory.{found.node}", found.model_dump_json().encode())

    async def read_all(self, stream: str, from_sequence: int = 1) -> AsyncIterator[Stored]:
        assert stream == "INVENTORY"
        for stored in sorted(self.messages.values(), key=lambda stored: stored.sequence):
            if stored.sequence >= from_sequence:
                self.read += 1
                yield stored


def of(node: str, cards: int, sequence: int = 1) -> nodes.Inventory:
    devices = (
        nodes.RawDevice(
            uuid=f"GPU-{node}-{i}", index=i, vendor="nvidia", name="BIG-80", memory_bytes=80 * GIB
        )
        for i in range(cards)
    )
    return inventory(node, *devices).model_copy(update={"sequence": sequence})


def bus(stream: Stream) -> Any:
    return stream


async def left(inventories: Inventories) -> list[str]:
    return [found.node async for found in inventories.unsettled()]


async def test_who_takes_the_lead_looks_only_at_what_the_ledger_may_not_have() -> None:
    stream, site = Stream(), Site(small_catalog(), of("n1", 2), of("n2", 2))
    for found in (of("n1", 2), of("n2", 1), of("n3", 1)):
        stream.say(found)
    inventories = Inventories(bus(stream))
    settled = await inventories.ahead(site.state)
    assert [found.node for found in settled] == ["n1"]
    stream.say(of("n4", 1))
    assert await left(inventories) == ["n2", "n3", "n4"]


async def test_what_the_ledger_has_by_then_is_settled_at_the_next_look() -> None:
    stream, site = Stream(), Site(small_catalog())
    stream.say(of("n1", 2))
    inventories = Inventories(bus(stream))
    assert await inventories.ahead(site.state) == []
    site.report(of("n1", 2))
    assert [found.node for found in await inventories.ahead(site.state)] == ["n1"]
    assert await left(inventories) == []
    assert stream.read == 1, "each message is read once"


async def test_of_two_reports_of_a_node_the_newer_one_counts() -> None:
    stream, site = Stream(), Site(small_catalog())
    stream.say(of("n1", 2))
    inventories = Inventories(bus(stream))
    await inventories.ahead(site.state)
    stream.say(of("n1", 1, sequence=2))
    await inventories.ahead(site.state)
    found = [found async for found in inventories.unsettled()]
    assert [(f.sequence, len(f.devices)) for f in found] == [(2, 1)]


async def test_a_message_that_is_no_inventory_or_anothers_is_passed_over() -> None:
    stream, site = Stream(), Site(small_catalog())
    stream.add("quintal.v1.inventory.n1", b"{}")
    stream.add("quintal.v1.inventory.n2", of("n9", 1).model_dump_json().encode())
    stream.say(of("n3", 1))
    inventories = Inventories(bus(stream))
    await inventories.ahead(site.state)
    assert await left(inventories) == ["n3"]
