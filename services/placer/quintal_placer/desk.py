"""The leader's desk: the state, its writer, and how one decision is made, recorded, committed.

Every decision runs to its end without an await and is applied at once; what awaits is the append.
Whoever is not told yet has been promised nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from quintal.contracts import ledger, placement
from quintal.contracts.message import Message, Refusal
from quintal.contracts.placement import LeaseDevice, PlaceAsk
from quintal.errors import Code, Owner
from quintal.names import meant
from quintal_placer import budgets, explaining, repairing, views
from quintal_placer.announcer import Announcer
from quintal_placer.asking import Market, Terms
from quintal_placer.backoff import Backoff
from quintal_placer.engine import placing
from quintal_placer.engine.asks import Ask
from quintal_placer.engine.line import Turn
from quintal_placer.engine.pieces import Piece, device_micro
from quintal_placer.engine.placing import Chosen, NothingNow
from quintal_placer.engine.why import Cause, barred, why
from quintal_placer.explaining import Decided, Explanations, Kept
from quintal_placer.ledger import LedgerWriter
from quintal_placer.settings import Settings
from quintal_placer.shapes import Fitted, Shapes
from quintal_placer.slim import changed, made
from quintal_placer.snapshots import TOKEN_BITS
from quintal_placer.state import Lease, PlacerState
from quintal_placer.waiting import Waiting

Answer = TypeVar("Answer", bound=Message)
"""Answers that name the ledger's sequence that they reflect."""

BARRED_MAX: Final = 1_000


class Desk:
    """What all acts of a leader share. Made when this placer takes the lead."""

    def __init__(
        self,
        settings: Settings,
        state: PlacerState,
        writer: LedgerWriter,
        announcer: Announcer,
        explanations: Explanations | None = None,
    ) -> None:
        self.settings = settings
        self.state = state
        self.writer = writer
        self._announcer = announcer
        self._shapes = Shapes(Market.at(state.catalog, writer.now_ms()))
        self._count = 0
        self.explanations = Explanations() if explanations is None else explanations
        self.backoff = Backoff()
        self.waiting = Waiting(state, self._fitted, self._micro_max)
        self.ledger_full = False
        self.without_inventory: Callable[[], Sequence[str]] = tuple
        """Nodes that are heard and have not said what they have."""
        self._barred: dict[object, Refusal] = {}
        """What of the fleet bars a shape of requests."""
        self._barred_at = -1
        self._lasting: dict[object, Refusal] = {}
        """Those that no lease's end could change."""
        self._lasting_at = -1

    @property
    def market(self) -> Market:
        """The catalog as it stands now."""
        return self._shapes_now().market

    def _shapes_now(self) -> Shapes:
        now_ms = self.writer.now_ms()
        if not self._shapes.market.serves(self.state.catalog, now_ms):
            self._shapes = Shapes(Market.at(self.state.catalog, now_ms))
        return self._shapes

    def commit(self, records: Sequence[ledger.AnyRecord]) -> asyncio.Future[int]:
        """Apply and append; the news goes out once it is durable."""
        appended = self.writer.propose(records)
        self._announcer.after(appended, self.state, records)
        return appended

    def decide(
        self,
        tenant: str,
        ask: PlaceAsk,
        avoid: frozenset[tuple[str, str]] = frozenset(),
        apart: str = "",
        *,
        in_turn: bool = False,
    ) -> Decided | Refusal:
        """One decision, for real and dry runs alike; kept for `explain`.

        `apart` is a lease whose own part of the budget must not stand in its way. Who asks now
        stands behind those who wait, but for one that had its turn (`in_turn`) and only needs
        another place.
        """
        turn = None if in_turn else self.waiting.turn_now(tenant, ask)
        decided = self._decided(tenant, ask, avoid, apart=apart, turn=turn)
        self._explain(tenant, ask, decided)
        return decided

    def fits(self, tenant: str, ask: PlaceAsk, turn: Turn) -> Decided | None:
        """The same decision for one that waits: where nothing is chosen, nobody asks why."""
        decided = self._decided(tenant, ask, frozenset(), turn=turn, reasons=False)
        if isinstance(decided, Refusal):
            return None
        self._explain(tenant, ask, decided)
        return decided

    def evaluate(self, tenant: str, ask: PlaceAsk) -> Decided | Refusal:
        """The same decision, kept nowhere; where nothing is chosen, nobody asks why."""
        turn = self.waiting.turn_now(tenant, ask)
        return self._decided(tenant, ask, frozenset(), turn=turn, reasons=False)

    def _decided(
        self,
        tenant: str,
        ask: PlaceAsk,
        avoid: frozenset[tuple[str, str]],
        *,
        turn: Turn | None,
        apart: str = "",
        reasons: bool = True,
    ) -> Decided | Refusal:
        if self.ledger_full or self.writer.full:
            return Refusal(
                code=Code.LEDGER_FULL,
                message="the ledger is nearly full: ends and releases go on, grants do not",
                owner=Owner.INFRASTRUCTURE,
            )
        fitted = self._fitted(tenant, ask)
        if isinstance(fitted, Refusal):
            return fitted
        shaped, terms = fitted
        if not self.state.quotas.defined(tenant, terms.workload_class):
            return self.no_quota(tenant, terms.workload_class)
        if isinstance(shaped, Refusal):
            return shaped
        if ask.repairs is not None and (why := repairing.fault(self.state, tenant, ask, shaped)):
            return Refusal(code=Code.INVALID_REQUEST, message=why, details={"faults": [why]})
        at_ms = self.writer.now_ms()
        kept = repairing.kept(self.state, tenant, turn, at_ms)
        engine_ask = replace(
            shaped,
            tenant=tenant,
            avoid=avoid | self.backoff.avoided(at_ms) | kept,
            micro_max=self._micro_max(tenant, shaped, terms.ttl_ms, apart),
        )
        engine_ask, outcome = self.waiting.decide(engine_ask, self.market, turn)
        if isinstance(outcome, Chosen):
            return engine_ask, terms, outcome
        if not reasons:
            return Refusal(code=Code.NO_CAPACITY, message="not now")
        return self._not_chosen(engine_ask, terms, outcome, kept)

    def _fitted(self, tenant: str, ask: PlaceAsk) -> Fitted:
        """What the engine is asked, but for what changes with every lease."""
        return self._shapes_now().fitted(
            tenant, ask, self.state.fleet.kinds(), self.writer.now_ms()
        )

    def _micro_max(self, tenant: str, ask: Ask, ttl_ms: int, apart: str = "") -> int | None:
        """Micro-units that the tenant's budget allows for so long."""
        its, at_ms = ask.workload_class, self.writer.now_ms()
        return budgets.rate_max(self.state, tenant, its, ttl_ms=ttl_ms, at_ms=at_ms, apart=apart)

    def _not_chosen(
        self, ask: Ask, terms: Terms, outcome: NothingNow, kept: frozenset[tuple[str, str]]
    ) -> Refusal:
        """Which cap or budget bars it; else what of the fleet does."""
        if kept and self._fits_but_for(ask, kept):
            return Refusal(
                code=Code.NO_CAPACITY,
                message="what would fit is kept for a gang that lost a node: it is repaired first",
                owner=Owner.INFRASTRUCTURE,
                verdict="not_now",
            )
        if ask.avoid and self._fits_but_for(ask, ask.avoid):
            left_ms = self.backoff.left_ms(self.writer.now_ms())
            return Refusal(
                code=Code.ADAPTER_ERROR,
                message="the agents of what would fit refused it a moment ago",
                owner=Owner.INFRASTRUCTURE,
                verdict="not_now",
                details={"tried_again_in_ms": left_ms},
            )
        if outcome.over_budget is not None:
            return budgets.refusal(
                self.state,
                ask.tenant,
                ask.workload_class,
                micro=outcome.over_budget,
                ttl_ms=terms.ttl_ms,
                at_ms=self.writer.now_ms(),
            )
        if outcome.excess is None:
            told = self._told(ask)
            missing = self.without_inventory()
            unknown = self._no_such_nodes(ask, missing)
            if unknown:
                return told.model_copy(update={"message": unknown, "reasons": ()})
            return views.with_missing(told, missing)
        refusal = views.over_quota(outcome.excess)
        told = self._told(ask, refusal.code)
        return refusal.model_copy(update={"reasons": told.reasons})

    def _no_such_nodes(self, ask: Ask, missing: Sequence[str]) -> str:
        """What to say where none of the nodes that are asked for is known; else nothing.

        The one that was probably meant is named where the tenant could be given something there.
        """
        nodes = self.state.fleet.nodes
        if not ask.nodes or any(name in nodes or name in missing for name in ask.nodes):
            return ""
        names = sorted(ask.nodes)
        open_to_it = [
            name
            for name, node in nodes.items()
            if any(device.pool not in ask.closed_pools for device in node.devices.values())
        ]
        return f"there is no node {', '.join(names)}{meant(names[0], open_to_it)}"

    def _fits_but_for(self, ask: Ask, avoided: frozenset[tuple[str, str]]) -> bool:
        unavoided = replace(ask, avoid=ask.avoid - avoided)
        found = placing.decide(self.state.fleet, self.state.quotas, unavoided)
        return isinstance(found, Chosen)

    @staticmethod
    def no_quota(tenant: str, workload_class: str) -> Refusal:
        """Default deny: a class without a cap of its own is refused."""
        return Refusal(
            code=Code.NO_QUOTA_DEFINED,
            message=f"{tenant} has no quota in class {workload_class}",
            owner=Owner.CATALOG,
        )

    def _told(self, ask: Ask, barred: str = "") -> Refusal:
        """What of the fleet bars it: costly to find, and the same until the fleet changes.

        What nobody's release could mend stays the same until the fleet's own state does: a flood
        of what can never fit costs one look, and every refusal after it is the same one again.
        """
        fleet = self.state.fleet
        if self._barred_at != fleet.version or len(self._barred) >= BARRED_MAX:
            self._barred.clear()
            self._barred_at = fleet.version
        if self._lasting_at != fleet.structure or len(self._lasting) >= BARRED_MAX:
            self._lasting.clear()
            self._lasting_at = fleet.structure
        shape = ask.shape or replace(ask, tenant="", micro_max=None, avoid=frozenset())
        key = (shape, ask.avoid, barred)
        known = self._barred.get(key) or self._lasting.get(key)
        if known is None:
            found = why(fleet, ask, barred)
            known = self._barred[key] = views.refusal(found)
            if found.lasting:
                self._lasting[key] = known
        return known

    def _explain(self, tenant: str, ask: PlaceAsk, decided: Decided | Refusal) -> None:
        """Keep what explains it. Most are never asked for, so that no words are made yet."""
        causes: tuple[Cause, ...] = ()
        request = b""
        if isinstance(decided, Refusal):
            request = ask.model_dump_json(exclude_defaults=True).encode()
        elif ask.workload is not None:
            causes = barred(self.state.fleet, decided[0])
        kept = Kept(decided, self.writer.now_ms(), self.state.adopted[0], causes, request)
        self.explanations.keep(tenant, ask.request_id, kept)

    def explanation(self, tenant: str, request_id: str) -> placement.Explanation | None:
        """Why this request got what it got, whole; none where nobody knows it."""
        return explaining.found(self.state, self.explanations, tenant, request_id)

    def next(self) -> tuple[str, int]:
        """A lease id and a fencing token, both newer than any before."""
        self._count += 1
        epoch = self.state.epoch
        return f"l{epoch}-{self._count}", (epoch << TOKEN_BITS) + self._count

    def record(
        self, name: str, token: int, tenant: str, ask: PlaceAsk, decided: Decided
    ) -> ledger.LeaseGranted:
        """The grant, as the ledger will have it; nothing is applied yet."""
        engine_ask, terms, chosen = decided
        at_ms = self.writer.now_ms()
        option = chosen.option
        names = [pick.node for pick in chosen.picks]
        return made(
            ledger.LeaseGranted,
            at_ms=at_ms,
            lease=name,
            token=token,
            tenant=tenant,
            project=terms.project,
            profile=terms.profile,
            workload_class=terms.workload_class,
            labels=ask.labels,
            request=ask,
            devices=_lease_devices(chosen),
            cpu_milli=self._cpu(engine_ask, chosen),
            memory_bytes=dict.fromkeys(names, engine_ask.memory_bytes),
            variant=option.variant,
            image=option.image or terms.image,
            args=option.args,
            precision=option.precision,
            not_met=chosen.not_met,
            billing=terms.billing,
            nominal_micro=terms.nominal_micro,
            fence=terms.fence,
            on_unhealthy=terms.on_unhealthy,
            ttl_ms=terms.ttl_ms,
            deadline_ms=at_ms + terms.ttl_ms,
            bound=ask.bind == "none",
            catalog_revision=self.state.adopted[0],
            over_by=budgets.over(
                self.state,
                tenant,
                terms.workload_class,
                chosen.micro,
                ttl_ms=terms.ttl_ms,
                at_ms=at_ms,
            ),
        )

    def _cpu(self, ask: Ask, chosen: Chosen) -> dict[str, int]:
        """A CPU that is leased as a device takes the node's cores with it: counted once."""
        nodes = self.state.fleet.nodes
        whole = chosen.offer.kind == "cpu"
        return {
            pick.node: nodes[pick.node].cpu_milli if whole else ask.cpu_milli
            for pick in chosen.picks
        }

    def view(self, lease: Lease) -> placement.Lease:
        """The lease as its tenant sees it."""
        return views.lease_view(
            self.state,
            self.market,
            lease,
            now_ms=self.writer.now_ms(),
            sequence=self.writer.sequence,
        )

    async def told(self, answer: Answer, appended: asyncio.Future[int] | None = None) -> Answer:
        """This answer, once all that it was made from is durable.

        It is made before the wait: during the wait others change the same lease, and what they
        bring is not durable yet. `appended` is the newest proposal that the answer was made from,
        where that is known: groups are appended in order, so that nothing older is left then.
        """
        before_ms = self.writer.now_ms()
        sequence = await (self.writer.barrier() if appended is None else appended)
        left_ms: int | None = getattr(answer, "expires_in_ms", None)  # of a lease: less by the wait
        if not left_ms:
            return changed(answer, sequence=sequence)
        left_ms = max(0, left_ms - (self.writer.now_ms() - before_ms))
        return changed(answer, sequence=sequence, expires_in_ms=left_ms)

    def own(self, tenant: str, name: str) -> Lease | None:
        """A lease by its name, of this tenant alone."""
        lease = self.state.leases.get(name)
        return lease if lease is not None and lease.tenant == tenant else None

    def by_request(self, tenant: str, request_id: str) -> Lease | None:
        """The lease that a request id decided."""
        name = self.state.by_request.get((tenant, request_id))
        return self.state.leases.get(name) if name is not None else None


def _lease_devices(chosen: Chosen) -> tuple[LeaseDevice, ...]:
    return tuple([lease_device(piece) for pick in chosen.picks for piece in pick.pieces])


def lease_device(piece: Piece) -> LeaseDevice:
    """What is given of a device as a lease names it, its rating frozen."""
    device, part = piece.device, piece.partition
    return made(
        LeaseDevice,
        node=device.node,
        uuid=device.uuid,
        index=device.index if part is None or part.index is None else part.index,
        vendor=device.vendor,
        model=device.model or "",
        pool=device.pool,
        parts=piece.parts,
        partition=part.uuid if part else None,
        partition_profile=part.profile if part else "",
        charged_parts=None if piece.charged == piece.parts else piece.charged,
        rating_micro=device_micro(piece.offer, device),
        rating_version=piece.offer.rating_version,
        provenance=piece.offer.provenance,
        memory_bytes=piece.memory_bytes,
    )
