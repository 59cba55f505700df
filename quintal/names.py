"""The name that was probably meant: one way to suggest, wherever a name is not known. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

SUGGESTED_MAX: Final = 3

_TOKEN: Final = re.compile(r"[^a-z0-9]+")


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """At most three known names that `word` may stand for, the likeliest first.

    A name that was cut short (`nvidia-h100`), or of which the distinctive part was given (`h100`),
    means one that has these words whole; only where none has them, one that looks alike.
    """
    names = sorted(set(known))
    wanted = _tokens(word)
    whole = [name for name in names if wanted and _has(_tokens(name), wanted)]
    if whole:
        return sorted(whole, key=lambda name: (len(name), name))[:SUGGESTED_MAX]
    by_fold = {name.casefold(): name for name in names}
    close = difflib.get_close_matches(word.casefold(), list(by_fold), 1)
    return [by_fold[close[0]]] if close else []


def meant(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` to end a sentence with, or nothing."""
    found = [repr(name) for name in nearest(word, known)]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _tokens(text: str) -> list[str]:
    return [token for token in _TOKEN.split(text.casefold()) if token]


def _has(tokens: list[str], wanted: list[str]) -> bool:
    """Whether `wanted` lies in `tokens` in one run."""
    size = len(wanted)
    return any(tokens[at : at + size] == wanted for at in range(len(tokens) - size + 1))
