"""The end of the DECISIONS stream, read for `explain`: what another leader refused.

Read only when somebody asks for what is not known here, from where the last look ended. The
stream is written without waiting and kept for a day: what a crash took is not explained.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from quintal.bus import Bus
from quintal.contracts import subjects
from quintal.errors import BusUnavailable
from quintal_placer.explaining import Explanations

log = logging.getLogger(__name__)

STREAM: Final = "DECISIONS"

TAIL_MAX: Final = 20_000
"""Records that a first look goes back."""

PAUSE_S: Final = 0.5
"""Between two looks: whoever asks for what never was must not keep us reading."""


class DecidedBefore:
    """Teaches `explanations` what the stream holds."""

    def __init__(self, bus: Bus, explanations: Explanations) -> None:
        self._bus = bus
        self._explanations = explanations
        self._next = 0
        self._looked_s = float("-inf")
        self._lock = asyncio.Lock()

    async def look(self) -> None:
        """Read what has come since the last look; a bus that is down brings nothing new."""
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        async with self._lock:
            if self._looked_s > asked_s or loop.time() - self._looked_s < PAUSE_S:
                return
            try:
                first, last = await self._bus.last(STREAM)
                self._next = max(self._next, first, last - TAIL_MAX + 1)
                while self._next <= last:
                    await self._read()
            except BusUnavailable as exc:
                log.warning("reading the decisions: %s", exc)
            self._looked_s = loop.time()

    async def _read(self) -> None:
        found = await self._bus.read(STREAM, self._next)
        if not found:
            self._next += 1
        for stored in found:
            self._next = stored.sequence + 1
            try:
                self._explanations.learn(subjects.DECISIONS.message.validate_json(stored.data))
            except ValueError as exc:
                log.warning("decision %d breaks its contract: %s", stored.sequence, exc)
