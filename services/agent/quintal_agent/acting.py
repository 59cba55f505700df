"""What is done on a node beside looking: the work of a lease ended, and cleaned up after.

Both are installed tasks, run by name behind the task runner's socket (`tasks`): the agent itself
acts never. A task gets no arguments; it finds the leases that it is for as files in `ending/`
beside the lease files, in the form in which the workload had them.

    fence      ends what runs under the leases of `ending/` (`fence: strict`, the node is cut off)
    cleanup    puts in order what the leases of `ending/` left: processes, memory, modes; run before
               the agent says that it let go. It may be run twice for one lease.

Where `cleanup` is not installed nothing is cleaned, and an end is acknowledged at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from quintal.bus import Caller
from quintal.contracts.message import Refusal
from quintal.contracts.nodes import TaskAsk
from quintal_agent.handlers import TaskRunner
from quintal_agent.state import LeaseFiles

log = logging.getLogger(__name__)

FENCE: Final = "fence"
CLEANUP: Final = "cleanup"
KEPT: Final = 256
"""Cleanups that are over and remembered, for whoever asks twice."""
_OURSELVES: Final = Caller("agent", "", "")


class Acting:
    """The node's two tasks. `installed` gives the names that the runner would run."""

    def __init__(
        self,
        runner: TaskRunner,
        files: LeaseFiles,
        installed: Callable[[], Iterable[str] | None],
        *,
        timeout_s: float,
    ) -> None:
        self._runner = runner
        self._files = files
        self._installed = installed
        self._timeout_s = timeout_s
        self._one = asyncio.Lock()
        self._cleanups: dict[str, asyncio.Task[str]] = {}

    def can(self, name: str) -> bool:
        """Whether that task is installed here."""
        return name in (self._installed() or ())

    async def end_work(self, leases: Iterable[str]) -> str:
        """End what runs under these; empty where that went well, else why not."""
        async with self._one:
            for lease in leases:
                await asyncio.to_thread(self._files.retire, lease)
            return await self._run(FENCE)

    async def cleaned(self, lease: str, within_s: float) -> str | None:
        """What the cleanup after a lease came to: empty is well; none: it is not over yet.

        The first to ask begins it.
        """
        if not self.can(CLEANUP):
            return ""
        task = self._cleanups.get(lease)
        if task is None:
            for name in [n for n, t in self._cleanups.items() if t.done()][:-KEPT]:
                del self._cleanups[name]
            task = self._cleanups[lease] = asyncio.create_task(self._clean(lease))
        await asyncio.wait({task}, timeout=within_s)
        return task.result() if task.done() else None

    async def _clean(self, lease: str) -> str:
        async with self._one:
            try:
                await asyncio.to_thread(self._files.retire, lease)
                failure = await self._run(CLEANUP)
                await asyncio.to_thread(self._files.discard, lease)
            except OSError as exc:
                failure = f"the lease's file cannot be moved: {exc}"
        if failure:
            log.error("cleanup after %s: %s", lease, failure)
        return failure

    async def _run(self, name: str) -> str:
        ask = TaskAsk(name=name, timeout_ms=int(self._timeout_s * 1000))
        done = await self._runner.run(_OURSELVES, ask)
        if isinstance(done, Refusal):
            return done.message
        if done.exit_status is None:
            return f"{name} was ended at its deadline"
        return "" if done.exit_status == 0 else f"{name} exits with {done.exit_status}"

    async def close(self) -> None:
        """Wait for nobody: what was begun is done again after the next start."""
        for task in self._cleanups.values():
            task.cancel()
