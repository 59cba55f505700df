"""Decisions written by hand from the vendors' tables, held against the shipped boundaries."""

from __future__ import annotations

import csv
import datetime as dt
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from quintal.compatibility import Judgement, StackKey, Subject, judge
from quintal.contracts.documents import Catalog
from quintal.contracts.workloads import Part, Variant
from quintal_catalog.first import starter
from quintal_catalog.judging import judge as judged

FILE = Path(__file__).parent.parent / "data" / "verdicts.csv"
TODAY = dt.date(2026, 6, 1)


def rows() -> list[dict[str, str]]:
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


ROWS = rows()


@cache
def catalog() -> Catalog:
    made = judged(Catalog(), starter(), (), 1_780_000_000_000)
    assert made.ok, made.faults
    return Catalog(tuple(made.documents.values()), revision=1)


def stack(text: str) -> StackKey:
    """`nvidia=535.54.03 firmware:huawei=7.1`: a driver, unless the component is named."""
    found: dict[str, list[tuple[str, str]]] = {"driver": [], "runtime": [], "firmware": []}
    for word in text.split():
        component, _, pair = word.rpartition(":")
        name, _, version = pair.partition("=")
        found[component or "driver"].append((name, version))
    return StackKey(*(tuple(found[each]) for each in ("driver", "runtime", "firmware")))


def variant(row: dict[str, str]) -> Variant:
    parts = [word.split(":") for word in row["parts"].split()]
    return Variant(
        name="v",
        runtime=row["runtime"],
        runtime_version=row["runtime_version"],
        image=row["image"],
        format=row["format"],
        precision=row["precision"],
        modes=tuple(row["modes"].split()),
        parts=tuple(Part.model_validate(dict(zip(("component", "name", "version"), p, strict=True)))
                    for p in parts),
    )  # fmt: skip


def decide(row: dict[str, str]) -> Judgement:
    subject = Subject(
        row["model"],
        catalog().models[row["model"]],
        stack(row["stack"]),
        variant(row),
        TODAY,
    )
    return judge(subject, catalog().boundaries)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(list(row.values())[:6]))
def test_a_decision_is_the_one_that_the_vendors_tables_give(row: dict[str, str]) -> None:
    said = decide(row)
    assert said.verdict == row["verdict"], said
    assert said.bound.startswith(row["bound"]), said
    if row["verdict"] in {"unknown", "blocked"}:
        assert said.bound, "what is not so says why"
    else:
        assert not said.bound


def test_there_are_at_least_eighty_decisions_of_each_sort_that_tables_can_give() -> None:
    counts = Counter(row["verdict"] for row in ROWS)
    assert len(ROWS) >= 80
    assert min(counts[each] for each in ("supported_unvalidated", "unknown", "blocked")) >= 15


def test_every_shipped_boundary_names_its_source() -> None:
    assert all(boundary.source for boundary in catalog().boundaries.values())
