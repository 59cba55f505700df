"""What can go wrong, by whose move it is.

    QuintalError
    ├── Refused             they asked for what cannot be: carries the wire's code and owner
    ├── BusUnavailable      the world: no answer, no connection
    │   └── Unanswered      nobody listens there: nothing was delivered to anyone
    ├── SetupError          the world: a port taken, a folder locked, a file missing
    └── ProtocolError       ours or theirs: a message that no contract allows

An error says what *we* were doing; its cause is chained, never repeated.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """The wire's error codes. Never change a value, never reuse one, document each new one."""

    INVALID_REQUEST = "invalid_request"
    """The request breaks its contract; `details.faults` lists all faults at once."""
    NO_QUOTA_DEFINED = "no_quota_defined"
    """The tenant has no quota in this class: default deny."""
    QUOTA_EXCEEDED = "quota_exceeded"
    FAMILY_QUOTA_EXCEEDED = "family_quota_exceeded"
    MODEL_QUOTA_EXCEEDED = "model_quota_exceeded"
    BUDGET_EXCEEDED = "budget_exceeded"
    NEVER_FITS = "never_fits"
    """No inventory known and not retired could ever meet it."""
    NO_CAPACITY = "no_capacity"
    """It would fit, but what fits is held."""
    FRAGMENTED = "fragmented"
    """Enough is free in sum, but not together."""
    PARTITION_MODE = "partition_mode"
    INVENTORY_MISSING = "inventory_missing"
    NODE_SUSPECT = "node_suspect"
    CORDONED = "cordoned"
    TAINTED = "tainted"
    STACK_BLOCKED = "stack_blocked"
    STACK_UNKNOWN = "stack_unknown"
    UNRATED = "unrated"
    """The device has no rating in the class that was asked for."""
    FOREIGN_USE = "foreign_use"
    ADAPTER_ERROR = "adapter_error"
    PRICE_STALE = "price_stale"
    LEDGER_FULL = "ledger_full"
    OVERLOADED = "overloaded"
    """Too much at once; `details.retry_after_ms` says when to come again."""
    CONFLICT = "conflict"
    """The request id is taken by other content, or the catalog moved under an apply."""
    NOT_ENABLED = "not_enabled"
    INTERNAL = "internal"
    DEVICE_UNHEALTHY = "device_unhealthy"
    """The device is there, but its agent calls it failed or does not know."""
    DISPUTED = "disputed"
    """An agent refused the device, or two nodes report it; an operator clears it."""
    NOT_FOUND = "not_found"
    """No such lease, document or node, or none that the asker may see."""
    NOT_YOURS = "not_yours"
    """The verb exists, but not for the asker's role or on this state."""


class Owner(StrEnum):
    """Whose move it is."""

    SUBMITTER = "submitter"
    INFRASTRUCTURE = "infrastructure"
    CATALOG = "catalog"


class QuintalError(Exception):
    """Anything that Quintal raises on purpose."""


class Refused(QuintalError):  # noqa: N818 - the trade says it so
    """A service said no. `code`, `owner` and `details` are the wire's own."""

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        owner: Owner = Owner.SUBMITTER,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.owner = owner
        self.details = details or {}


class BusUnavailable(QuintalError):  # noqa: N818
    """The bus or the service behind it did not answer."""


class Unanswered(BusUnavailable):
    """Nobody listens on the subject; the server says so, and delivered nothing."""


class SetupError(QuintalError):
    """This machine is not as it must be; the message names the thing and the way out."""


class ProtocolError(QuintalError):
    """A message that its contract does not allow."""
