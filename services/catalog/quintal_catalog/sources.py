"""From YAML text to plain values, each with the line it stands on.

A catalog file is written by people and read by a service that many depend on, so what YAML can do
beyond plain documents is refused by name: anchors, aliases, merges, tags, duplicate keys. Nesting
is bounded before a tree is built, since deep brackets would exhaust the stack of whoever builds
it. Numbers with a point become Decimal and never pass through a float; `no`, `on` and `2025-01-01`
stay the text that somebody wrote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import yaml

from quintal.contracts.catalog import Fault, SourceFile

BYTES_MAX: Final = 1_048_576
"""Of one file: what one message carries."""

DEPTH_MAX: Final = 32
"""Of nesting; the deepest kind of document needs 7."""

Path = tuple[str | int, ...]

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml reads a large file some ten times faster; without it the same rules hold."""


class _Loader(_Base):  # type: ignore[misc]  # chosen at run time
    """Safe, and with the few plain scalars that YAML 1.2's core has."""

    yaml_implicit_resolvers: Mapping[str, Any] = {}


def _decimal(loader: Any, node: Any) -> Decimal:
    return Decimal(loader.construct_scalar(node))


def _integer(loader: Any, node: Any) -> int:
    return int(loader.construct_scalar(node))


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]{1,30}$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]{1,30}\.[0-9]{0,30}|\.[0-9]{1,30})$"),
    list("-+0123456789."),
)
_Loader.add_constructor("tag:yaml.org,2002:float", _decimal)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


@dataclass(frozen=True, slots=True)
class Source:
    """One YAML document as read: its values, and where each stands."""

    file: str
    data: Any
    lines: Mapping[Path, int] = field(default_factory=dict)

    def line(self, path: Path = ()) -> int | None:
        """The line of this path, or of the nearest thing around it that has one."""
        for length in range(len(path), -1, -1):
            if (line := self.lines.get(path[:length])) is not None:
                return line
        return None


def read(file: SourceFile) -> tuple[list[Source], list[Fault]]:
    """The documents of a file, and what is wrong with it as YAML; empty documents are skipped."""
    size = len(file.text.encode())
    if size > BYTES_MAX:
        return [], [_fault(file, None, f"the file has {size} bytes; at most {BYTES_MAX} are read")]
    try:
        if (refusal := _forbidden(file)) is not None:
            return [], [refusal]
        return _documents(file)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line = mark.line + 1 if mark else None
        return [], [_fault(file, line, f"this is no YAML: {exc.problem or exc.context}")]
    except yaml.YAMLError as exc:
        return [], [_fault(file, None, f"this is no YAML: {exc}")]


def _forbidden(file: SourceFile) -> Fault | None:
    """The first anchor, alias, tag or too deep nesting; found before any tree is built."""
    depth = 0
    for event in yaml.parse(file.text, Loader=_Loader):
        mark: Any = event.start_mark
        line = mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            return _fault(file, line, f"the alias *{event.anchor} is refused: write it out")
        if isinstance(event, yaml.NodeEvent) and event.anchor:
            return _fault(file, line, f"the anchor &{event.anchor} is refused: write it out")
        if (tag := getattr(event, "tag", None)) is not None:
            return _fault(file, line, f"the tag {tag} is refused")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_MAX:
            return _fault(file, line, f"nested deeper than {DEPTH_MAX} levels")
    return None


def _documents(file: SourceFile) -> tuple[list[Source], list[Fault]]:
    sources: list[Source] = []
    faults: list[Fault] = []
    loader = _Loader(file.text)
    try:
        while loader.check_node():
            lines: dict[Path, int] = {}
            node = loader.get_node()
            if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
                continue
            found = [_fault(file, line, message) for line, message in _map(node, (), lines)]
            faults.extend(found)
            if not found:
                sources.append(Source(file.path, loader.construct_document(node), lines))
    finally:
        loader.dispose()
    return sources, faults


def _map(node: yaml.Node, path: Path, lines: dict[Path, int]) -> list[tuple[int, str]]:
    """Fill in the line of every path below `node`; gives what is wrong with the keys."""
    lines.setdefault(path, node.start_mark.line + 1)
    wrong: list[tuple[int, str]] = []
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            wrong += _map(item, (*path, index), lines)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                wrong.append((line, "a key is plain text; merges are refused"))
                continue
            at = (*path, key.value)
            if at in lines:
                wrong.append(
                    (line, f"the key {key.value!r} stands twice, first in line {lines[at]}")
                )
                continue
            key.tag = "tag:yaml.org,2002:str"
            lines[at] = line
            wrong += _map(value, at, lines)
    return wrong


def _fault(file: SourceFile, line: int | None, message: str) -> Fault:
    return Fault(file=file.path, line=line, message=message)
