"""The name that was probably meant."""

from __future__ import annotations

import difflib
from typing import Any

import pytest

from quintal import names


def test_of_very_many_names_a_word_is_held_against_those_that_begin_like_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten thousand nodes, letter by letter, kept everybody waiting for a quarter of a second."""
    close, sizes = difflib.get_close_matches, []

    def counted(word: str, known: list[str], *more: Any) -> list[str]:
        sizes.append(len(known))
        return close(word, known, *more)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    nodes = [f"gpu-node-{n:05d}" for n in range(10_000)]
    assert names.nearest("gpu-node-07a31", nodes) == ["gpu-node-07931"]
    assert names.nearest("gpu-node-99999", nodes) == ["gpu-node-09999"]
    assert names.nearest("aaa", nodes) == []
    assert max(sizes) <= names.LIKENED_MAX
