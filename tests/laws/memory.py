"""The world as a placer knows it, in memory and with state: a ledger under a fence, and agents.

Both do what a test tells them to: lose a reply, lose a message, deliver it late, refuse, be silent
and have done it, be silent and have done nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from quintal.bus import Appended, Conflict, Full, Stored, Unknown
from quintal.contracts import nodes
from quintal.units import PARTS
from quintal_placer.agents import Bound, NotBound, Released, Unclear

Fate = Literal["acked", "reply lost", "lost", "late", "held", "full"]
"""What becomes of an append: see `MemoryLedger.append`."""

Answer = Bound | NotBound | Unclear


@dataclass
class _Late:
    data: bytes
    expected: int
    answered: asyncio.Future[Appended | Conflict] | None


class MemoryLedger:
    """The LEDGER stream of one server: one writer at a time, by the expected last sequence."""

    def __init__(self, on_stored: Callable[[int, bytes], None]) -> None:
        self.messages: list[bytes] = []
        self.fates: deque[Fate] = deque()
        """Of the next appends; `acked` once they are used up."""
        self.on_the_way: list[_Late] = []
        self.conflicts = 0
        self._on_stored = on_stored

    async def append(
        self, subject: str, data: bytes, expected: int, *, timeout_s: float = 2.0
    ) -> Appended | Conflict | Full | Unknown:
        fate: Fate = self.fates.popleft() if self.fates else "acked"
        match fate:
            case "acked":
                return self._store(data, expected)
            case "reply lost":
                self._store(data, expected)
                return Unknown("the reply is lost")
            case "lost":
                return Unknown("nothing came")
            case "late":
                self.on_the_way.append(_Late(data, expected, None))
                return Unknown("on its way")
            case "held":
                waits = _Late(data, expected, asyncio.get_running_loop().create_future())
                self.on_the_way.append(waits)
                assert waits.answered is not None
                try:
                    return await asyncio.wait_for(asyncio.shield(waits.answered), timeout_s)
                except TimeoutError:
                    return Unknown("no answer")
            case "full":
                return Full()

    def deliver(self) -> None:
        """What was on its way arrives, in order; the fence judges it."""
        arriving, self.on_the_way = self.on_the_way, []
        for late in arriving:
            outcome = self._store(late.data, late.expected)
            if late.answered is not None and not late.answered.done():
                late.answered.set_result(outcome)

    def _store(self, data: bytes, expected: int) -> Appended | Conflict:
        if expected != len(self.messages):
            self.conflicts += 1
            return Conflict()
        self.messages.append(data)
        self._on_stored(len(self.messages), data)
        return Appended(len(self.messages))

    async def stored(self, stream: str, sequence: int) -> Stored | None:
        if sequence > len(self.messages):
            return None
        return Stored(sequence, "ledger", self.messages[sequence - 1])


class Wire:
    """One placer's back connection: the ledger, and the stream of inventories."""

    def __init__(self, book: MemoryLedger, inventories: dict[str, nodes.Inventory]) -> None:
        self.append = book.append
        self.stored = book.stored
        self._inventories = inventories

    async def read_all(self, stream: str, from_sequence: int = 1) -> AsyncIterator[Stored]:
        assert stream == "INVENTORY"
        for number, (name, inventory) in enumerate(sorted(self._inventories.items()), start=1):
            data = inventory.model_dump_json().encode()
            yield Stored(number, f"quintal.v1.inventory.{name}", data)


Mood = Literal["well", "refuses", "busy", "silent, done", "silent, not done", "slow", "absent"]
MOODS: tuple[Mood, ...] = get_args(Mood)


def _whole(device: nodes.BoundDevice) -> bool:
    return device.parts == PARTS and device.partition is None


@dataclass
class MemoryAgent:
    """One node's agent: which lease holds which device there, as a machine would know it."""

    node: str
    devices: tuple[nodes.RawDevice, ...]
    boot: int = 1
    labels: dict[str, str] = field(default_factory=dict)
    topology: nodes.Topology | None = None
    cpu_milli: int = 64_000
    mood: Mood = "well"
    sequence: int = 0
    leases: dict[str, nodes.BoundLease] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    alone: dict[str, int] = field(default_factory=dict)
    """Device -> the token of the last lease that had all of it: shares come in any order."""
    over: set[str] = field(default_factory=set)
    sick: set[str] = field(default_factory=set)
    """Devices that have failed."""
    binds: int = 0
    ends_slowly: bool = False
    cleans_badly: bool = False
    collisions: list[str] = field(default_factory=list)
    """Devices handed to a second lease while the first still ran there: what must never be."""

    @property
    def boot_id(self) -> str:
        return f"{self.node}-boot-{self.boot}"

    def inventory(self) -> nodes.Inventory:
        self.sequence += 1
        return nodes.Inventory(
            node=self.node,
            boot_id=self.boot_id,
            sequence=self.sequence,
            at_ms=1,
            devices=tuple(
                d.model_copy(update={"health": nodes.DeviceHealth.FAILED, "health_reason": "xid"})
                if d.uuid in self.sick
                else d
                for d in self.devices
            ),
            cpu_milli=self.cpu_milli,
            memory_bytes=2**39,
            labels=self.labels,
            topology=self.topology,
        )

    def heartbeat(self) -> nodes.Heartbeat:
        held = {name: lease.token for name, lease in self.leases.items()}
        return nodes.Heartbeat(
            node=self.node,
            boot_id=self.boot_id,
            sequence=1,
            at_ms=1,
            lease_version=nodes.lease_set_version(held),
            inventory_sequence=self.sequence,
        )

    def reboot(self) -> None:
        self.boot += 1
        self.leases.clear()

    def bind(self, lease: nodes.BoundLease) -> NotBound | None:
        for device in lease.devices:
            if device.uuid in self.sick:
                return NotBound(self.node, "adapter_error", "it has failed", reached=True)
            bar = (self.tokens if _whole(device) else self.alone).get(device.uuid, 0)
            if lease.lease in self.over or lease.token < bar:
                return NotBound(self.node, "conflict", "an old token", reached=True)
        self._take(lease)
        return None

    def _take(self, lease: nodes.BoundLease) -> None:
        others = [other for other in self.leases.values() if other.lease != lease.lease]
        for device in lease.devices:
            theirs = [(o.lease, d) for o in others for d in o.devices if d.uuid == device.uuid]
            for name, held in theirs:
                apart = held.partition is not None and device.partition not in {
                    None,
                    held.partition,
                }
                shared = held.partition is device.partition is None
                if not apart and not (shared and not _whole(held) and not _whole(device)):
                    self.collisions.append(f"{lease.lease} was handed what {name} runs on")
            if sum(held.parts for _, held in theirs) + device.parts > PARTS:
                self.collisions.append(f"{lease.lease} was handed more than there is")
            self.tokens[device.uuid] = max(lease.token, self.tokens.get(device.uuid, 0))
            if _whole(device):
                self.alone[device.uuid] = lease.token
        self.leases[lease.lease] = lease

    def end(self, lease: str) -> None:
        self.leases.pop(lease, None)
        self.over.add(lease)

    def set(self, ask: nodes.SetAsk) -> tuple[str, ...]:
        for name in ask.ended:
            self.end(name)
        bound = [lease for lease in ask.leases if lease.bind != "none"]
        for name in set(self.leases) - {lease.lease for lease in bound}:
            del self.leases[name]
        for lease in bound:
            self._take(lease)
        return ask.ended


class MemoryAgents:
    """What `quintal_placer.agents.Agents` is to a placer."""

    def __init__(self, agents: dict[str, MemoryAgent]) -> None:
        self.agents = agents

    async def bind(self, node: str, lease: nodes.BoundLease) -> Answer:
        agent = self.agents[node]
        agent.binds += 1
        match agent.mood:
            case "busy":
                return NotBound(node, "overloaded", "as told", reached=True)
            case "absent":
                return NotBound(node, "node_suspect", "nobody there", reached=False)
            case "refuses":
                return NotBound(node, "foreign_use", "as told", reached=True)
            case "silent, not done":
                await asyncio.sleep(2)
                return Unclear(node)
            case "slow":
                await asyncio.sleep(1)
        refused = agent.bind(lease)
        if refused is not None:
            return refused
        if agent.mood == "silent, done":
            await asyncio.sleep(2)
            return Unclear(node)
        return Bound(node)

    async def end(self, node: str, lease: str, token: int, reason: str) -> Released | None:
        agent = self.agents[node]
        if agent.mood in {"absent", "silent, not done"}:
            await asyncio.sleep(2)
            return None
        if agent.ends_slowly:
            await asyncio.sleep(2)
        agent.end(lease)
        return (
            None if agent.mood == "silent, done" else Released((lease,), self._left(agent, lease))
        )

    @staticmethod
    def _left(agent: MemoryAgent, *leases: str) -> dict[str, str]:
        return dict.fromkeys(leases, "exit 3") if agent.cleans_badly else {}

    async def set(self, node: str, ask: nodes.SetAsk) -> Released | None:
        agent = self.agents[node]
        if agent.mood in {"absent", "silent, not done"}:
            return None
        released = agent.set(ask)
        if agent.mood == "silent, done":
            return None
        return Released(released, self._left(agent, *released))
