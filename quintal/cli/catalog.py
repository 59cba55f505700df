"""The catalog as files: apply, look, compare, go back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from quintal.cli import render, session
from quintal.cli.choices import Output, chosen
from quintal.contracts.catalog import (
    Applied,
    ApplyAsk,
    Change,
    CheckAsk,
    DocumentsAsk,
    Fault,
    HistoryAsk,
    SourceFile,
)
from quintal.contracts.documents import SPECS, Document
from quintal.contracts.subjects import Role

Files = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", help="YAML files, folders of them, or - for standard input."),
]
Delete = Annotated[
    list[str] | None, typer.Option("--delete", help="Take out this document: Kind/name.")
]
Kind = Annotated[str, typer.Argument(help="Such as Profile, profile, profiles.")]
Revision = Annotated[int | None, typer.Option(help="As of this revision, not the head.")]

SUFFIXES = (".yaml", ".yml")

CHECK_FAILED = 1

FIELDS_SHOWN = 40
"""Changed fields of one document that a table shows; JSON has all."""


def apply(
    file: Files = None,
    why: Annotated[str, typer.Option(help="Kept in the history.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change.")] = False,
    delete: Delete = None,
    base: Annotated[
        int | None, typer.Option(help="Only if the catalog is still at this revision.")
    ] = None,
) -> None:
    """Make files part of the catalog: all of them, or none."""
    ask = ApplyAsk(
        files=_sources(file, delete),
        delete=tuple(delete or ()),
        why=why,
        base_revision=base,
        dry_run=dry_run,
    )
    _show_applied(session.ask(lambda client: client.apply(ask)))


def check(
    file: Files = None,
    delete: Delete = None,
    node: Annotated[str | None, typer.Option(help="Does the workload run on this node?")] = None,
    pool: Annotated[str | None, typer.Option(help="Does it run in this pool?")] = None,
    stack: Annotated[
        Path | None, typer.Option(help="Under this software? A file: drivers: {nvidia: ...}")
    ] = None,
) -> None:
    """Say what apply would say; with a place, whether the workload in the file runs there."""
    if node is not None or pool is not None or stack is not None:
        from quintal.cli.fit import check_place

        check_place(file or [], node, pool, stack)
        return
    ask = CheckAsk(files=_sources(file, delete), delete=tuple(delete or ()))
    answer = session.ask(lambda client: client.check(ask))
    _warn(answer.faults)
    errors = sum(1 for fault in answer.faults if fault.severity == "error")
    line = f"{errors} faults" if errors else "no faults"
    tables = [_change_table(answer.changes)] if answer.changes or not errors else []
    render.show(answer, *tables, line=line)
    if not answer.ok:
        raise typer.Exit(CHECK_FAILED)


def get(
    kind: Kind,
    name: Annotated[str | None, typer.Argument(help="Without it, all of the kind.")] = None,
    revision: Revision = None,
) -> None:
    """Print one document, or list a kind."""
    ask = DocumentsAsk(kind=_kind(kind), name=name, revision=revision)
    answer = session.ask(lambda client: client.documents(ask), _role())
    if name is not None:
        render.show(_written(answer.documents[0]))
        return
    rows = [
        (doc.metadata.name, getattr(doc.spec, "title", ""), *_telling(doc))
        for doc in answer.documents
    ]
    table = render.Table(("name", "title", "what"), rows, footer=f"revision {answer.revision}")
    render.show(answer, table)


def list_(
    kind: Annotated[str | None, typer.Argument(help="Only this kind.")] = None,
    revision: Revision = None,
) -> None:
    """List the documents that there are."""
    ask = DocumentsAsk(kind=_kind(kind) if kind else None, revision=revision)
    answer = session.ask(lambda client: client.document_list(ask), _role())
    rows = [(row.kind, row.name, row.title, row.digest[:12]) for row in answer.rows]
    columns = ("kind", "name", "title", "hash")
    render.show(answer, render.Table(columns, rows, footer=f"revision {answer.revision}"))


def diff(
    before: Annotated[int, typer.Argument(help="The older revision.")],
    after: Annotated[int | None, typer.Argument(help="The newer; without it, the head.")] = None,
) -> None:
    """Show what differs between two revisions, field by field."""
    answer = session.ask(lambda client: client.diff(before, after))
    title = f"from revision {answer.before} to {answer.after}"
    tables = [_change_table(answer.changes, title)]
    tables += [_field_table(change) for change in answer.changes if change.fields]
    render.show(answer, *tables)


def history(
    kind: Annotated[str | None, typer.Argument(help="Only what touched this kind.")] = None,
    name: Annotated[str | None, typer.Argument(help="Only what touched this document.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many.")] = 50,
) -> None:
    """Show who changed the catalog, why, when; the newest first."""
    ask = HistoryAsk(kind=_kind(kind) if kind else None, name=name, limit=limit)
    answer = session.ask(lambda client: client.history(ask))
    rows = [
        (each.revision, each.at, each.author, each.why, _counted(each.changes))
        for each in answer.revisions
    ]
    columns = ("revision>", "at", "author", "why", "changes")
    render.show(answer, render.Table(columns, rows))


def rollback(
    revision: Annotated[int, typer.Argument(help="The revision to go back to.")],
    why: Annotated[str, typer.Option(help="Kept in the history.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change.")] = False,
) -> None:
    """Apply an older revision again, as a new one: history is never taken back."""

    async def work(client: Any) -> Applied:
        old = await client.documents(DocumentsAsk(revision=revision))
        new = await client.documents(DocumentsAsk())
        kept = {document.key for document in old.documents}
        ask = ApplyAsk(
            files=tuple(_again(revision, old.documents)),
            delete=tuple("/".join(doc.key) for doc in new.documents if doc.key not in kept),
            why=why or f"back to revision {revision}",
            base_revision=new.revision,
            dry_run=dry_run,
        )
        answer: Applied = await client.apply(ask)
        return answer

    _show_applied(session.ask(work))


def _again(revision: int, documents: Iterable[Document]) -> Iterable[SourceFile]:
    """The documents as files, one for each kind: JSON is YAML too."""
    texts: dict[str, list[str]] = {}
    for document in documents:
        texts.setdefault(document.kind, []).append(json.dumps(_written(document)))
    for kind, its in texts.items():
        yield from _parts(f"(revision {revision}, {kind})", "\n---\n".join(its))


def schema(kind: Kind) -> None:
    """Print the JSON Schema of a kind of document; needs no service."""
    name = _kind(kind)
    found = Document.model_json_schema(by_alias=True)
    spec = SPECS[name].model_json_schema(by_alias=True)
    found["$defs"] = {**found.get("$defs", {}), **spec.pop("$defs", {})}
    found["properties"]["spec"] = spec
    found["properties"]["kind"] = {"const": name}
    found["title"] = name
    if chosen.output is Output.TABLE:
        chosen.output = Output.JSON
    render.show(found)


# --- reading files ----------------------------------------------------------------------------


def _sources(paths: list[Path] | None, delete: list[str] | None) -> tuple[SourceFile, ...]:
    if not paths and not delete:
        raise typer.BadParameter("give files with -f, or --delete Kind/name")
    found: list[SourceFile] = []
    for path in paths or ():
        if str(path) == "-":
            found += _parts("(standard input)", sys.stdin.read())
            continue
        for file in _files(path):
            found += _parts(str(file), _text(file))
    return tuple(found)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
    if not found:
        raise typer.BadParameter(f"{path} has no {' or '.join(SUFFIXES)} files")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise typer.BadParameter(f"{path} cannot be read: {exc}") from exc


def _parts(path: str, text: str) -> list[SourceFile]:
    limit = 1_048_576
    if len(text.encode()) > limit:
        raise typer.BadParameter(f"{path} is larger than {limit} bytes: split it")
    return [SourceFile(path=path, text=text)]


def _kind(word: str) -> str:
    """The kind as its documents write it, from any case, singular or plural."""
    folded = word.casefold().replace("-", "")
    for kind in SPECS:
        if folded in {kind.casefold(), f"{kind.casefold()}s", f"{kind.casefold()}es"}:
            return kind
    short = {"model": "AcceleratorModel", "price": "PriceList", "priority": "PriorityClass"}
    for prefix, kind in short.items():
        if folded in {prefix, f"{prefix}s"}:
            return kind
    raise typer.BadParameter(f"{word!r} is no kind: there are {', '.join(SPECS)}")


def _role() -> Role:
    """A tenant that was named reads as itself; else the operator reads."""
    return session.speaker()


# --- showing ----------------------------------------------------------------------------------


def _written(document: Document) -> dict[str, Any]:
    """A document as a person would write it: without what is the default anyway."""
    spec = document.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    metadata = document.metadata.model_dump(mode="json", exclude_defaults=True)
    return {
        "apiVersion": document.api_version,
        "kind": document.kind,
        "metadata": metadata,
        "spec": spec,
    }


def _telling(document: Document) -> tuple[str]:
    """The one thing that a line of a list should say of this kind."""
    tell = _TELLS.get(document.kind)
    return (tell(document.spec) if tell is not None else "",)


_TELLS: dict[str, Callable[[Any], str]] = {
    "AcceleratorModel": lambda spec: (
        f"{spec.vendor}, {len(spec.ratings)} ratings, confidence {spec.confidence}"
    ),
    "Profile": lambda spec: f"{spec.workload_class}, cards {spec.cards}, nodes {spec.nodes}",
    "Pool": lambda spec: f"order {spec.order}, {spec.ecosystem}",
    "Tenant": lambda spec: f"projects {', '.join(spec.projects)}",
    "Quota": lambda spec: f"{spec.tenant}: {len(spec.caps)} caps, {len(spec.budgets)} budgets",
    "PriceList": lambda spec: f"{spec.type} in {spec.currency}, {len(spec.prices)} prices",
    "PriorityClass": lambda spec: f"{spec.value}{', the default' if spec.default else ''}",
    "Rating": lambda spec: f"{spec.model}: {', '.join(map(_rated, spec.ratings))}",
    "EnergyProfile": lambda spec: f"{spec.model}: {spec.watts} W",
    "Cohort": lambda spec: (
        f"{spec.workload_class}: {', '.join(member.tenant for member in spec.members)}"
    ),
    "Commitment": lambda spec: (
        f"{spec.tenant}: {spec.units or spec.cards}"
        f" {'cards' if spec.units is None else 'units'} in {spec.workload_class}"
    ),
}


def _rated(rating: Any) -> str:
    return f"{rating.workload_class} {rating.value} ({rating.provenance})"


def _show_applied(answer: Applied) -> None:
    _warn(answer.warnings)
    if not answer.changes:
        render.show(answer, line=f"unchanged: revision {answer.revision}")
        return
    would = "would be" if answer.dry_run else "is"
    line = f"revision {answer.revision} {would} the catalog: {_counted(answer.changes)}"
    render.show(answer, _change_table(answer.changes), line=line)


def _warn(faults: Iterable[Fault]) -> None:
    for fault in faults:
        spot = f"{fault.file}:{fault.line}" if fault.line else fault.file
        what = ": ".join(part for part in (spot, fault.document, fault.field) if part)
        render.complain(f"{fault.severity}: {what}: {fault.message}")


def _change_table(changes: Iterable[Change], title: str = "") -> render.Table:
    rows = [(change.action, change.kind, change.name) for change in changes]
    return render.Table(("action", "kind", "name"), rows, title=title)


def _field_table(change: Change) -> render.Table:
    rows = [(path, *both) for path, both in list(change.fields.items())[:FIELDS_SHOWN]]
    more = len(change.fields) - len(rows)
    title = f"{change.kind}/{change.name}"
    footer = f"and {more} more fields" if more else ""
    return render.Table(("field", "before", "after"), rows, title=title, footer=footer)


def _counted(changes: Iterable[Change]) -> str:
    counts: dict[str, int] = {}
    for change in changes:
        counts[change.action] = counts.get(change.action, 0) + 1
    return ", ".join(f"{count} {action}" for action, count in sorted(counts.items())) or "nothing"


COMMANDS: dict[str, Callable[..., None]] = {
    "apply": apply,
    "check": check,
    "get": get,
    "list": list_,
    "diff": diff,
    "history": history,
    "rollback": rollback,
    "schema": schema,
}
