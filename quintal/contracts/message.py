"""The four sorts of message, and the small types that all of them use.

An `Ask` refuses fields it does not know; an `Event`, an `Answer` and a `Record` ignore them, so
that an old reader goes on beside a new writer.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
)

from quintal.errors import Code, Owner

Token = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""One subject token: a node id, a tenant, any principal."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""A document's name."""

Word = Annotated[str, Field(max_length=128)]
"""A text that somebody else chose and that we keep, compare or repeat: never a page."""

Labels = Annotated[dict[Word, Word], Field(max_length=32)]

UnixMs = Annotated[int, Field(ge=0, lt=2**53)]
"""UTC, integer milliseconds since 1970."""

DurationMs = Annotated[int, Field(ge=0, lt=2**53)]


def _exact(value: Any) -> Any:
    """A float as the decimal that a person wrote: 0.47, not 0.46999999999999997."""
    return Decimal(repr(value)) if isinstance(value, float) else value


def _plain(value: Decimal) -> str:
    return format(value, "f")


Exact = Annotated[
    Decimal,
    BeforeValidator(_exact),
    Field(max_digits=24, decimal_places=6, allow_inf_nan=False),
    PlainSerializer(_plain, return_type=str),
]
"""A decimal of at most 6 places; text on the wire, so that no float ever touches it."""

Money = Annotated[
    Decimal,
    BeforeValidator(_exact),
    Field(max_digits=38, decimal_places=9, allow_inf_nan=False),
    PlainSerializer(_plain, return_type=str),
]
"""An amount in the installation's currency, to 1e-9; text on the wire."""


def _integer(value: Any) -> Any:
    return int(value) if isinstance(value, str) else value


BigInt = Annotated[int, BeforeValidator(_integer), PlainSerializer(str, return_type=str)]
"""An integer of any size; text on the wire, since JSON readers round past 2**53."""


class Message(BaseModel):
    """Anything on the wire: frozen, named as the wire names it."""

    model_config = ConfigDict(
        frozen=True, populate_by_name=True, serialize_by_alias=True, ser_json_inf_nan="constants"
    )


class Ask(Message):
    """A question. Unknown fields are refused: a typo must not pass for a default."""

    model_config = ConfigDict(extra="forbid")


class Event(Message):
    """News from one part to others. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class Answer(Message):
    """What a service says back. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


def recorded(model: type[Message], value: Any) -> Message:
    """An ask as somebody once recorded it, whatever this release thinks of it.

    A ledger is read for ever: a bound that was tightened since must not make an old record
    unreadable, nor a field that a newer writer knows. So what does not validate is taken as it
    stands, less the fields that are unknown here.
    """
    try:
        return model.model_validate(value)
    except ValidationError:
        if not isinstance(value, dict):
            raise
    names = {field.alias or name: name for name, field in model.model_fields.items()}
    kept = {names.get(key, key): part for key, part in value.items()}
    fields = {
        name: _recorded_field(model.model_fields[name].annotation, part)
        for name, part in kept.items()
        if name in model.model_fields
    }
    return model.model_construct(**fields)


def _recorded_field(annotation: Any, value: Any) -> Any:
    """A part of a recorded ask: messages as messages, lists as tuples, the rest as it stands."""
    kinds = [annotation, *get_args(annotation)]
    model = next((k for k in kinds if isinstance(k, type) and issubclass(k, Message)), None)
    if isinstance(value, list):
        return tuple(_recorded_field(annotation, part) for part in value)
    if model is not None and isinstance(value, dict):
        return recorded(model, value)
    return value


class Reason(Answer):
    """Why something is not so: a code, how many nodes or devices it holds for, and some names."""

    code: Code
    message: str = ""
    owner: Owner = Owner.INFRASTRUCTURE
    count: int = 0
    pool: str = ""
    names: tuple[str, ...] = ()
    """At most 20 node names, and only those that the asker may see."""


class Refusal(Answer):
    """A service says no: what, why, and whose move it is."""

    kind: Literal["refused"] = "refused"
    code: Code
    message: str
    owner: Owner = Owner.SUBMITTER
    verdict: Literal["not_now", "never_fits"] | None = None
    reasons: tuple[Reason, ...] = ()
    details: dict[str, Any] = Field(default_factory=dict)


def faults_of(error: ValidationError) -> list[dict[str, str]]:
    """All that is wrong with a message, each with the `field` it is about and a `message`."""
    return [
        {
            "field": ".".join(str(part) for part in fault["loc"]),
            "message": fault["msg"].removeprefix("Value error, "),
        }
        for fault in error.errors(include_url=False, include_context=False)
    ]
