"""Requests of one shape: what they ask is translated once.

A scheduler asks for the same thing all day, under ever new ids. What a request says besides its
id, its labels and how it waits is its *shape*; tenants for whom the catalog holds the same share
theirs. A request that is like another then costs a look into a table, and the engine knows it by
its shape as well. The naive way, every request anew against the whole catalog, cost as much as
the decision itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from quintal.contracts.message import Refusal
from quintal.contracts.placement import PlaceAsk
from quintal_placer.asking import Market, Standing, Terms, standing, translate
from quintal_placer.engine.asks import Ask

SHAPES_MAX: Final = 10_000
"""Kept; whoever asks for ever new things only empties the shelf."""

_DAY_MS: Final = 86_400_000

_NO_SHAPE: Final = {"request_id", "labels", "requester", "wait", "bind", "repairs"}
"""What of a request no translation reads."""

Kinds = frozenset[tuple[str, str]]
"""(model, software) of every pair that a fleet has."""

Fitted = tuple[Ask | Refusal, Terms] | Refusal
"""Refused by the catalog; or the terms, and what is asked unless no software does."""


class _Shape(NamedTuple):
    standing: Standing
    text: bytes


class _Known(NamedTuple):
    """A translation, and the kinds and the day that its software was judged for."""

    kinds: Kinds
    day: int
    fitted: Fitted


@dataclass(slots=True)
class Shapes:
    """The translations of one market."""

    market: Market
    _standings: dict[str, Standing] = field(default_factory=dict)
    _known: dict[_Shape, _Known] = field(default_factory=dict)

    def fitted(self, tenant: str, ask: PlaceAsk, kinds: Kinds, at_ms: int) -> Fitted:
        """What this asks of the engine, less what software rules out; or why that is nothing.

        The engine's ask may name another tenant, of the same standing.
        """
        if tenant not in self.market.catalog.tenants:
            return self._fit(tenant, ask, kinds, at_ms)
        text = ask.__pydantic_serializer__.to_json(ask, exclude=_NO_SHAPE)
        shape = _Shape(self._standing(tenant), text)
        known = self._known.get(shape)
        if known is None or known.kinds is not kinds or known.day != at_ms // _DAY_MS:
            if len(self._known) >= SHAPES_MAX:
                self._known.clear()
            fitted = self._fit(tenant, ask, kinds, at_ms)
            known = self._known[shape] = _Known(kinds, at_ms // _DAY_MS, fitted)
        return known.fitted

    def _standing(self, tenant: str) -> Standing:
        known = self._standings.get(tenant)
        if known is None:
            known = self._standings[tenant] = standing(self.market, tenant)
        return known

    def _fit(self, tenant: str, ask: PlaceAsk, kinds: Kinds, at_ms: int) -> Fitted:
        translated = translate(self.market, tenant, ask)
        if isinstance(translated, Refusal):
            return translated
        asked, terms = translated
        if ask.workload is not None:
            barred = self.market.software.bar(asked, ask, kinds, at_ms)
            if isinstance(barred, Refusal):
                return barred, terms
            asked = barred
        if terms.profile and self.market.catalog.profiles[terms.profile].requires:
            asked = self.market.software.required(asked, terms.profile, kinds)
        return replace(asked, shape=object()), terms
