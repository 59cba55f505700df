"""Those who wait, as the engine knows them; and what is left to them by those who come later.

Whoever waits is asked for anew at each look: what a tenant's catalog, prices or software rule out
is kept by group for as long as none of these changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from quintal.contracts.message import Refusal
from quintal.contracts.placement import PlaceAsk
from quintal_placer import repairing
from quintal_placer.asking import Market
from quintal_placer.engine import placing
from quintal_placer.engine.asks import Ask
from quintal_placer.engine.estimates import PLACES_MAX, Ends, Stands, Waits, estimates
from quintal_placer.engine.line import Group, Stir, Turn, Waiter
from quintal_placer.engine.placing import Chosen, NothingNow
from quintal_placer.engine.turns import NOBODY, Pair, capped, hurts
from quintal_placer.shapes import Fitted
from quintal_placer.state import PlacerState, rank_of

LAST_MS = 2**62
"""Whoever comes now stands behind all of its own rank."""

Fit = Callable[[str, PlaceAsk], Fitted]


class Waiting:
    """What the line holds for one desk."""

    def __init__(
        self, state: PlacerState, fit: Fit, micro_max: Callable[[str, Ask, int], int | None]
    ) -> None:
        self._state = state
        self._fit = fit
        self._micro_max = micro_max
        self._asks: dict[Group, tuple[Ask, int] | None] = {}
        self._models: dict[Group, set[str]] = {}
        self._capped: dict[Group, tuple[int, bool]] = {}
        """Changes of its tenant's account -> whether its caps bar all that it wants."""
        self._made_for: tuple[object, object] = (None, None)
        self._todo: set[Group] = set()

    def turn_now(self, tenant: str, ask: PlaceAsk) -> Turn:
        """The turn of a request that comes now: of a repair, that of what it repairs."""
        broken = repairing.repaired(self._state, tenant, ask) if ask.repairs else None
        if broken is not None:
            rank = rank_of(self._state.catalog, ask.priority or "")
            return repairing.turn_of(self._state, broken)._replace(rank=rank)
        return Turn(rank_of(self._state.catalog, ask.priority or ""), LAST_MS, 0)

    def decide(
        self, ask: Ask, market: Market, turn: Turn | None
    ) -> tuple[Ask, Chosen | NothingNow]:
        """The engine's word for `ask`, less what is left to those whose turn is before `turn`.

        None has had its turn: a lease that only needs another place. Also gives the ask with what
        was left out of it.
        """
        while True:
            outcome = placing.decide(self._state.fleet, self._state.quotas, ask)
            if turn is None or not isinstance(outcome, Chosen):
                return ask, outcome
            taken = self._taken(ask, outcome, market, turn)
            if not taken:
                return ask, outcome
            assert not taken <= ask.left, f"{taken} was left to others, and chosen"
            ask = replace(ask, left=ask.left | taken, shape=None)

    def _taken(self, ask: Ask, chosen: Chosen, market: Market, turn: Turn) -> frozenset[Pair]:
        """What of it somebody waits for whose turn is before this one."""
        self._renew(market)
        models = {device.model or "" for pick in chosen.picks for device in pick.devices}
        for waiter in self._state.line.heads():
            if waiter.turn >= turn:
                break
            if self._is_beside(waiter, models, own=waiter.group[0] == ask.tenant):
                continue
            theirs = self.ask_of(waiter, market)
            if theirs is None:
                continue
            taken = hurts(self._state.fleet, self._state.quotas, theirs, ask, chosen)
            if taken:
                return taken
        return NOBODY

    def _is_beside(self, waiter: Waiter, models: set[str], *, own: bool) -> bool:
        """Whether a waiter cannot be hurt, at a glance.

        Another tenant's cannot that wants other models, or that its own caps keep from all it
        wants. One of the same tenant that wants other models can by their common caps alone.
        """
        wanted = self._models.get(waiter.group)
        if wanted is None:
            known = self._known(waiter)
            wanted = self._models[waiter.group] = _models(known[0]) if known else set()
        if not models.isdisjoint(wanted):
            return not own and self._is_capped(waiter)
        if not own:
            return True
        quota = self._state.catalog.quotas.get(waiter.group[0])
        return not (quota is not None and quota.budgets) and not self._is_capped(waiter)

    def _is_capped(self, waiter: Waiter) -> bool:
        """Whether its tenant's caps bar all that it wants; kept until the account changes."""
        changes = self._state.quotas.changes.get(waiter.group[0], 0)
        known = self._capped.get(waiter.group)
        if known is None or known[0] != changes:
            made = self._known(waiter)
            bars = made is None or capped(self._state.quotas, made[0])
            known = self._capped[waiter.group] = (changes, bars)
        return known[1]

    def ask_of(self, waiter: Waiter, market: Market) -> Ask | None:
        """What the engine would be asked for a group; none where the catalog rules it out."""
        self._renew(market)
        known = self._known(waiter)
        if known is None:
            return None
        ask, ttl_ms = known
        micro_max = self._micro_max(ask.tenant, ask, ttl_ms)
        return ask if micro_max is None else replace(ask, micro_max=micro_max)

    def _known(self, waiter: Waiter) -> tuple[Ask, int] | None:
        if waiter.group not in self._asks:
            self._asks[waiter.group] = self._made(waiter)
        return self._asks[waiter.group]

    def _renew(self, market: Market) -> None:
        made_for = (market, self._state.fleet.kinds())
        if made_for[0] is not self._made_for[0] or made_for[1] is not self._made_for[1]:
            self._forget()
            self._made_for = made_for

    def _forget(self) -> None:
        self._asks.clear()
        self._models.clear()
        self._capped.clear()

    def _made(self, waiter: Waiter) -> tuple[Ask, int] | None:
        if len(self._asks) > 2 * len(self._state.line) + 16:
            self._forget()  # most of them wait no more
        queued = self._state.queue[waiter.lease].queued
        assert queued is not None
        tenant = waiter.group[0]
        fitted = self._fit(tenant, queued.request)
        if isinstance(fitted, Refusal) or isinstance(fitted[0], Refusal):
            return None
        return replace(fitted[0], tenant=tenant), fitted[1].ttl_ms

    # --- who may be helped --------------------------------------------------------------------

    def stirred(self, market: Market) -> list[Waiter]:
        """The foremost of each group that what has changed could help, in order.

        A group stays on the list until `tried` takes it off.
        """
        stir = self._state.stir
        if stir:
            self._note(stir.take(), market)
        return [w for w in self._state.line.heads() if w.group in self._todo] if self._todo else []

    def _note(self, stir: Stir, market: Market) -> None:
        heads = self._state.line.heads()
        if stir.everything:
            self._todo = {waiter.group for waiter in heads}
            return
        self._todo &= {waiter.group for waiter in heads}
        for waiter in heads:
            if waiter.group[0] in stir.tenants:
                self._todo.add(waiter.group)
            elif stir.models and waiter.group not in self._todo:
                theirs = self.ask_of(waiter, market)
                if theirs is None or _wants(theirs, stir.models):
                    self._todo.add(waiter.group)

    def estimates(self, market: Market, now_ms: int) -> dict[str, int]:
        """Lease -> milliseconds until it would be placed; see `engine.estimates`."""
        state = self._state
        ends = Ends(
            {
                lease.lease: Stands(lease.deadline_ms, lease.cpu_milli, lease.memory_bytes)
                for lease in state.live.values()
            },
            lambda tenant: [
                (lease.deadline_ms, state.holdings(lease))
                for lease in state.live_of.get(tenant, {}).values()
            ],
        )
        line = [self._waits(lease, market) for lease in islice(state.line, PLACES_MAX)]
        return estimates(state.fleet, state.quotas, line, ends, now_ms)

    def _waits(self, lease: str, market: Market) -> Waits:
        waiter = self._state.line.waiter(lease)
        assert waiter is not None
        ask = self.ask_of(waiter, market)
        made = self._asks.get(waiter.group)
        return Waits(lease, ask, made[1] if made else 0)

    def tried(self, group: Group) -> None:
        """Its foremost does not fit: the next change that could help is waited for."""
        self._todo.discard(group)

    def left(self, waiter: Waiter, market: Market) -> None:
        """Somebody leaves the line unserved: whoever wants the same may go on."""
        theirs = self.ask_of(waiter, market)
        if theirs is None:
            return
        self._state.stir.tenants.add(waiter.group[0])
        self._state.stir.models.update(_models(theirs))


def _wants(ask: Ask, models: set[str]) -> bool:
    return not models.isdisjoint(_models(ask))


def _models(ask: Ask) -> set[str]:
    groups = (group for option in ask.options for group in option.groups)
    return {offer.model for group in groups for offer in group.offers}
