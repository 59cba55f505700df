"""One instant of the ledger: what the answer to a read is made from."""

from __future__ import annotations

from dataclasses import dataclass

from quintal.contracts import placement
from quintal_placer import views
from quintal_placer.asking import Market
from quintal_placer.explaining import Explanations
from quintal_placer.state import Lease, PlacerState


@dataclass(frozen=True, slots=True)
class Instant:
    """State, catalog and time of one answer, and whether it is a leader's."""

    state: PlacerState
    market: Market
    explanations: Explanations
    now_ms: int
    sequence: int
    leads: bool
    skew_ms: dict[str, int]

    def lease(self, lease: Lease) -> placement.Lease:
        """One lease, whole."""
        return views.lease_view(
            self.state,
            self.market,
            lease,
            now_ms=self.now_ms,
            sequence=self.sequence,
            leads=self.leads,
        )
