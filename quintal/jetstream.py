"""Streams and keys over JetStream: append under a fence, read by sequence, declare.

Streams are read by direct get, stateless and by sequence, and not through consumers: there is
nothing to re-create after a restart of the server, nothing to acknowledge, and nothing to leak.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

import nats.errors
from nats.aio.client import Client

from quintal.contracts.streams import STREAMS
from quintal.errors import BusUnavailable

READ_BATCH: Final = 500
"""Messages asked for in one direct get."""

_CONFLICTS: Final = frozenset({10071, 10164})
"""The server's codes for 'not the last sequence that you expected'."""

_FULL: Final = frozenset({10077, 10047, 10023})
"""The server's codes for 'no room' (messages, storage, resources)."""


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


class JetStream:
    """What a connection can do with streams and buckets, as far as its credential allows."""

    client: Client

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

    async def purge(self, stream: str, upto: int) -> None:
        """Let go of everything up to and with `upto`. Raises BusUnavailable."""
        body = await self._api(f"STREAM.PURGE.{stream}", {"seq": upto + 1})
        if "error" in body:
            raise BusUnavailable(f"purging {stream} up to {upto}: {body['error']}")

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
