"""How far each stream, and each rollup of one, is stored: a number that only moves up."""

from __future__ import annotations

from quintal_metering.store import Store


def stream_position(store: Store, stream: str, created: str = "") -> int:
    """Up to where this very stream is stored."""
    (row,) = store.rows(
        "SELECT max(sequence) AS newest FROM stream_positions "
        "WHERE stream = {stream:String} AND created = {created:String}",
        {"stream": stream, "created": created},
    )
    return int(row["newest"])


def set_stream_position(store: Store, stream: str, created: str, sequence: int) -> None:
    """It is stored up to here."""
    store.insert(
        "stream_positions", {"stream": [stream], "created": [created], "sequence": [sequence]}
    )
