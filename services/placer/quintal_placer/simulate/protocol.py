"""In which order requests arrive, and whether they leave.

fill      the list shuffled, then draws with replacement until the demand reaches the load;
          nobody leaves, what fits nowhere is dropped and counts as arrived
churn     Poisson arrivals of draws from the list, exponential holding: what a fleet that has
          long been full does with the same requests
recorded  the list's own times
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from quintal_placer.simulate.trace import RequestLine

HOLD_MS: Final = 3_600_000
"""The mean holding time of `churn`; what is measured does not hang on it."""


def fill(
    requests: Sequence[RequestLine], capacity: int, load: float, chance: Random
) -> list[RequestLine]:
    """Arrivals until the demand in parts would pass `load` x `capacity`.

    Of the draw that would pass it one card counts, as in the study. A list that asks for more
    already is thinned by random removals.
    """
    limit = int(capacity * load)
    stream = list(requests)
    chance.shuffle(stream)
    demand = sum(line.asked for line in stream)
    while demand > limit and stream:
        demand -= stream.pop(chance.randrange(len(stream))).asked
    if not any(line.asked for line in requests):
        return stream
    while True:
        line = requests[chance.randrange(len(requests))]
        if demand + line.parts * min(1, line.cards) > limit:
            return stream
        stream.append(line)
        demand += line.asked


@dataclass(frozen=True, slots=True)
class Churn:
    """How much arrives, and for how long."""

    load: float
    """Demand in parts that would stand on average, were all of it placed, over the capacity."""
    holdings: float = 6
    """Mean holding times to run for; the first third is not measured."""

    @property
    def until_ms(self) -> int:
        """When it ends."""
        return int(self.holdings * HOLD_MS)

    @property
    def from_ms(self) -> int:
        """When measuring begins."""
        return self.until_ms // 3


def churn(
    requests: Sequence[RequestLine], capacity: int, shape: Churn, chance: Random
) -> list[RequestLine]:
    """Arrivals with times and durations.

    As many as would stand on average are there at the start: exponential holding forgets how long
    it has been held, so that nothing has to be waited for but that the fleet gets used.
    """
    mean = sum(line.asked for line in requests) / len(requests)
    per_ms = shape.load * capacity / mean / HOLD_MS
    stream: list[RequestLine] = []
    at = 0.0
    standing = shape.load * capacity
    while True:
        standing -= stream[-1].asked if stream else 0
        at += chance.expovariate(per_ms) if standing <= 0 else 0.0
        if at >= shape.until_ms:
            return stream
        line = requests[chance.randrange(len(requests))]
        hold = max(1, int(chance.expovariate(1 / HOLD_MS)))
        stream.append(replace(line, at_ms=int(at), duration_ms=hold))
