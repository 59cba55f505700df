"""Telemetry, health and decisions as columns: nothing unknown becomes a number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from quintal.bus import Stored
from quintal_metering.following import Observer
from quintal_metering.observations import Observed, Source, decisions, health, telemetry

AT = 1_700_000_000_000
STAMP = {"Nats-Time-Stamp": "2023-11-14T22:13:20.5Z"}


def sample(**more: Any) -> Stored:
    body = {
        "node": "n1", "boot_id": "b", "sequence": 1, "at_ms": AT, "devices": ["g1", "g2"],
        "columns": {"power_watts": [100, None]}, **more,
    }  # fmt: skip
    return Stored(7, "quintal.v1.telemetry.n1", json.dumps(body).encode(), STAMP)


def read(**more: Any) -> list[tuple[object, ...]]:
    columns = telemetry([sample(**more)]).columns
    names = ("device", "reading", "value", "quality")
    return list(zip(*(columns[name].to_pylist() for name in names), strict=True))


def test_a_value_that_is_missing_is_none_and_unavailable() -> None:
    assert read() == [
        ("g1", "power_watts", 100.0, "ok"), ("g2", "power_watts", None, "unavailable"),
    ]  # fmt: skip


def test_case_j01_a_quality_that_the_agent_gave_stands() -> None:
    rows = read(qualities={"power_watts": ["stale", "unsupported"]})
    assert [row[3] for row in rows] == ["stale", "unsupported"]


def test_what_is_no_finite_number_is_kept_as_none_and_implausible() -> None:
    rows = read(columns={"power_watts": [float("inf"), float("nan")]})
    assert [row[2:] for row in rows] == [(None, "implausible")] * 2
    rows = read(columns={"power_watts": [10**400, -(10**400)]})
    assert [row[2:] for row in rows] == [(None, "implausible")] * 2


def test_a_column_shorter_than_its_devices_leaves_the_rest_unknown() -> None:
    assert read(columns={"power_watts": [1]})[1][2:] == (None, "unavailable")


def test_case_j11_a_clock_that_is_far_off_keeps_its_sample_out_of_every_minute() -> None:
    seen = telemetry([sample(at_ms=AT + 86_400_000)])
    assert set(seen.columns["quality"].to_pylist()) == {"clock"}
    assert seen.minutes == frozenset()
    assert telemetry([sample(at_ms=AT - 600_000)]).minutes == {(AT - 600_000) // 60_000 * 60_000}


def test_the_node_is_the_one_that_the_bus_let_speak() -> None:
    assert set(telemetry([sample(node="other")]).columns["node"].to_pylist()) == {"n1"}


def test_what_is_no_sample_is_a_dead_letter_and_the_next_one_counts() -> None:
    seen = telemetry([Stored(6, "quintal.v1.telemetry.n1", b"{", STAMP), sample()])
    assert [(letter.sequence, letter.code) for letter in seen.dead] == [(6, "poison")]
    assert seen.columns["sequence"].to_pylist() == [7, 7]


def test_health_and_decisions_are_kept_as_they_were_said() -> None:
    event = {"node": "n1", "boot_id": "b", "at_ms": AT, "device": "g1", "kind": "vendor_event",
             "code": "xid-79", "message": "fell off the bus"}  # fmt: skip
    columns = health([Stored(3, "quintal.v1.health.n1", json.dumps(event).encode())]).columns
    assert (columns["code"], columns["before"], columns["stored_ms"]) == (["xid-79"], [""], [AT])
    record = {
        "at_ms": AT, "tenant": "a", "request_id": "r", "verb": "request", "verdict": "refused",
        "code": "no_capacity", "micros": 120, "reasons": {"x": 2},
    }  # fmt: skip
    columns = decisions([Stored(4, "quintal.v1.decisions", json.dumps(record).encode())]).columns
    assert (columns["verdict"], columns["reasons"]) == (["refused"], [{"x": 2}])


def test_a_message_that_breaks_its_reader_is_a_dead_letter_and_the_rest_is_read() -> None:
    def fragile(messages: Sequence[Stored]) -> Observed:
        if any(message.data == b"bad" for message in messages):
            raise OverflowError("as no reader foresaw")
        return Observed({"sequence": [message.sequence for message in messages]}, ())

    nobody: Any = None
    observer = Observer(nobody, nobody, nobody, Source("TELEMETRY", "t", fragile))
    found = [Stored(n, "s", b"bad" if n == 2 else b"good") for n in (1, 2, 3)]
    told = observer._read(found)
    assert told.columns["sequence"] == [1, 3]
    assert [(letter.sequence, letter.code) for letter in told.dead] == [(2, "unreadable")]
