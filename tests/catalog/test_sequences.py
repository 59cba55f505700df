"""Any sequence of applies, deletions and rollbacks keeps the catalog whole: no name dangles."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from quintal.contracts.catalog import SourceFile
from quintal.contracts.documents import Catalog, Document
from quintal_catalog.judging import judge
from tests.catalog.given import NOW_MS, document

MODELS = [
    document("AcceleratorModel", name, f"{{vendor: v, family: f-{name}, memory_bytes: {size}, "
             f"ratings: [{{class: vision, value: {size}, provenance: benchmark}}]}}")
    for name in ("a", "b") for size in (1, 2)
]  # fmt: skip
POOL = [
    *MODELS,
    *(document("Tenant", name, "{}") for name in ("red", "blue")),
    *(
        document("Quota", name, f"{{tenant: {name}, caps: [{{class: vision, units: 4}}, "
                 f"{{{cap}, cards: 2}}]}}")
        for name in ("red", "blue") for cap in ("model: a", "family: f-b")
    ),
    document("Pool", "p", "{selector: {models: [a]}, tenants: [red]}"),
    document("Pool", "p", "{selector: {families: [f-b]}, tenants: [blue]}"),
    document("Profile", "x", "{class: vision, accelerator: {models: [a, b]}}"),
    document("Profile", "x", "{class: vision, alternatives: [{accelerator: {vendors: [v]}}]}"),
    document("Rating", "r", "{model: a, ratings: "
             "[{class: vision, value: 3, provenance: operator}]}"),
    document("Cohort", "c", "{class: vision, members: [{tenant: red}, {tenant: blue}]}"),
    document("Commitment", "m", "{tenant: red, class: vision, units: 1, pool: p}"),
    document("EnergyProfile", "e", "{model: b, watts: 9}"),
]  # fmt: skip
NAMES = sorted(
    {
        f"{text.split('kind: ')[1].split()[0]}/{text.split('name: ')[1].split('}')[0]}"
        for text in POOL
    }
)

acts = st.one_of(
    st.tuples(st.just("apply"), st.lists(st.integers(0, len(POOL) - 1), min_size=1, max_size=6)),
    st.tuples(st.just("delete"), st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)),
    st.tuples(st.just("rollback"), st.integers(0, 100)),
)

FIELDS = {
    "tenant": "Tenant", "tenants": "Tenant", "model": "AcceleratorModel",
    "models": "AcceleratorModel", "pool": "Pool",
}  # fmt: skip


def dangling(catalog: Catalog) -> list[str]:
    """Found by the fields' names alone, in the documents as they are written out."""
    families = {
        doc.spec.family for doc in catalog.documents.values() if doc.kind == "AcceleratorModel"
    }
    found = []

    def walk(value: Any, where: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                for name in item if isinstance(item, list) else [item]:
                    if not isinstance(name, str):
                        continue
                    known = (FIELDS.get(key, ""), name) in catalog.documents
                    if key in FIELDS and name and not known:
                        found.append(f"{where}.{key}: {name}")
                    if key in {"family", "families"} and name and name not in families:
                        found.append(f"{where}.{key}: {name}")
                walk(item, f"{where}.{key}")
        if isinstance(value, list):
            for item in value:
                walk(item, where)

    for (kind, name), doc in catalog.documents.items():
        walk(json.loads(doc.spec.model_dump_json(by_alias=True)), f"{kind}/{name}")
    return found


def rolled_back(now: Catalog, old: Catalog) -> tuple[tuple[SourceFile, ...], tuple[str, ...]]:
    """As the command does it: the old documents again, and the others taken out."""

    def text(doc: Document) -> str:
        return json.dumps(
            json.loads(doc.model_dump_json(by_alias=True, exclude_defaults=True))
            | {"apiVersion": "quintal/v1"}
        )

    files = tuple(
        SourceFile(path="/".join(doc.key), text=text(doc)) for doc in old.documents.values()
    )
    gone = tuple("/".join(key) for key in now.documents if key not in old.documents)
    return files, gone


@pytest.mark.laws
@settings(max_examples=150, deadline=None)
@given(st.lists(acts, max_size=14))
def test_no_sequence_of_applies_and_rollbacks_leaves_a_name_that_nobody_has(
    script: list[tuple[str, Any]],
) -> None:
    revisions = [Catalog()]
    for act, what in script:
        now = revisions[-1]
        files: tuple[SourceFile, ...] = ()
        gone: tuple[str, ...] = ()
        if act == "apply":
            texts = {POOL[i].split("spec:")[0]: POOL[i] for i in what}
            files = (SourceFile(path="set.yaml", text="".join(texts.values())),)
        elif act == "delete":
            gone = tuple(dict.fromkeys(what))
        else:
            files, gone = rolled_back(now, revisions[what % len(revisions)])
        judgement = judge(now, files, gone, NOW_MS)
        if act == "rollback":
            assert judgement.ok, "what was whole once is whole again"
        if judgement.ok:
            revisions.append(Catalog(tuple(judgement.documents.values()), revision=len(revisions)))
        assert dangling(revisions[-1]) == []


def test_the_search_for_dangling_names_finds_one() -> None:
    """Else the law above could not fail."""
    quota = Document.model_validate(
        {"kind": "Quota", "metadata": {"name": "q"},
         "spec": {"tenant": "red", "caps": [{"model": "a", "cards": 1}]}}
    )  # fmt: skip
    assert dangling(Catalog((quota,))) == ["Quota/q.tenant: red", "Quota/q.caps.model: a"]
