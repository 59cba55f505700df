"""A seeded choice of who is killed, or stopped for a while, and when."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter

from tests.chaos.system import MORTALS, System

PAUSED_SHARE = 0.25


class Killer:
    """Works for a while; `kills` and `pauses` count by process what it did."""

    def __init__(self, system: System, chance: random.Random) -> None:
        self._system = system
        self._chance = chance
        self.kills: Counter[str] = Counter()
        self.pauses: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            await self._strike()
            await asyncio.sleep(self._chance.uniform(2, 4))

    async def _strike(self) -> None:
        names = [self._chance.choice(MORTALS)]
        if self._chance.random() < 0.15:
            names.append(self._chance.choice(MORTALS))
        if self._chance.random() < PAUSED_SHARE:
            seconds = self._chance.uniform(1, 3)
            for name in names[:1]:
                self.pauses[name] += await self._system.pause(name, seconds)
            return
        for name in names:
            self.kills[name] += self._system.signal(name, signal.SIGKILL)

    def account(self) -> str:
        """In one line."""
        killed = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        paused = ", ".join(f"{name} {count}" for name, count in sorted(self.pauses.items()))
        return f"killed {self.kills.total()} ({killed}); stopped {self.pauses.total()} ({paused})"
