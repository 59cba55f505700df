"""Tables that a tool draws for people: groups of rows between rules, cells found by their header.

Most vendors' tools print such a table, one group of two or three rows per device. A cell is
looked up by the header that stands above it; within a cell, values are told by their order in the
header or by their unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from quintal_agent.probes import captured, values
from quintal_agent.probes.probe import Process, Value

Group = list[list[str]]
"""The rows between two rules, each a list of cells."""

_BOX: Final = str.maketrans("│┃║", "|||")
_SIDE: Final = r"(\d[\d.]*\s?(?:[KMGT]i?[bB]|B|W)?\b|[^\s/]+)"
_PAIR: Final = re.compile(rf"^\s*{_SIDE}\s*/\s*{_SIDE}")
_HIDDEN: Final = "N\u2215A"
"""`N/A` without its slash, which would part a pair."""
_UNIT: Final = re.compile(r"[A-Za-z]+$")


def groups(said: str) -> Iterator[Group]:
    """The groups of bordered rows, in order."""
    group: Group = []
    for line in said.translate(_BOX).splitlines():
        body = line.strip()
        if captured.is_rule(body):
            if group:
                yield group
            group = []
        elif body.startswith("|"):
            group.append([cell.strip() for cell in body.strip("|").split("|")])
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table's headers and the groups of cells below them."""

    heads: Group
    groups: tuple[Group, ...]

    def cell(self, group: Group, word: str) -> str | None:
        """The cell under the header that has the word; none where no header has it."""
        place = self.place(word)
        if place is None:
            return None
        row, column = place
        return group[row][column] if row < len(group) and column < len(group[row]) else None

    def place(self, word: str) -> tuple[int, int] | None:
        """Row and column of the header that has the word."""
        for row, cells in enumerate(self.heads):
            for column, head in enumerate(cells):
                if word.casefold() in head.casefold():
                    return row, column
        return None

    def head(self, word: str) -> str:
        """The whole header that has the word."""
        place = self.place(word)
        return "" if place is None else self.heads[place[0]][place[1]]


def sheet(said: str, marker: str, heads: Group | None = None) -> Sheet | None:
    """The table whose header has the marker; `heads` where the text has lost them."""
    found = list(groups(said))
    for number, group in enumerate(found):
        if any(marker.casefold() in cell.casefold() for row in group for cell in row):
            heads, found = group, found[number + 1 :]
            break
    if heads is None:
        return None
    width = len(heads[0])
    below: list[Group] = []
    for group in found:
        if len(group[0]) != width:
            if below:
                break
            continue
        below.append(group)
    return Sheet(heads, tuple(below))


def pair(cell: str | None) -> tuple[str | None, str | None]:
    """`used / total`; a unit that only one of the two bears holds for both."""
    match = _PAIR.match((cell or "").replace("N/A", _HIDDEN))
    if match is None:
        return None, None
    first, second = (match[n].strip().replace(_HIDDEN, "N/A") for n in (1, 2))
    unit = _unit(second) or _unit(first)
    return _with(first, unit), _with(second, unit)


def _unit(text: str) -> str:
    match = _UNIT.search(text)
    return match[0] if match and re.search(r"\d", text) else ""


def _with(text: str, unit: str) -> str:
    return f"{text}{unit}" if re.fullmatch(r"[\d.]+", text) else text


def words(cell: str | None, head: str) -> dict[str, str]:
    """The cell's words by the header's: values without a blank, the last takes what is left."""
    names = head.split()
    found = (cell or "").split(maxsplit=max(len(names) - 1, 0))
    return dict(zip(names, found, strict=False))


def usage(cell: str | None, unit: str = "") -> tuple[Value, int | None]:
    """Memory used and total of a cell such as `513MiB / 32768MiB`."""
    used, total = pair(cell)
    if used is None:
        return Value(quality="unavailable", raw=cell or None), None
    return values.read("memory_used_bytes", used, unit), values.size(total, unit)


def first_number(row: Sequence[str]) -> int | None:
    """The number that a row's first cell begins with: the tool's index of the device."""
    match = re.match(r"\s*(\d{1,9})\b", row[0] if row else "")
    return int(match[1]) if match else None


def processes(said: str) -> dict[int, tuple[Process, ...]]:
    """The processes of each device, from a table below it: `PID` and `Type` as its header says.

    A row without a process (`N/A`, a sentence) is none.
    """
    found: list[tuple[int, Process]] = []
    head: list[str] = []
    unit = ""
    for line in said.splitlines():
        words = line.strip().strip("|").split()
        if "PID" in words and words.index("PID") > 0:
            head = words
        elif head and not found and "Usage(MiB)" in line:
            unit = "MiB"
        row = _process(words, head, "MiB" if "Usage(MiB)" in " ".join(head) else unit)
        if row is not None:
            found.append(row)
    return captured.by_index(found)


def _process(words: list[str], head: list[str], unit: str) -> tuple[int, Process] | None:
    if not head:
        return None
    place = head.index("PID")
    index = captured.whole(words[0]) if words else None
    pid = captured.whole(words[place]) if place < len(words) else None
    if index is None or pid is None:
        return None
    rest = words[place + (2 if "Type" in head else 1) :]
    size = re.search(r"(\d+)\s*((?:[KMG]i?[bB])?)$", " ".join(rest))
    memory = None
    if size and (size[2] or unit):
        memory = values.size(size[1], size[2] or unit)
        rest = " ".join(rest)[: size.start()].split()
    part = captured.known(words[1]) if head[1] in {"GI", "MI", "VF"} else None
    return index, Process(pid, captured.known(" ".join(rest)) or "", memory, part or "")
