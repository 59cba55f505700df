"""What is read beside the ledger, as columns: telemetry, health, decisions. Pure.

A reading is a value or none, and a quality; none is never 0. What is no finite number is kept as
none with the quality `implausible`; a sample whose own time is far from the time at which the bus
stored it has the quality `clock` and enters no minute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from quintal.bus import Stored
from quintal.contracts.message import Message
from quintal.contracts.nodes import HealthEvent, Quality, Telemetry
from quintal.contracts.subjects import DECISIONS, HEALTH, TELEMETRY, Publication
from quintal_metering.columns import Columns, DeadLetter
from quintal_metering.meter import text_of

M = TypeVar("M", bound=Message)

MINUTE_MS: Final = 60_000

CLOCK_OFF_MS: Final = 6 * 3_600_000
"""A spool may be hours behind; a clock that is further off than the stream is long is wrong."""

AHEAD_MS: Final = 120_000
"""No sample comes from the future, but clocks are never quite together."""


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
    rows: list[tuple[Any, ...]] = []
    parsed, dead = _parsed(TELEMETRY, messages)
    for message, sample in parsed:
        rows.extend(_sample_rows(message, sample))
    names = ("sequence", "stored_ms", "at_ms", "minute_ms", "node", "boot_id", "device",
             "reading", "value", "quality")  # fmt: skip
    columns = _columns(names, rows)
    minutes = frozenset(row[3] for row in rows if row[9] != Quality.CLOCK)
    return Observed(columns, dead, minutes)


def _sample_rows(message: Stored, sample: Telemetry) -> list[tuple[Any, ...]]:
    at = stored_ms(message)
    stored = sample.at_ms if at is None else at
    late = stored - sample.at_ms
    astray = not -AHEAD_MS <= late <= CLOCK_OFF_MS
    minute = sample.at_ms - sample.at_ms % MINUTE_MS
    node = message.subject.rpartition(".")[2]
    head = (message.sequence, stored, sample.at_ms, minute, node, sample.boot_id)
    rows = []
    for reading, values in sample.columns.items():
        qualities = sample.qualities.get(reading, ())
        for place, device in enumerate(sample.devices):
            value = values[place] if place < len(values) else None
            quality = qualities[place] if place < len(qualities) else Quality.OK
            good, said = _reading(value, quality)
            rows.append((*head, device, reading, good, str(Quality.CLOCK if astray else said)))
    return rows


def _reading(value: float | None, quality: Quality) -> tuple[float | None, Quality]:
    if value is None:
        return None, Quality.UNAVAILABLE if quality is Quality.OK else quality
    try:
        number = float(value)
    except OverflowError:  # an integer beyond every float: the wire has no bound
        return None, Quality.IMPLAUSIBLE
    if not math.isfinite(number):
        return None, Quality.IMPLAUSIBLE
    return number, quality


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
