"""When things are due: beats spread over the fleet, and waits that grow."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

_FIRST_S: Final = 5.0
_MOST_S: Final = 300.0


def spread(period_s: float, node: str, jitter: float) -> float:
    """The node's own period: within `jitter` of `period_s`, the same after every restart.

    Drawn from the node's name and not by lot, so that ten thousand agents that start together do
    not beat together, and a test knows what to expect.
    """
    return period_s * (1 + jitter * (2 * share(node) - 1))


def share(node: str) -> float:
    """A number in [0, 1) that belongs to the node: its place among all that do the same."""
    return int.from_bytes(sha256(node.encode()).digest()[:4], "big") / 2**32


def makes_progress(done_s: Mapping[str, float], *, now_s: float, within_s: float) -> bool:
    """Whether each of the agent's loops came round lately: what the watchdog is fed by."""
    return all(now_s - at_s <= within_s for at_s in done_s.values())


def backoff_s(attempt: int, *, first_s: float = _FIRST_S, most_s: float = _MOST_S) -> float:
    """How long to wait after the `attempt`th failure in a row, counted from 1."""
    return float(min(most_s, first_s * 2 ** min(max(attempt - 1, 0), 16)))
