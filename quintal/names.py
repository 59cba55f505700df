"""The name that was probably meant: one way to suggest, wherever a name is not known. Pure."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

SUGGESTED_MAX: Final = 3

LIKENED_MAX: Final = 256
"""Names that one word is held against letter by letter."""

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
    by_fold = {name.casefold(): name for name in _around(word, names)}
    close = difflib.get_close_matches(word.casefold(), list(by_fold), 1)
    return [by_fold[close[0]]] if close else []


def _around(word: str, names: list[str]) -> list[str]:
    """All of these sorted names; of very many, those that begin most like the word.

    To hold a word against ten thousand names letter by letter takes a quarter of a second.
    """
    at = max(0, bisect_left(names, word) - LIKENED_MAX // 2)
    return names[max(0, min(at, len(names) - LIKENED_MAX)) :][:LIKENED_MAX]


def meant(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` to end a sentence with, or nothing."""
    found = [repr(name) for name in nearest(word, known)]
    return f"; did you mean {' or '.join(found)}?" if found else ""


@lru_cache(maxsize=32_768)
def _tokens(text: str) -> tuple[str, ...]:
    return tuple(token for token in _TOKEN.split(text.casefold()) if token)


def _has(tokens: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether `wanted` lies in `tokens` in one run."""
    size = len(wanted)
    return any(tokens[at : at + size] == wanted for at in range(len(tokens) - size + 1))
