"""What the placer counts of itself, in buckets: cheap to add to, read by `metrics`. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

SECONDS: Final = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
DECISIONS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


@dataclass(slots=True)
class Buckets:
    """A histogram: how many values were at most each bound, and their sum."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        """One count for each bound, and one for what is beyond them."""
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """One more value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def rows(self) -> list[tuple[str, float]]:
        """(bound, values up to it) as Prometheus has them, the last one without a bound."""
        found, so_far = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            found.append((bound, float(so_far)))
        return found


@dataclass(slots=True)
class Tally:
    """Of one process, since its start."""

    placements: dict[str, Buckets] = field(default_factory=dict)
    """Verdict -> seconds from the request to its answer."""
    appends: Buckets = field(default_factory=lambda: Buckets(SECONDS))
    """Seconds from sending a group to its acknowledgement."""
    groups: Buckets = field(default_factory=lambda: Buckets(DECISIONS))
    """Decisions of one group."""

    def placed(self, verdict: str, seconds: float) -> None:
        """A request was answered."""
        found = self.placements.get(verdict)
        if found is None:
            found = self.placements[verdict] = Buckets(SECONDS)
        found.add(seconds)

    def appended(self, decisions: int, seconds: float) -> None:
        """A group is in the ledger."""
        self.appends.add(seconds)
        self.groups.add(decisions)
