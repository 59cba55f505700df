"""One writer to a folder: a lock that the kernel drops when its holder dies, however it dies."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

LOOK_S = 0.5


async def locked(folder: Path, stop: asyncio.Event) -> int | None:
    """Wait for the folder's lock and hold it until the process ends; none if `stop` came first."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - once, before anything runs
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    told = False
    while not stop.is_set():
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if not told:
                log.warning("another process has %s: waiting until it ends", folder)
                told = True
        else:
            return handle
        await _pause(stop, LOOK_S)
    os.close(handle)
    return None


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
