"""What an apply would make of the catalog, and everything that is wrong with it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quintal.contracts.catalog import Change, Fault, SourceFile
from quintal.contracts.documents import SPECS, Catalog, Document
from quintal.names import meant
from quintal_catalog import reading, references, sources
from quintal_catalog.changes import changes
from quintal_catalog.contradictions import findings
from quintal_catalog.finding import Finding
from quintal_catalog.price_rules import past
from quintal_catalog.reading import Sourced, dotted

FAULTS_MAX: Final = 500
"""Faults told at once, so that the answer fits into one message."""

STANDING: Final = "(catalog)"
"""Stands for the file where the fault lies in a document that is already in the catalog."""

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The set as it would be, what would change, and what is wrong."""

    documents: dict[Key, Document]
    changes: tuple[Change, ...]
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        """Whether it may be applied: warnings do not stop it."""
        return not any(fault.severity == "error" for fault in self.faults)

    @property
    def warnings(self) -> tuple[Fault, ...]:
        """What is odd, but allowed."""
        return tuple(fault for fault in self.faults if fault.severity == "warning")


def judge(
    standing: Catalog, files: tuple[SourceFile, ...], delete: tuple[str, ...], now_ms: int
) -> Judgement:
    """Put the files over the standing catalog, take `delete` out, and look at the whole."""
    written, faults = _read(files)
    deleted, more = _deleted(standing, delete, written)
    faults += more
    whole = {key: document for key, document in standing.documents.items() if key not in deleted}
    for key, sourced in written.items():
        old = whole.get(key)
        whole[key] = old if old is not None and old == sourced.document else sourced.document
    known = references.known(whole, frozenset(deleted))
    for key, document in whole.items():
        for path, kind, name in references.references(document):
            if (message := known.wrong(kind, name)) is not None:
                faults.append(_place(Finding(key, path, message), written))
    catalog = Catalog(tuple(whole.values()))
    found = (*findings(catalog, now_ms), *past(standing, catalog, now_ms))
    faults += [_place(finding, written) for finding in found if not _by_mending(finding, written)]
    order = sorted(faults, key=lambda f: (f.severity, f.file, f.line or 0, f.field))
    wrong = any(fault.severity == "error" for fault in faults)
    would = () if wrong else changes(standing.documents, whole)
    return Judgement(whole, would, tuple(order[:FAULTS_MAX]))


def _by_mending(finding: Finding, written: dict[Key, Sourced]) -> bool:
    """What is merely odd may be so only since a faulty place was left out."""
    sourced = written.get(finding.key)
    return finding.warning and sourced is not None and sourced.mended is not None


def _read(files: tuple[SourceFile, ...]) -> tuple[dict[Key, Sourced], list[Fault]]:
    written: dict[Key, Sourced] = {}
    faults: list[Fault] = []
    for file in files:
        found, wrong = sources.read(file)
        faults += wrong
        for source in found:
            sourced, its = reading.document(source)
            faults += its
            if sourced is None:
                continue
            first = written.setdefault(sourced.document.key, sourced)
            if first is not sourced:
                where = f"{first.source.file}, line {first.source.line(('kind',))}"
                faults.append(sourced.fault(("metadata", "name"), f"stands twice: also in {where}"))
    return written, faults


def _deleted(
    standing: Catalog, delete: tuple[str, ...], written: dict[Key, Sourced]
) -> tuple[set[Key], list[Fault]]:
    """The documents to take out; `Kind/name` each."""
    deleted: set[Key] = set()
    faults: list[Fault] = []
    for text in delete:
        kind, _, name = text.partition("/")
        key = (kind, name)
        if kind not in SPECS or not name:
            message = f"delete takes Kind/name{meant(kind, SPECS)}"
        elif key not in standing.documents:
            names = [its for its_kind, its in standing.documents if its_kind == kind]
            message = f"there is no {kind} {name!r}{meant(name, names)}"
        elif key in written:
            message = "is to be deleted and stands in a file as well"
        else:
            deleted.add(key)
            continue
        faults.append(Fault(file="(delete)", document=text, message=message))
    return deleted, faults


def _place(finding: Finding, written: dict[Key, Sourced]) -> Fault:
    sourced = written.get(finding.key)
    if sourced is not None:
        return sourced.fault(finding.path, finding.message, warning=finding.warning)
    return Fault(
        file=STANDING,
        document="/".join(finding.key),
        field=dotted(finding.path),
        message=finding.message,
        severity="warning" if finding.warning else "error",
    )
