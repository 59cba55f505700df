"""The AsyncAPI 3.0 document of the bus, made from the typed subjects and nothing else.

    python -m quintal.contracts.asyncapi > docs/asyncapi.yaml

A request is one channel with two messages and two operations: the caller's `send`, whose reply
comes to its own inbox, and the service's `receive`. Who may do what stands in `x-roles`.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final

import yaml
from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from quintal import __version__
from quintal.contracts.subjects import PREFIX, Publication, Request, Role, publications, requests

_TOKENS: Final = {
    "principal": "The caller's own name; its credential allows no other.",
    "tenant": "The tenant's own name; its credential allows no other.",
    "node": "A node's id.",
    "reader": "Who reads the ledger.",
    "lease": "A lease's id.",
    "transition": "What became of it.",
}

_INTRODUCTION: Final = (
    "JSON over NATS. Fields that a request does not know are refused; in all other messages they"
    " are ignored. The name in a subject is the caller's own, and its reply must lie under"
    " `_INBOX.<name>.`; the service drops it otherwise. A refusal is an answer of kind `refused`."
)

_Key = tuple[str, str]


def document() -> dict[str, Any]:
    """The whole document, in the order of the typed subjects."""
    adapters: list[tuple[_Key, JsonSchemaMode, TypeAdapter[Any]]] = []
    for name, publication in publications():
        adapters.append(((name, "message"), "serialization", publication.message))
    for name, request in requests():
        adapters.append(((name, "ask"), "validation", request.ask))
        adapters.append(((name, "answer"), "serialization", request.answer))
    schemas, definitions = TypeAdapter.json_schemas(
        adapters, ref_template="#/components/schemas/{model}"
    )
    payloads = {key: schema for (key, _), schema in schemas.items()}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Quintal",
            "version": __version__,
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {"bus": {"host": "127.0.0.1:4222", "protocol": "nats"}},
        "channels": {
            **{name: _news(name, one) for name, one in publications()},
            **{name: _dialogue(name, one) for name, one in requests()},
        },
        "operations": _operations(),
        "components": {
            "messages": {
                _id(*key): {"name": _id(*key), "payload": payload}
                for key, payload in payloads.items()
            },
            "schemas": definitions.get("$defs", {}),
        },
    }


def _news(name: str, publication: Publication[Any]) -> dict[str, Any]:
    channel = _channel(publication.pattern, publication.summary)
    channel["messages"] = {"message": _message(name, "message")}
    if publication.stream:
        channel["x-stream"] = publication.stream
    return channel


def _dialogue(name: str, request: Request[Any, Any]) -> dict[str, Any]:
    channel = _channel(request.pattern, request.summary)
    channel["messages"] = {"ask": _message(name, "ask"), "answer": _message(name, "answer")}
    return channel


def _channel(pattern: str, summary: str) -> dict[str, Any]:
    tokens = re.findall(r"{(\w+)}", pattern)
    channel: dict[str, Any] = {"address": pattern, "summary": summary}
    if tokens:
        channel["parameters"] = {token: {"description": _TOKENS[token]} for token in tokens}
    return channel


def _operations() -> dict[str, Any]:
    operations: dict[str, Any] = {}
    for name, publication in publications():
        operations[f"{name}.send"] = _operation(name, "send", "message", publication.senders)
        operations[f"{name}.receive"] = _operation(name, "receive", "message", publication.hearers)
    for name, request in requests():
        reply = {
            "address": {"location": "$message.header#/reply", "description": "_INBOX.<caller>."},
            "messages": [{"$ref": f"#/channels/{name}/messages/answer"}],
        }
        send = _operation(name, "send", "ask", request.callers)
        receive = _operation(name, "receive", "ask", request.answerers)
        operations[f"{name}.send"] = {**send, "reply": reply}
        operations[f"{name}.receive"] = {**receive, "reply": reply}
    return operations


def _operation(name: str, action: str, part: str, roles: frozenset[Role]) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{name}"},
        "messages": [{"$ref": f"#/channels/{name}/messages/{part}"}],
        "x-roles": sorted(roles),
    }


def _message(name: str, part: str) -> dict[str, str]:
    return {"$ref": f"#/components/messages/{_id(name, part)}"}


def _id(name: str, part: str) -> str:
    return f"{name}.{part}"


class _Plain(yaml.SafeDumper):
    """No anchors: every reader must get along with the document."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write each thing where it stands."""
        del data
        return True


def text() -> str:
    """The document as YAML."""
    head = f"# Made from {PREFIX}'s typed subjects by quintal.contracts.asyncapi: do not edit.\n"
    plain = _strings(document())
    return head + yaml.dump(plain, Dumper=_Plain, sort_keys=False, width=100, allow_unicode=True)


def _strings(value: Any) -> Any:
    """Enumerations as plain text."""
    if isinstance(value, dict):
        return {str(key): _strings(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strings(item) for item in value]
    return str(value) if isinstance(value, str) else value


if __name__ == "__main__":
    sys.stdout.write(text())
