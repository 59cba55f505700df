"""The lease machine, as a table: what a state holds, who pays for it, what may follow.

Everything that knows the machine's shape is here; this file does not know what a lease is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a lease is. The last four are terminal."""

    QUEUED = "queued"
    GRANTED = "granted"
    BOUND = "bound"
    ENDING = "ending"
    ENDED = "ended"
    FAILED = "failed"
    REFUSED = "refused"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Row:
    """What a state means."""

    holds_devices: bool
    holds_quota: bool
    paid_by: str
    leaves_by: dict[str, State]
    """Record kind -> the state that follows."""


_NOBODY: Final = "nobody"

TABLE: Final[dict[State, Row]] = {
    State.QUEUED: Row(
        holds_devices=False,
        holds_quota=False,
        paid_by=_NOBODY,
        leaves_by={
            "granted": State.GRANTED,
            "refused": State.REFUSED,
            "cancelled": State.CANCELLED,
        },
    ),
    State.GRANTED: Row(
        holds_devices=True,
        holds_quota=True,
        paid_by="nobody (unavailable: binding)",
        leaves_by={
            "bound": State.BOUND,
            "moved": State.GRANTED,
            "failed": State.FAILED,
            "ending": State.ENDING,
            "ttl": State.GRANTED,
        },
    ),
    State.BOUND: Row(
        holds_devices=True,
        holds_quota=True,
        paid_by="tenant",
        leaves_by={"ending": State.ENDING, "ttl": State.BOUND, "noticed": State.BOUND},
    ),
    State.ENDING: Row(
        holds_devices=True,
        holds_quota=False,
        paid_by="nobody (unavailable: releasing)",
        leaves_by={"node_released": State.ENDING, "ended": State.ENDED},
    ),
    State.ENDED: Row(holds_devices=False, holds_quota=False, paid_by=_NOBODY, leaves_by={}),
    State.FAILED: Row(holds_devices=False, holds_quota=False, paid_by=_NOBODY, leaves_by={}),
    State.REFUSED: Row(holds_devices=False, holds_quota=False, paid_by=_NOBODY, leaves_by={}),
    State.CANCELLED: Row(holds_devices=False, holds_quota=False, paid_by=_NOBODY, leaves_by={}),
}

LIVE: Final = frozenset({State.GRANTED, State.BOUND})
"""States that hold quota; a deadline runs in them."""

TERMINAL: Final = frozenset(state for state, row in TABLE.items() if not row.leaves_by)


class IllegalMove(AssertionError):  # noqa: N818 - the trade says it so
    """A record that the table does not allow in this state: a fault of ours."""


def follow(state: State, kind: str) -> State:
    """The state after a record of `kind`. Raises IllegalMove where the table has none."""
    after = TABLE[state].leaves_by.get(kind)
    if after is None:
        raise IllegalMove(f"a lease that is {state} cannot take {kind!r}")
    return after
