"""The fold's state as text and back, exactly: going on from it is the same as from the start."""

from __future__ import annotations

from typing import Final

from pydantic import TypeAdapter, ValidationError

from quintal_metering.facts import State

FORM: Final = 4
"""Raised whenever the state's shape changes: an older checkpoint is then folded anew."""

_STATE: Final = TypeAdapter(State)


def written(state: State) -> str:
    """The state as JSON."""
    return f"{FORM}:{_STATE.dump_json(state).decode()}"


def read(text: str) -> State | None:
    """The state, or none where another version wrote it: then the archive is folded instead."""
    form, _, body = text.partition(":")
    if form != str(FORM):
        return None
    try:
        return _STATE.validate_json(body)
    except ValidationError:
        return None
