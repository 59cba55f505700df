"""A server, placers that are real processes, scripted agents, and people who ask."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from quintal.bus import Bus
from quintal.contracts import ledger, nodes, placement, subjects
from quintal.contracts.documents import Catalog, Document
from quintal.contracts.ledger import follows
from quintal.contracts.message import Refusal
from quintal.contracts.subjects import Role
from quintal.errors import BusUnavailable
from quintal_placer.state import PlacerState
from tests.laws.audit import check_state
from tests.placer.world import PlacerProcess, ScriptedAgent, small_catalog, until, write_catalog
from tests.support.nats import NatsServer


class Town:
    """Everything that a live test talks to. Use `async with town(...)`."""

    def __init__(self, nats: NatsServer, directory: Path) -> None:
        self.nats = nats
        self.placers: list[PlacerProcess] = []
        self.agents: dict[str, ScriptedAgent] = {}
        self.buses: list[Bus] = []
        self.directory = directory
        self.documents = small_catalog()
        self._follow: set[str] = set()
        """Placers that have said how far they follow: those that could take the lead."""

    async def bus(self, principal: str, role: Role) -> Bus:
        found = await self.nats.bus(principal, role)
        self.buses.append(found)
        return found

    async def add_agent(self, name: str, devices: tuple[nodes.RawDevice, ...]) -> ScriptedAgent:
        agent = ScriptedAgent(await self.bus(name, Role.AGENT), name, devices)
        await agent.start()
        self.agents[name] = agent
        return agent

    def add_placer(self, **env: str) -> PlacerProcess:
        found = PlacerProcess(self.nats, len(self.placers) + 1, self.directory, **env)
        self.placers.append(found)
        found.start()
        return found

    async def listen(self) -> None:
        """Hear who follows, from the first on."""
        beside = await self.bus("placer-8", Role.PLACER_BACK)
        await beside.hear(subjects.POSITION, lambda _, words: self._follow.add(words[-1]))
        await beside.flush()

    async def stands_by(self, placer: PlacerProcess) -> None:
        """It is up: a fault from now on finds somebody who can take over."""

        async def it() -> bool:
            return placer.name in self._follow

        await until(it, within_s=20)

    async def ready(self, within_s: float = 20.0) -> None:
        """Somebody leads and knows every agent's node, and all the others stand by."""
        self.ml = await self.bus("ml", Role.TENANT)
        self.operator = await self.bus("operator", Role.OPERATOR)

        async def known() -> bool:
            fleet = await self.fleet()
            return fleet is not None and {n.node for n in fleet.nodes} == set(self.agents)

        await until(known, within_s=within_s)
        leader = self.leader()
        for placer in self.placers:
            if placer is not leader:
                await self.stands_by(placer)

    async def fleet(self) -> placement.Fleet | None:
        try:
            found = await self.operator.request(subjects.FLEET, placement.FleetAsk(), timeout_s=1)
        except BusUnavailable:
            return None
        assert isinstance(found, placement.Fleet), found
        return found

    async def devices(self) -> dict[str, placement.DeviceView]:
        fleet = await until(self.fleet)
        return {device.uuid: device for node in fleet.nodes for device in node.devices}

    async def place(self, ask: placement.PlaceAsk, *, within_s: float = 30.0) -> Any:
        """As a client that will have an answer: the same request again, until there is one."""
        give_up = time.monotonic() + within_s
        while True:
            with contextlib.suppress(BusUnavailable):
                found = await self.ml.request(subjects.PLACE, ask, timeout_s=2)
                if not isinstance(found, Refusal) or found.code not in {"overloaded", "internal"}:
                    return found
            assert time.monotonic() < give_up, f"no answer to {ask.request_id}"
            await asyncio.sleep(0.05)

    async def lease(self, name: str) -> placement.Lease:
        async def asked() -> Any:
            with contextlib.suppress(BusUnavailable):
                return await self.ml.request(
                    subjects.GET, placement.GetAsk(lease=name), timeout_s=1
                )
            return None

        found = await until(asked)
        assert isinstance(found, placement.Lease), found
        return found

    async def state_is(self, name: str, *states: str, within_s: float = 15.0) -> placement.Lease:
        async def it() -> placement.Lease | None:
            found = await self.lease(name)
            return found if found.state in states else None

        found: placement.Lease = await until(it, within_s=within_s)
        return found

    def leader(self) -> PlacerProcess:
        """Who said last that it leads, and lives."""
        said = [
            (int(match[1]), placer)
            for placer in self.placers
            for match in re.finditer(r"leads epoch (\d+)", placer.log())
        ]
        return max(said, key=lambda item: item[0])[1]

    def standby(self) -> PlacerProcess:
        return next(placer for placer in self.placers if placer is not self.leader())

    async def groups(self) -> list[tuple[int, ledger.Group | None]]:
        """The whole ledger; none for what is no group."""
        reader = await self.bus("metering", Role.METERING_BACK)
        found: list[tuple[int, ledger.Group | None]] = []
        async for stored in reader.read_all("LEDGER"):
            try:
                found.append((stored.sequence, ledger.GROUP.validate_json(stored.data)))
            except ValidationError:
                found.append((stored.sequence, None))
        return found

    async def audited(self) -> PlacerState:
        """The ledger folded from its beginning; every law that shows in it is held."""
        state = PlacerState()
        for sequence, group in await self.groups():
            if group is None or not follows(group, sequence, (state.epoch, state.writer)):
                continue
            for record in group.transitions:
                assert record.at_ms >= state.at_ms
                if isinstance(record, ledger.CatalogAdopted):
                    state.adopt_catalog(Catalog(tuple(self.documents), revision=record.revision))
                state.apply(record)
            check_state(state)
        return state

    async def close(self) -> None:
        for placer in self.placers:
            placer.kill()
        for agent in self.agents.values():
            if agent._task is not None:
                agent._task.cancel()
        for bus in self.buses:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(bus.client.close(), 1)


@contextlib.asynccontextmanager
async def town(
    nats: NatsServer,
    directory: Path,
    *,
    devices: dict[str, tuple[nodes.RawDevice, ...]],
    placers: int = 1,
    documents: list[Document] | None = None,
    **env: str,
) -> AsyncIterator[Town]:
    """All of it up, and its placers' logs shown where a test fails."""
    built = Town(nats, directory)
    built.documents = documents or small_catalog()
    try:
        store = await built.bus("catalog", Role.CATALOG_BACK)
        await write_catalog(store, built.documents)
        for name, has in devices.items():
            await built.add_agent(name, has)
        await built.listen()
        for _ in range(placers):
            built.add_placer(**env)
        await built.ready()
        yield built
    except BaseException:
        for placer in built.placers:
            print(f"--- {placer.name}\n{placer.log()[-6000:]}")
        raise
    finally:
        await built.close()
