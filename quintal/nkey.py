"""NATS keys and the tokens they sign: an ed25519 key, and a JWT whose algorithm is `ed25519-nkey`.

A seed is a secret: it is kept out of every repr and every message of this module.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from enum import IntEnum
from typing import Any, Final

import nkeys

_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}


class Kind(IntEnum):
    """What a key is for; the first letter of its public form tells it."""

    OPERATOR = nkeys.PREFIX_BYTE_OPERATOR
    ACCOUNT = nkeys.PREFIX_BYTE_ACCOUNT
    USER = nkeys.PREFIX_BYTE_USER


def new_seed(kind: Kind) -> str:
    """A fresh secret seed."""
    seed: bytes = nkeys.encode_seed(secrets.token_bytes(32), int(kind))
    return seed.decode()


def public(seed: str) -> str:
    """The public key of a seed."""
    key: bytes = _pair(seed).public_key
    return key.decode()


def token(claims: dict[str, Any], *, subject: str, issued_s: int, seed: str) -> str:
    """A JWT about `subject`, signed by `seed`. `claims` holds `name` and `nats`."""
    body = {**claims, "sub": subject, "iss": public(seed), "iat": issued_s}
    digest = hashlib.sha256(_json(body)).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    unsigned = f"{_encode(_json(_HEADER))}.{_encode(_json(body))}"
    return f"{unsigned}.{_encode(_pair(seed).sign(unsigned.encode()))}"


def claims(jwt: str) -> dict[str, Any]:
    """What a JWT says; its signature is the server's business."""
    body = jwt.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return found


def credentials(jwt: str, seed: str) -> str:
    """The text of a credentials file, as every NATS client reads it."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        "This file is a secret: whoever has it speaks as its principal.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def _pair(seed: str) -> Any:
    return nkeys.from_seed(bytearray(seed.encode()))


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
