"""The checker of the chaos runs finds what it is there for: each law broken once, by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checker import Ledger, judge
from tests.chaos.journal import Entry, Journal

Record = dict[str, Any]
Story = tuple[list[Record], Journal]

DEVICE = {"node": "n1", "uuid": "GPU-1", "parts": 1_000_000}
TTL_MS = 30_000


def granted(lease: str, request_id: str, at_ms: int) -> Record:
    return {
        "kind": "granted", "lease": lease, "tenant": "ml", "at_ms": at_ms, "bound": False,
        "request": {"request_id": request_id}, "devices": [DEVICE], "cpu_milli": {"n1": 600},
        "ttl_ms": TTL_MS, "deadline_ms": at_ms + TTL_MS,
    }  # fmt: skip


def said(kind: str, lease: str, at_ms: int, **more: Any) -> Record:
    return {"kind": kind, "lease": lease, "at_ms": at_ms, **more}


def over(lease: str, at_ms: int, reason: str = "released") -> list[Record]:
    return [
        said("ending", lease, at_ms, reason=reason, effective_ms=at_ms),
        said("node_released", lease, at_ms, node="n1"),
        said("ended", lease, at_ms),
    ]


def entry(verb: str, answer: str, lease: str, sequence: int, **more: Any) -> Entry:
    return Entry(
        sent_ms=1_000, answered_ms=1_001, tenant="ml", request_id=more.pop("request_id", "chaos-1"),
        verb=verb, answer=answer, lease=lease, sequence=sequence, **more,
    )  # fmt: skip


def good() -> Story:
    """One lease from request to end, another on the same device afterwards, and two epochs."""
    records = [
        {"kind": "epoch", "at_ms": 1, "epoch": 1, "writer": "p1"},
        {"kind": "node", "at_ms": 2, "node": "n1", "cpu_milli": 1_000},
        granted("l1", "chaos-1", 1_000),
        said("bound", "l1", 1_001),
        {"kind": "epoch", "at_ms": 1_002, "epoch": 2, "writer": "p2"},
        *over("l1", 2_000),
        granted("l2", "chaos-2", 3_000),
        said("bound", "l2", 3_001),
        *over("l2", 40_000, "expired"),
    ]
    journal = Journal()
    journal.entries += [
        entry("place", "bound", "l1", 4, expires_in_ms=TTL_MS),
        entry("release", "ending", "l1", 6),
        entry("place", "bound", "l2", 10, expires_in_ms=TTL_MS, request_id="chaos-2"),
    ]
    journal.abandoned["l2"] = 5_000
    return records, journal


def groups(records: list[Record]) -> list[dict[str, Any]]:
    """One group for each record, fenced as they must be."""
    found, epoch, writer, number = [], 0, "", 0
    for expected, record in enumerate(records):
        number += 1
        if record["kind"] == "epoch":
            epoch, writer, number = record["epoch"], record["writer"], 0
        head = {"epoch": epoch, "writer": writer, "group": number, "expected": expected}
        found.append({**head, "transitions": [record]})
    return found


def faults(story: Story) -> list[str]:
    records, journal = story
    return judge(Ledger(groups(records)), journal, "chaos-")


def test_a_good_story_has_no_fault() -> None:
    assert faults(good()) == []


def given_twice(story: Story) -> None:
    del story[0][7]  # `ended`
    del story[0][6]  # `node_released`


def ended_unheard(story: Story) -> None:
    del story[0][6]


def never_stored(story: Story) -> None:
    story[1].entries.append(entry("place", "bound", "l9", 4, request_id="chaos-9"))


def told_too_early(story: Story) -> None:
    story[1].entries.append(entry("repeat", "bound", "l1", 3))


def told_nobody(story: Story) -> None:
    del story[1].entries[2]


def decided_twice(story: Story) -> None:
    story[0][8]["request"] = {"request_id": "chaos-1"}


def ended_by_an_outage(story: Story) -> None:
    story[1].abandoned.clear()


def node_was_lost(story: Story) -> None:
    story[0][5]["reason"] = "node_lost"


def shortened(story: Story) -> None:
    story[1].entries.append(
        entry("renew", "bound", "l2", 10, expires_in_ms=60_000, request_id="chaos-2")
    )


def released_by_nobody(story: Story) -> None:
    del story[1].entries[1]


def time_goes_back(story: Story) -> None:
    story[0][9]["at_ms"] = 2_999


def more_cores_than_there_are(story: Story) -> None:
    story[0][8]["cpu_milli"] = {"n1": 1_001}


def an_epoch_is_left_out(story: Story) -> None:
    story[0][4]["epoch"] = 3


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (given_twice, "is held by"),
        (ended_unheard, "ended before ['n1'] said so"),
        (never_stored, "the ledger has it not"),
        (told_too_early, "was told bound at 3, and is so since 4"),
        (told_nobody, "and nobody was told"),
        (decided_twice, "chaos-1 has l2, and l1 is ended"),
        (ended_by_an_outage, "expired while its client was renewing it"),
        (node_was_lost, "was ended by an outage: node_lost"),
        (shortened, "before its acknowledged deadline"),
        (released_by_nobody, "was released, and not by its client"),
        (time_goes_back, "bound at 2999, after 3000"),
        (more_cores_than_there_are, "1001 of 1000 on n1"),
        (an_epoch_is_left_out, "epoch, writer, group are"),
    ],
)
def test_each_broken_law_is_found(break_it: Callable[[Story], None], words: str) -> None:
    story = good()
    break_it(story)
    found = faults(story)
    assert any(words in fault for fault in found), found


def test_a_writer_that_did_not_know_the_last_message_is_found() -> None:
    records, journal = good()
    stored = groups(records)
    stored[5]["expected"] = 3
    assert any("expected 3" in fault for fault in judge(Ledger(stored), journal, "chaos-"))
