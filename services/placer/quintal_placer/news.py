"""Transitions of the ledger as people hear of them: leases and nodes. Pure.

The same words go out as news after the append and are told again by `events`.
"""

from __future__ import annotations

from typing import Final

from quintal.contracts import ledger, placement
from quintal_placer.slim import made

_LEASE: Final = frozenset(
    {
        "queued", "granted", "bound", "moved", "ttl", "ending", "node_released", "ended", "failed",
        "refused", "cancelled",
    }
)  # fmt: skip


def is_lease(record: ledger.AnyRecord) -> bool:
    """Whether it is about a lease."""
    return record.kind in _LEASE


def of_lease(record: ledger.AnyRecord, sequence: int, tenant: str = "") -> placement.News:
    """A lease's transition: of a bind that failed its code, and nothing that an agent said."""
    return made(
        placement.News,
        at=record.at_ms,
        what=record.kind,
        sequence=sequence,
        lease=getattr(record, "lease", ""),
        reason=getattr(record, "reason", "") or getattr(record, "code", ""),
        tenant=tenant,
    )


def of_node(record: ledger.AnyRecord, sequence: int) -> placement.News | None:
    """A node's transition, or one of its devices'; none where it is neither."""
    what, reason = _said(record)
    if not what:
        return None
    return placement.News(
        at=record.at_ms,
        what=what,
        sequence=sequence,
        node=getattr(record, "node", ""),
        reason=reason,
    )


def _said(record: ledger.AnyRecord) -> tuple[str, str]:  # noqa: PLR0911 - a line for each kind
    """What happened, and the words that go with it."""
    match record:
        case ledger.LivenessChanged():
            return record.liveness, ""
        case ledger.CordonChanged():
            return "cordon" if record.cordoned else "uncordon", _by(record.by, record.reason)
        case ledger.TaintChanged():
            told = _by(record.by, record.reason)
            words = f"{record.taint} {told}".strip()
            return "taint" if record.present else "untaint", words
        case ledger.NodeRetired():
            return "retired", _by(record.by, record.reason)
        case ledger.NodeChanged():
            return "node", ""
        case ledger.DeviceAppeared():
            return "device_appeared", record.device.uuid
        case ledger.DeviceGone():
            return "device_gone", record.uuid
        case ledger.DeviceHealthChanged():
            health = f"{record.uuid} is {record.health.value}"
            return "device_health", f"{health}: {record.reason}" if record.reason else health
        case ledger.DisputeChanged():
            what = "disputed" if record.disputed else "dispute_cleared"
            return what, f"{record.uuid}: {record.reason}" if record.reason else record.uuid
        case _:
            return "", ""


def _by(who: str, why: str) -> str:
    return f"by {who}: {why}" if why else f"by {who}"
