"""What a service says of itself to `$SRV.PING`, `INFO` and `STATS`: NATS's micro protocol.

The driver's own service puts every endpoint into a queue group and answers a copy of each request
once; here every placer must hear every request, and one may stay silent. So only what is said of
the endpoints is the protocol's: the serving is `quintal.bus`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from quintal import __version__
from quintal.clock import SystemClock

PREFIX: Final = "$SRV"
VERBS: Final = ("PING", "INFO", "STATS")


@dataclass(slots=True)
class Endpoint:
    """One subject that is served, and what came of its requests."""

    name: str
    subject: str
    requests: int = 0
    """Those that were heard, also by who leaves them to another replica."""
    errors: int = 0
    """Those that broke the contract, or our own code."""
    answered: int = 0
    ns: int = 0
    """Time from hearing to the end, of all together."""
    last_error: str = ""

    def failed(self, what: str) -> None:
        """One more that was not worked on to its end."""
        self.errors += 1
        self.last_error = what[:200]

    def info(self) -> dict[str, Any]:
        """As `INFO` lists it."""
        return {"name": self.name, "subject": self.subject, "queue_group": "", "metadata": {}}

    def stats(self) -> dict[str, Any]:
        """As `STATS` lists it."""
        return {
            "name": self.name,
            "subject": self.subject,
            "queue_group": "",
            "num_requests": self.requests,
            "num_errors": self.errors,
            "last_error": self.last_error,
            "processing_time": self.ns,
            "average_processing_time": self.ns // self.requests if self.requests else 0,
            "data": {"answered": self.answered},
        }


def name_of(pattern: str) -> str:
    """`quintal.v1.placement.{tenant}.get` is `placement-get`: names have no dots."""
    words = [word for word in pattern.split(".")[2:] if not word.startswith("{")]
    return "-".join(words)


@dataclass(slots=True)
class Announced:
    """A service under a name, with an id of its own."""

    client: Client
    name: str
    description: str
    endpoints: Iterable[Endpoint]
    id: str = ""
    started: str = ""

    async def start(self) -> None:
        """Answer from now on, to all, to this name, and to this id."""
        self.id = self.client.new_inbox().rpartition(".")[2]
        now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, tz=UTC)
        self.started = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        for verb in VERBS:
            for whose in ("", f".{self.name}", f".{self.name}.{self.id}"):
                await self.client.subscribe(f"{PREFIX}.{verb}{whose}", cb=self._answer)

    async def _answer(self, msg: Msg) -> None:
        said = getattr(self, f"_{msg.subject.split('.')[1].lower()}")()
        try:
            await msg.respond(json.dumps(said).encode())
        except (nats.errors.Error, OSError):
            return  # whoever asked is gone

    def _head(self, verb: str) -> dict[str, Any]:
        return {
            "type": f"io.nats.micro.v1.{verb}_response",
            "name": self.name,
            "id": self.id,
            "version": __version__,
            "metadata": {},
        }

    def _ping(self) -> dict[str, Any]:
        return self._head("ping")

    def _info(self) -> dict[str, Any]:
        endpoints = [endpoint.info() for endpoint in self._sorted()]
        return {**self._head("info"), "description": self.description, "endpoints": endpoints}

    def _stats(self) -> dict[str, Any]:
        endpoints = [endpoint.stats() for endpoint in self._sorted()]
        return {**self._head("stats"), "started": self.started, "endpoints": endpoints}

    def _sorted(self) -> Iterator[Endpoint]:
        yield from sorted(self.endpoints, key=lambda endpoint: endpoint.name)
