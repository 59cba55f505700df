"""The engine's one thread: what blocks runs here, so that the event loop lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Engine:
    """One worker thread; calls run one after another, in the order in which they came."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="engine")

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` there and wait for it. Raises what it raises."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Wait for the running call, take no more."""
        self._pool.shutdown()
