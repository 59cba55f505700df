"""The bus: typed subjects over NATS. The only room that knows the driver.

What every service needs is here once: private inboxes, the check of reply subjects, errors as
values, bounded work per service, reads of a stream by sequence, and the declaration of streams.

Streams are read by direct get, stateless and by sequence, and not through consumers: there is
nothing to re-create after a restart of the server, nothing to acknowledge, and nothing to leak.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import ValidationError

from quintal import __version__
from quintal.contracts.message import Message, Refusal
from quintal.contracts.streams import STREAMS
from quintal.contracts.subjects import Publication, Request
from quintal.errors import BusUnavailable, Code, Owner, ProtocolError, Refused, Unanswered
from quintal.settings import Access

log = logging.getLogger(__name__)

IN_FLIGHT_MAX: Final = 4_096
"""Requests one service works on at once; what comes above is told `overloaded`."""

RETRY_AFTER_MS: Final = 250

READ_BATCH: Final = 500
"""Messages asked for in one direct get."""

_CONFLICTS: Final = frozenset({10071, 10164})
"""The server's codes for 'not the last sequence that you expected'."""

_FULL: Final = frozenset({10077, 10047, 10023})
"""The server's codes for 'no room' (messages, storage, resources)."""

A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as the bus knows it: never a field of the message."""

    principal: str
    subject: str
    reply: str


@dataclass(frozen=True, slots=True)
class Stored:
    """One message of a stream."""

    sequence: int
    subject: str
    data: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Appended:
    """The server has it, durably, under this sequence."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """The stream's last sequence is another than expected."""


@dataclass(frozen=True, slots=True)
class Full:
    """The stream takes no more."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer: stored, or not, or not yet."""

    why: str


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


class Bus:
    """One connection under one credential. Use `async with await Bus.connect(...)`."""

    def __init__(self, client: Client, access: Access) -> None:
        self.client = client
        self.principal = access.principal
        self.counts = Counts()
        self.reconnected = asyncio.Event()
        """Set at every reconnect; whoever waits for it clears it."""
        self.closed = asyncio.Event()
        """Set when the connection is over for good: end the process then."""
        self._in_flight = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._hooks: list[Callable[[bool], None]] = []

    @classmethod
    async def connect(cls, access: Access, *, name: str = "", wait_s: float = 10.0) -> Self:
        """Connect and stay so: reconnects without end. Raises BusUnavailable within `wait_s`."""
        client = Client()
        bus = cls(client, access)

        async def on_error(error: Exception) -> None:
            if "permissions violation" in str(error).lower():
                bus.counts.violations += 1
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
            what = (
                "nobody answers" if isinstance(exc, nats.errors.NoRespondersError) else "no reply"
            )
            raise BusUnavailable(f"asking {subject}: {what}") from exc
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
    ) -> None:
        """Answer every ask on `request` with what `handler` gives; None is silence.

        A request whose reply is not under its caller's inbox is dropped and counted: a tenant
        that names `quintal.v1.ledger` as its reply must get nothing, least of all that.
        """
        position = 3 if request.names == "caller" else None
        own = {} if position is not None else {"node": self.principal}

        async def answer(msg: Msg) -> None:
            tokens = msg.subject.split(".")
            principal = tokens[position] if position is not None else ""
            if principal and not msg.reply.startswith(f"_INBOX.{principal}."):
                self.counts.replies_dropped += 1
                log.warning("dropped: %s names the reply %r", msg.subject, msg.reply)
                return
            self.counts.requests += 1
            if bytes_max is not None and len(msg.data) > bytes_max:
                await self._reply(msg, request, _too_long(len(msg.data), bytes_max))
                return
            if self._in_flight >= IN_FLIGHT_MAX:
                self.counts.overloaded += 1
                await self._reply(msg, request, _overloaded())
                return
            self._in_flight += 1
            task = asyncio.create_task(self._answer(msg, request, handler, principal))
            self._tasks.add(task)
            task.add_done_callback(self._done)

        subscription = await self.client.subscribe(request.subject(**own), cb=answer)
        subscription.pending_msgs_limit = 262_144  # type: ignore[attr-defined]

    def _done(self, task: asyncio.Task[None]) -> None:
        self._in_flight -= 1
        self._tasks.discard(task)

    async def _answer(
        self,
        msg: Msg,
        request: Request[A, R],
        handler: Callable[[Caller, A], Awaitable[R | Refusal | None]],
        principal: str,
    ) -> None:
        answer: R | Refusal | None
        try:
            ask = request.ask.validate_json(msg.data)
        except ValidationError as exc:
            self.counts.errors += 1
            await self._reply(msg, request, invalid(exc))
            return
        try:
            answer = await handler(Caller(principal, msg.subject, msg.reply), ask)
        except Refused as exc:
            answer = Refusal(code=exc.code, message=str(exc), owner=exc.owner, details=exc.details)
        except asyncio.CancelledError:
            raise
        except Exception:
            self.counts.errors += 1
            log.exception("answering %s", msg.subject)
            answer = Refusal(
                code=Code.INTERNAL, owner=Owner.INFRASTRUCTURE,
                message="this is a fault of ours; the service's log has it",
            )  # fmt: skip
        if answer is not None:
            await self._reply(msg, request, answer)

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
        from nats.micro import add_service
        from nats.micro.service import ServiceConfig

        await add_service(
            self.client,
            ServiceConfig(name=name, version=__version__, description=description),
        )

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

    # --- streams ------------------------------------------------------------------------------

    async def append(
        self, subject: str, data: bytes, expected: int, *, timeout_s: float = 2.0
    ) -> Appended | Conflict | Full | Unknown:
        """Append under the fence: only if the stream's last sequence is `expected`."""
        try:
            reply = await self.client.request(
                subject,
                data,
                timeout=timeout_s,
                headers={"Nats-Expected-Last-Sequence": str(expected)},
            )
        except (nats.errors.Error, TimeoutError, OSError) as exc:
            return Unknown(str(exc) or type(exc).__name__)
        body = json.loads(reply.data)
        error = body.get("error")
        if error is None:
            return Appended(int(body["seq"]))
        code = error.get("err_code")
        if code in _CONFLICTS:
            return Conflict()
        if code in _FULL:
            return Full()
        return Unknown(str(error))

    async def stored(self, stream: str, sequence: int) -> Stored | None:
        """The message of this sequence, read from the stream's leader; none if it is not there."""
        import base64

        body = await self._api(f"STREAM.MSG.GET.{stream}", {"seq": sequence})
        if "error" in body:
            if body["error"].get("code") == 404:  # noqa: PLR2004 - the server's 'not found'
                return None
            raise BusUnavailable(f"reading {stream} at {sequence}: {body['error']}")
        message = body["message"]
        return Stored(
            int(message["seq"]), message["subject"], base64.b64decode(message.get("data", ""))
        )

    async def last(self, stream: str) -> tuple[int, int]:
        """(first, last) sequence that the stream holds. Raises BusUnavailable."""
        state = (await self.stream_info(stream))["state"]
        return int(state["first_seq"]), int(state["last_seq"])

    async def stream_info(self, stream: str) -> dict[str, Any]:
        """The server's own description of the stream: config and state."""
        body = await self._api(f"STREAM.INFO.{stream}", {})
        if "error" in body:
            raise BusUnavailable(f"asking for stream {stream}: {body['error']}")
        return body

    async def read(
        self, stream: str, from_sequence: int, *, limit: int = READ_BATCH, timeout_s: float = 5.0
    ) -> list[Stored]:
        """Up to `limit` messages from `from_sequence` on, in order; fewer when there are no more.

        Raises BusUnavailable when the answer breaks off: what came so far is then thrown away.
        """
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox)
        ask = {"seq": max(1, from_sequence), "batch": limit, "max_bytes": 4 * 2**20}
        found: list[Stored] = []
        try:
            await self.client.publish(
                f"$JS.API.DIRECT.GET.{stream}", json.dumps(ask).encode(), reply=inbox
            )
            while True:
                msg = await subscription.next_msg(timeout=timeout_s)
                headers = msg.headers or {}
                status = headers.get("Status")
                if status in {"404", "204"}:
                    return found
                if status is not None:
                    raise BusUnavailable(f"reading {stream}: {status} {headers.get('Description')}")
                found.append(
                    Stored(
                        int(headers["Nats-Sequence"]), headers["Nats-Subject"], msg.data, headers
                    )
                )
        except (nats.errors.Error, TimeoutError, OSError) as exc:
            raise BusUnavailable(f"reading {stream} from {from_sequence}") from exc
        finally:
            with contextlib.suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()

    async def read_all(self, stream: str, from_sequence: int = 1) -> AsyncIterator[Stored]:
        """Every message from `from_sequence` to the end as it is now."""
        following = from_sequence
        while batch := await self.read(stream, following):
            for message in batch:
                yield message
            following = batch[-1].sequence + 1

    async def key_get(self, bucket: str, key: str) -> tuple[bytes, int] | None:
        """The value of a key and its revision; none where there is none. Raises BusUnavailable."""
        try:
            msg = await self.client.request(
                f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.{key}", b"", timeout=3
            )
        except (nats.errors.Error, TimeoutError, OSError) as exc:
            raise BusUnavailable(f"reading {bucket}/{key}") from exc
        headers = msg.headers or {}
        if headers.get("Status") == "404" or headers.get("KV-Operation"):
            return None
        if headers.get("Status"):
            raise BusUnavailable(f"reading {bucket}/{key}: {headers}")
        return msg.data, int(headers["Nats-Sequence"])

    async def key_put(self, bucket: str, key: str, value: bytes, revision: int) -> int | None:
        """Set a key whose revision is `revision` (0: not there); none if it is another.

        Raises BusUnavailable where the outcome is unknown: read the key before you go on.
        """
        try:
            reply = await self.client.request(
                f"$KV.{bucket}.{key}",
                value,
                timeout=5,
                headers={"Nats-Expected-Last-Subject-Sequence": str(revision)},
            )
        except (nats.errors.Error, TimeoutError, OSError) as exc:
            raise BusUnavailable(f"writing {bucket}/{key}") from exc
        body = json.loads(reply.data)
        if "error" not in body:
            return int(body["seq"])
        if body["error"].get("err_code") in _CONFLICTS:
            return None
        raise BusUnavailable(f"writing {bucket}/{key}: {body['error']}")

    async def declare(self) -> None:
        """Make every stream and bucket as `contracts.streams` has it, or bring it there."""
        for config in STREAMS:
            body = await self._api(f"STREAM.CREATE.{config['name']}", config)
            if "error" in body:
                body = await self._api(f"STREAM.UPDATE.{config['name']}", config)
            if "error" in body:
                raise BusUnavailable(f"declaring stream {config['name']}: {body['error']}")

    async def _api(self, call: str, ask: dict[str, Any]) -> dict[str, Any]:
        try:
            reply = await self.client.request(
                f"$JS.API.{call}", json.dumps(ask).encode(), timeout=5
            )
        except (nats.errors.Error, TimeoutError, OSError) as exc:
            raise BusUnavailable(f"calling JetStream's {call}") from exc
        body: dict[str, Any] = json.loads(reply.data)
        return body


def invalid(error: ValidationError) -> Refusal:
    """All faults of a message at once, each with the field it is about."""
    faults = [
        {"field": ".".join(str(part) for part in fault["loc"]), "message": fault["msg"]}
        for fault in error.errors(include_url=False, include_context=False)
    ]
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
