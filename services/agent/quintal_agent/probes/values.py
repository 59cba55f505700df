"""From a tool's text to a value with a quality: the one table of words that are no numbers.

Three rules. A word is never a number: it becomes none, with the reason as its quality and itself
as `raw`. A number outside its quantity's range is dropped, not clamped: all-ones registers and
float sentinels must not become readings. The unit comes from the text, never from memory.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final

from quintal_agent.probes.probe import Quality, Value

_CANNOT: Final = frozenset(
    {
        "", "n/a", "na", "-", "none", "null", "not supported", "function not found",
        "requested functionality has been deprecated", "unsupported",
    }
)  # fmt: skip

_MISSING: Final = frozenset(
    {
        "insufficient permissions", "no permission", "gpu is lost", "err!", "error",
        "unknown error", "gpu requires reset", "not available", "timeout", "unknown",
    }
)  # fmt: skip

LOST: Final = frozenset({"gpu is lost"})

_UNITS: Final[dict[str, int | Decimal]] = {
    "": 1, "%": 1, "w": 1, "c": 1, "j": 1, "v": 1, "rpm": 1, "x": 1,
    "mw": Decimal("0.001"), "kw": 1000, "mj": Decimal("0.001"), "uj": Decimal("0.000001"),
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "hz": 1, "khz": 10**3, "mhz": 10**6, "ghz": 10**9,
    "us": Decimal("0.000001"), "ms": Decimal("0.001"), "s": 1,
}  # fmt: skip

_NUMBER: Final = re.compile(r"^([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z%]*)$")

_RANGES: Final[dict[str, tuple[float, float]]] = {
    "percent": (0, 100),
    "watts": (0, 5_000),
    "celsius": (-50, 200),
    "joules": (0, 1e15),
    "hertz": (0, 1e11),
    "bytes": (0, 2**50),
    "count": (0, 2**53),
}
"""By the last word of the reading's name, which is its unit."""


def quality_of(text: str) -> Quality | None:
    """The quality that a word stands for; none where the text may be a number."""
    word = text.strip().strip("[]").strip().casefold()
    if word in _CANNOT:
        return "unsupported"
    if word in _MISSING or word.startswith("not available"):
        return "unavailable"
    return None


def is_lost(text: str | None) -> bool:
    """Whether the tool says that the device has fallen off its bus."""
    return text is not None and text.strip().strip("[]").casefold() in LOST


def read(name: str, text: str | None) -> Value:
    """The text of the reading `name` (`power_watts`, ...) as a value in the name's unit.

    None stands for a field that the tool does not print: the device or driver cannot.
    """
    if text is None:
        return Value(quality="unsupported")
    word = quality_of(text)
    if word is not None:
        return Value(quality=word, raw=text.strip())
    number = _number(text)
    if number is None:
        return Value(quality="unavailable", raw=text.strip())
    return checked(name, number, text.strip())


def checked(name: str, value: float | None, raw: str | None = None) -> Value:
    """A number that stands in its quantity's range, or none with `out_of_range`."""
    if value is None:
        return Value(quality="unavailable", raw=raw)
    low, high = _RANGES.get(name.rpartition("_")[2], (float("-inf"), float("inf")))
    if not low <= value <= high:
        return Value(quality="out_of_range", raw=raw or repr(value))
    return Value(value)


def size(text: str | None) -> int | None:
    """Bytes of a text such as `81559 MiB`; none where it is no size."""
    value = read("size_bytes", text).value
    return None if value is None else int(value)


def _number(text: str) -> float | int | None:
    match = _NUMBER.match(text.strip())
    if match is None:
        return None
    factor = _UNITS.get(match[2].casefold())
    if factor is None:
        return None
    try:
        exact = Decimal(match[1]) * factor
    except InvalidOperation:
        return None
    return int(exact) if exact == exact.to_integral_value() else float(exact)
