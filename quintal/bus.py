"""The bus: typed subjects over NATS. The only room that knows the driver.

What every service needs is here once: private inboxes, the check of reply subjects, errors as
values, bounded work per service.

What is stored (streams and keys) is in `quintal.jetstream`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import ValidationError

from quintal.contracts.message import Message, Refusal, faults_of
from quintal.contracts.subjects import Publication, Request
from quintal.errors import BusUnavailable, Code, Owner, ProtocolError, Refused, Unanswered
from quintal.jetstream import Appended, Conflict, Full, JetStream, Stored, Unknown
from quintal.micro import Announced, Endpoint, name_of
from quintal.settings import Access

__all__ = ["Appended", "Bus", "Caller", "Conflict", "Full", "Stored", "Unknown", "invalid"]

log = logging.getLogger(__name__)

IN_FLIGHT_MAX: Final = 4_096
"""Requests one service works on at once; what comes above is told `overloaded`."""

EACH_MAX: Final = 4
"""Of these, those of one caller, where a request is a question to a store or to a whole catalog:
a flood of one is no drought of another."""

RETRY_AFTER_MS: Final = 250

_VIOLATION: Final = re.compile(r'permissions violation for (\w+) to "([^"]+)"', re.IGNORECASE)

A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as the bus knows it: never a field of the message."""

    principal: str
    subject: str
    reply: str


@dataclass(slots=True)
class Counts:
    """What a service's edge counted."""

    requests: int = 0
    errors: int = 0
    replies_dropped: int = 0
    """Requests that named a reply outside their caller's inbox."""
    overloaded: int = 0
    violations: int = 0
    """Publications or subscriptions that the server refused us."""


class Bus(JetStream):
    """One connection under one credential. Use `async with await Bus.connect(...)`."""

    def __init__(self, client: Client, access: Access) -> None:
        self.client = client
        self.principal = access.principal
        self.counts = Counts()
        self.reconnected = asyncio.Event()
        """Set at every reconnect; whoever waits for it clears it."""
        self.closed = asyncio.Event()
        """Set when the connection is over for good: end the process then."""
        self.endpoints: dict[str, Endpoint] = {}
        """Subject -> what came of its requests."""
        self._in_flight = 0
        self._by_caller: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._violated: set[str] = set()
        """Subjects that the server did not let us publish to, in lower case as it names them."""
        self._hooks: list[Callable[[bool], None]] = []

    @classmethod
    async def connect(cls, access: Access, *, name: str = "", wait_s: float = 10.0) -> Self:
        """Connect and stay so: reconnects without end. Raises BusUnavailable within `wait_s`."""
        client = Client()
        bus = cls(client, access)

        async def on_error(error: Exception) -> None:
            found = _VIOLATION.search(str(error))
            bus.counts.violations += found is not None
            if found and found.group(1).lower() == "publish":
                bus._violated.add(found.group(2).lower())
            log.warning("bus %s: %s", access.principal, str(error) or type(error).__name__)

        async def on_closed() -> None:
            bus.closed.set()

        async def on_disconnected() -> None:
            bus._tell(connected=False)

        async def on_reconnected() -> None:
            bus.reconnected.set()
            bus._tell(connected=True)

        try:
            await asyncio.wait_for(
                client.connect(
                    access.url,
                    name=name or access.principal,
                    user_credentials=str(access.credentials),
                    inbox_prefix=f"_INBOX.{access.principal}".encode(),
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.2,  # type: ignore[arg-type]  # seconds, and a float serves
                    ping_interval=5,
                    error_cb=on_error,
                    closed_cb=on_closed,
                    disconnected_cb=on_disconnected,
                    reconnected_cb=on_reconnected,
                ),
                wait_s,
            )
        except (nats.errors.Error, OSError, TimeoutError) as exc:
            with contextlib.suppress(Exception):
                await client.close()
            raise BusUnavailable(f"connecting to {access.url} as {access.principal}") from exc
        return bus

    async def __aenter__(self) -> Self:
        """The connection itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let running handlers finish, then close."""
        await self.close()

    async def close(self) -> None:
        """Stop hearing, let running handlers finish (2 s), close."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.client.drain(), 2)
        with contextlib.suppress(Exception):
            await self.client.close()

    @property
    def connected(self) -> bool:
        """Whether the server hears us now."""
        return self.client.is_connected

    def on_connection(self, hook: Callable[[bool], None]) -> None:
        """Call `hook(connected)` at every loss and return of the connection."""
        self._hooks.append(hook)

    def _tell(self, *, connected: bool) -> None:
        for hook in self._hooks:
            hook(connected)

    # --- asking -------------------------------------------------------------------------------

    async def request(
        self, request: Request[A, R], ask: A, *, timeout_s: float = 5.0, **tokens: str
    ) -> R | Refusal:
        """Ask and wait for the answer. Raises BusUnavailable where none comes."""
        if request.names == "caller":
            tokens = {"principal": self.principal, "tenant": self.principal, **tokens}
        subject = request.subject(**tokens)
        try:
            reply = await self.client.request(
                subject, request.ask.dump_json(ask, exclude_none=True), timeout=timeout_s
            )
        except nats.errors.NoRespondersError as exc:
            raise Unanswered(f"asking {subject}: nobody answers") from exc
        except (nats.errors.Error, TimeoutError, OSError) as exc:
            if subject.lower() in self._violated:  # the server says so beside the request
                raise Refused(Code.NOT_YOURS, f"{self.principal} may not ask {subject}") from exc
            raise BusUnavailable(f"asking {subject}: no reply") from exc
        try:
            return request.answer.validate_json(reply.data)
        except ValidationError as exc:
            raise ProtocolError(f"the answer of {subject} breaks its contract") from exc

    async def ask(
        self, request: Request[A, R], ask: A, *, timeout_s: float = 5.0, **tokens: str
    ) -> R:
        """Like `request`, but a refusal is raised as Refused."""
        answer = await self.request(request, ask, timeout_s=timeout_s, **tokens)
        if isinstance(answer, Refusal):
            raise Refused(
                answer.code,
                answer.message,
                owner=answer.owner,
                details=answer.model_dump(mode="json"),
            )
        return answer

    # --- saying and hearing -------------------------------------------------------------------

    async def publish(self, publication: Publication[M], message: M, **tokens: str) -> None:
        """Say it; nobody acknowledges. Raises while disconnected: nothing is lost unseen."""
        if not self.connected:
            raise BusUnavailable("publishing while disconnected")
        subject = publication.subject(**tokens)
        try:
            await self.client.publish(subject, publication.message.dump_json(message))
        except (nats.errors.Error, OSError) as exc:
            raise BusUnavailable(f"publishing {subject}") from exc

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Wait until the server has taken all that was published. Raises BusUnavailable."""
        try:
            # The driver's own flush writes its PING ahead of what it has still buffered, so that
            # alone it is no barrier: a subscription may reach the server after the PONG.
            await self.client._flush_pending(force_flush=True)  # noqa: SLF001
            await self.client.flush(timeout=int(max(1, timeout_s)))
        except (nats.errors.Error, TimeoutError, OSError) as exc:
            raise BusUnavailable("flushing") from exc

    async def hear(
        self,
        publication: Publication[M],
        handler: Callable[[M, tuple[str, ...]], None],
        **tokens: str,
    ) -> None:
        """Call `handler(message, subject tokens)` for each message; a bad one is logged."""

        async def on_message(msg: Msg) -> None:
            try:
                handler(publication.message.validate_json(msg.data), tuple(msg.subject.split(".")))
            except ValidationError as exc:
                log.warning("a message on %s breaks its contract: %s", msg.subject, exc)
            except Exception:
                log.exception("hearing %s", msg.subject)

        await self.client.subscribe(publication.subject(**tokens), cb=on_message)

    # --- answering ----------------------------------------------------------------------------

    async def serve(
        self,
        request: Request[A, R],
        handler: Callable[[Caller, A], Awaitable[R | Refusal | None]],
        *,
        bytes_max: int | None = None,
        each_max: int | None = None,
    ) -> None:
        """Answer every ask on `request` with what `handler` gives; None is silence.

        A request whose reply is not under its caller's inbox is dropped and counted: a tenant
        that names `quintal.v1.ledger` as its reply must get nothing, least of all that.
        """
        position = 3 if request.names == "caller" else None
        own = {} if position is not None else {"node": self.principal}
        subject = request.subject(**own)
        endpoint = self.endpoints.setdefault(subject, Endpoint(name_of(request.pattern), subject))

        async def answer(msg: Msg) -> None:
            tokens = msg.subject.split(".")
            principal = tokens[position] if position is not None else ""
            if principal and not msg.reply.startswith(f"_INBOX.{principal}."):
                self.counts.replies_dropped += 1
                log.warning("dropped: %s names the reply %r", msg.subject, msg.reply)
                return
            self.counts.requests += 1
            endpoint.requests += 1
            if bytes_max is not None and len(msg.data) > bytes_max:
                await self._reply(msg, request, _too_long(len(msg.data), bytes_max))
                return
            if self._in_flight >= IN_FLIGHT_MAX:
                self.counts.overloaded += 1
                await self._reply(msg, request, _overloaded())
                return
            if each_max is not None and self._by_caller.get(principal, 0) >= each_max:
                self.counts.overloaded += 1
                await self._reply(msg, request, _overloaded())
                return
            self._in_flight += 1
            self._by_caller[principal] = self._by_caller.get(principal, 0) + 1
            task = asyncio.create_task(self._answer(msg, request, handler, principal, endpoint))
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._done(task, principal))

        subscription = await self.client.subscribe(subject, cb=answer)
        subscription.pending_msgs_limit = 262_144  # type: ignore[attr-defined]

    def _done(self, task: asyncio.Task[None], principal: str) -> None:
        self._in_flight -= 1
        self._by_caller[principal] -= 1
        if not self._by_caller[principal]:
            del self._by_caller[principal]
        self._tasks.discard(task)

    async def _answer(
        self,
        msg: Msg,
        request: Request[A, R],
        handler: Callable[[Caller, A], Awaitable[R | Refusal | None]],
        principal: str,
        endpoint: Endpoint,
    ) -> None:
        begin_ns = time.perf_counter_ns()
        answer: R | Refusal | None
        try:
            ask = request.ask.validate_json(msg.data)
        except ValidationError as exc:
            self.counts.errors += 1
            endpoint.failed("the request breaks its contract")
            await self._reply(msg, request, invalid(exc))
            return
        try:
            answer = await handler(Caller(principal, msg.subject, msg.reply), ask)
        except Refused as exc:
            answer = Refusal(code=exc.code, message=str(exc), owner=exc.owner, details=exc.details)
        except asyncio.CancelledError:
            raise
        except Exception as exc:
            self.counts.errors += 1
            endpoint.failed(type(exc).__name__)
            log.exception("answering %s", msg.subject)
            answer = Refusal(
                code=Code.INTERNAL, owner=Owner.INFRASTRUCTURE,
                message="this is a fault of ours; the service's log has it",
            )  # fmt: skip
        if answer is not None:
            endpoint.answered += 1
            await self._reply(msg, request, answer)
        endpoint.ns += time.perf_counter_ns() - begin_ns

    async def _reply(self, msg: Msg, request: Request[A, R], answer: R | Refusal) -> None:
        if not msg.reply:
            return
        data = request.answer.dump_json(answer, exclude_none=True)
        try:
            if len(data) > self.client.max_payload:
                data = request.answer.dump_json(_too_large(len(data)), exclude_none=True)
            await self.client.publish(msg.reply, data)
        except (nats.errors.Error, OSError) as exc:
            log.warning("the reply to %s is lost: %s", msg.subject, exc)

    async def announce(self, name: str, description: str) -> None:
        """Answer `$SRV.PING`, `INFO` and `STATS`, as the NATS micro protocol has them."""
        await Announced(self.client, name, description, self.endpoints.values()).start()

    async def ping(self, wait_s: float = 0.5) -> list[dict[str, Any]]:
        """What every service instance says to `$SRV.PING` within `wait_s`: its name and version."""
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox)
        found: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        give_up = loop.time() + wait_s
        try:
            await self.client.publish("$SRV.PING", b"", reply=inbox)
            while (left := give_up - loop.time()) > 0:
                msg = await subscription.next_msg(timeout=left)
                if msg.data:
                    found.append(json.loads(msg.data))
        except (nats.errors.Error, TimeoutError, OSError):
            pass
        finally:
            with contextlib.suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()
        return found


def invalid(error: ValidationError) -> Refusal:
    """All faults of a message at once, each with the field it is about."""
    faults = faults_of(error)
    text = "; ".join(f"{f['field'] or 'message'}: {f['message']}" for f in faults)
    return Refusal(
        code=Code.INVALID_REQUEST, message=text, owner=Owner.SUBMITTER, details={"faults": faults}
    )


def _overloaded() -> Refusal:
    return Refusal(
        code=Code.OVERLOADED,
        message="too many requests at once; come again",
        owner=Owner.INFRASTRUCTURE,
        details={"retry_after_ms": RETRY_AFTER_MS},
    )


def _too_long(size: int, bytes_max: int) -> Refusal:
    return Refusal(
        code=Code.INVALID_REQUEST,
        message=f"the request has {size} bytes; at most {bytes_max} are read",
        details={"bytes": size, "bytes_max": bytes_max},
    )


def _too_large(size: int) -> Refusal:
    return Refusal(
        code=Code.INVALID_REQUEST,
        message=f"the answer has {size} bytes, more than one message carries: ask for less",
        details={"bytes": size},
    )
