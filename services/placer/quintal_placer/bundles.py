"""A snapshot with its catalog, handed out in pieces that a message carries.

Whoever took it answers for its pieces; the others know nothing of that sequence, and are silent.
"""

from __future__ import annotations

import base64
import logging
from collections import OrderedDict
from typing import Final

from quintal.bus import Caller
from quintal.contracts import placement
from quintal.contracts.message import Refusal
from quintal.errors import BusUnavailable
from quintal_placer.lead import Placer
from quintal_placer.ledger import Deposed

log = logging.getLogger(__name__)

PART_BYTES: Final = 384 * 1024
"""Four thirds of it, in base64, are well below what a message carries."""

KEPT_MAX: Final = 2


class Bundles:
    """The newest few that somebody is still fetching."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._kept: OrderedDict[int, bytes] = OrderedDict()

    async def part(
        self, _: Caller, ask: placement.SnapshotPartAsk
    ) -> placement.SnapshotPart | Refusal | None:
        """The piece at an offset; the first ask takes the snapshot."""
        sequence = ask.sequence if ask.sequence is not None else await self._take()
        data = self._kept.get(sequence) if sequence is not None else None
        if sequence is None or data is None:
            return None
        piece = data[ask.offset : ask.offset + PART_BYTES]
        return placement.SnapshotPart(
            sequence=sequence,
            offset=ask.offset,
            size=len(data),
            data=base64.b64encode(piece).decode(),
        )

    async def _take(self) -> int | None:
        try:
            found = await self._placer.bundle()
        except (BusUnavailable, Deposed) as exc:
            log.warning("taking a snapshot to hand out: %s", exc)
            return None
        if found is None:
            return None
        sequence, data = found
        self._kept[sequence] = data
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return sequence
