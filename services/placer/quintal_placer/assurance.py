"""Whether a leader can be sure that nobody took over unseen. Pure: time is an argument.

A standby takes the lead when it has heard no beat for a second. A beat of our own that came back
passed the server, and so was heard, at some instant between its sending and its return. While
beats come back without a hole, no standby was without one for long enough. But a beat that comes
back after a hole says nothing of the hole: a network that stalls and then goes on delivers it to a
server where another leads by then. Only an append does, since the fence lets it through only while
nobody else has begun an epoch. Hence a leader is sure while

    its newest beat that came back is fresh,
    no hole was between that one and some earlier one,
    and an append that was sent after that earlier one had come back was acknowledged.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

BEATS_KEPT: Final = 64


class Assurance:
    """The beats that were sent, and which of them came back."""

    def __init__(self, fresh_s: float) -> None:
        """A hole is `fresh_s` or more; it must be less than a standby's patience."""
        self._fresh_s = fresh_s
        self._sent: deque[tuple[int, float]] = deque(maxlen=BEATS_KEPT)
        self._newest_s = -math.inf
        self._unbroken_s = math.inf

    def sent(self, beat: int, now_s: float) -> None:
        """A beat leaves now."""
        self._sent.append((beat, now_s))

    def came_back(self, beat: int, now_s: float) -> None:
        """Our own beat was heard by ourselves."""
        for number, sent_s in self._sent:
            if number == beat and sent_s > self._newest_s:
                if not self.is_fresh(now_s):
                    self._unbroken_s = now_s
                self._newest_s = sent_s

    def doubt(self) -> None:
        """Somebody else says that it leads."""
        self._newest_s, self._unbroken_s = -math.inf, math.inf

    def is_fresh(self, now_s: float) -> bool:
        """Whether an append that is sent now can prove anything."""
        return now_s - self._newest_s < self._fresh_s

    def is_sure(self, now_s: float, proved_s: float) -> bool:
        """Whether nobody leads but us; `proved_s` is when the last acknowledged append was sent."""
        return self.is_fresh(now_s) and proved_s >= self._unbroken_s
