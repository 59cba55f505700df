"""Every stream and bucket, once; `quintal.bus.declare` makes them, as often as one likes.

Agents' streams send no acknowledgement: an acknowledgement goes wherever the publisher's reply
subject points, unchecked, so that an agent could have one delivered to the ledger's subject.
"""

from __future__ import annotations

from typing import Any, Final

from quintal.contracts import subjects

_NS_PER_S = 1_000_000_000
_GIB = 2**30

LEDGER_BYTES_MAX: Final = 16 * _GIB
CATALOG_BUCKET: Final = "CATALOG"
SNAPSHOT_BUCKET: Final = "SNAPSHOTS"


def _stream(name: str, subject: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "subjects": [subject],
        "retention": "limits",
        "storage": "file",
        "num_replicas": 1,
        "discard": "old",
        "allow_direct": True,
        **more,
    }


STREAMS: Final[tuple[dict[str, Any], ...]] = (
    _stream("INVENTORY", subjects.INVENTORY.subject(), max_msgs_per_subject=1, no_ack=True),
    _stream(
        "TELEMETRY",
        subjects.TELEMETRY.subject(),
        max_age=6 * 3600 * _NS_PER_S,
        max_bytes=4 * _GIB,
        no_ack=True,
        persist_mode="async",
    ),
    _stream(
        "HEALTH",
        subjects.HEALTH.subject(),
        max_age=30 * 86_400 * _NS_PER_S,
        max_bytes=_GIB,
        no_ack=True,
    ),
    _stream(
        "LEDGER",
        subjects.LEDGER.subject(),
        discard="new",
        max_bytes=LEDGER_BYTES_MAX,
        deny_delete=True,
    ),
    _stream(
        "DECISIONS",
        subjects.DECISIONS.subject(),
        max_age=86_400 * _NS_PER_S,
        max_bytes=_GIB,
        persist_mode="async",
    ),
    _stream(
        f"KV_{CATALOG_BUCKET}",
        f"$KV.{CATALOG_BUCKET}.>",
        max_msgs_per_subject=1,
        discard="new",
        allow_rollup_hdrs=True,
        deny_delete=True,
    ),
    {
        **_stream(f"OBJ_{SNAPSHOT_BUCKET}", "", allow_rollup_hdrs=True, discard="new"),
        "subjects": [f"$O.{SNAPSHOT_BUCKET}.C.>", f"$O.{SNAPSHOT_BUCKET}.M.>"],
    },
)
