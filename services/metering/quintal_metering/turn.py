"""One transition being folded: the state, the prices, where in the ledger we are, and the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from quintal.contracts.documents import PriceListSpec
from quintal.pricing import Charge, Terms
from quintal_metering.facts import State
from quintal_metering.rows import Fault, Row

PriceLists = tuple[tuple[str, PriceListSpec], ...]
Prices = Mapping[int, PriceLists]
"""Catalog revision -> its price lists. Immutable by nature: a revision never changes."""

Charged = dict[tuple[int, Terms, int, int], tuple[Charge, ...]]
"""Revision, terms, from and to -> the charge for it."""

NO_PRICES: Prices = {0: ()}
"""Before a catalog was adopted there are none."""


@dataclass(slots=True)
class Turn:
    """What the parts of the fold hand to one another while they fold one transition."""

    state: State
    prices: Prices
    sequence: int
    index: int
    at_ms: int
    rows: list[Row] = field(default_factory=list)
    adjusted: dict[tuple[str, str, int, str], int] = field(default_factory=dict)
    """Closed hours to restate: (pool, model, hour, reason) -> parts x ms, signed."""
    charged: Charged = field(default_factory=dict)
    """What was reckoned already: an hour closes over many leases on equal terms."""

    def say(self, rows: Iterable[Row]) -> None:
        """Give these rows out."""
        self.rows.extend(rows)

    def fault(self, code: str, message: str) -> None:
        """This transition does not fit: keep that as a row of its own."""
        self.rows.append(Fault(self.sequence, self.index, self.at_ms, code, message))
