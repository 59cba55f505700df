"""What one agent may say: a flood of one takes nothing from the others, and is made good."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from quintal.contracts import nodes
from quintal.settings import Access
from quintal_placer.limits import AGENT_RATES, AgentLimits
from quintal_placer.settings import Settings
from quintal_placer.state import PlacerState
from quintal_placer.watch import Watch


def heard(limits: AgentLimits, count: int, *, node: str = "n1", at_s: float = 0.0) -> int:
    return sum(limits.hears(node, "heartbeat", at_s) for _ in range(count))


def test_a_flood_is_heard_for_a_while_and_then_at_its_rate() -> None:
    limits = AgentLimits()
    per_s, at_once = AGENT_RATES["heartbeat"]
    assert heard(limits, 1_000) == at_once
    assert heard(limits, 1_000, at_s=2.0) == 2 * per_s
    assert limits.dropped == {"n1": 2_000 - at_once - 2 * per_s}


def test_the_flood_of_one_node_and_of_one_sort_is_nobody_elses() -> None:
    limits = AgentLimits()
    heard(limits, 1_000)
    assert limits.hears("n2", "heartbeat", 0.0)
    assert limits.hears("n1", "inventory", 0.0)
    assert limits.hears("n1", "health", 0.0)


def test_an_agent_at_its_own_pace_is_always_heard() -> None:
    """Also one whose bus was away, and whose every device fails at once."""
    limits = AgentLimits()
    assert all(limits.hears("n1", "heartbeat", beat * 4.0) for beat in range(1_000))
    assert all(limits.hears("n1", "health", 0.0) for _ in range(nodes.DEVICES_MAX))


async def test_what_is_too_much_reaches_no_handler_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    access = Access("", Path(), "test")
    nobody: Any = None
    leads: Any = object()
    watch = Watch(Settings(access, access, Path()), nobody, PlacerState(), nobody)
    watch._promises = leads
    reached: list[str] = []
    ear = watch._led("heartbeat", lambda beat: reached.append(beat.node))
    beat = nodes.Heartbeat(node="n1", boot_id="b", sequence=1, at_ms=1)
    with caplog.at_level(logging.WARNING):
        for _ in range(500):
            ear(beat, ("quintal", "v1", "heartbeat", "n1"))
    assert len(reached) < 100
    assert [record.getMessage() for record in caplog.records] == [
        "n1 floods its heartbeat subject: what is too much is dropped"
    ]
