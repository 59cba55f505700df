"""What the leader hears from agents, and what it makes of their silence.

Silence is counted by the receiver's clock from the last heartbeat, and only while this placer is
connected and can append: after an outage of ours every node gets one full period again. An
agent's own clock decides nothing; how far it is off is shown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quintal.bus import Bus
from quintal.contracts import ledger, nodes, subjects
from quintal.contracts.message import Event
from quintal.errors import BusUnavailable
from quintal_placer import agents, facts
from quintal_placer.agents import Agents
from quintal_placer.engine.leases import State
from quintal_placer.inventories import Inventories
from quintal_placer.ledger import LedgerWriter
from quintal_placer.limits import AgentLimits
from quintal_placer.promises import Promises
from quintal_placer.settings import Settings
from quintal_placer.state import PlacerState

log = logging.getLogger(__name__)

SET_WAIT_S: Final = 3.0
"""Time between two sets sent to one node."""

RECORDS_AT_ONCE: Final = 512
"""Records of one proposal when a whole fleet is read."""


class Watch:
    """Ears on the back connection. Made once; deaf until `lead` is called."""

    def __init__(self, settings: Settings, bus: Bus, state: PlacerState, hands: Agents) -> None:
        self._settings = settings
        self._bus = bus
        self._state = state
        self._agents = hands
        self._inventories = Inventories(bus)
        self._promises: Promises | None = None
        self._writer: LedgerWriter | None = None
        self._strangers: set[str] = set()
        """Nodes that were heard before their inventory was known."""
        self._steady: dict[str, int] = {}
        """Lost node -> since when it is heard again."""
        self._sets: dict[str, float] = {}
        self._said: dict[str, tuple[str, int]] = {}
        """Node -> (boot id, sequence) of the newest inventory heard of it, changed or not."""
        self._before: dict[str, set[str]] = {}
        """Node -> boot ids that another one has replaced: their late messages count no more."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.skew_ms: dict[str, int] = {}
        self.sure: Callable[[], bool] = lambda: True
        """Whether this placer leads beyond doubt: only then is a node told that it was heard."""
        self.forged = 0
        """Messages whose subject is one node's and whose field another's."""
        self.limits = AgentLimits()

    async def listen(self) -> None:
        """Subscribe; before the lead is taken all that comes is left."""
        await self._bus.hear(subjects.INVENTORY, self._led("inventory", self._inventory))
        await self._bus.hear(subjects.HEARTBEAT, self._led("heartbeat", self._heartbeat))
        await self._bus.hear(subjects.HEALTH, self._led("health", self._health))

    def _led(self, sort: str, handler: Callable[..., None]) -> Callable[..., None]:
        def hear(message: Event, tokens: tuple[str, ...]) -> None:
            node = getattr(message, "node", "")
            if tokens[-1] != node:  # the bus vouches for the subject, and for no field
                self.forged += 1
                log.warning("dropped: %s speaks of %r", ".".join(tokens), node)
            elif self._promises is not None and self._bears(node, sort):
                handler(message)

        return hear

    def _bears(self, node: str, sort: str) -> bool:
        """Whether the node has not said too much of late; the first of too many is told."""
        if self.limits.hears(node, sort, asyncio.get_running_loop().time()):
            return True
        if self.limits.dropped[node] == 1:
            log.warning("%s floods its %s subject: what is too much is dropped", node, sort)
        return False

    async def ahead(self) -> None:
        """While another leads: take in what nodes say, so that a takeover need not.

        Raises BusUnavailable.
        """
        for inventory in await self._inventories.ahead(self._state):
            self._said[inventory.node] = (inventory.boot_id, inventory.sequence)

    async def lead(self, promises: Promises, writer: LedgerWriter) -> None:
        """From here on this placer leads: count silence anew, then read what every node has."""
        self._writer = writer
        self.pardon()
        self._promises = promises
        promises.desk.without_inventory = lambda: self.without_inventory
        await self.read_fleet()

    async def read_fleet(self) -> None:
        """What every node said last, from the stream, as far as it is not known to be settled.

        Raises BusUnavailable.
        """
        assert self._writer is not None
        async for inventory in self._inventories.unsettled():
            self._note(inventory)

    def pardon(self) -> None:
        """Nobody was silent while we could not hear."""
        assert self._writer is not None
        now_ms = self._writer.now_ms()
        for node in self._state.fleet.nodes.values():
            if node.liveness == "ready":
                node.heard_ms = max(node.heard_ms, now_ms)
        self._steady.clear()

    # --- hearing ------------------------------------------------------------------------------

    def _inventory(self, inventory: nodes.Inventory) -> None:
        self._note(inventory)

    def _note(self, inventory: nodes.Inventory) -> None:
        assert self._promises is not None
        assert self._writer is not None
        if inventory.boot_id in self._before.get(inventory.node, ()):
            return
        self._boots(inventory.node, inventory.boot_id)
        self._said[inventory.node] = (inventory.boot_id, inventory.sequence)
        records = facts.inventory_records(self._state, inventory, self._writer.now_ms())
        for start in range(0, len(records), RECORDS_AT_ONCE):
            self._promises.desk.commit(records[start : start + RECORDS_AT_ONCE])
        if records:
            self._promises.ends.judge((inventory.node,))

    def _boots(self, name: str, boot_id: str) -> None:
        """Remember the boot that `boot_id` replaces, if it does."""
        node = self._state.fleet.nodes.get(name)
        if node is not None and node.boot_id != boot_id:
            self._before.setdefault(name, set()).add(node.boot_id)

    def _health(self, event: nodes.HealthEvent) -> None:
        assert self._promises is not None
        assert self._writer is not None
        records = facts.health_records(self._state, event, self._writer.now_ms())
        if records:
            self._promises.desk.commit(records)
            self._promises.ends.judge((event.node,))

    def _heartbeat(self, beat: nodes.Heartbeat) -> None:
        assert self._writer is not None
        assert self._promises is not None
        now_ms = self._writer.now_ms()
        self.skew_ms[beat.node] = beat.at_ms - now_ms
        node = self._state.fleet.nodes.get(beat.node)
        if node is None:
            self._strangers.add(beat.node)
        if node is None or self._state.retired.get(beat.node) == beat.boot_id:
            return
        if beat.boot_id in self._before.get(beat.node, ()):
            return
        if node.boot_id != beat.boot_id:
            self._reboot(beat.node, beat.boot_id, now_ms)
        node.heard_ms = max(node.heard_ms, now_ms)
        if node.liveness != "ready":
            self._returned(beat.node, now_ms)
        known = agents.expected_version(self._state, beat.node)
        behind = self._said.get(beat.node) != (beat.boot_id, beat.inventory_sequence)
        differs = beat.lease_version != known or (
            beat.outside_version is not None
            and beat.outside_version != agents.outside_version(self._state, beat.node)
        )
        if beat.wants_word and self.sure():
            self._say_heard(beat)
        if differs or behind or self._owed(beat.node):
            self._send_set(beat.node, inventory_wanted=behind)

    def _say_heard(self, beat: nodes.Heartbeat) -> None:
        """Its strict leases' work goes on for one ttl from this beat."""
        word = nodes.Heard(node=beat.node, sequence=beat.sequence)
        task = asyncio.create_task(self._bus.publish(subjects.HEARD, word, node=beat.node))
        self._tasks.add(task)
        task.add_done_callback(self._said_heard)

    def _said_heard(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.info("telling a node that it was heard: %s", task.exception())

    def _owed(self, node: str) -> bool:
        """Whether the node has yet to acknowledge an end."""
        names = self._state.on_node.get(node, ())
        return any(node in self._state.leases[n].waiting for n in names)

    def _reboot(self, node: str, boot_id: str, now_ms: int) -> None:
        assert self._promises is not None
        self._boots(node, boot_id)
        records = facts.reboot_records(self._state, node, now_ms)
        update = {"at_ms": now_ms, "boot_id": boot_id}
        records.append(self._state.facts[node].model_copy(update=update))
        self._promises.desk.commit(records)

    def _returned(self, name: str, now_ms: int) -> None:
        """A suspect node that is heard is ready; a lost one must be heard for a while first."""
        node = self._state.fleet.nodes[name]
        since_ms = self._steady.setdefault(name, now_ms)
        if node.liveness == "lost" and now_ms - since_ms < self._settings.flap_ms:
            return
        self._steady.pop(name, None)
        self._liveness(name, "ready", now_ms)

    def _liveness(self, name: str, liveness: str, heard_ms: int) -> None:
        assert self._promises is not None
        assert self._writer is not None
        record = ledger.LivenessChanged(
            at_ms=self._writer.now_ms(), node=name, liveness=liveness, heard_ms=heard_ms
        )
        self._promises.desk.commit([record])
        if liveness == "ready":
            disputes = facts.duplicate_records(self._state, name, self._writer.now_ms())
            if disputes:
                self._promises.desk.commit(disputes)

    # --- lease sets ---------------------------------------------------------------------------

    def _send_set(self, node: str, *, inventory_wanted: bool) -> None:
        """Unless a bind is under way there, or a set went a moment ago."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._sets.get(node, -SET_WAIT_S) < SET_WAIT_S:
            return
        if self._binding(node):
            return
        self._sets[node] = now_s
        task = asyncio.create_task(self._set(node, inventory_wanted=inventory_wanted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _binding(self, node: str) -> bool:
        """Whether a bind is under way there: a set beside it could undo it."""
        names = self._state.on_node.get(node, ())
        return any(self._state.leases[n].state is State.GRANTED for n in names)

    async def _set(self, node: str, *, inventory_wanted: bool) -> None:
        assert self._promises is not None
        assert self._writer is not None
        await self._writer.barrier()
        if self._binding(node):
            return
        ask = agents.set_ask(self._state, node, inventory_wanted=inventory_wanted)
        released = await self._agents.set(node, ask)
        for lease in set(released.leases if released else ()) & set(ask.ended):
            uncleaned = released.uncleaned.get(lease, "") if released else ""
            self._promises.ends.acknowledged(lease, node, uncleaned)

    # --- silence ------------------------------------------------------------------------------

    def count_silence(self) -> None:
        """Ready nodes that are silent become suspect, then lost; a flapping one starts again."""
        assert self._writer is not None
        now_ms = self._writer.now_ms()
        for name, node in list(self._state.fleet.nodes.items()):
            silent_ms = now_ms - node.heard_ms
            if node.liveness == "ready" and silent_ms >= self._settings.suspect_ms:
                self._liveness(name, "suspect", node.heard_ms)
            elif node.liveness == "suspect" and silent_ms >= self._settings.lost_ms:
                self._liveness(name, "lost", node.heard_ms)
            elif node.liveness == "lost" and silent_ms >= self._settings.suspect_ms:
                self._steady.pop(name, None)

    @property
    def without_inventory(self) -> list[str]:
        """Nodes whose heartbeat is heard, but of whom no inventory is known."""
        self._strangers -= self._state.fleet.nodes.keys()
        return sorted(self._strangers - self._state.retired.keys())

    async def after_outage(self) -> None:
        """The connection is back: pardon, and read what was missed."""
        self.pardon()
        try:
            await self.read_fleet()
        except BusUnavailable as exc:
            log.warning("reading the fleet again: %s", exc)
