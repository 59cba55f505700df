"""The kernel's log as it grows: vendors' events from /dev/kmsg, from now on.

Read without waiting, on the event loop's own watch. Who may not read it, or has none, has no
events: that is told once in the log and makes no device unhealthy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from pathlib import Path
from typing import Final

from quintal_agent.events import in_kernel_line
from quintal_agent.probes.probe import Event

log = logging.getLogger(__name__)

EVENTS_MAX: Final = 1_000
"""Between two looks; a burst keeps its end."""

_RECORD_BYTES_MAX: Final = 8_192
_RECORDS_AT_ONCE: Final = 256


class KernelLog:
    """`take` gives what came since it was last asked."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self.lost = 0
        """Records that the kernel overwrote before they were read."""

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin at the log's end."""
        if self._path is None:
            return
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
            with contextlib.suppress(OSError):  # a pipe has no end to go to
                os.lseek(self._descriptor, 0, os.SEEK_END)
            loop.add_reader(self._descriptor, self._read)
            self._loop = loop
        except OSError as exc:
            log.info("no events from %s: %s", self._path, exc.strerror or exc)
            self._let_go()

    def close(self) -> None:
        """Let go of it."""
        if self._loop is not None and self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
        self._let_go()

    def take(self) -> tuple[Event, ...]:
        """The events since the last time."""
        events = tuple(self._events)
        self._events.clear()
        return events

    def _read(self) -> None:
        assert self._descriptor is not None
        for _ in range(_RECORDS_AT_ONCE):
            try:
                record = os.read(self._descriptor, _RECORD_BYTES_MAX)
            except BlockingIOError:
                return
            except BrokenPipeError:
                self.lost += 1
                continue
            except OSError as exc:
                log.warning("reading %s: %s", self._path, exc)
                self.close()
                return
            if not record:
                self.close()
                return
            for line in record.decode(errors="replace").splitlines():
                self._events.extend(in_kernel_line(line))

    def _let_go(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = self._loop = None
