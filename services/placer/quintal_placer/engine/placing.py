"""The pass: one ask against the fleet, as numbered steps; to the end, without a pause.

    1 shelves    which (pool, model, class) may serve which option
    2 quota      which of these the tenant's caps and budget allow
    3 nodes      the first nodes of each that fit, tightest first
    4 choice     the best of these by the objective
    5 pick       what of which devices

Which of several nodes or candidates is the better one is `ranking`'s; what of a node's devices
goes to whom is `pieces`'.

Where nothing was chosen, `why` takes the fleet apart; that is the slow way, and not on this path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from quintal_placer.engine import gangs, ranking
from quintal_placer.engine.asks import PARTS, Ask, Offer, Option
from quintal_placer.engine.devices import Device, Node, Shelf
from quintal_placer.engine.fleet import Fleet
from quintal_placer.engine.pieces import Piece, device_micro, filled, of_group
from quintal_placer.engine.quota import Excess, Holding, Quotas

__all__ = [
    "Chosen", "NothingNow", "Pick", "Piece", "admits", "decide", "device_micro", "inside",
    "tolerates",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pick:
    """What of one node's devices is taken."""

    node: str
    pieces: tuple[Piece, ...]

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices, one for each piece."""
        return tuple(piece.device for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What to grant."""

    option: Option
    offer: Offer
    pool: str
    picks: tuple[Pick, ...]
    micro: int
    """Micro-units of the class that all devices deliver together."""
    candidates: int
    """Shelves that could have served."""
    not_met: tuple[str, ...] = ()
    """What of the preferred topology could not be had, and what that cost."""


@dataclass(frozen=True, slots=True)
class NothingNow:
    """Nothing was chosen; `excess` says which cap barred what would have fitted."""

    excess: Excess | None
    barred: int
    """Shelves that fitted, but for a cap."""
    over_budget: int | None = None
    """Micro-units of the least that would have fitted, but for the budget."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    rank: tuple[int | str, ...]
    option: Option
    offer: Offer
    shelves: tuple[Shelf, ...]
    nodes: tuple[Node, ...]
    micro: int
    pieces: tuple[tuple[Piece, ...], ...] = ()
    """Node by node, where they were worked out already: they are for all but whole cards."""
    not_met: tuple[str, ...] = ()


def decide(fleet: Fleet, quotas: Quotas, ask: Ask) -> Chosen | NothingNow:
    """Where `ask` goes now, or that it goes nowhere now. Changes nothing."""
    best: _Candidate | None = None
    seen = barred = 0
    excess: Excess | None = None
    dear: int | None = None
    for place, option in enumerate(ask.options):
        for offer, fits in _serving(fleet, ask, place):  # 1
            candidate = _candidate(fleet, ask, (place, option), offer, fits)  # 3
            if candidate is None:
                continue
            over = quotas.exceeded(*_holdings(ask, candidate))  # 2
            if over is not None:
                barred, excess = barred + 1, _least(excess, over)
                continue
            if ask.micro_max is not None and candidate.micro > ask.micro_max:
                barred += 1
                dear = candidate.micro if dear is None else min(dear, candidate.micro)
                continue
            seen += 1
            if best is None or candidate.rank < best.rank:  # 4
                best = candidate
        if best is not None and ask.objective in {"ordered", "pack", "spread"}:
            break  # an earlier option is liked better, whatever the later ones would bring
    if best is None:
        return NothingNow(excess, barred, dear)
    return _pick(fleet, ask, best, seen)  # 5


def _least(known: Excess | None, found: Excess) -> Excess:
    """The cap that is passed by least is the one that somebody could ask to be raised."""
    return found if known is None or found.over < known.over else known


def _holdings(ask: Ask, candidate: _Candidate) -> list[Holding]:
    """What granting this would add to the tenant's account, one entry a model."""
    offer, option = candidate.offer, candidate.option
    if option.plain and not option.mixed:
        count = option.total if option.members else option.cards * option.nodes
        parts = offer.parts * count
        its = Holding(
            ask.tenant, ask.workload_class, offer.family, offer.model, parts, candidate.micro
        )
        return [its]
    sums: dict[str, Holding] = {}
    for pieces in candidate.pieces:
        for piece in pieces:
            offer = piece.offer
            known = sums.get(offer.model) or Holding(
                ask.tenant, ask.workload_class, offer.family, offer.model, 0, 0
            )
            sums[offer.model] = known._replace(
                parts=known.parts + piece.parts, micro=known.micro + piece.micro
            )
    return list(sums.values())


def admits(ask: Ask, shelf: Shelf) -> bool:
    """Whether the ask may go where this shelf is, whatever is free there."""
    return inside(ask, shelf) and tolerates(ask, shelf) and (shelf.stack.fences or not ask.strict)


def tolerates(ask: Ask, shelf: Shelf) -> bool:
    """Whether the ask puts up with the taints of the nodes and of their pool."""
    return shelf.pool not in ask.tainted_pools and set(shelf.stack.taints) <= ask.tolerations


def inside(ask: Ask, shelf: Shelf) -> bool:
    """Whether the shelf meets the ask's own constraints and is open to its tenant."""
    stack = shelf.stack
    if ask.pools and shelf.pool not in ask.pools:
        return False
    if shelf.pool in ask.closed_pools:
        return False
    if ask.clusters and stack.cluster not in ask.clusters:
        return False
    if ask.locations and stack.location not in ask.locations:
        return False
    return not ask.labels or set(ask.labels) <= set(stack.labels)


def _serving(fleet: Fleet, ask: Ask, place: int) -> Iterable[tuple[Offer, tuple[Shelf, ...]]]:
    """The shelves that may serve one option: the same for all asks of one shape."""
    option = ask.options[place]
    if ask.shape is None:
        return _shelves(fleet.shelves(), ask, option)
    return fleet.serving((ask.shape, place), lambda: tuple(_shelves(fleet.shelves(), ask, option)))


def _shelves(
    shelves: Iterable[Shelf], ask: Ask, option: Option
) -> Iterator[tuple[Offer, tuple[Shelf, ...]]]:
    """Per offer and pool, the shelves that may serve: a gang may spread over classes, not pools.

    In the order of names: the index's own order is that of its history, which a replay has not.
    """
    offers = {offer.model: offer for offer in option.offers}
    barred = {(bar.model, bar.software) for bar in option.bars}
    closed = {pool for pool, _ in option.unapproved}
    found: dict[tuple[str, str], list[Shelf]] = {}
    for shelf in shelves:
        offer = offers.get(shelf.model)
        if offer is None or shelf.partition != option.partition or not admits(ask, shelf):
            continue
        if offer.legal_counts and any(n not in offer.legal_counts for n, _ in option.seats):
            continue
        if (shelf.pool, shelf.model) in ask.left:
            continue
        if (shelf.model, shelf.stack.software) in barred or shelf.pool in closed:
            continue
        found.setdefault((shelf.model, shelf.pool), []).append(shelf)
    if option.mixed and found:
        # One candidate of all: which of them a node gives is settled with the nodes.
        least = min((offers[model] for model, _ in found), key=lambda o: (o.rating_micro, o.model))
        yield least, tuple(sorted(shelf for its in found.values() for shelf in its))
        return
    for (model, _), its in sorted(found.items()):
        yield offers[model], tuple(sorted(its))


def _candidate(
    fleet: Fleet, ask: Ask, option: tuple[int, Option], offer: Offer, shelves: tuple[Shelf, ...]
) -> _Candidate | None:
    """The best nodes over these shelves, enough for the gang, with their rank."""
    place, opt = option
    if opt.arranged:
        return _arranged(fleet, ask, option, offer, shelves)
    if ranking.packs(fleet, ask, opt, offer):
        return _packed(fleet, ask, option, offer, shelves)
    if not opt.plain:
        return _parted(fleet, ask, option, offer, shelves)
    if opt.nodes == 1 and ask.objective != "spread":
        one = ranking.tightest(fleet, ask, opt, shelves, _fits)
        found = [one] if one is not None else []
    else:
        found = _nodes(fleet, ask, opt, shelves)
    if len(found) < opt.nodes:
        return None
    free, name, shelf, _ = found[0]
    micro = _micro(fleet, ask, opt, offer, found)
    worth = ranking.of_offer(offer, opt.cards * opt.nodes, micro)
    rank = (*ranking.rank(ask, place, worth, free), name, shelf.pool, offer.model)
    return _Candidate(
        rank, opt, offer, tuple(f[2] for f in found), tuple(f[3] for f in found), micro
    )


def _nodes(
    fleet: Fleet, ask: Ask, option: Option, shelves: tuple[Shelf, ...]
) -> list[ranking.Found]:
    """The best nodes over these shelves, at most as many as the gang needs."""
    found: list[ranking.Found] = []
    for shelf in shelves:
        enough = 0
        for free, node in ranking.nodes(fleet, ask, option, shelf):
            if _fits(fleet, ask, option, shelf, node):
                found.append((free, node.name, shelf, node))
                enough += 1
            if enough == option.nodes:
                break
    found.sort(key=lambda item: item[:2])
    return found[: option.nodes]


def _micro(fleet: Fleet, ask: Ask, option: Option, offer: Offer, found: list[ranking.Found]) -> int:
    """What these would deliver together; cores differ from device to device, cards do not."""
    if not offer.per_core:
        return offer.rating_micro * offer.charged // PARTS * option.cards * len(found)
    return sum(
        piece.micro
        for _, _, shelf, node in found
        for piece in of_group(fleet, ask, option, offer, (node, shelf.pool))
    )


def _arranged(
    fleet: Fleet, ask: Ask, option: tuple[int, Option], offer: Offer, shelves: tuple[Shelf, ...]
) -> _Candidate | None:
    """As `_candidate`, where the request says how cards must lie, or its members differ."""
    place, opt = option
    found = gangs.seating(fleet, ask, opt, shelves, lambda node: _room_beside(ask, node))
    if found is None:
        return None
    offers = {its.model: its for its in opt.offers}
    seats = found.seats
    pieces = tuple(
        tuple(Piece(device, offers[seat.shelf.model]) for device in seat.devices) for seat in seats
    )
    worth = ranking.of_pieces([piece for its in pieces for piece in its])
    # All of a gang go at the pace of its slowest.
    pace = min(piece.micro for its in pieces for piece in its) * sum(map(len, pieces))
    rank = ranking.rank(ask, place, worth._replace(micro=pace), found.free)
    at = 1 if ask.objective in {"pack", "spread"} else 2
    return _Candidate(
        (*rank[:at], found.penalty, *rank[at:], seats[0].node.name, seats[0].shelf.pool,
         offer.model),
        opt,
        offer,
        tuple(seat.shelf for seat in seats),
        tuple(seat.node for seat in seats),
        worth.micro,
        pieces,
        found.cost,
    )  # fmt: skip


def _parted(
    fleet: Fleet, ask: Ask, option: tuple[int, Option], offer: Offer, shelves: tuple[Shelf, ...]
) -> _Candidate | None:
    """As `_candidate`, for shares and for groups of several kinds: node by node, piece by piece.

    What one node has not, none has that is like it: of each sort one is looked at in vain.
    """
    place, opt = option
    found: list[tuple[int, str, Shelf, Node, tuple[Piece, ...]]] = []
    lacking: set[tuple[object, bool]] = set()
    for shelf in shelves:
        enough = 0
        for free, node in ranking.nodes(fleet, ask, opt, shelf):
            if not _room_beside(ask, node):
                continue
            if lacking and (fleet.sort_of(node.name), node.cpu_held > 0) in lacking:
                continue
            pieces = filled(fleet, ask, opt, (offer, shelf.pool), node)
            if pieces is not None:
                found.append((free, node.name, shelf, node, pieces))
                enough += 1
            elif not ask.avoid:  # single devices are no part of a sort
                lacking.add((fleet.sort_of(node.name), node.cpu_held > 0))
            if enough == opt.nodes:
                break
    if len(found) < opt.nodes:
        return None
    found.sort(key=lambda item: item[:2])
    found = found[: opt.nodes]
    free, name, shelf, _, _ = found[0]
    worth = ranking.of_pieces([piece for *_, pieces in found for piece in pieces])
    return _Candidate(
        (*ranking.rank(ask, place, worth, free), name, shelf.pool, offer.model),
        opt,
        offer,
        tuple(f[2] for f in found),
        tuple(f[3] for f in found),
        worth.micro,
        tuple(f[4] for f in found),
    )


def _packed(
    fleet: Fleet, ask: Ask, option: tuple[int, Option], offer: Offer, shelves: tuple[Shelf, ...]
) -> _Candidate | None:
    """As `_candidate`, where the score of `packing` says which node is best."""
    place, opt = option
    found = next(_roomy(fleet, ask, opt, offer, shelves), None)
    if found is None:
        return None
    worse, node, pieces = found
    shelf = shelves[0]._replace(stack=node.stack)
    worth = ranking.of_pieces(pieces) if pieces else ranking.of_offer(offer, 0, 0)
    order = fleet.packing.place_of(node.name)
    return _Candidate(
        (*ranking.rank(ask, place, worth, worse), order, node.name, shelf.pool, offer.model),
        opt, offer, (shelf,), (node,), worth.micro, (pieces,),
    )  # fmt: skip


def _roomy(
    fleet: Fleet, ask: Ask, option: Option, offer: Offer, shelves: tuple[Shelf, ...]
) -> Iterator[tuple[int, Node, tuple[Piece, ...]]]:
    """Of the nodes that packing likes best, those that can give it, and what."""
    for worse, node in ranking.packed(fleet, ask, option, offer, shelves):
        if _room_beside(ask, node):
            pieces = of_group(fleet, ask, option, offer, (node, shelves[0].pool))
            if len(pieces) == option.cards:
                yield worse, node, pieces


def _fits(fleet: Fleet, ask: Ask, option: Option, shelf: Shelf, node: Node) -> bool:
    """What the shelf does not tell: the node's name, CPU, memory, and devices to avoid."""
    if not _room_beside(ask, node):
        return False
    if not ask.avoid:
        return True
    # Of what is free here, the devices to avoid are no part; what each would be worth is no matter.
    its = Offer(shelf.model, "", "", 0)
    return len(of_group(fleet, ask, option, its, (node, shelf.pool))) == option.cards


def _room_beside(ask: Ask, node: Node) -> bool:
    """What of the node is asked beside its devices."""
    if ask.nodes and node.name not in ask.nodes:
        return False
    if ask.cpu_milli and node.cpu_milli - node.cpu_held < ask.cpu_milli:
        return False
    if node.network_mbits < ask.network_mbits:
        return False
    return not ask.memory_bytes or node.memory_bytes - node.memory_held >= ask.memory_bytes


def _pick(fleet: Fleet, ask: Ask, best: _Candidate, seen: int) -> Chosen:
    picks = tuple(
        Pick(node.name, of_group(fleet, ask, best.option, best.offer, (node, shelf.pool)))
        for shelf, node in zip(best.shelves, best.nodes, strict=True)
        if not best.pieces
    ) or tuple(
        Pick(node.name, pieces) for node, pieces in zip(best.nodes, best.pieces, strict=True)
    )
    pool = best.shelves[0].pool
    return Chosen(best.option, best.offer, pool, picks, best.micro, seen, best.not_met)
