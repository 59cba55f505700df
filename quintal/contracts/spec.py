"""What every kind of document rests on: strict fields, classes of work, ranges as written."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from quintal.contracts.message import Message
from quintal.units import CLASSES, parse_bytes

WorkloadClass = Literal[
    "train_llm", "train_other", "llm_large", "llm_small", "llm_decode", "vision", "scientific"
]

Provenance = Literal["operator", "measured", "benchmark", "derived", "roofline"]
"""Where a rating comes from, best first: an explicit override, this site's own measurement, a
published benchmark, a slice derived from its parent, the roofline formula."""

CountRange = Annotated[str, Field(pattern=r"^\d+$|^\d*\.\.\d*$")]
"""`4`, `1..8`, `4..`, `..8`: both ends belong to it."""


class Spec(Message):
    """The body of a document. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


def count_range(text: str) -> tuple[int, int | None]:
    """`1..8` as (1, 8); a missing end is 1 or None. Raises ValueError on an empty range."""
    low, dots, high = text.partition("..")
    least = int(low) if low else 1
    most = (int(high) if high else None) if dots else least
    if most is not None and most < least:
        raise ValueError(f"{text!r} is empty: its end lies below its start")
    return least, most


def memory_range(text: str) -> tuple[int, int | None]:
    """`80GB..`, `24GiB..48GiB`, `80GB` (at least) as bytes (low, high or None)."""
    low, _, high = text.partition("..")
    return (parse_bytes(low) if low else 0), (parse_bytes(high) if high else None)


def check_class_names() -> None:
    """The literal above and `units.CLASSES` are one list; a test calls this."""
    if WorkloadClass.__args__ != CLASSES:  # type: ignore[attr-defined]
        raise AssertionError("WorkloadClass and units.CLASSES differ")
