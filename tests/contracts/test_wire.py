"""Golden messages: what an older release said must still be understood, and mean the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from quintal.contracts import ledger
from quintal.contracts.nodes import Inventory
from quintal.contracts.placement import PlaceAsk
from tests.contracts.wire_samples import WIRE, kinds

KINDS = kinds()
GOLDEN = sorted(path.name.removesuffix(".json") for path in WIRE.glob("*.json"))


@pytest.mark.parametrize("name", sorted(KINDS))
def test_each_kind_of_message_has_a_golden_one(name: str) -> None:
    assert (WIRE / f"{name}.json").is_file(), "run tests/contracts/wire_samples.py"


@pytest.mark.parametrize("name", GOLDEN)
def test_an_old_message_still_parses_and_loses_nothing(name: str) -> None:
    adapter, _ = KINDS[name]
    golden = json.loads((WIRE / f"{name}.json").read_text())
    said_again = json.loads(adapter.dump_json(adapter.validate_python(golden)))
    assert_within(golden, said_again, name)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_field_from_the_future_is_refused_in_a_request_and_ignored_elsewhere(name: str) -> None:
    adapter, _ = KINDS[name]
    golden = json.loads((WIRE / f"{name}.json").read_text())
    text = json.dumps({**golden, "from_the_future": 1})
    if name.endswith(".ask"):
        with pytest.raises(ValidationError, match="from_the_future"):
            adapter.validate_json(text)
    else:
        assert adapter.validate_json(text) == adapter.validate_python(golden)


def assert_within(old: object, new: object, where: str) -> None:
    """All that the old message said is in the new one; the new one may say more."""
    if isinstance(old, dict):
        assert isinstance(new, dict), where
        for key, value in old.items():
            assert key in new, f"{where}.{key}"
            assert_within(value, new[key], f"{where}.{key}")
    elif isinstance(old, list):
        assert isinstance(new, list), where
        assert len(old) == len(new), where
        for index, value in enumerate(old):
            assert_within(value, new[index], f"{where}[{index}]")
    else:
        assert old == new, where


def test_no_field_of_an_answer_must_be_there_that_may_be_unknown() -> None:
    """What is unknown is left out on the wire: a reader that insists on it reads nothing at all."""
    missing = [
        f"{model.__name__}.{name}"
        for kind, (_, made) in KINDS.items()
        if not kind.startswith("LEDGER")
        for model in models_in(made)
        for name, field in model.model_fields.items()
        if field.is_required() and type(None) in get_args(field.annotation)
    ]
    assert missing == []


def models_in(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
        for field in kind.model_fields.values():
            if field.annotation is not kind:
                yield from models_in(field.annotation)
    for argument in get_args(kind):
        yield from models_in(argument)


@pytest.mark.parametrize(
    "more",
    [
        {"labels": {"a": "x" * 129}},
        {"constraints": {"clusters": [f"c{n}" for n in range(65)]}},
        {"constraints": {"nodes": [f"n{n}" for n in range(257)]}},
        {"constraints": {"labels": {"a": "x" * 129}}},
        {"node": {"labels": {f"k{n}": "v" for n in range(33)}}},
        {"accelerator": {"features": ["x" * 60_000]}},
        {"accelerator": {"memory": "9" * 65 + "GB"}},
        {"wait": {"mode": "queue", "deadline_ms": 2**53 - 1}},
    ],
)
def test_a_request_that_is_kept_in_the_ledger_is_never_a_page(more: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PlaceAsk.model_validate({"request_id": "r", "profile": "p", **more})


@pytest.mark.parametrize(
    "wrong",
    [
        {
            "devices": [
                {"uuid": f"u{n}", "index": n, "vendor": "v", "name": "n"} for n in range(513)
            ]
        },
        {"devices": [{"uuid": "", "index": 0, "vendor": "v", "name": "n"}]},
        {"devices": [{"uuid": "c", "index": 0, "vendor": "cpu", "name": "n", "cores": 10**12}]},
        {"memory_bytes": -5},
        {"memory_bytes": 10**30},
        {"labels": {f"k{n}": "v" for n in range(257)}},
    ],
)
def test_what_no_machine_has_is_no_inventory(wrong: dict[str, Any]) -> None:
    body = {"node": "n1", "boot_id": "b", "sequence": 1, "at_ms": 1, **wrong}
    with pytest.raises(ValidationError):
        Inventory.model_validate(body)


def test_a_ledger_written_under_other_bounds_is_still_read() -> None:
    """An old record that is too long for today, and a newer writer's field, make no poison."""
    request = {
        "request_id": "r",
        "profile": "p",
        "labels": {"k": "x" * 5_000},
        "wait": {"mode": "queue", "deadline_ms": 7, "fresh": 1},
        "accelerator": {"memory": "80", "vendors": ["v" * 300]},
        "field_of_a_later_release": [1],
    }
    body = {
        "epoch": 1,
        "writer": "placer-1",
        "group": 1,
        "expected": 0,
        "transitions": [
            {
                "kind": "queued",
                "at_ms": 1,
                "lease": "l1-1",
                "tenant": "t",
                "request": request,
                "deadline_ms": 2,
            }
        ],
    }
    group = ledger.GROUP.validate_python(body)
    (record,) = group.transitions
    assert isinstance(record, ledger.LeaseQueued)
    assert record.request.labels == {"k": "x" * 5_000}
    assert record.request.wait.mode == "queue"
    assert record.request.accelerator is not None
    assert record.request.accelerator.vendors == ("v" * 300,)
    assert ledger.GROUP.validate_json(ledger.GROUP.dump_json(group)) == group
