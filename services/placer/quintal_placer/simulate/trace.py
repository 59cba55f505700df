"""Nodes and requests from files: the public trace's CSV as it is, or JSON lines of our own.

Which of the two a file is, its first line says: a header with the trace's columns, or an object.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from quintal.errors import SetupError
from quintal.units import PARTS

MIB: Final = 2**20
_MILLI: Final = PARTS // 1000

_NODE_COLUMNS: Final = {"sn", "cpu_milli", "memory_mib", "gpu", "model"}
_REQUEST_COLUMNS: Final = {"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node of the fleet that is described."""

    name: str
    model: str
    cards: int
    cpu_milli: int = 0
    memory_bytes: int = 0
    pool: str = "fleet"
    card_memory_bytes: int | None = None
    rating_micro: int = 1_000_000
    """Micro-units that one whole card delivers."""
    price_nano: int | None = None
    """Of one whole card for an hour, in 1e-9 of the currency."""


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One request. Where it has no time of its own, the protocol gives it one."""

    name: str
    tenant: str = "all"
    profile: str = ""
    cards: int = 1
    parts: int = PARTS
    """Of its card; less than the whole of one card only."""
    cpu_milli: int = 0
    memory_bytes: int = 0
    models: tuple[str, ...] = ()
    """Admissible ones; empty: any."""
    at_ms: int | None = None
    duration_ms: int | None = None
    """None: it stays."""
    wait_ms: int = 0
    """How long it waits where there is no room; 0: it is dropped."""

    @property
    def asked(self) -> int:
        """Parts of all its cards."""
        return self.cards * self.parts


def nodes(path: Path) -> list[NodeLine]:
    """The fleet. Raises SetupError where a line cannot be read."""
    return _read(path, _NODE_COLUMNS, _openb_node, _node)


def requests(path: Path) -> list[RequestLine]:
    """The requests, in the order of the file. Raises SetupError where a line cannot be read."""
    return _read(path, _REQUEST_COLUMNS, _openb_request, _request)


def _read(
    path: Path,
    columns: set[str],
    from_csv: Callable[[Mapping[str, str]], Row],
    from_json: Callable[[Mapping[str, Any]], Row],
) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise SetupError(f"{path}: cannot be read") from exc
    lines = text.splitlines()
    if lines and lines[0].lstrip().startswith("{"):
        made = list(_made(path, 1, _objects(path, lines), from_json))
    elif lines and columns <= set(lines[0].split(",")):
        made = list(_made(path, 2, csv.DictReader(lines), from_csv))
    else:
        raise SetupError(
            f"{path}: neither JSON lines nor a CSV with the columns {', '.join(sorted(columns))}"
        )
    if not made:
        raise SetupError(f"{path}: no line in it")
    return made


def _objects(path: Path, lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as exc:
                raise SetupError(f"{path}:{number}: not JSON") from exc


def _made(
    path: Path, first: int, rows: Iterable[Mapping[str, Any]], make: Callable[[Any], Row]
) -> Iterator[Row]:
    for number, row in enumerate(rows, first):
        try:
            yield make(row)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
            what = f"no {exc.args[0]}" if isinstance(exc, KeyError) else str(exc)
            raise SetupError(f"{path}:{number}: {what}") from None  # said already


def _openb_node(row: Mapping[str, str]) -> NodeLine:
    return NodeLine(
        name=row["sn"],
        model=row["model"],
        cards=int(row["gpu"]),
        cpu_milli=int(row["cpu_milli"]),
        memory_bytes=int(row["memory_mib"]) * MIB,
    )


def _openb_request(row: Mapping[str, str]) -> RequestLine:
    cards = int(row["num_gpu"])
    milli = int(row["gpu_milli"] or 0) if cards else 1000
    return RequestLine(
        name=row["name"],
        tenant=row.get("qos") or "all",
        profile=row.get("qos") or "",
        cards=cards,
        parts=_parts(cards, milli * _MILLI),
        cpu_milli=int(row["cpu_milli"]),
        memory_bytes=int(row["memory_mib"]) * MIB,
        models=tuple(sorted(set(filter(None, (row.get("gpu_spec") or "").split("|"))))),
    )


def _node(row: Mapping[str, Any]) -> NodeLine:
    rating, price = row.get("rating", 1), row.get("price_per_card_hour")
    return NodeLine(
        name=str(row["name"]),
        model=str(row["model"]),
        cards=int(row["cards"]),
        cpu_milli=int(row.get("cpu_milli", 0)),
        memory_bytes=int(row.get("memory_bytes", 0)),
        pool=str(row.get("pool", "fleet")),
        card_memory_bytes=row.get("card_memory_bytes"),
        rating_micro=round(float(rating) * 1_000_000),
        price_nano=None if price is None else round(float(price) * 10**9),
    )


def _request(row: Mapping[str, Any]) -> RequestLine:
    cards = int(row.get("cards", 1))
    return RequestLine(
        name=str(row.get("name", "")),
        tenant=str(row.get("tenant", "all")),
        profile=str(row.get("profile", "")),
        cards=cards,
        parts=_parts(cards, int(row.get("parts", PARTS))),
        cpu_milli=int(row.get("cpu_milli", 0)),
        memory_bytes=int(row.get("memory_bytes", 0)),
        models=tuple(sorted(set(row.get("models", ())))),
        at_ms=_ms(row.get("at_ms")),
        duration_ms=_ms(row.get("duration_ms")),
        wait_ms=int(row.get("wait_ms", 0)),
    )


def _ms(value: Any) -> int | None:
    return None if value is None else int(value)


def _parts(cards: int, parts: int) -> int:
    if not 0 < parts <= PARTS:
        raise ValueError(f"parts {parts}: 1 to {PARTS} of a card")
    if parts < PARTS and cards != 1:
        raise ValueError("less than a whole card is of one card")
    return parts
