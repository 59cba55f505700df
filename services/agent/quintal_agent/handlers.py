"""What the placer tells the agent: decided purely, kept on disk, then answered, in that order.

One change at a time. A crash after the write and before the answer costs nothing: the placer asks
again, and a bind or an end that is already so gets the same answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from quintal.bus import Caller
from quintal.contracts.message import Refusal
from quintal.contracts.nodes import (
    BindAsk,
    BindDone,
    EndAsk,
    RawDevice,
    SetAsk,
    TaskAsk,
    TaskDone,
)
from quintal.errors import Code, Owner
from quintal_agent import leases
from quintal_agent.leases import LeaseSet
from quintal_agent.state import LEASE_ID, LeaseFiles, StateLostError, Store

log = logging.getLogger(__name__)

TASK_OUTPUT_MAX: Final = 32_768

CLEANED_WITHIN_S: Final = 1.0
"""A cleanup that takes longer is asked for again."""

Cleaned = Callable[[str, float], Awaitable[str | None]]


async def _nothing_to_clean(_: str, __: float) -> str | None:
    return ""


class LeaseKeeper:
    """The node's lease set: answers bind, end and set."""

    def __init__(
        self,
        store: Store,
        files: LeaseFiles,
        boot: str,
        devices: Callable[[], Mapping[str, RawDevice] | None],
    ) -> None:
        self._store = store
        self._files = files
        self._boot = boot
        self._devices = devices
        self._busy = asyncio.Lock()
        self.libraries: Mapping[str, str] = {}
        self.state = LeaseSet()
        self.lost: str | None = None
        """Why no lease is taken, where the kept state is lost."""
        self.wants_inventory: Callable[[], None] = lambda: None
        self._fresh: frozenset[str] = frozenset()
        self.cleaned: Cleaned = _nothing_to_clean
        """What the cleanup after a lease came to, within so many seconds; none: not over yet."""
        self._uncleaned: dict[str, str] = {}
        self.fences: Callable[[], bool] = lambda: False
        """Whether this node can end work by itself."""
        self.taken: Callable[[str], None] = lambda _: None
        """Told of each lease that is bound."""

    async def start(self) -> None:
        """Read what was kept, and bring the workloads' files in line with it."""
        await asyncio.to_thread(self._store.open)
        try:
            self.state = await asyncio.to_thread(self._store.load, self._boot)
            await asyncio.to_thread(self._store.save, self.state, self._boot)
        except StateLostError as exc:
            self.lost = str(exc)
            log.error("%s", exc)  # noqa: TRY400 - the message is the whole of it
        await asyncio.to_thread(self._files.reconcile, self.state, self.libraries)

    def close(self) -> None:
        """Let go of the state directory."""
        self._store.close()

    async def bind(self, _: Caller, ask: BindAsk) -> BindDone | Refusal:
        """Take a lease, or say why not."""
        lease = ask.lease
        if self.lost is not None:
            return _infrastructure(Code.ADAPTER_ERROR, self.lost)
        if LEASE_ID.fullmatch(lease.lease) is None:
            return Refusal(code=Code.INVALID_REQUEST, message=f"{lease.lease!r} is no lease id")
        if lease.fence == "strict" and not self.fences():
            return _infrastructure(
                Code.NOT_ENABLED, "no task `fence` is installed here: this node ends no work"
            )
        async with self._busy:
            after = leases.bind(self.state, lease, self._devices())
            if isinstance(after, Refusal):
                log.warning("bind of %s refused: %s", lease.lease, after.message)
                return after
            answer = await self._keep(after)
            self._fresh |= {lease.lease}
            self.taken(lease.lease)
            return answer

    async def end(self, _: Caller, ask: EndAsk) -> BindDone | Refusal:
        """Forget a lease, once it is cleaned up after; one that is not held is done."""
        held = self.state.leases.get(ask.lease)
        failure: str | None = ""
        if held is not None and held.token <= ask.token:
            failure = await self.cleaned(ask.lease, CLEANED_WITHIN_S)
        if failure is None:
            return Refusal(
                code=Code.OVERLOADED,
                message=f"what {ask.lease} left is being cleaned up",
                owner=Owner.INFRASTRUCTURE,
                details={"retry_after_ms": 1_000},
            )
        async with self._busy:
            after = leases.end(self.state, ask.lease, ask.token)
            if isinstance(after, Refusal):
                return after
            failure = failure or self._uncleaned.get(ask.lease, "")
            uncleaned = {ask.lease: failure} if failure else {}
            self._uncleaned |= uncleaned  # for whoever asks twice
            return await self._keep(after, released=(ask.lease,), uncleaned=uncleaned)

    async def set(self, _: Caller, ask: SetAsk) -> BindDone | Refusal:
        """Make the placer's whole set ours; say which leases are no longer held.

        One that is still being cleaned up after is held until it is.
        """
        named = {lease.lease for lease in ask.leases} - set(ask.ended)
        kept = named | (self._fresh - set(ask.ended))
        going = [name for name in self.state.leases if name not in kept]
        done_after = {name: await self.cleaned(name, 0.0) for name in going}
        waits = {name for name, failure in done_after.items() if failure is None}
        uncleaned = {name: failure for name, failure in done_after.items() if failure}
        async with self._busy:
            wanted = () if self.lost is not None else ask.leases
            still = [its for name, its in self.state.leases.items() if name in waits]
            odd = [lease.lease for lease in wanted if LEASE_ID.fullmatch(lease.lease) is None]
            if odd:
                return Refusal(code=Code.INVALID_REQUEST, message=f"{odd[0]!r} is no lease id")
            ended = [name for name in ask.ended if name not in waits]
            done = leases.replace_all(self.state, (*wanted, *still), ended, self._fresh)
            self._fresh = frozenset()
            if done.refused:
                log.warning("a set names leases that are older than their devices: %s",
                            ", ".join(done.refused))  # fmt: skip
            answer = await self._keep(done.leases, released=done.released, uncleaned=uncleaned)
        if ask.inventory_wanted:
            self.wants_inventory()
        return answer

    async def restore(self, names: Iterable[str]) -> None:
        """Work may run again under these: their files are the workloads'."""
        for name in names:
            if name in self.state.leases:
                await asyncio.to_thread(self._files.restore, name)

    async def _keep(
        self,
        after: LeaseSet,
        released: tuple[str, ...] = (),
        uncleaned: Mapping[str, str] | None = None,
    ) -> BindDone | Refusal:
        before = self.state
        try:
            if after is not before and self.lost is None:
                await asyncio.to_thread(self._store.save, after, self._boot)
            await asyncio.to_thread(self._write_files, before, after)
        except OSError as exc:
            log.exception("keeping the lease set")
            return _infrastructure(Code.INTERNAL, f"the node's disk refuses: {exc}")
        if after is not before:
            self.state = after
        return BindDone(
            boot_id=self._boot,
            lease_version=after.version,
            released=released,
            uncleaned=dict(uncleaned or {}),
        )

    def _write_files(self, before: LeaseSet, after: LeaseSet) -> None:
        for name in before.leases:
            if name not in after.leases:
                self._files.remove(name)
        for name, lease in after.leases.items():
            if before.leases.get(name) != lease:
                self._files.write(lease, self.libraries)


class TaskRunner:
    """The node's task runner behind its socket: the agent hands names over, and acts never."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def run(self, _: Caller, ask: TaskAsk) -> TaskDone | Refusal:
        """Have an installed task run; `not_enabled` where nobody listens."""
        try:
            answer = await self._asked(
                {"run": ask.name, "timeout_ms": ask.timeout_ms}, ask.timeout_ms / 1000 + 10
            )
        except (FileNotFoundError, ConnectionRefusedError, PermissionError):
            return _infrastructure(
                Code.NOT_ENABLED, f"no task runner listens at {self._socket} on this node"
            )
        except (OSError, ValueError, TimeoutError) as exc:
            words = str(exc) or "it gives no answer"
            return _infrastructure(Code.ADAPTER_ERROR, f"the task runner fails: {words}")
        refused = answer.get("refused")
        if refused is not None:
            return _infrastructure(Code.ADAPTER_ERROR, f"task {ask.name}: {refused}")
        return TaskDone(
            name=ask.name,
            exit_status=answer.get("exit_status"),
            duration_ms=int(answer.get("duration_ms", 0)),
            output=str(answer.get("output", ""))[-TASK_OUTPUT_MAX:],
        )

    async def names(self) -> tuple[str, ...] | None:
        """What is installed; none where the node does not act."""
        if not self._socket.exists():
            return None
        try:
            answer = await self._asked({"list": True}, 2.0)
            return tuple(str(name) for name in answer.get("names", ()))
        except (OSError, ValueError, TimeoutError):
            return None

    async def _asked(self, ask: Mapping[str, object], timeout_s: float) -> dict[str, Any]:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(
                str(self._socket), limit=4 * TASK_OUTPUT_MAX
            )
            try:
                writer.write(json.dumps(ask).encode() + b"\n")
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.close()
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise ValueError("its answer is none")  # noqa: TRY004 - a bad answer, not a bad call
        return answer


def _infrastructure(code: Code, message: str) -> Refusal:
    return Refusal(code=code, message=message, owner=Owner.INFRASTRUCTURE)
