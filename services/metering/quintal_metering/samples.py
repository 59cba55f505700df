"""Samples of telemetry as columns, a batch at a time: no object a reading. Pure.

A fleet of 80,000 devices brings 40,000 readings a second. What is the same for a whole message is
repeated by numpy, words go as dictionaries with an index a row, and only readings that are not
plain numbers are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from quintal.contracts.nodes import Quality, Telemetry

MINUTE_MS: Final = 60_000

CLOCK_OFF_MS: Final = 6 * 3_600_000
"""A spool may be hours behind; a clock that is further off than the stream is long is wrong."""

AHEAD_MS: Final = 120_000
"""No sample comes from the future, but clocks are never quite together."""

_QUALITIES: Final = tuple(Quality)
_CODES: Final = {quality: code for code, quality in enumerate(_QUALITIES)}
_OK, _CLOCK = _CODES[Quality.OK], _CODES[Quality.CLOCK]


class Said(NamedTuple):
    """A sample as it came: where in the stream, when it was stored, whose."""

    sequence: int
    stored_ms: int
    node: str
    sample: Telemetry


@dataclass(slots=True)
class _Words:
    """A column of few different words: each once, and an index a row."""

    known: dict[str, int] = field(default_factory=dict)

    def index(self, word: str) -> int:
        return self.known.setdefault(word, len(self.known))

    def column(self, indexes: Any) -> Any:
        return pa.DictionaryArray.from_arrays(
            pa.array(indexes, type=pa.int32()), pa.array(self.known, type=pa.string())
        )


@dataclass(slots=True)
class _Batch:
    """What grows while messages are looked at."""

    heads: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    """A message: sequence, stored, at, minute, and the indexes of its node and boot id."""
    rows: list[int] = field(default_factory=list)
    """Readings of each message."""
    readings: list[int] = field(default_factory=list)
    wide: list[int] = field(default_factory=list)
    """Values of each of `readings`."""
    devices: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    codes: bytearray = field(default_factory=bytearray)
    astray: list[slice] = field(default_factory=list)
    minutes: set[int] = field(default_factory=set)


def sampled(said: Sequence[Said]) -> tuple[dict[str, Any], frozenset[int]]:
    """Columns of `telemetry_raw`, one row a device and reading, and the minutes that they touch."""
    nodes, boots, devices, readings = _Words(), _Words(), _Words(), _Words()
    batch = _Batch()
    for one in said:
        sample = one.sample
        minute = sample.at_ms - sample.at_ms % MINUTE_MS
        before = len(batch.values)
        ids = [devices.index(device) for device in sample.devices]
        for reading, values in sample.columns.items():
            _take(batch, readings.index(reading), values, sample.qualities.get(reading, ()), ids)
        rows = len(batch.values) - before
        if not rows:
            continue
        if -AHEAD_MS <= one.stored_ms - sample.at_ms <= CLOCK_OFF_MS:
            batch.minutes.add(minute)
        else:
            batch.astray.append(slice(before, before + rows))
        batch.rows.append(rows)
        where = (nodes.index(one.node), boots.index(sample.boot_id))
        batch.heads.append((one.sequence, one.stored_ms, sample.at_ms, minute, *where))
    if not batch.values:
        return {}, frozenset()
    sequence, stored, at, minute_of, node, boot = (
        np.repeat(np.array(column, dtype=np.int64), batch.rows)
        for column in zip(*batch.heads, strict=True)
    )
    value, quality = _readings(batch)
    columns = {
        "sequence": pa.array(sequence.astype(np.uint64)), "stored_ms": pa.array(stored),
        "at_ms": pa.array(at), "minute_ms": pa.array(minute_of),
        "node": nodes.column(node.astype(np.int32)),
        "boot_id": boots.column(boot.astype(np.int32)),
        "device": devices.column(batch.devices),
        "reading": readings.column(np.repeat(np.array(batch.readings, np.int32), batch.wide)),
        "value": value, "quality": quality,
    }  # fmt: skip
    return columns, frozenset(batch.minutes)


def _take(
    batch: _Batch,
    reading: int,
    values: tuple[Any, ...],
    qualities: tuple[Quality, ...],
    devices: list[int],
) -> None:
    """One column of a message, as wide as it has devices."""
    wide = len(devices)
    if len(values) != wide:
        values = (values + (None,) * wide)[:wide]
    codes = bytes(wide)
    if qualities:
        codes = (bytes(_CODES[quality] for quality in qualities) + codes)[:wide]
    batch.readings.append(reading)
    batch.wide.append(wide)
    batch.devices += devices
    batch.values += values
    batch.codes += codes


def _readings(batch: _Batch) -> tuple[Any, Any]:
    """Values and qualities: none is none, and what is no finite number is implausible."""
    numbers = _numbers(batch.values)
    codes = np.frombuffer(batch.codes, dtype=np.uint8).astype(np.int32)
    odd = ~np.isfinite(numbers)
    for place in np.nonzero(odd)[0].tolist():
        if batch.values[place] is not None:
            codes[place] = _CODES[Quality.IMPLAUSIBLE]
        elif codes[place] == _OK:
            codes[place] = _CODES[Quality.UNAVAILABLE]
    for span in batch.astray:
        codes[span] = _CLOCK
    words = pa.array([str(quality) for quality in _QUALITIES])
    quality = pa.DictionaryArray.from_arrays(pa.array(codes, type=pa.int32()), words)
    return pa.array(numbers, mask=odd), quality


def _numbers(values: list[Any]) -> Any:
    """As floats; none, and an integer beyond every float (the wire has no bound), is not finite."""
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:
        return np.array([_number(value) for value in values], dtype=np.float64)


def _number(value: float | None) -> float:
    try:
        return float("nan") if value is None else float(value)
    except OverflowError:
        return float("inf")
