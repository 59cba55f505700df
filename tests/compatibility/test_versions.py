"""Versions as vendors write them: a total order, held against real ones, and ranges over it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from quintal.versions import parse, parse_range

FILE = Path(__file__).parent.parent / "data" / "versions.txt"


def families() -> dict[str, list[str]]:
    found = {}
    for line in FILE.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(":")
            found[name] = rest.split()
    return found


FAMILIES = families()


def test_there_are_at_least_sixty_real_versions() -> None:
    assert sum(len(versions) for versions in FAMILIES.values()) >= 60


@pytest.mark.parametrize("family", FAMILIES)
def test_real_versions_stand_in_the_order_of_their_release(family: str) -> None:
    for older, newer in pairwise(FAMILIES[family]):
        if older in {"r580.65", "6.2.4"} or newer == "r580.65":
            assert parse(older) <= parse(newer), (older, newer)
        else:
            assert parse(older) < parse(newer), (older, newer)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("12.0", "12.0.0"),
        ("535.183.01", "535.183.1"),
        ("r580.65", "580.65"),
        ("v0.10.0", "0.10"),
        ("8.0.rc3", "8.0.RC3"),
        ("8.0.rc3", "8.0-RC.3"),
        (" 24.1.rc1 ", "24.1.rc1"),
        ("maca-3.0.1", "3.0.1"),
    ],
)
def test_versions_that_differ_in_writing_alone_are_equal(one: str, other: str) -> None:
    assert parse(one) == parse(other)
    assert hash(parse(one)) == hash(parse(other))


@pytest.mark.parametrize("text", ["", "N/A", "unknown", "-", "x" * 40, "1" * 200])
def test_a_text_without_a_digit_or_too_long_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="no version"):
        parse(text)


REAL = [version for versions in FAMILIES.values() for version in versions]
MADE = st.from_regex(r"\A[vr]?[0-9]{1,3}([.\-+_~]?(rc|beta|alpha|dev|post|p)?[0-9]{1,4}){0,4}\Z")
VERSIONS = st.one_of(st.sampled_from(REAL), MADE)


@given(VERSIONS, VERSIONS, VERSIONS)
@settings(max_examples=300, deadline=None)
def test_the_order_is_total(a: str, b: str, c: str) -> None:
    one, two, three = parse(a), parse(b), parse(c)
    assert (one < two) + (one == two) + (one > two) == 1
    if one <= two <= three:
        assert one <= three
    if one == two:
        assert hash(one) == hash(two)
        assert (one < three) == (two < three)


@given(st.lists(VERSIONS, max_size=12))
@settings(max_examples=100, deadline=None)
def test_sorting_does_not_depend_on_where_it_starts(texts: list[str]) -> None:
    forth = sorted(map(parse, texts))
    back = sorted(map(parse, reversed(texts)))
    assert forth == back


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (">=525.60.13", "525.60.13", "525.60.12"),
        (">525.60.13", "525.60.14", "525.60.13"),
        ("<=7.2.99", "7.2.99", "7.3"),
        ("<580", "575.57.08", "580"),
        (">=450.80.02, <525", "470.57.02", "525"),
        ("==12.4.*", "12.4.1", "12.5"),
        ("==12.4.*", "12.4", "12.40"),
        ("!=6.1.*", "6.2", "6.1.2"),
        ("!=6.1.2", "6.1.3", "6.1.2"),
        ("==11.8.* | >=12.2", "12.2", "12.1"),
        ("24.1.rc3", "24.1.RC3", "24.1.0"),
        (">8.0.rc2, <=8.0.rc3", "8.0.RC3.beta1", "8.0.RC2"),
        ("*", "0", ""),
    ],
)
def test_a_range_holds_its_inside_and_not_its_outside(text: str, inside: str, outside: str) -> None:
    assert parse(inside) in parse_range(text)
    if outside:
        assert parse(outside) not in parse_range(text)
        assert parse_range(text).failing(parse(outside))


@pytest.mark.parametrize(
    "text", ["", ">=", "~=12", ">=12.*", ">=13, <12", ">12, <=12", ">= x", "12,,13"]
)
def test_a_range_that_cannot_be_read_or_holds_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text itself is in each message
        parse_range(text)


@given(VERSIONS, VERSIONS)
@settings(max_examples=200, deadline=None)
def test_a_range_and_its_opposite_part_all_versions(a: str, b: str) -> None:
    version, end = parse(a), parse(b).text
    assert (version in parse_range(f">={end}")) != (version in parse_range(f"<{end}"))
    assert (version in parse_range(f"=={end}")) != (version in parse_range(f"!={end}"))
