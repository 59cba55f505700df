"""A task that fails is never silent."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

log = logging.getLogger(__name__)


def report(task: asyncio.Task[Any]) -> None:
    """For `add_done_callback`: log what a task that nobody awaits ended with."""
    if not task.cancelled() and task.exception() is not None:
        log.error("a task of the placer failed", exc_info=task.exception())
