"""What is made and kept by the hundred thousand is made quickly and kept small.

Each message remembers which of its fields were given: a set of its own, often larger than what the
message says. Nobody here asks for it, so that all messages of one kind share one such set. For
10,000 nodes and 50,000 leases that is some hundreds of MiB.

And what the placer makes itself of values that it has already read needs no second look: a message
is then its fields and nothing else.
"""

from __future__ import annotations

from typing import Any, TypeVar

from quintal.contracts import ledger
from quintal.contracts.message import Message
from quintal.contracts.nodes import RawDevice

M = TypeVar("M", bound=Message)

_FIELDS: dict[type[Message], set[str]] = {}
_BLANKS: dict[type[Message], dict[str, Any]] = {}


def made(kind: type[M], **fields: Any) -> M:
    """A message of fields that are right, under their names in Python; what is left out defaults.

    Nothing is checked: only for what no outsider wrote, or what was validated when it came in.
    """
    blank = _BLANKS.get(kind)
    if blank is None:
        blank = _BLANKS[kind] = {
            name: field.get_default(call_default_factory=True)
            for name, field in kind.model_fields.items()
        }
        _FIELDS.setdefault(kind, set(kind.model_fields))
    message = kind.__new__(kind)
    put = object.__setattr__
    put(message, "__dict__", {**blank, **fields})
    put(message, "__pydantic_fields_set__", _FIELDS[kind])
    put(message, "__pydantic_extra__", None)
    put(message, "__pydantic_private__", None)
    return message


def changed(message: M, **fields: Any) -> M:
    """The same message but for these fields; `model_copy` without its copies."""
    copy = message.__class__.__new__(message.__class__)
    put = object.__setattr__
    put(copy, "__dict__", {**message.__dict__, **fields})
    put(copy, "__pydantic_fields_set__", message.__pydantic_fields_set__)
    put(copy, "__pydantic_extra__", None)
    put(copy, "__pydantic_private__", None)
    return copy


def slim(message: Message) -> None:
    """Let it share its kind's set of fields; a copy of it gets a set of its own again."""
    kind = type(message)
    fields = _FIELDS.get(kind)
    if fields is None:
        fields = _FIELDS[kind] = set(kind.model_fields)
    object.__setattr__(message, "__pydantic_fields_set__", fields)


def slim_grant(granted: ledger.LeaseGranted) -> None:
    """A grant, its devices, and the request in it."""
    if granted.__pydantic_fields_set__ is not _FIELDS.get(ledger.LeaseGranted):  # not `made`
        slim(granted)
        for device in granted.devices:
            slim(device)
    request = granted.request
    if request is not None:
        slim(request)
        slim(request.constraints)
        slim(request.wait)
        if request.accelerator is not None:
            slim(request.accelerator)


def slim_device(raw: RawDevice) -> None:
    """A device as its agent said it."""
    slim(raw)
    for partition in raw.partitions:
        slim(partition)
