"""A snapshot with its catalog in one file, and requests decided on it: offline, and identically.

The canonical decision is what a decision says, in one spelling; its hash is what a dry run answers
as `decision`. The same request on the same ledger, at the same time, has the same hash wherever it
is decided (law 11). Nodes that are heard and have said nothing are in no ledger, and so not here.
Pure: bytes and lines in, decisions out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from quintal.contracts.documents import Catalog, Document
from quintal.contracts.message import Refusal
from quintal.contracts.placement import PlaceAsk
from quintal.errors import QuintalError
from quintal.settings import Access
from quintal_placer import snapshots
from quintal_placer.desk import Desk
from quintal_placer.engine.pieces import Piece
from quintal_placer.explaining import Decided
from quintal_placer.settings import Settings
from quintal_placer.state import PlacerState

FORMAT: Final = "quintal-replay/1"

_DOCUMENTS: Final[TypeAdapter[list[Document]]] = TypeAdapter(list[Document])


class NotABundle(QuintalError):  # noqa: N818 - whose fault it is, not that it is one
    """The file is no snapshot with its catalog, or was changed since."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to be decided again; `decision` is what it was decided to be then."""

    tenant: str
    request: PlaceAsk
    at_ms: int | None = None
    decision: str = ""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One request, decided offline."""

    tenant: str
    request_id: str
    verdict: str
    said: str
    decision: str
    """The hash of the canonical decision."""
    before: str = ""
    """The hash that it had then; empty where nobody wrote it down."""

    @property
    def same(self) -> bool | None:
        """Whether it is the decision of then; none where that is not known."""
        return self.decision == self.before if self.before else None


def pack(state: PlacerState, sequence: int) -> bytes:
    """The snapshot and the documents behind it: a line of header, a line of catalog, the rest."""
    documents = _DOCUMENTS.dump_json(list(state.catalog.documents.values()), exclude_none=True)
    header = {
        "format": FORMAT,
        "sequence": sequence,
        "revision": state.catalog.revision,
        "digest": state.catalog.digest,
        "documents_sha256": sha256(documents).hexdigest(),
    }
    return b"\n".join((json.dumps(header).encode(), documents, snapshots.dump(state, sequence)))


def unpack(data: bytes) -> tuple[PlacerState, int]:
    """The state of then, and its sequence. Raises NotABundle."""
    head, _, rest = data.partition(b"\n")
    documents, _, snapshot = rest.partition(b"\n")
    try:
        header: dict[str, Any] = json.loads(head)
        _check(header, documents)
        found = tuple(_DOCUMENTS.validate_json(documents))
        state = PlacerState()
        state.adopt_catalog(Catalog(found, revision=header["revision"], digest=header["digest"]))
        snapshots.fill(state, snapshot)
        return state, int(header["sequence"])
    except (ValueError, KeyError, TypeError, OSError, EOFError) as exc:
        raise NotABundle("the file is no saved snapshot") from exc


def _check(header: dict[str, Any], documents: bytes) -> None:
    if header["format"] != FORMAT:
        raise NotABundle(f"the file's format is {header['format']}, not {FORMAT}")
    if sha256(documents).hexdigest() != header["documents_sha256"]:
        raise NotABundle("the catalog in the file is not the one that was saved")


def canonical(decided: Decided | Refusal) -> str:
    """What was decided, in one spelling: sorted keys, no floats, nothing of when it was asked."""
    said: dict[str, Any]
    if isinstance(decided, Refusal):
        said = decided.model_dump(mode="json")
    else:
        ask, terms, chosen = decided
        said = {
            "kind": "placed",
            "option": ask.options.index(chosen.option),
            "model": chosen.offer.model,
            "pool": chosen.pool,
            "micro": chosen.micro,
            "rating": [chosen.offer.rating_micro, chosen.offer.rating_version],
            "ttl_ms": terms.ttl_ms,
            "devices": [
                [pick.node, piece.device.uuid, piece.parts, _partition(piece)]
                for pick in chosen.picks
                for piece in pick.pieces
            ],
        }
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _partition(piece: Piece) -> str | None:
    return piece.partition.uuid if piece.partition is not None else None


def hash_of(decided: Decided | Refusal) -> str:
    """The canonical decision's hash."""
    return sha256(canonical(decided).encode()).hexdigest()[:32]


def asked_in(lines: Iterable[str]) -> Iterator[Asked]:
    """A request a line, as JSON: `{"tenant", "request"}`, and `at_ms` and `decision` of a dry run.

    A line of the DECISIONS stream will do, if it has its request. Raises NotABundle.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            if fields.get("request") is None and "verdict" in fields:
                continue  # a grant's record: the ledger has its request
            yield Asked(
                tenant=fields["tenant"],
                request=PlaceAsk.model_validate(fields["request"]),
                at_ms=fields.get("at_ms"),
                decision=fields.get("decision", ""),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise NotABundle(f"line {number} holds no request") from exc


def replay(data: bytes, lines: Iterable[str]) -> list[Replayed]:
    """Each request decided on the state of the file; none of them changes it. Raises NotABundle."""
    state, sequence = unpack(data)
    still = _Still(state.at_ms, sequence)
    nowhere = Access("", Path(), "replay")
    settings = Settings(nowhere, nowhere, Path())
    desk = Desk(settings, state, still, None)  # type: ignore[arg-type]  # it never appends
    found = []
    for asked in asked_in(lines):
        still.at_ms = state.at_ms if asked.at_ms is None else asked.at_ms
        decided = desk.decide(asked.tenant, asked.request)
        found.append(
            Replayed(
                tenant=asked.tenant,
                request_id=asked.request.request_id,
                verdict=_verdict(decided),
                said=_said(decided),
                decision=hash_of(decided),
                before=asked.decision,
            )
        )
    return found


def _verdict(decided: Decided | Refusal) -> str:
    return (decided.verdict or "refused") if isinstance(decided, Refusal) else "placed"


def _said(decided: Decided | Refusal) -> str:
    if isinstance(decided, Refusal):
        return f"{decided.code}: {decided.message}"
    chosen = decided[2]
    nodes = ", ".join(pick.node for pick in chosen.picks[:4])
    return f"{chosen.offer.model} in pool {chosen.pool}: {nodes}"


@dataclass(slots=True)
class _Still:
    """A ledger's writer as far as a decision needs one."""

    at_ms: int
    sequence: int
    full: bool = False

    def now_ms(self) -> int:
        return self.at_ms
