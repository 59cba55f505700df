"""Waiting for something that another process or task brings about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], within_s: float = 5.0) -> None:
    """Return as soon as `condition()` holds; fail with its name when it never does."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + within_s
    while not condition():
        assert loop.time() < give_up, f"not within {within_s} s: {condition}"
        await asyncio.sleep(0.01)
