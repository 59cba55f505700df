"""What a few signs of a request may cost its reader: every placer reads it before it answers."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pydantic import ValidationError

from quintal.contracts.placement import ListAsk, PlaceAsk
from quintal.units import parse_bytes

PLAIN = {"request_id": "r1", "class": "train_llm", "accelerator": {}}


def asked(**more: Any) -> PlaceAsk:
    return PlaceAsk.model_validate_json(json.dumps({**PLAIN, **more}))


@pytest.mark.parametrize("text", ["1E999999", "1E999999B", "9E20", "-80GB", "NaN", "Infinity", ""])
def test_what_no_memory_comes_to_is_no_size(text: str) -> None:
    begin_s = time.process_time()
    with pytest.raises(ValueError, match="is no size"):
        parse_bytes(text)
    assert time.process_time() - begin_s < 1


@pytest.mark.parametrize(
    "need",
    [{"memory": "1E999999.."}, {"memory": "..1E999999"},
     {"share": {"compute_milli": 100, "memory": "1E999999B"}}],
)  # fmt: skip
def test_a_request_cannot_keep_its_reader_busy_with_a_size(need: dict[str, Any]) -> None:
    begin_s = time.process_time()
    with pytest.raises(ValidationError):
        asked(accelerator=need)
    assert time.process_time() - begin_s < 1


@pytest.mark.parametrize("name", ["cpu_milli", "memory_bytes"])
def test_a_node_is_asked_for_no_more_than_a_number_that_all_readers_have(name: str) -> None:
    with pytest.raises(ValidationError):
        asked(node={name: 10**30})


def test_the_states_that_a_list_asks_for_are_few() -> None:
    """Each lease is held against them: thousands times fifty thousand took six seconds."""
    with pytest.raises(ValidationError):
        ListAsk(states=("x",) * 1_000)


def test_sizes_that_people_write_are_read() -> None:
    sizes = {
        "80GB": 80 * 10**9,
        "80 GiB": 80 * 2**30,
        "1024": 1024,
        "0.5TiB": 2**39,
        "1e3MB": 10**9,
    }
    assert {text: parse_bytes(text) for text in sizes} == sizes
