"""What a decision was, and why, kept under its request id for whoever asks.

The leader remembers what it decided, words unmade. What it forgot, or another leader decided, is
made again: a grant from the ledger's record, which survives everything; a refusal from its record
in the DECISIONS stream, which lasts a day (`decided`). Both are told to an operator whole, and to
a tenant through `redaction`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from quintal.contracts import ledger, placement
from quintal.contracts.message import Refusal
from quintal.contracts.placement import PlaceAsk
from quintal.units import PARTS
from quintal_placer import asking, redaction, victims, views
from quintal_placer.asking import Market, Terms
from quintal_placer.engine.asks import Ask
from quintal_placer.engine.pieces import Piece
from quintal_placer.engine.placing import Chosen
from quintal_placer.engine.why import Cause
from quintal_placer.state import Lease, PlacerState

EXPLANATIONS_MAX: Final = 1_000
"""Kept for each tenant."""

Decided = tuple[Ask, Terms, Chosen]
"""What was asked of the engine, what a grant freezes, and what the engine chose."""

_HELD: Final = frozenset({"no_capacity", "fragmented"})


@dataclass(frozen=True, slots=True)
class Kept:
    """What an explanation is made from."""

    decided: Decided | Refusal
    at_ms: int
    revision: int
    causes: tuple[Cause, ...] = ()
    """Where software keeps out what else would do."""
    request: bytes = b""
    """What was refused, as JSON: a fraction of the size. A grant's is in the ledger."""

    @property
    def asked(self) -> PlaceAsk | None:
        """The refused request."""
        return PlaceAsk.model_validate_json(self.request) if self.request else None


class Explanations:
    """Tenant -> request id -> what was decided, the oldest first: nobody evicts another's."""

    def __init__(self) -> None:
        self._kept: dict[str, OrderedDict[str, Kept]] = {}

    def __len__(self) -> int:
        """How many are kept, of all tenants."""
        return sum(map(len, self._kept.values()))

    def keep(self, tenant: str, request_id: str, kept: Kept) -> None:
        """The newest decision under this id; beyond a tenant's share its oldest goes."""
        its = self._kept.setdefault(tenant, OrderedDict())
        its[request_id] = kept
        its.move_to_end(request_id)
        while len(its) > EXPLANATIONS_MAX:
            its.popitem(last=False)

    def learn(self, record: ledger.DecisionRecord) -> None:
        """A refusal that some leader wrote down; what is known already is newer."""
        its = self._kept.get(record.tenant)
        known = its.get(record.request_id) if its else None
        if record.refusal is None or (known is not None and known.at_ms >= record.at_ms):
            return
        asked = record.request.model_dump_json(exclude_defaults=True) if record.request else ""
        kept = Kept(record.refusal, record.at_ms, record.catalog_revision, request=asked.encode())
        self.keep(record.tenant, record.request_id, kept)

    def newest(self, tenant: str, request_id: str) -> Kept | None:
        """What this tenant's request got, as far as it is remembered."""
        its = self._kept.get(tenant)
        return its.get(request_id) if its else None

    def tenants_of(self, request_id: str) -> Iterable[str]:
        """Who used this id, the newest last."""
        found = [
            (its[request_id].at_ms, tenant)
            for tenant, its in self._kept.items()
            if request_id in its
        ]
        return [tenant for _, tenant in sorted(found)]


def found(
    state: PlacerState, kept: Explanations, tenant: str, request_id: str
) -> placement.Explanation | None:
    """Why this request got what it got, whole; none where nobody knows it."""
    known = kept.newest(tenant, request_id)
    lease = lease_of(state, tenant, request_id)
    granted = lease.granted if lease is not None else None
    if known is not None and (granted is None or not _older(known, granted)):
        return of_decision(request_id, known)
    return None if lease is None or granted is None else of_grant(lease, granted)


def lease_of(state: PlacerState, tenant: str, request_id: str) -> Lease | None:
    """The lease that an id decided, a tenant's own or an outside scheduler's."""
    for key in (request_id, f"adopt/{request_id}"):
        name = state.by_request.get((tenant, key))
        if name is not None:
            return state.leases.get(name)
    return None


def _older(known: Kept, granted: ledger.LeaseGranted) -> bool:
    """A refusal from before the same id was granted."""
    return isinstance(known.decided, Refusal) and known.at_ms < granted.at_ms


def of_decision(request_id: str, kept: Kept) -> placement.Explanation:
    """In words, as it was decided here."""
    at, decided = views.iso(kept.at_ms), kept.decided
    if isinstance(decided, Refusal):
        return placement.Explanation(
            request_id=request_id,
            verdict=decided.verdict or "refused",
            at=at,
            catalog_revision=kept.revision,
            summary=f"{decided.code}: {decided.message}",
            reasons=decided.reasons,
            details=decided.details,
        )
    ask, _, chosen = decided
    where = tuple(
        f"{pick.node}: {', '.join(_piece(piece) for piece in pick.pieces)}" for pick in chosen.picks
    )
    return placement.Explanation(
        request_id=request_id,
        verdict="placed",
        at=at,
        catalog_revision=kept.revision,
        chosen=where,
        summary=(
            f"{chosen.offer.model} in pool {chosen.pool}, by objective {ask.objective}, "
            f"of {chosen.candidates} that would do"
            + "".join(f"; preferred, not met: {cost}" for cost in chosen.not_met)
        ),
        reasons=views.reasons(kept.causes),
        details={
            "objective": ask.objective,
            "candidates": chosen.candidates,
            "units_micro": chosen.micro,
            "option": ask.options.index(chosen.option),
            "provenance": chosen.offer.provenance,
        },
    )


def of_grant(lease: Lease, granted: ledger.LeaseGranted) -> placement.Explanation:
    """In words, from the ledger alone: what was chosen, and not what else would have done."""
    devices = lease.devices or granted.devices
    nodes: dict[str, list[str]] = {}
    for device in devices:
        nodes.setdefault(device.node, []).append(str(device.index))
    models = " and ".join(dict.fromkeys(device.model for device in devices))
    pools = " and ".join(dict.fromkeys(device.pool for device in devices))
    asked = granted.request
    how = f", by objective {asked.objective}" if asked and asked.objective else ""
    if granted.adopt is not None:
        how = ": an outside scheduler chose it"
    details: dict[str, Any] = {
        "units_micro": views.units_micro(devices),
        "provenance": devices[0].provenance if devices else "",
        "source": "ledger",
    }
    return placement.Explanation(
        request_id=lease.request_id,
        verdict="placed",
        at=views.iso(granted.at_ms),
        catalog_revision=granted.catalog_revision,
        chosen=tuple(f"{node}: {', '.join(indices)}" for node, indices in nodes.items()),
        summary=f"{models} in pool {pools}{how}",
        details=details,
    )


def with_holders(
    state: PlacerState, market: Market, tenant: str, kept: Kept | None, told: placement.Explanation
) -> placement.Explanation:
    """Of what would do, how much is held now and by whom, where that is the reason."""
    asked = kept.asked if kept is not None else None
    decided = kept.decided if kept is not None else None
    if asked is None or not isinstance(decided, Refusal) or decided.code not in _HELD:
        return told
    translated = asking.translate(market, tenant, asked)
    if isinstance(translated, Refusal):
        return told
    held = holders(state, translated[0])
    update: dict[str, object] = {"details": {**told.details, redaction.HELD_BY: held}}
    if asked.priority is not None:
        update["reasons"] = (*told.reasons, victims.reason(state, translated[0], asked.priority))
    return told.model_copy(update=update)


def holders(state: PlacerState, ask: Ask) -> dict[str, int]:
    """Tenant -> devices of the models that would do that it holds, in part or whole, where open."""
    models = {offer.model for option in ask.options for offer in option.offers}
    counts: dict[str, int] = {}
    for node in state.fleet.nodes.values():
        for device in node.devices.values():
            if device.model not in models or device.pool in ask.closed_pools:
                continue
            for whose in {state.leases[lease].tenant for lease in device.holders}:
                counts[whose] = counts.get(whose, 0) + 1
    return dict(sorted(counts.items()))


def _piece(piece: Piece) -> str:
    """A card by its index; with its partition's profile, or the thousandths that are taken."""
    if piece.partition is not None:
        return f"{piece.device.index} ({piece.partition.profile})"
    share = "" if piece.parts == PARTS else f" ({piece.parts * 1000 // PARTS} milli)"
    return f"{piece.device.index}{share}"
