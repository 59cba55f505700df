"""Writes a golden message for each kind that has none yet; never touches one that is there.

    python tests/contracts/sample.py

A golden message is what an older release may have said: it is committed once and stays.
"""

from __future__ import annotations

import json
import types
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter

from quintal.contracts import ledger
from quintal.contracts.message import Refusal
from quintal.contracts.subjects import publications, requests

WIRE = Path(__file__).parent / "wire"

KNOWN: dict[str, Any] = {
    "memory": "80GB..",
    "taint": "maintenance",
    "vendor": "nvidia",
    "model": "nvidia-h100-sxm5-80gb",
    "month": "2026-01",
    "at": "2026-01-02T03:04:05Z",
    "unit_hours": "1.500000",
    "unit_seconds": "5400.000000",
    "text": "kind: Tenant",
    "stretch_ms": 3_600_000,
}
LEFT_OUT = {
    ("PlaceAsk", "alternatives"),
    ("AdoptAsk", "profile"),
    ("FitAsk", "file"),
    ("FitAsk", "pool"),
    ("FitAsk", "stack"),
    ("PortabilityAsk", "file"),
    ("CanRunAsk", "pool"),
}
SPECS = {
    "kind": "Tenant",
    "apiVersion": "quintal/v1",
    "metadata": {"name": "vision"},
    "spec": {"projects": ["p1"]},
}


def kinds() -> dict[str, tuple[TypeAdapter[Any], Any]]:
    """Every kind of message on the wire: name -> (what reads it, the type to make up)."""
    found: dict[str, tuple[TypeAdapter[Any], Any]] = {}
    for name, publication in publications():
        if name != "LEDGER":
            found[f"{name}.message"] = (publication.message, publication.message._type)
    for name, request in requests():
        found[f"{name}.ask"] = (request.ask, request.ask._type)
        for answer in _members(request.answer._type):
            if answer is not Refusal:
                found[f"{name}.answer.{answer.__name__}"] = (request.answer, answer)
    found["ANY.answer.Refusal"] = (TypeAdapter(Refusal), Refusal)
    for record in _members(ledger.Transition):
        found[f"LEDGER.{record.model_fields['kind'].default}"] = (ledger.GROUP, record)
    return found


def _members(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    if get_origin(kind) in {Union, types.UnionType}:
        return tuple(one for part in get_args(kind) for one in _members(part))
    return (kind,)


def made_up(name: str, kind: Any) -> Any:
    value = _model(kind)
    if name.startswith("LEDGER."):
        group = {"epoch": 3, "writer": "placer-1", "group": 7, "expected": 41}
        return {**group, "transitions": [value]}
    return value


def _model(kind: type[BaseModel]) -> dict[str, Any]:
    if kind.__name__ == "Document":
        return SPECS
    return {
        field.serialization_alias or field.alias or name: _value(name, field.annotation)
        for name, field in kind.model_fields.items()
        if (kind.__name__, name) not in LEFT_OUT
    }


def _value(name: str, kind: Any) -> Any:  # noqa: PLR0911 - a case per sort of type
    origin, args = get_origin(kind), get_args(kind)
    if name in KNOWN and kind is type(KNOWN[name]):
        return KNOWN[name]
    if origin is Annotated:
        return _value(name, args[0])
    if origin in {Union, types.UnionType}:
        return _value(name, next(arg for arg in args if arg is not type(None)))
    if origin is Literal:
        return args[0]
    if origin is tuple:
        return [_value("", arg) for arg in args if arg is not ...]
    if origin is dict:
        return {"key": _value("", args[1])}
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _model(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind)).value
    if kind is bool:
        return True
    if kind is int:
        return 60_000 if "ms" in name.split("_") else 2
    if kind is Decimal:
        return "1.500000"
    return 1.5 if kind is float else "n1"


def main() -> None:
    WIRE.mkdir(exist_ok=True)
    for name, (adapter, kind) in kinds().items():
        path = WIRE / f"{name}.json"
        if path.exists():
            continue
        text = json.dumps(made_up(name, kind))
        read = adapter.validate_json(text)
        path.write_text(
            json.dumps(json.loads(adapter.dump_json(read, by_alias=True)), indent=1) + "\n"
        )
        print(path.name)


if __name__ == "__main__":
    main()
