"""Standard units as exact integers: micro-units, parts, milliseconds; never a float.

A device has `PARTS` parts. What a lease delivers is `micro_units x parts x ms`, undivided: the
sum of such products over any number of slices is exact, and is divided once, where a person
reads it.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final

MICRO: Final = 1_000_000
"""Micro-units in one standard unit."""

PARTS: Final = 1_000_000
"""Parts of one whole device."""

MS_PER_HOUR: Final = 3_600_000

QUANTITY_PER_UNIT_HOUR: Final = MICRO * PARTS * MS_PER_HOUR
"""The undivided quantity that makes one unit-hour."""

CLASSES: Final = (
    "train_llm",
    "train_other",
    "llm_large",
    "llm_small",
    "llm_decode",
    "vision",
    "scientific",
)
"""The workload classes; each has a unit of its own and nothing converts between them."""

UNIT_NAMES: Final = {"train_llm": "STU", "llm_large": "SIU"}
"""The two classes whose unit has a short name; any other unit is shown by its class's name."""

REFERENCE_PRECISIONS: Final = {
    "train_llm": "bf16",
    "train_other": "bf16",
    "llm_large": "fp8",
    "llm_small": "fp8",
    "llm_decode": "fp8",
    "vision": "int8",
    "scientific": "fp64",
}
"""What a rating without a precision was taken at, and what holds when a request names none."""

_MEMORY_UNITS: Final = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}

BYTES_BEYOND: Final = 2**63
"""More bytes than any memory has."""

_NO_SIZE: Final = "{!r} is no size: write it like 80GB or 80GiB"


def unit_name(workload_class: str) -> str:
    """The name a person reads: STU, SIU, or the class itself."""
    return UNIT_NAMES.get(workload_class, workload_class)


def to_micro(value: Decimal) -> int:
    """`value` in standard units as micro-units. Raises ValueError below one micro-unit's step."""
    micro = value * MICRO
    if micro != micro.to_integral_value():
        raise ValueError(f"{value} has more than 6 decimals")
    return int(micro)


def from_micro(micro: int) -> Decimal:
    """Micro-units as standard units, exact."""
    return Decimal(micro).scaleb(-6)


def unit_hours(quantity: int, places: int = 6) -> Decimal:
    """An undivided quantity (micro-units x parts x ms) as unit-hours, rounded once, half-even."""
    step = Decimal(1).scaleb(-places)
    return (Decimal(quantity) / QUANTITY_PER_UNIT_HOUR).quantize(step, ROUND_HALF_EVEN)


def parse_bytes(text: str) -> int:
    """Bytes from `80GB`, `80 GiB`, `81559 MiB`, `1024`. Raises ValueError naming the text.

    Less than none is no size, nor is what no memory comes to: a text of nine signs (`1E999999`)
    could else be a number of a million digits, and half a minute's work to whoever reads it.
    """
    squeezed = text.replace(" ", "").upper()
    number = squeezed.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = squeezed[len(number) :] or "B"
    try:
        value = Decimal(number) * _MEMORY_UNITS[unit]
        sane = 0 <= value < BYTES_BEYOND
    except (ArithmeticError, KeyError) as exc:
        raise ValueError(_NO_SIZE.format(text)) from exc
    if not sane:
        raise ValueError(_NO_SIZE.format(text))
    return int(value)
