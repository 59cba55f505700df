"""Asking the catalog: documents in as a set, revisions out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from quintal.contracts.documents import Document
from quintal.contracts.message import Answer, Ask, Event, Exact, UnixMs
from quintal.contracts.spec import Provenance, WorkloadClass


class SourceFile(Ask):
    """One YAML file as its author wrote it, so that a fault can name file and line."""

    path: str
    text: Annotated[str, Field(max_length=1_048_576)]


class ApplyAsk(Ask):
    """Make these files part of the catalog: all of them, or none.

    A document replaces the one of its kind and name; `delete` removes by `Kind/name`.
    """

    files: Annotated[tuple[SourceFile, ...], Field(max_length=1_000)] = ()
    delete: tuple[str, ...] = ()
    why: Annotated[str, Field(max_length=1_024)] = ""
    base_revision: int | None = None
    """The revision the author looked at; if the head has moved on, `conflict` says to where."""
    dry_run: bool = False


class CheckAsk(Ask):
    """What `apply` would say, and nothing is kept."""

    files: Annotated[tuple[SourceFile, ...], Field(max_length=1_000)] = ()
    delete: tuple[str, ...] = ()


class DocumentsAsk(Ask):
    """Documents of one kind, or all; of one revision, or the head."""

    kind: str | None = None
    name: str | None = None
    revision: int | None = None


class DiffAsk(Ask):
    """What changed between two revisions; without `after`, up to the head."""

    before: int
    after: int | None = None


class HistoryAsk(Ask):
    """The revisions, newest first."""

    limit: Annotated[int, Field(ge=1, le=1_000)] = 50
    kind: str | None = None
    name: str | None = None


class Fault(Answer):
    """One thing wrong with a set of documents, and where."""

    file: str
    line: int | None = None
    document: str = ""
    """Kind/name, where it could be read."""
    field: str = ""
    message: str
    severity: Literal["error", "warning"] = "error"


class Change(Answer):
    """One document that differs between two revisions."""

    kind: str
    name: str
    action: Literal["added", "changed", "removed"]
    fields: dict[str, tuple[Any, Any]] = Field(default_factory=dict)
    """Dotted path -> (before, after)."""


class Applied(Answer):
    """It is the head now (or would be)."""

    kind: Literal["applied"] = "applied"
    revision: int
    digest: str = ""
    changes: tuple[Change, ...] = ()
    warnings: tuple[Fault, ...] = ()
    dry_run: bool = False


class Checked(Answer):
    """All faults of a set; none of severity `error` means that it would be applied."""

    kind: Literal["checked"] = "checked"
    ok: bool
    faults: tuple[Fault, ...] = ()
    changes: tuple[Change, ...] = ()


class Documents(Answer):
    """Documents, as of one revision."""

    kind: Literal["documents"] = "documents"
    revision: int
    documents: tuple[Document, ...]


class DocumentRow(Answer):
    """A line of a list."""

    kind: str
    name: str
    digest: str
    title: str = ""


class DocumentList(Answer):
    """What there is, without the bodies."""

    kind: Literal["list"] = "list"
    revision: int
    rows: tuple[DocumentRow, ...]


class Diff(Answer):
    """What differs between two revisions."""

    kind: Literal["diff"] = "diff"
    before: int
    after: int
    changes: tuple[Change, ...]


class Revision(Answer):
    """One revision: who, why, when."""

    revision: int
    author: str
    why: str
    at: str
    at_ms: UnixMs
    changes: tuple[Change, ...] = ()


class History(Answer):
    """Revisions, newest first."""

    kind: Literal["history"] = "history"
    revisions: tuple[Revision, ...]


class RateAsk(Ask):
    """What is this model worth? By its document's name, or by a name that its tool prints."""

    model: Annotated[str, Field(min_length=1, max_length=128)]
    workload_class: Annotated[WorkloadClass | None, Field(alias="class")] = None
    precision: str = ""
    """The one that the work uses; empty: the class's reference precision."""
    revision: int | None = None


class RatingRow(Answer):
    """One rating of a model, and whether it is the one that counts."""

    workload_class: Annotated[WorkloadClass, Field(alias="class")]
    unit: str
    precision: str = ""
    """Empty: any that has no rating of its own."""
    value: Exact
    low80: Exact | None = None
    high80: Exact | None = None
    per: Literal["device", "core"] = "device"
    provenance: Provenance
    estimated: bool
    """Nobody measured it: a formula, or a share of a parent."""
    override: bool
    """An operator said so, whatever was measured."""
    evidence: str = ""
    date: str = ""
    version: str = ""
    document: str = ""
    """Kind/name of the document that says it."""
    applies: bool
    """Whether it is what is granted and charged for the precision that was asked for."""
    units_per_watt: str | None = None
    watts: Exact | None = None
    watts_from: str = ""


class Rated(Answer):
    """A model's ratings: in each class the one that applies first, then those it stands before."""

    kind: Literal["rated"] = "rated"
    revision: int
    model: str
    title: str = ""
    reference: str
    """The card that is 1 in every class."""
    rows: tuple[RatingRow, ...]
    unrated: tuple[WorkloadClass, ...] = ()
    """Classes in which the model is not granted."""
    proposals: tuple[RatingRow, ...] = ()
    """What the formula would say there: not in force until a document says so."""
    official: Literal[False] = False
    """None of this is an official MLPerf result, also where it rests on published ones."""


# --- how it is stored -------------------------------------------------------------------------


class ManifestEntry(Event):
    """One document of a revision."""

    kind: str
    name: str
    digest: str


class Manifest(Event):
    """`rev.<n>`: what a revision consists of; immutable."""

    revision: int
    entries: tuple[ManifestEntry, ...]
    author: str
    why: str
    at_ms: UnixMs
    parent: int = 0


class Head(Event):
    """`head`: moved last, by compare-and-set."""

    revision: int
    digest: str
    """sha256 of the manifest's bytes."""
