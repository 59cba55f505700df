"""Time has one door: whoever needs it takes a `Clock`, and tests hand in one of their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from. Neither call blocks or raises."""

    def now_ms(self) -> int:
        """UTC, milliseconds since 1970. May jump when somebody sets the machine's clock."""

    def monotonic_s(self) -> float:
        """Seconds since some fixed instant of this process. Never jumps, never goes back."""


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        """UTC, milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds, by the monotonic clock."""
        return time.monotonic()  # noqa: TID251


class SteadyClock:
    """UTC that never goes back and never jumps: what stamps the ledger.

    The naive way, `max(last, now)`, lets a clock set an hour ahead expire every lease of the
    fleet at once. This one follows the monotonic clock and leans towards UTC by at most
    1 part in 20, so that a step of the machine's clock becomes a slow drift. `floor_ms` is the
    newest time already in the ledger: a new leader begins at or above it.
    """

    _LEAN = 20

    def __init__(self, clock: Clock, floor_ms: int = 0) -> None:
        self._clock = clock
        self._ms = max(clock.now_ms(), floor_ms)
        self._at_s = clock.monotonic_s()
        self._rest_s = 0.0

    def now_ms(self) -> int:
        """UTC milliseconds, never less than what the last call gave."""
        at_s = self._clock.monotonic_s()
        passed_s = at_s - self._at_s + self._rest_s
        passed_ms = int(passed_s * 1000)
        if passed_ms <= 0:
            return self._ms
        self._at_s, self._rest_s = at_s, passed_s - passed_ms / 1000
        lag_ms = self._clock.now_ms() - (self._ms + passed_ms)
        lean_ms = max(-(passed_ms // self._LEAN), min(passed_ms // self._LEAN, lag_ms))
        self._ms += passed_ms + lean_ms
        return self._ms

    def monotonic_s(self) -> float:
        """Seconds, by the monotonic clock."""
        return self._clock.monotonic_s()
