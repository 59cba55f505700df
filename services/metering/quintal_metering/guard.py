"""What may be asked through the endpoint: one reading statement, and nothing that leaves the store.

The engine's own read-only mode refuses writes, and settings that would loosen its bounds. What it
does not refuse is refused here: several statements, OUTFILE, and functions that read files or
Python. The text is read as strictly as can be: whatever could be understood in two ways is
refused, so that nothing hides in a comment or a quote. Pure.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

BEGINNINGS: Final = frozenset(
    {"select", "with", "show", "describe", "desc", "explain", "exists", "("}
)
"""What a reading statement begins with."""

FUNCTIONS_ALLOWED: Final = frozenset(
    {"numbers", "numbers_mt", "generate_series", "generateseries", "zeros", "values", "view",
     "null", "format"}
)  # fmt: skip
"""Table functions that read nothing but what they are given."""

FUNCTIONS_REFUSED: Final = frozenset({"file", "python", "catboostevaluate"})
"""Functions beside the table functions that reach out of the store."""

FORMATS: Final = frozenset(
    {"Native", "TabSeparated", "TabSeparatedWithNames", "TabSeparatedWithNamesAndTypes", "TSV",
     "TSVWithNames", "TSVWithNamesAndTypes", "CSV", "CSVWithNames", "JSON", "JSONCompact",
     "JSONStrings", "JSONEachRow", "JSONCompactEachRow", "JSONCompactEachRowWithNamesAndTypes",
     "RowBinary", "RowBinaryWithNames", "RowBinaryWithNamesAndTypes", "Arrow", "ArrowStream",
     "Parquet", "Pretty", "PrettyCompact", "Vertical", "Values", "Null"}
)  # fmt: skip

READONLY, SYNTAX, UNKNOWN_FORMAT, NO_DATABASE = 164, 62, 73, 81
"""The engine's own numbers for what is refused here."""

_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r\n]+ | --[^\n]*(?:\n|$) | /\*.*?\*/)
      | (?P<string>'(?:[^'\\]|\\.|'')*')
      | (?P<quoted>`(?:[^`\\]|\\.|``)*` | "(?:[^"\\]|\\.|"")*")
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>[0-9][0-9A-Za-z_.]*)
      | (?P<sign>[!%&()*+,\-.:;<=>?@\[\]^{|}~]|/(?!\*))""",
    re.VERBOSE | re.DOTALL,
)


class NotAllowed(Exception):  # noqa: N818 - the trade says it so
    """The statement is refused; `code` is the engine's number for that."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement that may be asked."""

    text: str
    format: str
    streams: bool = False
    """Whether the engine gives its answer block by block."""


def statement(text: str, default_format: str, functions: Collection[str] = ()) -> Statement:
    """The statement and its format; `functions` are the engine's table functions.

    Raises NotAllowed.
    """
    tokens = _tokens(text)
    while tokens and tokens[-1][1] == ";":
        tokens.pop()
    if not tokens:
        raise NotAllowed(SYNTAX, "an empty query")
    if any(said == ";" for _, said, _ in tokens):
        raise NotAllowed(SYNTAX, "several statements in one query are refused")
    if tokens[0][1].casefold() not in BEGINNINGS:
        raise NotAllowed(READONLY, f"{tokens[0][1]} is refused: this endpoint only reads")
    if any(kind == "word" and token.casefold() == "into" for kind, token, _ in tokens):
        raise NotAllowed(READONLY, "INTO is refused: an answer goes to whoever asked")
    refused = {name.casefold() for name in functions} - FUNCTIONS_ALLOWED | FUNCTIONS_REFUSED
    for (kind, token, _), (_, following, _) in itertools.pairwise(tokens):
        name = token[1:-1] if kind == "quoted" else token
        if following == "(" and kind in {"word", "quoted"} and name.casefold() in refused:
            raise NotAllowed(READONLY, f"function {name} is refused: it leaves the store")
    end = tokens[-1][2] + len(tokens[-1][1])
    streams = tokens[0][1].casefold() in {"select", "with"}
    return Statement(text[:end], _format(tokens, default_format), streams)


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """(kind, token, where), without space and comments."""
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise NotAllowed(SYNTAX, f"{text[at]!r} at {at} is refused outside of a quote")
        if match.lastgroup != "space":
            found.append((match.lastgroup, match[0], at))
        at = match.end()
    return found


def _format(tokens: list[tuple[str, str, int]], default: str) -> str:
    last = [token for _, token, _ in tokens[-2:]]
    named = last[0].casefold() == "format" and tokens[-1][0] == "word"
    chosen = last[-1] if named and len(last) == 2 else default  # noqa: PLR2004 - a pair
    if chosen not in FORMATS:
        raise NotAllowed(UNKNOWN_FORMAT, f"format {chosen} is not given out here")
    return chosen
