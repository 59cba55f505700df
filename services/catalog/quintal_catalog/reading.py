"""From plain values to documents: every fault of every field, with its line and a near name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from quintal.contracts.catalog import Fault
from quintal.contracts.documents import API_VERSION, SPECS, Document, Metadata
from quintal.names import meant
from quintal_catalog.mending import Mended, mended
from quintal_catalog.sources import Path, Source

FAULTS_MAX: Final = 100
"""Told of one part of a document: a near name is looked for each, and nobody reads thousands."""

_TOP = ("apiVersion", "kind", "metadata", "spec")


@dataclass(frozen=True, slots=True)
class Sourced:
    """A document of the set that is being applied, and where it was written."""

    document: Document
    source: Source
    mended: Mended | None = None
    """Where faults were left out of it: it can be judged, and not be applied."""

    def fault(self, path: Path, message: str, *, warning: bool = False) -> Fault:
        """Something wrong with this document at `path`."""
        if self.mended is not None and path[:1] == ("spec",):
            path = ("spec", *self.mended.written(path[1:]))
        return Fault(
            file=self.source.file,
            line=self.source.line(path),
            document="/".join(self.document.key),
            field=dotted(path),
            message=message,
            severity="warning" if warning else "error",
        )


def dotted(path: Path) -> str:
    """A path as people write it: `spec.ratings.3.value`."""
    return ".".join(str(part) for part in path)


def document(source: Source) -> tuple[Sourced | None, list[Fault]]:
    """The document of a source, and all that is wrong with it; none where nothing can be read."""
    data = source.data
    if not isinstance(data, dict):
        return None, [_fault(source, (), "", "a document is a mapping with a kind and a spec")]
    faults = list(_top(source, data))
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in SPECS:
        if "kind" in data:
            known = f"; known are {', '.join(SPECS)}"
            message = f"kind {kind!r} is not known{meant(str(kind), SPECS) or known}"
            faults.append(_fault(source, ("kind",), "", message))
        return None, faults
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    title = f"{kind}/{name}" if name else kind
    read: list[Any] = []
    left: Mended | None = None
    for part, its_model in (("metadata", Metadata), ("spec", SPECS[kind])):
        if part not in data:
            continue
        try:
            read.append(its_model.model_validate(data[part]))
        except ValidationError as exc:
            errors = exc.errors(include_url=False, include_context=False)
            faults += [
                _field_fault(source, part, its_model, title, error) for error in errors[:FAULTS_MAX]
            ]
            if len(errors) > FAULTS_MAX:
                more = f"and {len(errors) - FAULTS_MAX} more faults in {part}"
                faults.append(_fault(source, (part,), title, more))
            made, rest = _without(its_model, data[part], errors)
            left = rest if part == "spec" else left
            if made is not None:
                read.append(made)
    if len(read) < 2:  # noqa: PLR2004 - metadata and spec
        return None, faults
    whole = Document.model_construct(
        api_version=API_VERSION, kind=kind, metadata=read[0], spec=read[1]
    )
    return Sourced(whole, source, left), faults


def _without(
    model: type[BaseModel], data: Any, errors: Iterable[Any]
) -> tuple[BaseModel | None, Mended]:
    """What the part says where its faults are left out; none where it cannot do without."""
    wrong = [(tuple(error["loc"]), error["type"] == "extra_forbidden") for error in errors]
    left = mended(data, wrong)
    try:
        return model.model_validate(left.data), left
    except ValidationError:
        return None, left


def _top(source: Source, data: dict[str, Any]) -> Iterator[Fault]:
    for key in data:
        if key not in _TOP:
            yield _fault(source, (key,), "", f"no such field{meant(str(key), _TOP)}")
    for key in _TOP:
        if key not in data:
            yield _fault(source, (), "", f"{key} is missing")
    if "apiVersion" in data and data["apiVersion"] != API_VERSION:
        message = f"apiVersion is {API_VERSION}, not {data['apiVersion']!r}"
        yield _fault(source, ("apiVersion",), "", message)


def _field_fault(
    source: Source, part: str, model: type[BaseModel], title: str, error: Any
) -> Fault:
    location = tuple(error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = f"no such field{meant(str(location[-1]), _names_at(model, location[:-1]))}"
    elif error["type"] == "missing":
        message = f"{location[-1]} is missing"
    elif error["type"] == "literal_error":
        message += meant(str(error["input"]), _quoted(message))
    return _fault(source, (part, *location), title, message)


def _quoted(message: str) -> list[str]:
    return message.split("'")[1::2]


def _names_at(model: type[BaseModel], location: Path) -> list[str]:
    """The fields that may stand at this place."""
    at: type[BaseModel] | None = model
    for part in location:
        if at is None:
            return []
        if isinstance(part, int):
            continue
        fields = {field.alias or name: field for name, field in at.model_fields.items()}
        at = _model_in(fields[part].annotation) if part in fields else None
    return [field.alias or name for name, field in at.model_fields.items()] if at else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside `X | None`, `tuple[X, ...]` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)


def _fault(source: Source, path: Path, title: str, message: str) -> Fault:
    return Fault(
        file=source.file,
        line=source.line(path),
        document=title,
        field=dotted(path),
        message=message,
    )
