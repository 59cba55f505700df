"""Which of the placers that hear a read answers it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32


def mine(me: str, others: Iterable[str], reply: str) -> bool:
    """Whether `me` answers what is to be replied there, `others` being the placers that live.

    All compute it alike, so that reads are shared evenly and mostly answered once.
    """
    members = sorted({me, *others})
    return members[crc32(reply.encode()) % len(members)] == me
