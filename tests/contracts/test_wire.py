"""Golden messages: what an older release said must still be understood, and mean the same."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

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
