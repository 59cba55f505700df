"""A subject is spelled once, and what is made from the subjects is up to date."""

from __future__ import annotations

import ast
from pathlib import Path

from quintal.contracts import asyncapi, subjects
from quintal.contracts.permissions import permissions
from quintal.contracts.subjects import Role

ROOT = Path(__file__).parents[2]


def shipped() -> list[Path]:
    return [
        path
        for folder in (ROOT / "quintal", *(ROOT / "services").glob("*/quintal_*"))
        for path in sorted(folder.rglob("*.py"))
    ]


def spelled(path: Path) -> list[str]:
    """String constants that hold our prefix, docstrings left out."""
    tree = ast.parse(path.read_text())
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and f"{subjects.PREFIX}." in node.value
        and id(node) not in documents
    ]


def test_no_subject_is_spelled_outside_of_the_table() -> None:
    found = {
        str(path.relative_to(ROOT)): texts
        for path in shipped()
        if path.name != "subjects.py" and (texts := spelled(path))
    }
    assert len(shipped()) > 30, "the rule was held against too few files"
    assert found == {}


def test_every_subject_is_unique() -> None:
    patterns = [one.pattern for _, one in subjects.publications()]
    patterns += [one.pattern for _, one in subjects.requests()]
    assert len(patterns) == len(set(patterns)) > 40


def test_the_committed_asyncapi_document_is_current() -> None:
    committed = (ROOT / "docs" / "asyncapi.yaml").read_text()
    assert committed == asyncapi.text(), "run: make docs"


def test_the_asyncapi_document_refers_to_nothing_that_is_not_there() -> None:
    document = asyncapi.document()

    def refs(value: object) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [ref for item in value.values() for ref in refs(item)]
        if isinstance(value, list):
            return [ref for item in value for ref in refs(item)]
        return []

    found = refs(document)
    assert len(found) > 200
    for ref in found:
        at: object = document
        for part in ref.removeprefix("#/").split("/"):
            assert isinstance(at, dict), ref
            assert part in at, ref
            at = at[part]


def test_no_role_may_publish_or_hear_everything() -> None:
    for role in Role:
        allowed = permissions(role)
        for subject in (*allowed.publish, *allowed.hear):
            assert subject not in {">", "*", "quintal.>", "quintal.v1.>", "_INBOX.>"}, role
        if role is not Role.BOOTSTRAP:
            assert "$JS.API.>" not in allowed.publish, role


def test_no_front_holds_the_ledger_bind_or_the_store() -> None:
    for role in (Role.CATALOG_FRONT, Role.PLACER_FRONT, Role.METERING_FRONT):
        assert permissions(role).publish == ("_INBOX.*.>",)
