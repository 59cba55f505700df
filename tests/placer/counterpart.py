"""The placer around a `Site`: everything but the bus, the ledger and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quintal.settings import Access
from quintal_placer.agents import Bound, NotBound
from quintal_placer.announcer import Announcer
from quintal_placer.counting import Tally
from quintal_placer.explaining import Explanations
from quintal_placer.instant import Instant
from quintal_placer.promises import Promises
from quintal_placer.settings import Settings
from tests.placer.site import AT_MS, Site


class Writer:
    """A ledger that takes everything at once."""

    full, idle, sequence, stalled_s = False, True, 0, None

    def __init__(self, site: Site) -> None:
        self._site = site

    def now_ms(self) -> int:
        return self._site.writer.at_ms

    def propose(self, records: Any) -> asyncio.Future[int]:
        self._site.apply(*records)
        self.sequence += 1
        return self.barrier()

    def barrier(self) -> asyncio.Future[int]:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(self.sequence)
        return done


class Agents:
    """All of them: they bind, or refuse in words that name whoever they think of."""

    def __init__(self, words: str) -> None:
        self.refuses: set[str] = set()
        self._words = words

    async def bind(self, node: str, _: Any) -> Any:
        if node in self.refuses:
            return NotBound(node, "conflict", self._words, reached=True)
        return Bound(node)

    async def end(self, *_: Any) -> bool:
        return True

    async def set(self, *_: Any) -> tuple[str, ...]:
        return ()


class Counterpart:
    """What the handlers know of `lead.Placer`: one that always leads."""

    def __init__(self, site: Site, words: str = "no") -> None:
        access = Access("", Path(), "placer-1")
        self.state = site.state
        self.state.epoch += 1  # whatever the site's own desk has granted is of an older leader
        self.settings = Settings(access, access, Path())
        self.writer: Any = Writer(site)
        self.agents: Any = Agents(words)
        self.explanations = Explanations()
        self.announcer = Announcer(None)  # type: ignore[arg-type]
        self.promises = Promises(
            self.settings, self.state, self.writer, self.agents, self.announcer, self.explanations
        )
        self.tally = Tally()
        self.decided = SimpleNamespace(look=lambda: asyncio.sleep(0))

    async def confirm(self) -> Promises:
        return self.promises

    def answers(self, _: str, *, leader: bool = False) -> bool:
        return True

    async def read(self, make: Callable[[Instant], Any], _: int) -> Any:
        desk = self.promises.desk
        its = Instant(
            self.state, desk.market, self.explanations, AT_MS, self.writer.sequence, True, {}
        )
        return make(its)
