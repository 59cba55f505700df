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
        "unknown error", "gpu requires reset", "not available", "timeout", "unknown", "abnormal",
        "permission denied", "no data",
    }
)  # fmt: skip

LOST: Final = frozenset({"gpu is lost"})

_UNITS: Final[dict[str, int | Decimal]] = {
    "": 1, "%": 1, "w": 1, "c": 1, "°c": 1, "\u2103": 1, "j": 1, "v": 1, "rpm": 1, "x": 1,
    "mw": Decimal("0.001"), "kw": 1000, "mj": Decimal("0.001"), "uj": Decimal("0.000001"),
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "mv": Decimal("0.001"),
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "hz": 1, "khz": 10**3, "mhz": 10**6, "ghz": 10**9,
    "us": Decimal("0.000001"), "ms": Decimal("0.001"), "s": 1,
}  # fmt: skip

_NUMBER: Final = re.compile(r"^([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z%°\u2103]*)$")

_RANGES: Final[dict[str, tuple[float, float]]] = {
    "percent": (0, 100),
    "watts": (0, 5_000),
    "celsius": (-50, 200),
    "joules": (0, 1e15),
    "hertz": (0, 2e10),
    "bytes": (0, 2**50),
    "count": (0, 2**53),
}
"""By the last word of the reading's name, which is its unit."""

_NEVER_ZERO: Final = frozenset(
    {
        "power_watts", "power_limit_watts", "temperature_celsius", "memory_temperature_celsius",
        "hotspot_temperature_celsius", "energy_joules", "sm_clock_max_hertz",
    }
)  # fmt: skip
"""What a device that runs cannot be at exactly; tools print it where they know nothing."""

_ALL_ONES: Final = frozenset({2**16 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1})
_COUNTED: Final = frozenset({"bytes", "count", "joules"})
"""Quantities in which 65535 may be a number like any other."""


def quality_of(text: str) -> Quality | None:
    """The quality that a word stands for; none where the text may be a number."""
    word = text.strip().strip("[]").strip().casefold()
    if word in _CANNOT or word.startswith("n/a "):
        # `N/A (Secondary die)`: the number stands on the first die.
        return "unsupported"
    if word in _MISSING or word.startswith("not available"):
        return "unavailable"
    return None


def is_lost(text: str | None) -> bool:
    """Whether the tool says that the device has fallen off its bus."""
    return text is not None and text.strip().strip("[]").casefold() in LOST


def read(name: str, text: str | None, unit: str = "") -> Value:
    """The text of the reading `name` (`power_watts`, ...) as a value in the name's unit.

    None stands for a field that the tool does not print: the device or driver cannot. `unit` is
    the one of the key or header, for a cell that has none of its own.
    """
    if text is None:
        return Value(quality="unsupported")
    word = quality_of(text)
    if word is not None:
        return Value(quality=word, raw=text.strip())
    number = _number(text, unit)
    if number is None:
        return Value(quality="unavailable", raw=text.strip())
    printed = _number(re.sub(r"[^\d.+-].*$", "", text.strip()), "")
    if printed in _ALL_ONES and (printed != _SHORT or name.rpartition("_")[2] not in _COUNTED):
        return Value(quality="out_of_range", raw=text.strip())
    return checked(name, number, text.strip())


def read_json(name: str, value: object, unit: str = "") -> Value:
    """What stands at a JSON key: a number, a text, or an object of `value` and `unit`."""
    if isinstance(value, dict):
        return read_json(name, value.get("value"), str(value.get("unit") or unit))
    if value is None:
        return Value(quality="unsupported")
    if isinstance(value, bool):
        return Value(quality="unavailable", raw=str(value))
    if isinstance(value, int | float | str):
        return read(name, str(value), unit)
    return Value(quality="unavailable", raw=str(value)[:200])


def checked(name: str, value: float | None, raw: str | None = None) -> Value:
    """A number that stands in its quantity's range, or none with `out_of_range`."""
    if value is None:
        return Value(quality="unavailable", raw=raw)
    if value == 0 and name in _NEVER_ZERO:
        return Value(quality="out_of_range", raw=raw or repr(value))
    low, high = _RANGES.get(name.rpartition("_")[2], (float("-inf"), float("inf")))
    if not low <= value <= high:
        return Value(quality="out_of_range", raw=raw or repr(value))
    return Value(value)


def size(text: str | None, unit: str = "") -> int | None:
    """Bytes of a text such as `81559 MiB`; none where it is no size, or 0: memory not there."""
    value = read("size_bytes", text, unit).value
    return int(value) if value else None


_SHORT: Final = 2**16 - 1
_DIGITS_MAX: Final = 40


def _number(text: str, unit: str) -> float | int | None:
    match = _NUMBER.match(text.strip()) if len(text) <= _DIGITS_MAX * 2 else None
    if match is None:
        return None
    factor = _UNITS.get((match[2] or unit).casefold())
    if factor is None:
        return None
    try:
        exact = Decimal(match[1]) * factor
    except InvalidOperation:
        return None
    if not exact.is_finite() or abs(exact.adjusted()) > _DIGITS_MAX:
        return None
    return int(exact) if exact == exact.to_integral_value() else float(exact)
