"""What one tenant may ask and one agent may say: a flood of one is no drought of another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from quintal.contracts.message import Refusal
from quintal.errors import Code


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float
    in_flight: int = 0


@dataclass(slots=True)
class TenantLimits:
    """A token bucket and a count of requests in flight per tenant. Time is an argument."""

    rate_per_s: float
    in_flight_max: int
    _buckets: dict[str, _Bucket] = field(default_factory=dict)

    def enter(self, tenant: str, now_s: float) -> int | None:
        """None: go on, and `leave` when done. Else milliseconds after which to come again."""
        bucket = self._buckets.setdefault(tenant, _Bucket(self.rate_per_s, now_s))
        gained = (now_s - bucket.at_s) * self.rate_per_s
        bucket.tokens = min(self.rate_per_s, bucket.tokens + gained)
        bucket.at_s = now_s
        if bucket.in_flight >= self.in_flight_max:
            return 100
        if bucket.tokens < 1:
            return max(1, int(1000 * (1 - bucket.tokens) / self.rate_per_s))
        bucket.tokens -= 1
        bucket.in_flight += 1
        return None

    def refusal(self, tenant: str, now_s: float) -> Refusal | None:
        """As `enter`: none lets in; else what a tenant that asks too much is told."""
        wait_ms = self.enter(tenant, now_s)
        if wait_ms is None:
            return None
        return Refusal(
            code=Code.OVERLOADED,
            message="too many requests of this tenant at once",
            details={"retry_after_ms": wait_ms},
        )

    def leave(self, tenant: str) -> None:
        """A request that `enter` let in is answered."""
        self._buckets[tenant].in_flight -= 1


AGENT_RATES: Final = {"heartbeat": (5.0, 50), "inventory": (2.0, 50), "health": (20.0, 1_024)}
"""Messages of one node a second, sustained, and how many may come at once. A beat comes every five
seconds, an inventory on change; a device that fails takes some events with it, and a node has at
most 512. What is dropped is made good: an inventory that the next beat names and nobody heard is
asked for, and it has every device's health."""


@dataclass(slots=True)
class AgentLimits:
    """A token bucket per node and sort of message. Time is an argument."""

    _buckets: dict[tuple[str, str], _Bucket] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    """Node -> messages that were too many."""

    def hears(self, node: str, sort: str, now_s: float) -> bool:
        """Whether one more message of this sort is heard now."""
        per_s, at_once = AGENT_RATES[sort]
        bucket = self._buckets.get((node, sort))
        if bucket is None:
            bucket = self._buckets[node, sort] = _Bucket(at_once, now_s)
        bucket.tokens = min(at_once, bucket.tokens + (now_s - bucket.at_s) * per_s)
        bucket.at_s = now_s
        if bucket.tokens < 1:
            self.dropped[node] = self.dropped.get(node, 0) + 1
            return False
        bucket.tokens -= 1
        return True
