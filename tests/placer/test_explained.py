"""docs/explain.md says what the placer says today."""

from __future__ import annotations

from pathlib import Path

from tests.placer.explained import SITUATIONS, explained, page

DOCS = Path(__file__).parent.parent.parent / "docs" / "explain.md"


def test_the_committed_page_of_explanations_is_current() -> None:
    assert DOCS.read_text() == page(), "run `make docs`"


def test_each_situation_has_the_kind_of_reason_that_its_title_names() -> None:
    kinds = set()
    for situation in SITUATIONS:
        own, _ = explained(situation)
        kind = situation.title.partition(":")[0]
        kinds.add(kind)
        assert own.summary.startswith(f"{kind}: ") or own.verdict == kind, own.summary
    assert len(kinds) == len(SITUATIONS) == 10


def test_no_answer_to_the_tenant_of_the_page_names_the_other_one() -> None:
    for situation in SITUATIONS:
        assert "speech" not in explained(situation)[0].model_dump_json()
