"""How long the ledger is kept: what may be purged, and who still needs it.

Purged is what the second newest snapshot that checks, metering and the standby have all behind
them; of that, nothing younger than seven days while the stream is under half full. A standby that
was not heard for an hour no longer counts: it begins anew from a snapshot. A new leader counts that
hour from its takeover: whoever led before it, as far as the ledger remembers, may follow still and
not have been heard yet. Metering always counts, and as long as it was never heard nothing goes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from quintal.bus import Bus
from quintal.contracts import ledger, placement
from quintal.contracts.streams import LEDGER_BYTES_MAX
from quintal_placer import snapshots

log = logging.getLogger(__name__)

STREAM: Final = "LEDGER"
STANDBY_COUNTS_S: Final = 3600.0
AGE_KEPT_MS: Final = 7 * 86_400_000
HALF_PERCENT: Final = 50
METERING: Final = "metering"


@dataclass(slots=True)
class Readers:
    """Who reads the ledger, up to where, and when they last said so. Time is an argument."""

    _heard: dict[str, tuple[int, float]] = field(default_factory=dict)
    _expected: set[str] = field(default_factory=set)
    _since_s: float = 0.0

    def expect(self, standbys: Iterable[str], now_s: float) -> None:
        """From here on we lead; these may follow, wherever they stand."""
        self._expected, self._since_s = set(standbys), now_s

    def say(self, position: placement.Position, now_s: float) -> None:
        """A reader has verified the ledger up to there; positions only move up."""
        before, _ = self._heard.get(position.reader, (0, 0.0))
        self._heard[position.reader] = (max(before, position.sequence), now_s)

    def standby_within(self, seconds: float, now_s: float) -> bool:
        """Whether a standby was heard lately."""
        return bool(self.standbys_within(seconds, now_s))

    def standbys_within(self, seconds: float, now_s: float) -> list[str]:
        """The standbys that were heard lately."""
        return [
            reader
            for reader, (_, heard_s) in self._heard.items()
            if reader != METERING and now_s - heard_s <= seconds
        ]

    def behind_all(self, now_s: float) -> int | None:
        """The sequence that every reader that counts has behind it; none where that is unknown."""
        if METERING not in self._heard:
            return None
        if self._expected - set(self._heard) and now_s - self._since_s < STANDBY_COUNTS_S:
            return None
        return min(
            sequence
            for reader, (sequence, heard_s) in self._heard.items()
            if reader == METERING or now_s - heard_s < STANDBY_COUNTS_S
        )


def purge_to(verified: list[int], readers: int | None) -> int | None:
    """Up to where the ledger may go, whatever its age; none where it may not."""
    if readers is None or len(verified) < 2:  # noqa: PLR2004 - the second newest
        return None
    return min(verified[1], readers)


def fill_percent(info: dict[str, object]) -> int:
    """How full the stream is, from the server's own description of it."""
    state, config = info["state"], info["config"]
    assert isinstance(state, dict)
    assert isinstance(config, dict)
    bound = int(config.get("max_bytes") or 0)
    return 100 * int(state["bytes"]) // (bound if bound > 0 else LEDGER_BYTES_MAX)


async def purge(bus: Bus, readers: Readers, *, now_s: float, now_ms: int) -> int | None:
    """Let go of what nobody needs any more; gives the first sequence kept, none if all stays.

    Raises BusUnavailable.
    """
    behind = readers.behind_all(now_s)
    if behind is None:
        return None
    upto = purge_to(await snapshots.verified(bus), behind)
    if upto is None:
        return None
    info = await bus.stream_info(STREAM)
    first = int(info["state"]["first_seq"])
    if fill_percent(info) < HALF_PERCENT:
        upto = await _older(bus, first, upto, now_ms - AGE_KEPT_MS)
    if upto < first:
        return None
    await bus.purge(STREAM, upto)
    log.info("the ledger begins at %d now", upto + 1)
    return upto + 1


async def _older(bus: Bus, first: int, last: int, before_ms: int) -> int:
    """The last sequence in `[first, last]` whose group is from before; `first - 1` if none is."""
    low, high = first - 1, last
    while low < high:
        middle = (low + high + 1) // 2
        if await _at_ms(bus, middle) < before_ms:
            low = middle
        else:
            high = middle - 1
    return low


async def _at_ms(bus: Bus, sequence: int) -> int:
    """When a group was decided; a message that is none is as old as can be."""
    found = await bus.stored(STREAM, sequence)
    if found is None:
        return 0
    try:
        group = ledger.GROUP.validate_json(found.data)
    except ValidationError:
        return 0
    return max((record.at_ms for record in group.transitions), default=0)
