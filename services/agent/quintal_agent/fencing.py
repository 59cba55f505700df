"""When the work of a `fence: strict` lease must end on a node that is cut off. Pure.

The work ends one ttl after the *sending* of the last beat that the placer acknowledged: what
counts is the instant at which the node is known to have been heard at the earliest. All by the
monotonic clock, which no correction of the time moves. A lease that was taken since then counts
from its taking: who bound it was there.

`fence: keep` is never in it: a node that is cut off ends nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from quintal.contracts.nodes import BoundLease

SENT_MAX: Final = 256
"""Beats whose sending is remembered; an acknowledgement of an older one says nothing new."""


@dataclass(slots=True)
class Fencing:
    """What was sent and acknowledged when; times are monotonic seconds, and arguments."""

    acked_s: float
    """When the last acknowledged beat was sent; before any, when we began."""
    _sent: dict[int, float] = field(default_factory=dict)
    _taken: dict[str, float] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    """Leases whose work was ended, until a beat is acknowledged again."""

    def sent(self, sequence: int, now_s: float) -> None:
        """A beat leaves now."""
        self._sent[sequence] = now_s
        while len(self._sent) > SENT_MAX:
            del self._sent[next(iter(self._sent))]

    def acknowledged(self, sequence: int) -> bool:
        """The placer heard this one; whether that is news."""
        sent_s = self._sent.pop(sequence, None)
        if sent_s is None or sent_s <= self.acked_s:
            return False
        self.acked_s = sent_s
        return True

    def taken(self, lease: str, now_s: float) -> None:
        """The placer bound it now."""
        self._taken[lease] = now_s

    def forget(self, held: Iterable[str]) -> None:
        """Only these are held."""
        kept = set(held)
        self._taken = {name: at for name, at in self._taken.items() if name in kept}
        self.stopped &= kept

    def ends_s(self, lease: BoundLease) -> float:
        """When its work must end if nothing more is acknowledged."""
        return max(self.acked_s, self._taken.get(lease.lease, self.acked_s)) + lease.ttl_ms / 1000

    def overdue(self, leases: Iterable[BoundLease], now_s: float) -> tuple[str, ...]:
        """Leases whose work must end now and has not been ended."""
        return tuple(
            lease.lease
            for lease in leases
            if is_strict(lease) and lease.lease not in self.stopped and self.ends_s(lease) <= now_s
        )

    def next_s(self, leases: Iterable[BoundLease]) -> float | None:
        """When the next one is due; none where none is."""
        due = (
            self.ends_s(its) for its in leases if is_strict(its) and its.lease not in self.stopped
        )
        return min(due, default=None)


def is_strict(lease: BoundLease) -> bool:
    """Whether its work is ended where the node is cut off."""
    return lease.fence == "strict" and lease.bind != "none"
