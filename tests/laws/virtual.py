"""An event loop whose time is a number: it jumps to the next timer as soon as nothing is ready.

So a retry after 50 ms or a bind that hangs for two seconds costs no time, and a history replays to
the same end whatever the machine is busy with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

BASE_MS = 1_800_000_000_000


class VirtualLoop(asyncio.SelectorEventLoop):
    """Timers and callbacks only: there is no world outside."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._poll = self._selector.select
        self._selector.select = self._jump

    def time(self) -> float:
        return self._now_s

    def _jump(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everything waits for something that nothing will bring"
        self._now_s += timeout
        return self._poll(0)

    def spin(self, seconds: float = 0.3) -> None:
        """Let what can go on go on, and so much time pass."""
        self.run_until_complete(asyncio.sleep(seconds))

    def act(self, what: Callable[[], T]) -> T:
        """Do it inside of the loop, as a callback would."""

        async def body() -> T:
            return what()

        return self.run_until_complete(body())


class VirtualClock:
    """The loop's time as a machine's clock that is wrong by `skew_ms`."""

    def __init__(self, loop: VirtualLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return BASE_MS + self._skew_ms + round(self._loop.time() * 1000)

    def monotonic_s(self) -> float:
        return self._loop.time()
