"""Probes as the agent holds them: each in a child process, under a deadline, at arm's length.

A child that does not answer in time is killed; one that does not even die (stuck in the kernel)
is abandoned, and no second one is started until it is gone. What it saw last stands, with its age.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from quintal.clock import Clock
from quintal_agent.probes.probe import Observation, Trouble, decode
from quintal_agent.report import Sighting, keep_known
from quintal_agent.rounds import backoff_s

log = logging.getLogger(__name__)

LINE_BYTES_MAX: Final = 16 * 2**20
_DIES_WITHIN_S: Final = 1.0

_KEPT_BACK: Final = ("QUINTAL_CREDENTIALS", "NOTIFY_SOCKET", "QUINTAL_URL")
"""What a vendor's library has no business to see."""


class Source(Protocol):
    """Something that the agent looks through."""

    vendor: str

    async def look(self) -> Sighting:
        """The newest sight of it; never raises, and never takes longer than its deadline."""

    async def close(self) -> None:
        """Let go of whatever it holds."""


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """How a probe's child is run."""

    node: str
    deadline_s: float = 8.0
    sys_root: str = "/sys"
    environment: Mapping[str, str] | None = None
    command: tuple[str, ...] | None = None
    """Instead of our own interpreter: for tests of children that misbehave."""


class ChildSource:
    """One vendor's probe in a long-lived child process."""

    def __init__(self, vendor: str, settings: ChildSettings, clock: Clock) -> None:
        self.vendor = vendor
        self._settings = settings
        self._clock = clock
        self._child: Process | None = None
        self._stuck: Process | None = None
        self._failures = 0
        self._not_before_s = 0.0
        self._seen: Observation | None = None
        self._seen_s = 0.0
        self._told = ""

    async def look(self) -> Sighting:
        """Ask the child; fall back on the last good observation and its age."""
        now_s = self._clock.monotonic_s()
        waits = self._child is None and now_s < self._not_before_s
        if not waits and not self._is_stuck():
            await self._ask()
        if self._seen is None:
            why = "its child is stuck" if self._is_stuck() else "no answer yet"
            trouble = Trouble("probe_timeout", f"the {self.vendor} probe gives nothing: {why}")
            return Sighting(Observation(self.vendor, self.vendor, troubles=(trouble,)))
        # A probe that rests until its next try is not a stale one.
        age_s = 0.0 if waits and self._seen.idle else self._clock.monotonic_s() - self._seen_s
        return Sighting(self._seen, age_s)

    async def close(self) -> None:
        """End the child."""
        await self._end()

    def _is_stuck(self) -> bool:
        if self._stuck is not None and self._stuck.returncode is not None:
            self._stuck = None
        return self._stuck is not None

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(self._settings.deadline_s):
                if self._child is None:
                    self._child = await self._start()
                observation = await _exchange(self._child)
        except TimeoutError:
            await self._failed(f"no answer within {self._settings.deadline_s} s")
            return
        except (OSError, ValueError, EOFError) as exc:
            await self._failed(str(exc) or type(exc).__name__)
            return
        self._seen = keep_known(self._seen, observation)
        self._seen_s = self._clock.monotonic_s()
        if observation.idle:
            await self._rest(observation.troubles[0].message if observation.troubles else "idle")
        else:
            self._failures = 0
            self._tell("")

    async def _start(self) -> Process:
        environment = {
            key: value
            for key, value in (self._settings.environment or {}).items()
            if not key.startswith(_KEPT_BACK)
        }
        command = self._settings.command or (
            sys.executable, "-m", "quintal_agent.probes.child",
            self.vendor, self._settings.node, self._settings.sys_root,
        )  # fmt: skip
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            limit=LINE_BYTES_MAX,
            env=environment | {"LC_ALL": "C", "TERM": "dumb"},
        )

    async def _failed(self, why: str) -> None:
        await self._rest(why)
        if self._seen is None:
            trouble = Trouble("probe_failed", f"the {self.vendor} probe failed: {why}")
            self._seen = Observation(self.vendor, self.vendor, troubles=(trouble,))
            self._seen_s = self._clock.monotonic_s()

    async def _rest(self, why: str) -> None:
        """End the child, and start a fresh one after a wait that grows."""
        await self._end()
        self._failures += 1
        self._not_before_s = self._clock.monotonic_s() + backoff_s(self._failures)
        self._tell(why)

    def _tell(self, why: str) -> None:
        """Once per change: a node without the vendor's devices must not fill its log."""
        if why != self._told:
            self._told = why
            log.info("probe %s: %s", self.vendor, why or "answers")

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        try:
            async with asyncio.timeout(_DIES_WITHIN_S):
                await child.wait()
        except TimeoutError:
            log.warning("probe %s: its child %s does not die", self.vendor, child.pid)
            self._stuck = child


async def _exchange(child: Process) -> Observation:
    """One request and its answer. Raises EOFError where the child has ended."""
    if child.stdin is None or child.stdout is None:
        raise EOFError("the child has no pipes")
    child.stdin.write(b"observe\n")
    await child.stdin.drain()
    line = await child.stdout.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the child ended")
    return decode(line)
