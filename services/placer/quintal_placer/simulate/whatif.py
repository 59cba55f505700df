"""The same trace over another fleet, or other requests: what a change would bring.

add COUNT NODE             so many nodes more, each like this one (a node's name, or a model)
drain POOL                 without the nodes of this pool (or of this model)
profile NAME KEY=VALUE..   what asks by this profile asks for this instead
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from quintal.errors import SetupError
from quintal_placer.simulate.trace import NodeLine, RequestLine

_KEYS: Final = ("cards", "parts", "cpu_milli", "memory_bytes", "wait_ms", "duration_ms")

World = tuple[list[NodeLine], list[RequestLine]]


def changed(nodes: Sequence[NodeLine], requests: Sequence[RequestLine], change: str) -> World:
    """Fleet and requests after one change. Raises SetupError where it says nothing sensible."""
    match change.split():
        case ["add", count, like] if count.isdigit():
            return _added(nodes, int(count), like), list(requests)
        case ["drain", where]:
            left = [line for line in nodes if where not in {line.pool, line.model}]
            if len(left) == len(nodes):
                raise SetupError(f"what-if drain {where}: no node is of that pool or model")
            if not left:
                raise SetupError(f"what-if drain {where}: no node would be left")
            return left, list(requests)
        case ["profile", name, *pairs] if pairs:
            return list(nodes), _profiled(requests, name, pairs)
    raise SetupError(
        f"what-if {change!r}: say 'add COUNT NODE', 'drain POOL' or 'profile NAME KEY=VALUE'"
    )


def _added(nodes: Sequence[NodeLine], count: int, like: str) -> list[NodeLine]:
    found = next((line for line in nodes if line.name == like), None) or max(
        (line for line in nodes if line.model == like), key=lambda line: line.cards, default=None
    )
    if found is None:
        raise SetupError(f"what-if add: no node or model {like} in the fleet")
    more = [replace(found, name=f"{found.name}-more-{number}") for number in range(count)]
    return [*nodes, *more]


def _profiled(
    requests: Sequence[RequestLine], name: str, pairs: Sequence[str]
) -> list[RequestLine]:
    values: dict[str, int] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in _KEYS or not value.isdigit():
            raise SetupError(f"what-if profile: {pair}: give one of {', '.join(_KEYS)} a number")
        values[key] = int(value)
    if not any(line.profile == name for line in requests):
        raise SetupError(f"what-if profile {name}: no request is of that profile")
    return [
        replace(line, **values) if line.profile == name else line  # type: ignore[arg-type]
        for line in requests
    ]
