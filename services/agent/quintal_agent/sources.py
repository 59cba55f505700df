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
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from quintal.clock import Clock
from quintal_agent.floor import BLIND, put_to_sleep
from quintal_agent.probes.pci import Function
from quintal_agent.probes.probe import Event, Observation, Trouble, decode
from quintal_agent.probes.signs import has_sign
from quintal_agent.report import ProbeState, Sighting, keep_known
from quintal_agent.rounds import backoff_s

log = logging.getLogger(__name__)

OnBus = Mapping[str, tuple[Function, ...]]
"""Vendor -> its accelerators on the PCI bus."""

LINE_BYTES_MAX: Final = 2 * 2**20
"""More than any observation needs: a child that floods its pipe is ended, not read."""

PATIENCE_S: Final = 2.0
"""A look waits so long for any one probe."""

WORDS_BYTES_MAX: Final = 4_096
"""So much of what a child says on stderr is kept, for the reason of its death."""

_DIES_WITHIN_S: Final = 1.0

_KEPT_BACK: Final = ("QUINTAL_CREDENTIALS", "NOTIFY_SOCKET", "WATCHDOG", "QUINTAL_URL")
"""What a vendor's library has no business to see."""


class Source(Protocol):
    """Something that the agent looks through."""

    vendor: str

    async def look(self) -> Sighting:
        """The newest sight of it; never raises, and never takes longer than its deadline."""

    async def close(self) -> None:
        """Let go of whatever it holds."""


def kill(child: Process) -> None:
    """SIGKILL. The one act on a child that a kernel may ignore, and so a seam."""
    with contextlib.suppress(ProcessLookupError):
        child.kill()


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """How a probe's child is run."""

    node: str
    deadline_s: float = 8.0
    patience_s: float = 8.0
    """A look waits so long. A slower probe goes on until its deadline beside the looks, and the
    others' samples do not wait for it."""
    sys_root: str = "/sys"
    environment: Mapping[str, str] | None = None
    command: tuple[str, ...] | None = None
    """Instead of our own interpreter: for tests of children that misbehave."""
    kill: Callable[[Process], None] = kill
    dies_within_s: float = _DIES_WITHIN_S


class ChildSource:
    """One vendor's probe in a long-lived child process."""

    def __init__(self, vendor: str, settings: ChildSettings, clock: Clock) -> None:
        self.vendor = vendor
        self._settings = settings
        self._clock = clock
        self._child: Process | None = None
        self._stuck: Process | None = None
        self._asking: asyncio.Task[None] | None = None
        self._words: deque[bytes] = deque(maxlen=WORDS_BYTES_MAX // 256)
        self._listening: asyncio.Task[None] | None = None
        self._failed_in_a_row = 0
        self._not_before_s = 0.0
        self._seen: Observation | None = None
        self._good = False
        self._seen_s = 0.0
        self._events: list[Event] = []
        self._answers = self._taken = 0
        self._told = ""
        self._trouble: Trouble | None = None
        self.failures = 0
        self.duration_s: float | None = None

    async def look(self) -> Sighting:
        """Ask the child; fall back on the last good observation and its age."""
        now_s = self._clock.monotonic_s()
        if self._asking is not None and self._asking.done():
            self._asking = None
        waits = self._asking is None and self._child is None and now_s < self._not_before_s
        if not waits and not self._is_stuck():
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
            done, _ = await asyncio.wait({self._asking}, timeout=self._settings.patience_s)
            if done:
                self._asking = None
        fresh, self._taken = self._answers != self._taken, self._answers
        state = self._state()
        if self._seen is None:
            why = "its child is stuck" if self._is_stuck() else "no answer yet"
            trouble = Trouble("probe_timeout", f"the {self.vendor} probe gives nothing: {why}")
            empty = Observation(self.vendor, self.vendor, troubles=(trouble,))
            return Sighting(empty, fresh=False, probe=state)
        # A probe that rests until its next try is not a stale one.
        rests = waits and self._seen.idle
        age_s = 0.0 if rests else self._clock.monotonic_s() - self._seen_s
        events, self._events = tuple(self._events), []
        troubles = self._seen.troubles
        if self._trouble is not None and self._good:
            troubles = (*troubles, self._trouble)
        seen = replace(self._seen, events=events, troubles=troubles)
        return Sighting(seen, age_s, fresh=fresh, probe=state)

    async def close(self) -> None:
        """End the child."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._end()

    def _state(self) -> ProbeState:
        good = self._seen is not None and self._good
        return ProbeState(
            vendor=self.vendor,
            tool=self._seen.tool if self._seen is not None else "",
            duration_s=self.duration_s,
            failures=self.failures,
            last_good_s=self._clock.monotonic_s() - self._seen_s if good else None,
            why=self._told,
        )

    def _is_stuck(self) -> bool:
        if self._stuck is not None and self._stuck.returncode is not None:
            self._stuck = None
        return self._stuck is not None

    async def _ask(self) -> None:
        began_s = self._clock.monotonic_s()
        try:
            async with asyncio.timeout(self._settings.deadline_s):
                if self._child is None:
                    self._child = await self._start()
                observation = await _exchange(self._child)
        except TimeoutError:
            self.duration_s = self._clock.monotonic_s() - began_s
            await self._failed(f"no answer within {self._settings.deadline_s} s", "probe_timeout")
            return
        except EOFError as exc:
            await self._failed(str(exc), "probe_crashed")
            return
        except (OSError, ValueError) as exc:
            await self._failed(str(exc) or type(exc).__name__, "probe_failed")
            return
        self.duration_s = self._clock.monotonic_s() - began_s
        self._answers += 1
        self._trouble = None
        self._seen = keep_known(self._seen, observation)
        self._events.extend(observation.events)
        self._seen_s = self._clock.monotonic_s()
        self._good = not any(trouble.code in BLIND for trouble in observation.troubles)
        if observation.idle:
            await self._rest(observation.troubles[0].message if observation.troubles else "idle")
        else:
            self._failed_in_a_row = 0
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
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=LINE_BYTES_MAX,
            env=environment | {"LC_ALL": "C", "TERM": "dumb"},
        )
        self._words.clear()
        self._listening = asyncio.create_task(_listen(child, self._words))
        return child

    async def _failed(self, why: str, code: str) -> None:
        """The last good look stands; where there was none, the failure is all there is to see."""
        self.failures += 1
        last = await self._last_words()
        await self._rest(f"{why}{last}")
        self._trouble = Trouble(code, f"the {self.vendor} probe failed: {why}{last}")
        if self._seen is None or not self._good:
            kept = () if self._seen is None else self._seen.devices
            self._seen = Observation(self.vendor, self.vendor, kept, troubles=(self._trouble,))
            self._seen_s = self._clock.monotonic_s()

    async def _last_words(self) -> str:
        if self._listening is not None and self._child is not None:
            with contextlib.suppress(TimeoutError):
                if self._child.returncode is not None:
                    await asyncio.wait_for(asyncio.shield(self._listening), 0.2)
        text = b"".join(self._words).decode(errors="replace").strip()
        return f" ({text.splitlines()[-1][:200]})" if text else ""

    async def _rest(self, why: str) -> None:
        """End the child, and start a fresh one after a wait that grows."""
        await self._end()
        self._failed_in_a_row += 1
        self._not_before_s = self._clock.monotonic_s() + backoff_s(self._failed_in_a_row)
        self._tell(why)

    def _tell(self, why: str) -> None:
        """Once per change: a node without the vendor's devices must not fill its log."""
        if why != self._told:
            self._told = why
            log.info("probe %s: %s", self.vendor, why or "answers")

    async def _end(self) -> None:
        child, self._child = self._child, None
        listening, self._listening = self._listening, None
        if child is None:
            return
        self._settings.kill(child)
        try:
            async with asyncio.timeout(self._settings.dies_within_s):
                await child.wait()
        except TimeoutError:
            log.warning("probe %s: its child %s does not die", self.vendor, child.pid)
            self._stuck = child
        if listening is not None:
            listening.cancel()


async def _listen(child: Process, words: deque[bytes]) -> None:
    """Read stderr for as long as the child lives, and keep its end: a flood fills nothing."""
    assert child.stderr is not None
    while piece := await child.stderr.read(256):
        words.append(piece)


class GatedSource:
    """A child source that is not even started where the bus has nothing for it.

    Nor is it asked while all its devices sleep: asking would wake them.
    """

    def __init__(self, source: ChildSource, floor: Callable[[], OnBus | None]) -> None:
        self.vendor = source.vendor
        self._source = source
        self._floor = floor
        self._last: Observation | None = None

    async def look(self) -> Sighting:
        """As the child source's, but for what sleeps and what is not there."""
        on_bus = self._floor()
        if on_bus is None:
            return await self._source.look()
        functions = on_bus.get(self.vendor, ())
        if functions and all(function.suspended for function in functions):
            known = self._last or Observation(self.vendor, self.vendor)
            return Sighting(put_to_sleep(known))
        if not functions and not has_sign(self.vendor):
            await self._source.close()
            return Sighting(Observation(self.vendor, self.vendor))
        sighting = await self._source.look()
        self._last = sighting.observation
        return sighting

    async def close(self) -> None:
        """End the child."""
        await self._source.close()


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
