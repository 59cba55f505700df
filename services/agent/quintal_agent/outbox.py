"""What the agent says, over outages: straight away where the bus hears, else through the spool.

Readings stay in order: while any waits on disk, newer ones queue behind it. After an outage a
whole fleet would empty its spools at once; each node waits a share of `spread_s` that belongs to
its name, and sends in small lots. Health events do not wait for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from quintal.bus import Bus
from quintal.contracts.message import Message
from quintal.contracts.nodes import HealthEvent, Problem, Telemetry
from quintal.contracts.subjects import HEALTH, TELEMETRY, Publication
from quintal.errors import BusUnavailable
from quintal.process import chain
from quintal_agent.rounds import share
from quintal_agent.spool import Kept, Kind, Spool

log = logging.getLogger(__name__)

LOT: Final = 64
"""So many messages go out between two breaths."""

_BREATH_S: Final = 0.25


class Outbox:
    """One node's way out. `bus` is none until the first connection."""

    def __init__(self, node: str, spool: Spool, *, spread_s: float) -> None:
        self._node = node
        self._spool = spool
        self._spread_s = spread_s
        self._busy = asyncio.Lock()
        self._back = asyncio.Event()
        self.bus: Bus | None = None

    async def start(self) -> None:
        """Look what an earlier run left."""
        await asyncio.to_thread(self._spool.open)

    async def close(self) -> None:
        """Let go of the spool."""
        await asyncio.to_thread(self._spool.close)

    def connected(self) -> None:
        """The bus hears again."""
        self._back.set()

    async def say(self, publication: Publication[Any], message: Message) -> bool:
        """Say it now or not at all."""
        if self.bus is None:
            return False
        try:
            await self.bus.publish(publication, message, node=self._node)
        except BusUnavailable as exc:
            log.debug("not said: %s", chain(exc))
            return False
        return True

    async def readings(self, message: Telemetry) -> None:
        """Say one look's readings, or keep them."""
        async with self._busy:
            behind = self._spool.waiting("telemetry")
            if not behind and await self.say(TELEMETRY, message) and await self._arrived():
                return
            await self._keep("telemetry", message.at_ms, message)

    async def health(self, messages: Sequence[HealthEvent]) -> None:
        """Say what happened, or keep it."""
        async with self._busy:
            said = 0
            if not self._spool.waiting("health"):
                for message in messages:
                    if not await self.say(HEALTH, message):
                        break
                    said += 1
                if said and not await self._arrived():
                    said = 0
            for message in messages[said:]:
                await self._keep("health", message.at_ms, message)

    async def drain(self, stop: asyncio.Event) -> None:
        """Until `stop`: after each return of the bus, what waited."""
        while not stop.is_set():
            await _either(self._back, stop, None)
            self._back.clear()
            await self._empty("health", stop)
            if self._spool.waiting("telemetry"):
                await _either(self._back, stop, self._spread_s * share(self._node))
                await self._empty("telemetry", stop)

    async def _empty(self, kind: Kind, stop: asyncio.Event) -> None:
        while not stop.is_set():
            async with self._busy:
                lot = await asyncio.to_thread(self._spool.oldest, kind, LOT)
                if not lot or not await self._send(lot):
                    return
                await asyncio.to_thread(self._spool.forget, lot)
            await _either(None, stop, _BREATH_S)

    async def _send(self, lot: Sequence[Kept]) -> bool:
        for kept in lot:
            publication: Publication[Any] = TELEMETRY if kept.kind == "telemetry" else HEALTH
            try:
                message = publication.message.validate_json(kept.body)
            except ValueError:  # of another version of the agent: it can never be said
                log.warning("a kept message cannot be read, and is dropped")
                continue
            if not await self.say(publication, message):
                return False
        return await self._arrived()

    async def _arrived(self) -> bool:
        """Whether the server has it: a publication into a dying connection is said to nobody."""
        if self.bus is None:
            return False
        try:
            await self.bus.flush()
        except BusUnavailable:
            return False
        return True

    async def _keep(self, kind: Kind, at_ms: int, message: Message) -> None:
        body = message.model_dump_json().encode()
        await asyncio.to_thread(self._spool.put, kind, at_ms, body)

    def problems(self) -> tuple[Problem, ...]:
        """What an operator should know of the spool."""
        found = []
        if self._spool.dropped:
            text = f"{self._spool.dropped} messages of readings are lost: the spool was full"
            found.append(Problem(code="telemetry_dropped", message=text))
        if self._spool.trouble:
            found.append(Problem(code="spool_broken", message=self._spool.trouble))
        return tuple(found)


async def _either(event: asyncio.Event | None, stop: asyncio.Event, seconds: float | None) -> None:
    """Wait for the one or the other, or so long."""
    waits = [asyncio.create_task(one.wait()) for one in (event, stop) if one is not None]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
