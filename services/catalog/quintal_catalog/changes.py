"""What differs between two sets of documents, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quintal.contracts.catalog import Change
from quintal.contracts.documents import Document
from quintal_catalog.canonical import plain

Key = tuple[str, str]


def changes(before: Mapping[Key, Document], after: Mapping[Key, Document]) -> tuple[Change, ...]:
    """Every document that was added, changed or removed, by kind and name."""
    return tuple(_changes(before, after))


def _changes(before: Mapping[Key, Document], after: Mapping[Key, Document]) -> Iterator[Change]:
    for key in sorted({*before, *after}):
        kind, name = key
        old, new = before.get(key), after.get(key)
        if old is None:
            yield Change(kind=kind, name=name, action="added")
        elif new is None:
            yield Change(kind=kind, name=name, action="removed")
        elif old is not new and old != new:
            yield Change(kind=kind, name=name, action="changed", fields=_fields(old, new))


def _fields(old: Document, new: Document) -> dict[str, tuple[Any, Any]]:
    before, after = dict(_leaves(plain(old))), dict(_leaves(plain(new)))
    return {
        path: (before.get(path), after.get(path))
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    }


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value; a list of plain values is one value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{index}")
    else:
        yield path, value
