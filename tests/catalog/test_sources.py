"""YAML as people write it, and what it can do beyond that, refused by name and line."""

from __future__ import annotations

from decimal import Decimal

import pytest

from quintal_catalog.sources import BYTES_MAX, DEPTH_MAX, read
from tests.catalog.given import file


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: &spot 2\n", 2, "anchor &spot"),
        ("a: 1\nb: *spot\n", 2, "alias *spot"),
        ("a:\n  x: 1\n  x: 2\n", 3, "'x' stands twice, first in line 2"),
        ("a: {<<: {b: 1}}\n", 1, "merges are refused"),
        ("a: !!python/object:os.system x\n", 1, "tag"),
        ("? [a]\n: 1\n", 1, "a key is plain text"),
        ("a: 1\nb: {c\n", 3, "this is no YAML"),
        ("\ta: 1\n", 1, "this is no YAML"),
        ("a: " + "[" * (DEPTH_MAX + 1), 1, f"deeper than {DEPTH_MAX}"),
        ("\u00e9" * (BYTES_MAX // 2 + 1), None, f"at most {BYTES_MAX}"),
    ],
)
def test_what_yaml_can_do_beyond_documents_is_refused_by_name_and_line(
    text: str, line: int | None, words: str
) -> None:
    documents, faults = read(file(text))
    assert not documents
    assert [fault.line for fault in faults] == [line]
    assert words in faults[0].message


def test_brackets_a_hundred_thousand_deep_are_a_fault_and_no_crash() -> None:
    documents, faults = read(file("[" * 100_000))
    assert not documents
    assert len(faults) == 1


def test_words_and_numbers_are_what_a_person_meant() -> None:
    text = "a: [on, no, 12:30, 2025-01-01, 0.1, .5, 10, 1e3, ~, true, '7', 010]"
    documents, faults = read(file(text))
    assert not faults
    assert documents[0].data["a"] == [
        "on", "no", "12:30", "2025-01-01", Decimal("0.1"), Decimal("0.5"), 10, "1e3", None, True,
        "7", 10,
    ]  # fmt: skip


def test_a_file_has_many_documents_and_each_knows_its_lines() -> None:
    documents, faults = read(file("a: 1\n---\n---\nb:\n  c: [1,\n   2]\n"))
    assert not faults
    assert [source.data for source in documents] == [{"a": 1}, {"b": {"c": [1, 2]}}]
    second = documents[1]
    assert second.line(("b",)) == 4
    assert second.line(("b", "c", 1)) == 6
    assert second.line(("b", "c", 1, "beyond")) == 6


def test_one_bad_document_does_not_hide_what_is_wrong_with_the_next() -> None:
    _, faults = read(file("a: 1\na: 2\n---\nb: 1\nb: 2\n"))
    assert [fault.line for fault in faults] == [2, 5]
