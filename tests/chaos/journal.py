"""What clients did and were told: appended before anything else is done with an answer."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from dataclasses import dataclass

NO_ANSWER = "no answer"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of a client: all its tries under one request id, and what came of them."""

    sent_ms: int
    """Before the first try."""
    answered_ms: int
    tenant: str
    request_id: str
    verb: str
    answer: str
    """A lease's state, `pending`, a refusal's code, or NO_ANSWER."""
    lease: str = ""
    expires_in_ms: int = 0
    sequence: int = 0
    """Of the ledger, as the answer says it."""
    note: str = ""

    @property
    def answered(self) -> bool:
        return self.answer != NO_ANSWER

    @property
    def holds(self) -> bool:
        """Whether somebody was told that the lease is theirs; one that is granted may yet fail."""
        return self.answer == "bound"


class Journal:
    """Append-only."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.abandoned: dict[str, int] = {}
        """Lease -> since when its client no longer renews it."""
        self.complaints: list[str] = []
        """What a client itself found wrong."""

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)

    def verbs(self) -> dict[str, int]:
        return dict(sorted(Counter(entry.verb for entry in self.entries).items()))

    def longest_gap_ms(self, begin_ms: int, end_ms: int) -> int:
        """Between two answers, whoever got them."""
        times = sorted(e.answered_ms for e in self.entries if e.answered)
        seen = [begin_ms, *(t for t in times if begin_ms < t < end_ms), end_ms]
        return max(after - before for before, after in itertools.pairwise(seen))
