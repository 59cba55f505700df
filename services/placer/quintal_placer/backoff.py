"""Nodes whose agents refused in passing (busy, behind, not there): left alone for a while. Pure.

Such a refusal says nothing of the devices, so that none is disputed; but a node that is asked
again at once refuses again at once. It is left alone for a second, then for twice as long each
time, up to a minute; a bind that goes well forgets it all. This is the leader's memory alone:
whoever takes over asks anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from quintal.errors import Code

FIRST_MS: Final = 1_000
MOST_MS: Final = 60_000

OF_THE_DEVICE: Final = frozenset(
    {
        Code.FOREIGN_USE,
        Code.ADAPTER_ERROR,
        Code.DEVICE_UNHEALTHY,
        Code.DISPUTED,
        Code.PARTITION_MODE,
    }
)
"""Refusals that say something of the device itself: somebody must look at it."""

DeviceKey = tuple[str, str]


@dataclass(slots=True)
class _Rest:
    until_ms: int
    wait_ms: int
    devices: frozenset[DeviceKey]


@dataclass(slots=True)
class Backoff:
    """Who refused, and until when it is left alone. Time is an argument."""

    _rests: dict[str, _Rest] = field(default_factory=dict)

    def refused(
        self, node: str, devices: Iterable[DeviceKey], at_ms: int, retry_after_ms: int = 0
    ) -> None:
        """It refused these now; it may have said itself when to come again."""
        before = self._rests.get(node)
        wait_ms = min(MOST_MS, 2 * before.wait_ms) if before else FIRST_MS
        until_ms = at_ms + max(wait_ms, min(MOST_MS, retry_after_ms))
        still = before.devices if before and before.until_ms > at_ms else frozenset()
        self._rests[node] = _Rest(until_ms, wait_ms, still | frozenset(devices))

    def bound(self, node: str) -> None:
        """It took a lease: all is well there."""
        self._rests.pop(node, None)

    def avoided(self, at_ms: int) -> frozenset[DeviceKey]:
        """Devices that are not asked for now."""
        if not self._rests:
            return frozenset()
        return frozenset[DeviceKey]().union(*(r.devices for r in self._resting(at_ms)))

    def count(self, at_ms: int) -> int:
        """How many nodes are left alone now."""
        return sum(1 for _ in self._resting(at_ms))

    def left_ms(self, at_ms: int) -> int:
        """How long until the first of them is asked again; 0 where none is left alone."""
        return min((rest.until_ms - at_ms for rest in self._resting(at_ms)), default=0)

    def _resting(self, at_ms: int) -> Iterable[_Rest]:
        return (rest for rest in self._rests.values() if rest.until_ms > at_ms)
