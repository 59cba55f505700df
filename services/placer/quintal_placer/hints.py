"""The smallest changes to a refused request with which it would be placed now. Pure.

Candidates are made one sort after the other, in each from the smallest change on; every one is
decided by the very code that decides requests, and only what that code would grant is told. The
first of a sort that fits is its hint, and there are at most `TRIES_MAX` tries. A hint holds for the
moment in which it was checked; nothing is held for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from pydantic import ValidationError

from quintal.contracts.documents import ProfileSpec, count_range
from quintal.contracts.message import Refusal
from quintal.contracts.placement import Hint, PlaceAsk
from quintal.names import nearest
from quintal_placer.asking import Market, closed_pools
from quintal_placer.explaining import Decided
from quintal_placer.state import PlacerState

TRIES_MAX: Final = 64
MODELS_MAX: Final = 16
TAINTS_MAX: Final = 8
STEPS_MAX: Final = 8
TTL_MIN_MS: Final = 30_000

Evaluate = Callable[[PlaceAsk], Decided | Refusal]

Change = tuple[str, str, dict[str, Any]]
"""Its sort, in words, and the fields of the request that it replaces."""


def search(
    state: PlacerState, market: Market, tenant: str, ask: PlaceAsk, evaluate: Evaluate
) -> Iterator[Hint | None]:
    """A hint for each sort of change that helps; none for every try that does not.

    An iterator, so that whoever runs it may do something else between two tries.
    """
    found: set[str] = set()
    for tried, (sort, words, change) in enumerate(_changes(state, market, tenant, ask)):
        if tried >= TRIES_MAX:
            return
        if sort in found:
            continue
        changed = merged(ask, change)
        decided = None if changed is None else evaluate(changed)
        if decided is None or isinstance(decided, Refusal):
            yield None
            continue
        found.add(sort)
        chosen = decided[2]
        yield Hint(
            message=words,
            change=change,
            gives=f"{chosen.offer.model} in pool {chosen.pool}",
        )
        if sort == "now":
            return


def merged(ask: PlaceAsk, change: dict[str, Any]) -> PlaceAsk | None:
    """The request with these fields replaced; none where that is no request."""
    given = ask.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    try:
        return PlaceAsk.model_validate({**given, **change})
    except ValidationError:
        return None


def _changes(state: PlacerState, market: Market, tenant: str, ask: PlaceAsk) -> Iterator[Change]:
    yield "now", "as it is: it fits by now", {}
    work = market.catalog.workloads.get(ask.workload or "")
    profile = market.catalog.profiles.get((work.profile if work else ask.profile) or "")
    if ask.objective or (profile and profile.objective == "cheapest"):
        yield "objective", "objective pack", {"objective": "pack"}
    yield from _tolerations(state, market, tenant, ask)
    yield from _ttls(ask, profile)
    if not ask.alternatives:
        yield from _counts(ask, profile)
    yield from _nodes_meant(state, market, tenant, ask)
    yield from _constraints(ask)
    if ask.node is not None:
        yield "node", "without a need of CPU, memory or network beside the cards", {"node": None}
    if not ask.alternatives:
        yield from _models(state, market, ask)


def _tolerations(
    state: PlacerState, market: Market, tenant: str, ask: PlaceAsk
) -> Iterator[Change]:
    """One taint more that it puts up with, of nodes and pools that are open to the tenant."""
    closed = frozenset(closed_pools(market.catalog, tenant))
    taints: set[str] = set()
    for name, pool in market.catalog.pools.items():
        if name not in closed:
            taints.update(pool.taints)
    for node in state.fleet.nodes.values():
        if node.taints and any(d.pool not in closed for d in node.devices.values()):
            taints.update(node.taints)
    has = ask.constraints.tolerations
    where = ask.constraints.model_dump(mode="json", exclude_defaults=True)
    for taint in sorted(taints - set(has))[:TAINTS_MAX]:
        more = {**where, "tolerations": [*has, taint]}
        yield "toleration", f"tolerate the taint {taint}", {"constraints": more}


def _ttls(ask: PlaceAsk, profile: ProfileSpec | None) -> Iterator[Change]:
    """A shorter hold, for a budget that the whole would pass."""
    ttl_ms = ask.ttl_ms or (profile.ttl_ms if profile else 300_000)
    for sixteenths in (14, 12, 8, 4, 2, 1):
        shorter = ttl_ms * sixteenths // 16 // 1_000 * 1_000
        if shorter >= TTL_MIN_MS:
            yield "ttl", f"a ttl of {shorter // 1_000} s", {"ttl_ms": shorter}
    if ttl_ms > TTL_MIN_MS:
        yield "ttl", f"a ttl of {TTL_MIN_MS // 1_000} s", {"ttl_ms": TTL_MIN_MS}


def _counts(ask: PlaceAsk, profile: ProfileSpec | None) -> Iterator[Change]:
    """The same cards over more nodes, then fewer cards, then fewer nodes."""
    cards = ask.cards or (max(1, count_range(profile.cards)[0]) if profile else 1)
    nodes = ask.nodes or (max(1, count_range(profile.nodes)[0]) if profile else 1)
    for parts in (2, 4, 8):
        if cards % parts == 0 and cards >= parts:
            each, over = cards // parts, nodes * parts
            change = {"cards": each, "nodes": over}
            yield "spread", f"{each} cards on each of {over} nodes", change
    for fewer in _below(cards):
        yield "cards", f"{fewer} cards on each node instead of {cards}", {"cards": fewer}
    for fewer in _below(nodes):
        yield "nodes", f"{fewer} nodes instead of {nodes}", {"nodes": fewer}


def _below(count: int) -> list[int]:
    """Smaller counts, the nearest first, then by halves down to one."""
    near = list(range(count - 1, max(0, count - 1 - STEPS_MAX), -1))
    half = count // 2
    while half >= 1:
        if half not in near and half < count:
            near.append(half)
        half //= 2
    return near


def _nodes_meant(
    state: PlacerState, market: Market, tenant: str, ask: PlaceAsk
) -> Iterator[Change]:
    """The nodes that were probably meant, where what is named is none; of open pools alone."""
    where = ask.constraints.model_dump(mode="json", exclude_defaults=True)
    unknown = [name for name in ask.constraints.nodes if name not in state.fleet.nodes]
    if not unknown:
        return
    closed = frozenset(closed_pools(market.catalog, tenant))
    names = [
        name
        for name, node in state.fleet.nodes.items()
        if any(device.pool not in closed for device in node.devices.values())
    ]
    for name in nearest(unknown[0], names):
        yield "node meant", f"node {name}", {"constraints": {**where, "nodes": [name]}}


def _constraints(ask: PlaceAsk) -> Iterator[Change]:
    """Without one of its constraints."""
    where = ask.constraints.model_dump(mode="json", exclude_defaults=True)
    for name in ("labels", "nodes", "locations", "clusters", "pools"):
        if where.get(name):
            rest = {key: value for key, value in where.items() if key != name}
            yield f"without {name}", f"without the constraint on {name}", {"constraints": rest}


def _models(state: PlacerState, market: Market, ask: PlaceAsk) -> Iterator[Change]:
    """Another model of the fleet instead of those that it names, the next of kin first."""
    need = ask.accelerator
    if need is None or not (need.models or need.families or need.vendors):
        return
    wide = need.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    for name in ("models", "families", "vendors"):
        wide.pop(name, None)
    named = [market.catalog.models[m] for m in need.models if m in market.catalog.models]
    families = {spec.family for spec in named} | set(need.families)
    vendors = {spec.vendor for spec in named} | set(need.vendors)
    there = {model for (model, _, _), _ in state.fleet.having() if model}
    others = [
        (spec.family not in families, spec.vendor not in vendors, name)
        for name, spec in market.catalog.models.items()
        if name in there and name not in need.models and spec.kind == need.kind
    ]
    for *_, name in sorted(others)[:MODELS_MAX]:
        yield "model", f"model {name}", {"accelerator": {**wide, "models": [name]}}
    yield "model", "any model that the profile allows", {"accelerator": wide or None}
