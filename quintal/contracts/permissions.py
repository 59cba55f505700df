"""What each role's credential may publish and hear, made from the typed subjects.

A NATS server checks the subject that one publishes to, not the reply subject that one names.
Hence private inboxes (`_INBOX.<principal>.>`), a *front* credential that can publish to inboxes
alone, and the check of each request's reply subject in `quintal.bus`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from quintal.contracts.subjects import Publication, Request, Role, publications, requests

SELF: Final = "{{name()}}"
"""The server puts the credential's own name here."""

FRONTS: Final = frozenset({Role.CATALOG_FRONT, Role.PLACER_FRONT, Role.METERING_FRONT})
BACKS: Final = frozenset({Role.CATALOG_BACK, Role.PLACER_BACK, Role.METERING_BACK})

_READ_STREAMS = ("$JS.API.STREAM.INFO.*", "$JS.API.DIRECT.GET.>", "$JS.API.STREAM.MSG.GET.*")

_STORE: Final[dict[Role, tuple[str, ...]]] = {
    Role.CATALOG_BACK: (*_READ_STREAMS, "$KV.CATALOG.>"),
    Role.PLACER_BACK: (
        *_READ_STREAMS,
        "$JS.API.STREAM.NAMES",
        "$JS.API.STREAM.PURGE.LEDGER",
        "$JS.API.STREAM.PURGE.OBJ_SNAPSHOTS",
        "$JS.API.CONSUMER.CREATE.OBJ_SNAPSHOTS",
        "$JS.API.CONSUMER.CREATE.OBJ_SNAPSHOTS.>",
        "$JS.API.CONSUMER.INFO.OBJ_SNAPSHOTS.>",
        "$JS.API.CONSUMER.DELETE.OBJ_SNAPSHOTS.>",
        "$JS.ACK.OBJ_SNAPSHOTS.>",
        "$JS.FC.>",
        "$O.SNAPSHOTS.>",
    ),
    Role.METERING_BACK: _READ_STREAMS,
    Role.BOOTSTRAP: ("$JS.API.>",),
}
"""JetStream rights beside the typed subjects: only backs, and the one that declares streams."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """A role's template: subjects that may be published to and heard."""

    publish: tuple[str, ...]
    hear: tuple[str, ...]
    responses: bool = False
    """May answer a request that it was sent, once, wherever its reply lies."""


def permissions(role: Role) -> Permissions:
    """The template of one role; `{{name()}}` stands for the credential's own name."""
    publish: list[str] = []
    hear: list[str] = []
    for _, publication in publications():
        if role in publication.senders:
            publish.append(_said(publication, role))
        if role in publication.hearers:
            hear.append(_heard(publication, role))
    for _, request in requests():
        if role in request.callers:
            own = request.names == "caller"
            publish.append(_first_token(request, SELF if own else "*"))
        if role in request.answerers:
            own = request.names == "callee"
            hear.append(_first_token(request, SELF if own else "*"))
    publish.extend(_STORE.get(role, ()))
    if role in FRONTS:
        publish.append("_INBOX.*.>")
        hear.append("$SRV.>")
    else:
        hear.append(f"_INBOX.{SELF}.>")
    if role is Role.OPERATOR:
        publish.append("$SRV.>")
    return Permissions(tuple(publish), tuple(hear), responses=role is Role.AGENT)


def _said(publication: Publication[Any], role: Role) -> str:
    if role is Role.AGENT:
        return publication.subject(node=SELF)
    return publication.subject(reader=SELF)


def _heard(publication: Publication[Any], role: Role) -> str:
    if role is Role.AGENT:
        return publication.subject(node=SELF)
    return publication.subject(tenant=SELF) if role is Role.TENANT else publication.subject()


def _first_token(request: Request[Any, Any], token: str) -> str:
    return request.subject(principal=token, tenant=token, node=token)
