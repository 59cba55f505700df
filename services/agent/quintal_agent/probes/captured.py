"""A captured output as its readers see it: decoded, without colour, cut by its own borders.

Nothing here knows a vendor. Columns are found by the delimiters and headers that stand in the
text, never by position: borders move when a number gets a digit more.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from quintal_agent.probes import values
from quintal_agent.probes.probe import (
    PCI_IDENTITY,
    Device,
    Event,
    Link,
    Observation,
    Process,
    Trouble,
)

RAW_MAX: Final = 64 * 1024
"""So much of a text that was not understood is kept."""

_ANSI: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b.")
_RUN: Final = re.compile(r"(\w{256})\w+")
"""No tool prints a word or number of that length; a search for one would take long."""
_HEAD_MAX: Final = 65_536
_LINE_MAX: Final = 4_096
_BOX: Final = str.maketrans("│┃║", "|||")
_RULE: Final = frozenset("+-=|─━═┏┓┗┛┡┩╇╈┬┴┼╭╮╰╯┳┻╋┠┨└┘├┤┌┐ *")
_ADDRESS: Final = re.compile(
    r"(?:([0-9a-f]{2,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE
)
_MARK: Final = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_STARTS_MAX: Final = 20
_MENDED_MAX: Final = 4 * 2**20
_CUT_MAX: Final = 6


@lru_cache(maxsize=2)
def text(data: bytes) -> str:
    """The bytes as text, whatever they are; colour and carriage returns taken out."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        decoded = data.decode("utf-16", "replace")
    else:
        decoded = data.decode("utf-8-sig", "replace")
    return plain(decoded)


def plain(said: str) -> str:
    """Without escape codes, NULs and carriage returns."""
    told = _ANSI.sub("", said).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return _RUN.sub(r"\1", told)


@lru_cache(maxsize=2)
def head(data: bytes) -> str:
    """The beginning of the text, its lines cut: enough to tell whose it is, and soon read."""
    begin = text(data)[:_HEAD_MAX]
    return "\n".join(line[:_LINE_MAX] for line in begin.split("\n"))


def is_rule(line: str) -> bool:
    """Whether the line only draws."""
    return not set(line.strip()) - _RULE


def rows(said: str) -> Iterator[list[str]]:
    """The cells of each line that stands between upright borders."""
    for line in said.translate(_BOX).splitlines():
        body = line.strip()
        if body.startswith("|") and not is_rule(body):
            yield [cell.strip() for cell in body.strip("|").split("|")]


def pairs(said: str) -> Iterator[tuple[int, str, str]]:
    """Each `key : value` line: how far it is indented, its key, its value."""
    for line in said.splitlines():
        key, sep, value = line.partition(":")
        if sep and key.strip():
            yield len(line) - len(line.lstrip()), key.strip(), value.strip()


@lru_cache(maxsize=2)
def json_in(said: str) -> Any:
    """The first JSON object or list of the text, whatever banner stands before it.

    JSON that a tool wrote wrongly (commas missing) or that breaks off is mended as far as its
    marks allow. Raises ValueError where there is none.
    """
    starts = [match.end() - 1 for match in re.finditer(r"^[ \t]*[\[{]", said, re.MULTILINE)]
    decoder = json.JSONDecoder()
    for start in starts[:_STARTS_MAX]:
        try:
            found, _ = decoder.raw_decode(said, start)
        except (ValueError, RecursionError):
            continue
        if _is_records(found):
            return found
    for start in starts[:2]:
        found = _mended(said[start : start + _MENDED_MAX])
        if _is_records(found):
            return found
    raise ValueError("no JSON that can be read")


def _is_records(found: Any) -> bool:
    """A list of plain words is a banner's `[INFO]`, not what a tool prints."""
    return isinstance(found, dict) or (
        isinstance(found, list) and (not found or any(isinstance(item, dict) for item in found))
    )


def _mended(said: str) -> Any:
    """The text read token by token, commas put in where they are missing; None where hopeless."""
    marks: list[str] = []
    for mark in _MARK.findall(said):
        before = marks[-1] if marks else ""
        if mark in "}]" and before == ",":
            marks.pop()
        elif before and before not in "{[,:" and mark not in "}],:":
            marks.append(",")
        marks.append(mark)
    for cut in range(min(_CUT_MAX, len(marks))):
        kept = marks[: len(marks) - cut]
        while kept and kept[-1] in ",:":
            kept.pop()
        try:
            found, _ = json.JSONDecoder().raw_decode(" ".join([*kept, *_closing(kept)]))
        except (ValueError, RecursionError):
            continue
        return found
    return None


def _closing(marks: Sequence[str]) -> list[str]:
    still: list[str] = []
    for mark in marks:
        if mark == "{":
            still.append("}")
        elif mark == "[":
            still.append("]")
        elif mark in "}]" and still:
            still.pop()
    return still[::-1]


def address(said: object) -> str | None:
    """A PCI address as the kernel writes it: four digits of domain, lower case."""
    match = _ADDRESS.fullmatch(said.strip()) if isinstance(said, str) else None
    if match is None:
        return None
    domain, bus, slot, function = match.groups()
    return f"{(domain or '0').lstrip('0').zfill(4)}:{bus}:{slot}.{function}".lower()


def known(said: object) -> str | None:
    """The text, where it is one: not absent and none of the words for 'no value'."""
    if said is None or isinstance(said, dict | list):
        return None
    word = str(said).strip()
    return None if not word or values.quality_of(word) is not None else word


def whole(said: object) -> int | None:
    """The text as an integer that is no all-ones register; else none."""
    if isinstance(said, bool) or not isinstance(said, int | str):
        return None
    if not re.fullmatch(r"\d{1,19}", str(said).strip()):
        return None
    number = int(str(said).strip())
    return None if number in {2**32 - 1, 2**64 - 1} else number


def identity(
    *,
    uuid: object = None,
    at: str | None = None,
    serial: str | None = None,
    die: str | None = None,
    index: int = 0,
) -> str:
    """What names a device: its vendor's UUID if it is a real one, else address, serial and die.

    A UUID of zeros, or one that was blacked out, names nothing. An index only stands in where
    there is nothing else, since it shifts.
    """
    word = known(uuid)
    if word is not None and "<" not in word and re.search(r"[1-9a-f]", _after_prefix(word)):
        return word
    parts = [part for part in (at, serial, die) if part]
    return PCI_IDENTITY + ("-".join(parts) if at or serial else f"index-{index}")


def _after_prefix(uuid: str) -> str:
    return re.sub(r"^(GPU|MIG|UUID)-", "", uuid, flags=re.IGNORECASE).casefold()


def observed(  # noqa: PLR0913 - what an observation is made of
    vendor: str,
    tool: str,
    devices: Sequence[Device] = (),
    *,
    troubles: Sequence[Trouble] = (),
    drivers: dict[str, str] | None = None,
    runtimes: dict[str, str] | None = None,
    firmware: dict[str, str] | None = None,
    links: Sequence[Link] = (),
    events: Sequence[Event] = (),
) -> Observation:
    """An observation in which no two devices bear one name."""
    told = tuple(_apart(devices))
    return Observation(
        vendor,
        tool,
        told,
        tuple(troubles),
        drivers or {},
        runtimes or {},
        firmware or {},
        links=tuple(links),
        events=tuple(events),
    )


def _apart(devices: Sequence[Device]) -> Iterator[Device]:
    """A board's code is no identity where two devices bear it: the address is, or the place."""
    counts = Counter(device.uuid for device in devices)
    taken: set[str] = set()
    for place, device in enumerate(devices):
        uuid = device.uuid
        if counts[uuid] > 1 and device.pci_address and not uuid.startswith(PCI_IDENTITY):
            uuid = PCI_IDENTITY + device.pci_address
        if uuid in taken or (counts[device.uuid] > 1 and uuid == device.uuid):
            uuid = f"{uuid}-{place}"
        taken.add(uuid)
        yield device if uuid == device.uuid else replace(device, uuid=uuid)


def refused(vendor: str, tool: str, why: str, said: str) -> Observation:
    """The output of a known tool from which nothing is read: named, and its text kept."""
    return Observation(vendor, tool, troubles=(Trouble("not_read", why, raw=said[:RAW_MAX]),))


def by_index(processes: Sequence[tuple[int, Process]]) -> dict[int, tuple[Process, ...]]:
    """Processes grouped by the device they were printed under."""
    grouped: dict[int, tuple[Process, ...]] = {}
    for index, process in processes:
        grouped[index] = (*grouped.get(index, ()), process)
    return grouped
