"""The pass: one ask against the fleet, as numbered steps; to the end, without a pause.

    1 shelves    which (pool, model, class) may serve which option
    2 quota      which of these the tenant's caps and budget allow
    3 nodes      the first nodes of each that fit, tightest first
    4 choice     the best of these by the objective
    5 pick       the devices

Where nothing was chosen, `why` takes the fleet apart; that is the slow way, and not on this path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from quintal_placer.engine.asks import Ask, Offer, Option
from quintal_placer.engine.fleet import Device, Fleet, Node, Shelf
from quintal_placer.engine.quota import Excess, Holding, Quotas


@dataclass(frozen=True, slots=True)
class Pick:
    """The devices of one node."""

    node: str
    devices: tuple[Device, ...]


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
            over = quotas.exceeded(holding(ask, offer, option, candidate.micro))  # 2
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


def holding(ask: Ask, offer: Offer, option: Option, micro: int) -> Holding:
    """What granting this would add to the tenant's account."""
    cards = option.cards * option.nodes
    return Holding(ask.tenant, ask.workload_class, offer.family, offer.model, cards, micro)


def device_micro(offer: Offer, device: Device) -> int:
    """Micro-units one whole device delivers."""
    return offer.rating_micro * device.cores if offer.per_core else offer.rating_micro


def admits(ask: Ask, shelf: Shelf) -> bool:
    """Whether the ask may go where this shelf is, whatever is free there."""
    return inside(ask, shelf) and tolerates(ask, shelf)


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
        if offer is None or not admits(ask, shelf):
            continue
        if offer.legal_counts and option.cards not in offer.legal_counts:
            continue
        if (shelf.model, shelf.stack.software) in barred or shelf.pool in closed:
            continue
        found.setdefault((shelf.model, shelf.pool), []).append(shelf)
    for (model, _), its in sorted(found.items()):
        yield offers[model], tuple(sorted(its))


def _candidate(
    fleet: Fleet, ask: Ask, option: tuple[int, Option], offer: Offer, shelves: tuple[Shelf, ...]
) -> _Candidate | None:
    """The tightest (or emptiest) nodes over these shelves, enough for the gang, with their rank."""
    opt = option[1]
    if opt.nodes == 1 and ask.objective != "spread":
        one = _tightest(fleet, ask, opt, shelves)
        found = [one] if one is not None else []
    else:
        found = _nodes(fleet, ask, opt, shelves)
    if len(found) < opt.nodes:
        return None
    free, name, shelf, _ = found[0]
    micro = _micro(fleet, ask, opt, offer, found)
    rank: tuple[int | str, ...] = (
        *_rank(ask, option, offer, micro, free),
        name,
        shelf.pool,
        offer.model,
    )
    return _Candidate(
        rank, opt, offer, tuple(f[2] for f in found), tuple(f[3] for f in found), micro
    )


_Found = tuple[int, str, Shelf, Node]
"""How good a node is (less is better), its name, the shelf it is on, the node."""


def _tightest(fleet: Fleet, ask: Ask, option: Option, shelves: tuple[Shelf, ...]) -> _Found | None:
    """The one node that nearly every request is about: without lists, and without sorting."""
    best: _Found | None = None
    for shelf in shelves:
        first = fleet.tightest(shelf, option.cards)
        if first is None:
            continue
        free, node = first
        if not _fits(fleet, ask, option, shelf, node):
            fitting = fleet.fitting(shelf, option.cards)
            other = next((n for n in fitting if _fits(fleet, ask, option, shelf, n)), None)
            if other is None:
                continue
            free, node = fleet.free_count(other, shelf), other
        if best is None or (free, node.name) < best[:2]:
            best = (free, node.name, shelf, node)
    return best


def _nodes(fleet: Fleet, ask: Ask, option: Option, shelves: tuple[Shelf, ...]) -> list[_Found]:
    """The tightest (or emptiest) nodes over these shelves, at most as many as the gang needs."""
    spread = ask.objective == "spread"
    found: list[_Found] = []
    for shelf in shelves:
        enough = 0
        for node in fleet.fitting(shelf, option.cards, emptiest=spread):
            if _fits(fleet, ask, option, shelf, node):
                free = fleet.free_count(node, shelf)
                found.append((-free if spread else free, node.name, shelf, node))
                enough += 1
            if enough == option.nodes:
                break
    found.sort(key=lambda item: item[:2])
    return found[: option.nodes]


def _micro(fleet: Fleet, ask: Ask, option: Option, offer: Offer, found: list[_Found]) -> int:
    """What these would deliver together; cores differ from device to device, cards do not."""
    if not offer.per_core:
        return offer.rating_micro * option.cards * len(found)
    return sum(
        device_micro(offer, device)
        for _, _, shelf, node in found
        for device in _devices(fleet, ask, option, shelf, node)
    )


def _fits(fleet: Fleet, ask: Ask, option: Option, shelf: Shelf, node: Node) -> bool:
    """What the shelf does not tell: the node's name, CPU, memory, and devices to avoid."""
    if ask.nodes and node.name not in ask.nodes:
        return False
    if ask.cpu_milli and node.cpu_milli - node.cpu_held < ask.cpu_milli:
        return False
    if node.network_mbits < ask.network_mbits:
        return False
    if ask.memory_bytes and node.memory_bytes - node.memory_held < ask.memory_bytes:
        return False
    return not ask.avoid or len(_devices(fleet, ask, option, shelf, node)) == option.cards


def _devices(
    fleet: Fleet, ask: Ask, option: Option, shelf: Shelf, node: Node
) -> tuple[Device, ...]:
    free = fleet.free_devices(node, shelf.model, shelf.pool)
    return tuple([d for d in free if d.key not in ask.avoid][: option.cards])


def _rank(
    ask: Ask, option: tuple[int, Option], offer: Offer, micro: int, free: int
) -> tuple[int, ...]:
    """Smaller is better. Every objective ends in the same order, so that ties are no chance."""
    place, opt = option
    cards = opt.cards * opt.nodes
    price = offer.price_nano * cards if offer.price_nano is not None else 2**100
    rest = (free, micro, offer.rank)
    match ask.objective:
        case "cheapest":
            return (price, place, *rest)
        case "fastest":
            return (-micro, place, *rest)
        case "efficient":
            watts = offer.milliwatts or 0
            per_watt = micro * 1_000_000 // (watts * cards) if watts else 0
            return (-per_watt, place, *rest)
        case "ordered":
            return (place, offer.rank, free, micro)
        case "spread":
            return (place, free, micro, offer.rank)
        case "pack":
            return (place, micro, free, offer.rank)


def _pick(fleet: Fleet, ask: Ask, best: _Candidate, seen: int) -> Chosen:
    picks = tuple(
        Pick(node.name, _devices(fleet, ask, best.option, shelf, node))
        for shelf, node in zip(best.shelves, best.nodes, strict=True)
    )
    return Chosen(best.option, best.offer, best.shelves[0].pool, picks, best.micro, seen)
