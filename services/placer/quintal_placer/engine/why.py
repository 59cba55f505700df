"""Why nothing was chosen: the fleet taken apart, node by node, into counted causes.

Each node gets one cause: the last thing that stood between it and a grant. A node is `never` if
no state of the fleet known could make it fit; such causes come last, configuration comes before
capacity, since that is what somebody can mend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from quintal_placer.engine import supply
from quintal_placer.engine.asks import Ask, Group, Offer, Option
from quintal_placer.engine.devices import (
    FOREIGN_BYTES_MAX,
    Device,
    Node,
    Shelf,
    in_whole_sets,
)
from quintal_placer.engine.fleet import Fleet
from quintal_placer.engine.lay import most
from quintal_placer.engine.placing import inside, tolerates
from quintal_placer.engine.rooms import Key, Rooms

NAMES_MAX = 20
"""Nodes named per cause."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What holds for `count` nodes of a pool."""

    code: str
    message: str
    pool: str
    count: int
    names: tuple[str, ...]
    owner: str = ""
    """Whose move it is, where the code alone does not say."""


@dataclass(frozen=True, slots=True)
class Why:
    """One code for the whole, and the causes beneath it."""

    code: str
    never: bool
    message: str
    causes: tuple[Cause, ...]

    @property
    def lasting(self) -> bool:
        """Whether it is so whoever holds what: until nodes, devices or their state change."""
        lasting = {_NEVER, "device_unhealthy", *_CONFIGURATION}
        return self.never and all(cause.code in lasting for cause in self.causes)


@dataclass(frozen=True, slots=True)
class _Finding:
    step: int
    """How near the node came: higher is nearer."""
    code: str
    message: str
    pool: str
    would_fit: bool = False
    """Free enough, were it not for a configuration."""
    free: int = 0
    owner: str = ""
    room: int = 0
    """Cards that one member could ever have of the node, lying as they must."""
    room_now: int = 0
    """The same of what is free."""


_OUTSIDE = "outside the request's constraints"
_FREE_STEP = 11
_FREE = "free, but too few such nodes for the gang"
_LEFT = "free, but left to requests that came before and wait for it"
_TOO_FEW = "too few cards on one node"
_CUT = "its cards are cut into partitions: an operator can make them whole"
_CUT_OTHERWISE = "its cards are not cut so: an operator can cut them anew"
_CUT_HELD = "its cards are cut otherwise, and held"

_STACK = ("stack_blocked", "stack_unknown")
"""A node with such a finding could serve once its software, or what is known of it, is another."""

_CONFIGURATION = (
    *_STACK,
    "cordoned",
    "tainted",
    "node_suspect",
    "not_enabled",
    "disputed",
    "foreign_use",
    "unrated",
    "partition_mode",
)
_NEVER = "never_fits"


def why(fleet: Fleet, ask: Ask, barred: str = "") -> Why:
    """Why `ask` cannot be placed now. Call it only where `decide` chose nothing.

    `barred` is the code of the cap that bars what would have fitted, if one does.
    """
    nearest: list[tuple[_Finding, Sequence[str]]] = []
    ever, now = Rooms(fleet, ask), Rooms(fleet, ask)
    free: dict[tuple[int, str, str], int] = {}
    mending: dict[str, int] = {}
    stacks: set[tuple[str, str]] = set()
    for names, findings in _looked(fleet, ask, barred):
        nearest.append((max((found for _, found in findings), key=lambda f: f.step), names))
        count = len(names)
        could = [f for f in findings if f[1].code not in {_NEVER, *_STACK}]
        ever.add(names, [(key, finding.room) for key, finding in could])
        now.add(names, [(key, finding.room_now) for key, finding in could])
        for key, finding in findings:
            if finding.code == _NEVER:
                continue
            if finding.code in _STACK:
                stacks.add((finding.code, finding.owner))
            else:
                free[key] = free.get(key, 0) + finding.free * count
            if finding.would_fit:
                mending[finding.code] = mending.get(finding.code, 0) + count
    causes = _gather(nearest)
    possible = ever.possible()
    if not possible and not stacks:
        return Why(_NEVER, True, _never_message(ask, causes, ever), causes)  # noqa: FBT003
    code = _code(ask, possible, free, mending) if possible else min(stacks)[0]
    if code in _STACK:
        # What the image itself would have to change, no wait and no upgrade of a node will mend.
        never = not possible and {owner for _, owner in stacks} == {"submitter"}
        return _stack_why(code, causes, never=never)
    message = _fragmented(ask, possible, now) if code == "fragmented" else _MESSAGES[code]
    return Why(code, False, message, causes)  # noqa: FBT003


def _fragmented(ask: Ask, possible: list[Key], now: Rooms) -> str:
    """In which way: over the domains, over the islands, or over the nodes."""
    for place, _, _ in possible:
        needs = ask.options[place].arrangement
        if needs is not None and needs.domain == "required" and now.apart(place):
            return f"enough nodes are free, but not in one {needs.over}"
        if needs is not None and "required" in {needs.island, needs.nic}:
            what = "island" if needs.island == "required" else "interface's reach"
            return f"enough is free in sum, but not together in one {what}"
    return _MESSAGES["fragmented"]


def _stack_why(code: str, causes: tuple[Cause, ...], *, never: bool) -> Why:
    told = next((cause.message for cause in causes if cause.code == code), "")
    return Why(code, never, f"{_MESSAGES[code]}: {told}", causes)


def barred(fleet: Fleet, ask: Ask) -> tuple[Cause, ...]:
    """Nodes whose software, or whose pool's approval, keeps them out, though others would do.

    By the index alone: it is told beside every grant of a workload.
    """
    causes: dict[tuple[str, str, str], Cause] = {}
    for option in ask.options:
        reasons = {(bar.model, bar.software): bar for bar in option.bars}
        closed = dict(option.unapproved)
        for (model, software, pool), nodes in fleet.having():
            bar = reasons.get((model, software))
            if pool in ask.closed_pools or (bar is None and pool not in closed):
                continue
            code, message, owner = (
                (bar.code, bar.message, bar.owner) if bar else (_STACK[0], closed[pool], "catalog")
            )
            cause = Cause(code, message, pool, len(nodes), tuple(nodes[:NAMES_MAX]), owner)
            causes.setdefault((model, software, pool), cause)
    return tuple(sorted(causes.values(), key=lambda c: (-c.count, c.pool, c.code, c.message)))


_MESSAGES = {
    "stack_blocked": "the software of what would fit does not do",
    "stack_unknown": "nobody says that the software of what would fit does",
    "no_capacity": "what would do is held",
    "partition_mode": "enough is there, but cut otherwise",
    "fragmented": "enough is free in sum, but not together on one node",
    "cordoned": "what would fit is cordoned",
    "tainted": "what would fit is tainted, and the request does not tolerate it",
    "not_enabled": "what would fit is on nodes that end no work by themselves",
    "node_suspect": "what would fit is on nodes that are silent",
    "device_unhealthy": "what would fit is unhealthy",
    "disputed": "what would fit is disputed",
    "foreign_use": "what would fit is used by somebody outside this system",
}


def _code(
    ask: Ask,
    possible: list[Key],
    free: dict[Key, int],
    mending: dict[str, int],
) -> str:
    """A configuration, where mending it alone would do; else fragmentation; else capacity."""
    if mending:
        return max(sorted(mending), key=lambda code: mending[code])
    for key in possible:
        option = ask.options[key[0]]
        among = sum(n for k, n in free.items() if k[0] == key[0]) if option.mixed else free.get(key)
        if (among or 0) >= option.total:
            return "fragmented"
    return "no_capacity"


def _never_message(ask: Ask, causes: tuple[Cause, ...], ever: Rooms) -> str:
    if ever:
        place = min(range(len(ask.options)), key=lambda p: ask.options[p].nodes)
        needs = ask.options[place].arrangement
        where = needs.over if needs is not None and ever.apart(place) else "pool"
        nodes = ask.options[place].nodes
        return f"no {where} has {nodes} nodes that could each give what is asked"
    told = causes[0].message if causes else "the fleet has no node at all"
    return f"nothing known could ever meet this: {told}"


def _looked(
    fleet: Fleet, ask: Ask, barred: str
) -> Iterator[tuple[Sequence[str], list[tuple[Key, _Finding]]]]:
    """What is found of every node: one look for all that are alike.

    Where cards are free, what is held of the node's CPU and memory counts too.
    """
    for names in fleet.alike():
        inside = [name for name in names if name in ask.nodes] if ask.nodes else names
        outside = [name for name in names if name not in ask.nodes] if ask.nodes else ()
        for some in (inside, outside):
            if not some:
                continue
            findings = list(_findings(fleet.nodes[some[0]], ask, barred))
            if not any(finding.step == _FREE_STEP for _, finding in findings):
                yield some, findings
                continue
            short = [name for name in some if _short(fleet.nodes[name], ask)]
            rest = [name for name in some if not _short(fleet.nodes[name], ask)]
            for part in (short, rest):
                if part:
                    yield part, list(_findings(fleet.nodes[part[0]], ask, barred))


def _gather(nearest: Iterable[tuple[_Finding, Sequence[str]]]) -> tuple[Cause, ...]:
    groups: dict[tuple[str, str, str, str], list[Sequence[str]]] = {}
    for finding, names in nearest:
        key = (finding.code, finding.message, finding.pool, finding.owner)
        groups.setdefault(key, []).append(names)
    causes = [
        Cause(code, message, pool, sum(map(len, sets)), _first(sets), owner)
        for (code, message, pool, owner), sets in groups.items()
    ]
    return tuple(
        sorted(
            causes,
            key=lambda c: (
                _order(c.code),
                c.message == _OUTSIDE,
                -c.count,
                c.pool,
                c.code,
                c.message,
            ),
        )
    )


def _first(sets: list[Sequence[str]]) -> tuple[str, ...]:
    """The first names of all of them; each is in order."""
    return tuple(sorted(name for names in sets for name in names[:NAMES_MAX])[:NAMES_MAX])


def _order(code: str) -> int:
    if code in _CONFIGURATION or code == "device_unhealthy":
        return 0
    return 2 if code == _NEVER else 1


def _findings(node: Node, ask: Ask, barred: str) -> Iterator[tuple[Key, _Finding]]:
    """One finding per option, model and pool that the node has; one if it has none at all."""
    told = False
    for place, option in enumerate(ask.options):
        own, *others = option.groups
        for offer, pool in _homes(node, own):
            told = True
            shelf = Shelf(pool, offer.model, node.stack)
            finding = _finding(node, ask, (option, own), offer, shelf)
            for group in others:
                beside = _best(node, ask, option, group)
                if beside.step < finding.step:
                    # The nearer to nothing tells; how many the node is good for, its own group.
                    finding = replace(beside, room=finding.room, room_now=0)
            if barred and finding.message == _FREE:
                finding = replace(finding, code=barred, message="it would fit, but for a cap")
            yield (place, offer.model, pool), finding
    if not told:
        yield (0, "", ""), _Finding(0, _NEVER, _no_model(node, ask), "")


def _homes(node: Node, group: Group) -> list[tuple[Offer, str]]:
    offers = {offer.model: offer for offer in group.offers}
    pools = {(d.model or "", d.pool) for d in node.devices.values() if d.model in offers}
    return [(offers[model], pool) for model, pool in sorted(pools)]


def _best(node: Node, ask: Ask, option: Option, group: Group) -> _Finding:
    """How near the node comes to a group that is to lie beside the first."""
    found = [
        _finding(node, ask, (option, group), offer, Shelf(pool, offer.model, node.stack))
        for offer, pool in _homes(node, group)
    ]
    nothing = _Finding(0, _NEVER, "the node has none of what is asked beside", "")
    return max(found, key=lambda finding: finding.step, default=nothing)


def _no_model(node: Node, ask: Ask) -> str:
    excluded = dict(ask.options[0].excluded)
    if not node.devices:
        return "the node has no device"
    wanted = [d for d in node.devices.values() if d.kind != "cpu"] or list(node.devices.values())
    models = {device.model for device in wanted}
    named = sorted(excluded[model] for model in models if model in excluded)
    if named:
        return named[0]
    return "no catalog document names its devices" if models == {None} else "other models"


def _finding(  # noqa: C901, PLR0911, PLR0912 - a list of cases, each a line
    node: Node, ask: Ask, what: tuple[Option, Group], offer: Offer, shelf: Shelf
) -> _Finding:
    """The last thing between this node and a grant of this model, from the most lasting on."""
    option, group = what
    its = [d for d in node.devices.values() if d.model == offer.model and d.pool == shelf.pool]
    usable = [d for d in its if d.usable]
    least = option.least if option.plain else group.cards
    free = supply.now(group, usable)
    ever = supply.ever(group, its)
    room_now = _room(node, option, group, usable, free=True)
    fits = _room(node, option, group, its, free=True) >= least
    room = _lying(node, option, its) if _whole(group) else max(ever, offer.most * len(its))

    def never(step: int, message: str) -> _Finding:
        return _Finding(step, _NEVER, message, shelf.pool)

    def now(step: int, code: str, message: str) -> _Finding:
        found = _Finding(step, code, message, shelf.pool, would_fit=fits, free=free)
        return replace(found, room=room, room_now=room_now)

    if shelf.pool in ask.closed_pools:
        return never(1, "its pool is not open to the tenant")
    if not inside(ask, shelf) or (ask.nodes and node.name not in ask.nodes):
        return never(2, _OUTSIDE)
    if offer.legal_counts and any(n not in offer.legal_counts for n, _ in option.seats):
        legal = ", ".join(map(str, offer.legal_counts))
        return never(3, f"{offer.model} is granted by {legal} only")
    if (len(its) if _whole(group) else room) < least:
        return never(4, _TOO_FEW)
    if room < least:
        return never(4, _apart(node, option))
    if node.network_mbits < ask.network_mbits:
        return never(5, f"no interface of {ask.network_mbits} Mbit/s")
    if node.cpu_milli < ask.cpu_milli or node.memory_bytes < ask.memory_bytes:
        return never(5, "too little CPU or memory on one node")
    if (bar := _bar(option, shelf)) is not None:
        return replace(bar, would_fit=fits)
    if ask.strict and not node.fences:
        return now(6, "not_enabled", "no task `fence` is installed, as `fence: strict` needs")
    if node.liveness != "ready":
        return now(6, "node_suspect", f"the node is {node.liveness}")
    if node.cordons:
        return now(7, "cordoned", "cordoned")
    if not tolerates(ask, shelf):
        return now(8, "tainted", "tainted")
    if _room(node, option, group, usable, free=False) < least <= ever:
        return _unusable(now, [d for d in its if not d.usable])
    fits = False
    if room_now >= least:
        beside = _LEFT if (shelf.pool, offer.model) in ask.left else _beside(node, ask)
        # Cards beside which no CPU is left are not free to this ask, and no part of a sum.
        if beside != _FREE:
            free = room_now = 0
        return now(_FREE_STEP, "no_capacity", beside)
    if free + supply.cut_anew(group, usable, offer.most) >= least > free:
        fits = True
        return now(9, "partition_mode", _CUT_OTHERWISE if group.partition else _CUT)
    if ever < least:
        fits = True
        return now(9, "partition_mode", _CUT_HELD)
    if free >= least:
        return now(10, "fragmented", "enough free, but not lying as asked")
    if free:
        return now(10, "fragmented", "fewer free than asked")
    return now(9, "no_capacity", "held")


def _whole(group: Group) -> bool:
    return group.share is None and not group.partition


def _room(
    node: Node, option: Option, group: Group, devices: Sequence[Device], *, free: bool
) -> int:
    """What one member could have of these, as they are cut: of whole cards, as many as lie so."""
    if not _whole(group):
        return supply.now(group, devices) if free else supply.ever(group, devices)
    its = [d for d in devices if (d.whole if free else not d.partitions)]
    return _lying(node, option, in_whole_sets(its))


def _lying(node: Node, option: Option, devices: Sequence[Device]) -> int:
    """Cards of these that lie together as the request requires."""
    needs = option.arrangement
    if needs is None or "required" not in {needs.island, needs.nic}:
        return len(devices)
    uuids = [device.uuid for device in devices]
    return most(node.lay, uuids, island=needs.island == "required", nic=needs.nic == "required")


def _apart(node: Node, option: Option) -> str:
    """In which way its cards, enough in number, do not lie as they must."""
    needs = option.arrangement
    if needs is not None and needs.island == "required":
        if node.lay.islands is None:
            return "which of its cards are linked is unknown"
        if needs.nic != "required":
            return "no island of so many cards on one node"
    if node.lay.near is None:
        return "which interfaces are near its cards is unknown"
    return "no so many cards near one interface on one node"


def _bar(option: Option, shelf: Shelf) -> _Finding | None:
    """Why the software of this shelf's nodes, or its pool, rules the option out there."""
    for bar in option.bars:
        if (bar.model, bar.software) == (shelf.model, shelf.stack.software):
            return _Finding(6, bar.code, bar.message, shelf.pool, owner=bar.owner)
    for pool, message in option.unapproved:
        if pool == shelf.pool:
            return _Finding(6, "stack_blocked", message, pool, owner="catalog")
    return None


def _beside(node: Node, ask: Ask) -> str:
    """The cards are free; then it is the rest of the node, or the gang."""
    return "CPU or memory of the node is held" if _short(node, ask) else _FREE


def _short(node: Node, ask: Ask) -> bool:
    """Whether too little is left of its CPU or memory."""
    return (
        node.cpu_milli - node.cpu_held < ask.cpu_milli
        or node.memory_bytes - node.memory_held < ask.memory_bytes
    )


def _unusable(now: Callable[[int, str, str], _Finding], devices: list[Device]) -> _Finding:
    if any(device.disputed for device in devices):
        return now(8, "disputed", "devices are disputed")
    if any(device.foreign_bytes > FOREIGN_BYTES_MAX for device in devices):
        return now(8, "foreign_use", "devices are used from outside")
    return now(8, "device_unhealthy", "devices are unhealthy")
