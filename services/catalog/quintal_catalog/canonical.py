"""One text for one content: what a document is hashed and stored as.

Equal documents give equal bytes however they were written: keys sorted, defaults spelled out (a
later version may change a default, and what is stored must go on meaning what it meant), decimals
without trailing zeros.
"""

from __future__ import annotations

import json
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import Any

from pydantic import BaseModel


def plain(value: Any) -> Any:
    """A model as plain JSON values, by the names that the wire uses; nothing left out."""
    if isinstance(value, BaseModel):
        return {
            field.alias or name: plain(getattr(value, name))
            for name, field in type(value).model_fields.items()
        }
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Decimal):
        return format(value.normalize(), "f") if value else "0"
    if isinstance(value, Enum):
        return value.value
    return value


def canonical(model: BaseModel) -> bytes:
    """The bytes that stand for this content."""
    return json.dumps(
        plain(model), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    ).encode()


def digest(data: bytes) -> str:
    """sha256, in hex."""
    return sha256(data).hexdigest()
