"""What a faulty document still says, without the places where its faults lie.

A set is refused for its first fault already; but whoever writes it wants all of them at once, and
a field misspelt must not hide a price below zero beside it, nor make every document that names
this one look wrong. So the rest is read and judged too. It is never applied.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quintal_catalog.sources import Path


@dataclass(frozen=True, slots=True)
class Mended:
    """What is left, and which items of which lists it is."""

    data: Any
    kept: Mapping[Path, tuple[int, ...]]

    def written(self, path: Path) -> Path:
        """The path in the document as it was written, from one in what is left."""
        found: list[str | int] = []
        for part in path:
            its = self.kept.get(tuple(found))
            found.append(its[part] if its is not None and isinstance(part, int) else part)
        return tuple(found)


def mended(data: Any, wrong: Iterable[tuple[Path, bool]]) -> Mended:
    """`data` without what is wrong: (path, whether the field itself has no business there)."""
    left = copy.deepcopy(data)
    kept: dict[Path, list[int]] = {}
    items: set[Path] = set()
    for path, foreign in wrong:
        known = _known(data, path)
        lists = [index for index, part in enumerate(known) if isinstance(part, int)]
        if foreign or not lists:
            _drop(left, known)
        else:
            items.add(known[: lists[-1] + 1])
    for item in sorted(items, key=lambda path: [str(part).zfill(6) for part in path], reverse=True):
        *above, index = item
        parent = _at(left, tuple(above))
        if isinstance(parent, list) and isinstance(index, int) and index < len(parent):
            rest = kept.setdefault(tuple(above), list(range(len(parent))))
            del parent[index], rest[index]
    return Mended(left, {path: tuple(rest) for path, rest in kept.items()})


def _known(data: Any, path: Path) -> Path:
    """As far as the path leads into the data: a fault may name what is only in the model."""
    found: list[str | int] = []
    for part in path:
        listed = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if not listed and not (isinstance(data, dict) and part in data):
            break
        data = data[part]
        found.append(part)
    return tuple(found)


def _at(data: Any, path: Path) -> Any:
    for part in path:
        data = data[part]
    return data


def _drop(data: Any, path: Path) -> None:
    if path:
        parent = _at(data, path[:-1])
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
