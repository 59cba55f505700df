"""What is read beside the ledger, as columns: telemetry, health, decisions. Pure.

A reading is a value or none, and a quality; none is never 0. What is no finite number is kept as
none with the quality `implausible`; a sample whose own time is far from the time at which the bus
stored it has the quality `clock` and enters no minute (`samples`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from quintal.bus import Stored
from quintal.contracts.message import Message
from quintal.contracts.nodes import HealthEvent
from quintal.contracts.subjects import DECISIONS, HEALTH, TELEMETRY, Publication
from quintal_metering.columns import Columns, DeadLetter
from quintal_metering.meter import text_of
from quintal_metering.samples import Said, sampled

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Observed:
    """What some messages of one stream come to."""

    columns: Columns
    dead: tuple[DeadLetter, ...]
    minutes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Source:
    """A stream, the table it goes to, and how."""

    stream: str
    table: str
    read: Callable[[Sequence[Stored]], Observed]


def stored_ms(message: Stored) -> int | None:
    """When the bus stored the message, UTC milliseconds; none if it does not say."""
    text = message.headers.get("Nats-Time-Stamp", "")
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def telemetry(messages: Sequence[Stored]) -> Observed:
    """Columns of `telemetry_raw`: one row a device and reading."""
    parsed, dead = _parsed(TELEMETRY, messages)
    said = []
    for message, sample in parsed:
        at = stored_ms(message)
        node = message.subject.rpartition(".")[2]
        said.append(Said(message.sequence, sample.at_ms if at is None else at, node, sample))
    columns, minutes = sampled(said)
    return Observed(columns, dead, minutes)


def health(messages: Sequence[Stored]) -> Observed:
    """Columns of `health_events`."""
    names = ("sequence", "stored_ms", "at_ms", "node", "boot_id", "device", "kind", "before",
             "after", "code", "message")  # fmt: skip
    parsed, dead = _parsed(HEALTH, messages)
    rows = [_health_row(message, event) for message, event in parsed]
    return Observed(_columns(names, rows), dead)


def _health_row(message: Stored, event: HealthEvent) -> tuple[Any, ...]:
    return (
        message.sequence, stored_ms(message) or event.at_ms, event.at_ms,
        message.subject.rpartition(".")[2], event.boot_id, event.device, event.kind,
        event.before or "", event.after or "", event.code, event.message,
    )  # fmt: skip


def decisions(messages: Sequence[Stored]) -> Observed:
    """Columns of `decisions`."""
    names = ("sequence", "stored_ms", "at_ms", "tenant", "request_id", "verb", "verdict", "code",
             "lease", "micros", "candidates", "reasons", "catalog_revision")  # fmt: skip
    parsed, dead = _parsed(DECISIONS, messages)
    rows = [
        (
            message.sequence,
            stored_ms(message) or record.at_ms,
            *(getattr(record, name) for name in names[2:]),
        )
        for message, record in parsed
    ]
    return Observed(_columns(names, rows), dead)


def _columns(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Columns:
    if not rows:
        return {}
    return dict(zip(names, (list(column) for column in zip(*rows, strict=True)), strict=True))


def _parsed(
    publication: Publication[M], messages: Sequence[Stored]
) -> tuple[list[tuple[Stored, M]], tuple[DeadLetter, ...]]:
    good: list[tuple[Stored, M]] = []
    dead: list[DeadLetter] = []
    for message in messages:
        try:
            good.append((message, publication.message.validate_json(message.data)))
        except ValidationError as exc:
            why = "; ".join(fault["msg"] for fault in exc.errors()[:3])
            dead.append(
                DeadLetter(
                    publication.stream or "", message.sequence, -1, stored_ms(message) or 0,
                    "poison", why, text_of(message.data)[:10_000],
                )
            )  # fmt: skip
    return good, tuple(dead)


SOURCES: Final = (
    Source("TELEMETRY", "telemetry_raw", telemetry),
    Source("HEALTH", "health_events", health),
    Source("DECISIONS", "decisions", decisions),
)
