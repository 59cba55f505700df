"""The name that was probably meant."""

from __future__ import annotations

import pytest

from quintal.names import meant, nearest

MODELS = (
    "nvidia-h100-sxm5-80gb",
    "nvidia-h100-pcie-80gb",
    "nvidia-h200-sxm-141gb",
    "amd-mi300x-oam-192gb",
)


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("h100", ["nvidia-h100-pcie-80gb", "nvidia-h100-sxm5-80gb"]),
        ("nvidia-h100", ["nvidia-h100-pcie-80gb", "nvidia-h100-sxm5-80gb"]),
        ("H200", ["nvidia-h200-sxm-141gb"]),
        ("amd-mi300x-oam-192bg", ["amd-mi300x-oam-192gb"]),
        ("h10", []),
        ("", []),
    ],
)
def test_a_part_of_a_name_or_a_slip_of_it_finds_what_was_meant(word: str, names: list[str]) -> None:
    assert nearest(word, MODELS) == names


def test_a_short_name_never_means_one_that_only_holds_its_letters() -> None:
    assert nearest("h20", MODELS) == []  # h200 is another model


def test_the_sentence_ends_with_what_was_meant_or_with_nothing() -> None:
    assert meant("h200", MODELS) == "; did you mean 'nvidia-h200-sxm-141gb'?"
    assert meant("xyz", MODELS) == ""
