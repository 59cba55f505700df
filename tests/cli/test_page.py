"""The report's page: it brings all that it shows, it runs nothing, and a name is only a name."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from html.parser import HTMLParser

import pytest
from hypothesis import given, strategies as st

from quintal.cli import plots
from quintal.cli.page import BARS_MAX, OTHERS, Facts, leading, page
from quintal.cli.plots import Series, ceiling, said
from quintal.contracts.reports import FleetStretch, Report, UnitCost
from quintal.contracts.usage import UsageRow, UsageSummary
from quintal.units import QUANTITY_PER_UNIT_HOUR

DAY = 86_400_000
T0 = 1_795_996_800_000
"""2026-11-30, at midnight."""
TENANTS = ("vision", "language", "climate")
CLASSES = ("train_llm", "llm_large")


def usage(group: dict[str, str], workload_class: str, unit_hours: float, cost: str) -> UsageRow:
    quantity = int(unit_hours * 1_000) * QUANTITY_PER_UNIT_HOUR // 1_000
    return UsageRow(
        group=group, leases=1, quantity=quantity, unit_hours="0", unit_seconds="0",
        card_ms=int(unit_hours * 3_600_000), cost=Decimal(cost), currency="EUR",
        **{"class": workload_class},
    )  # fmt: skip


def summary(*rows: UsageRow) -> UsageSummary:
    return UsageSummary(
        from_ms=T0, to_ms=T0 + 7 * DAY, watermark_ms=T0 + 7 * DAY, sequence=4_711, rows=rows
    )


def week(tenants: tuple[str, ...] = TENANTS, days: int = 7) -> Facts:
    """A week of a fleet that is mostly busy."""
    rows: dict[str, list[UsageRow]] = {tenant: [] for tenant in tenants}
    for day in range(days):
        when = datetime.fromtimestamp((T0 + day * DAY) / 1000, UTC).strftime("%Y-%m-%d")
        for n, tenant in enumerate(tenants):
            for m, name in enumerate(CLASSES):
                amount = 40 + 13 * ((day * 7 + n * 3 + m * 5) % 11)
                rows[tenant].append(usage({"day": when}, name, amount, f"{amount}.25"))
    whole = [
        usage({"tenant": tenant}, name, 0, "0").model_copy(update={
            "quantity": sum(row.quantity for row in of if row.workload_class == name),
            "card_ms": sum(row.card_ms for row in of if row.workload_class == name),
            "cost": sum((row.cost for row in of if row.workload_class == name), Decimal(0)),
        })
        for tenant, of in rows.items() for name in CLASSES
    ]  # fmt: skip
    everybody = summary(*whole)
    first = leading(everybody)
    over_time = {name: summary(*rows[name]) for name in first}
    together = summary(*(row for of in rows.values() for row in of))
    stretches = [
        FleetStretch(
            at_ms=T0 + day * DAY, capacity=900 * QUANTITY_PER_UNIT_HOUR,
            leased=(500 + 30 * day) * QUANTITY_PER_UNIT_HOUR,
            unavailable=60 * QUANTITY_PER_UNIT_HOUR,
            granted=(300 + 40 * day) * QUANTITY_PER_UNIT_HOUR,
            covered=(280 + 40 * day) * QUANTITY_PER_UNIT_HOUR,
            used=(150 + 35 * day) * QUANTITY_PER_UNIT_HOUR, **{"class": name},
        )
        for name in CLASSES for day in range(days)
    ]  # fmt: skip
    costs = [
        UnitCost(
            vendor=vendor, model=f"{vendor}-1", quantity=1_000 * QUANTITY_PER_UNIT_HOUR,
            charged=Decimal(2_000), currency="EUR", own_cost=Decimal(1_100),
            full_cost=None if vendor == "huawei" else Decimal(1_400), cost_currency="EUR",
            **{"class": name},
        )
        for name in CLASSES for vendor in ("nvidia", "amd", "huawei")
    ]  # fmt: skip
    vendors = [
        usage({"vendor": vendor}, name, 1_000 - 210 * n, f"{2_000 - 300 * n}")
        for name in CLASSES for n, vendor in enumerate(("nvidia", "amd", "huawei"))
    ]  # fmt: skip
    report = Report(
        from_ms=T0, to_ms=T0 + days * DAY, stretch_ms=DAY, sequence=4_711,
        fleet=tuple(stretches), costs=tuple(costs),
    )  # fmt: skip
    return Facts(
        "finance", T0 + 7 * DAY, (T0, T0 + days * DAY), DAY, everybody, over_time,
        together if len(tenants) > len(first) else None, summary(*vendors), report,
    )  # fmt: skip


class Reader(HTMLParser):
    """What a browser would make of it."""

    VOID = frozenset({"meta", "rect", "line", "path", "i"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.outside: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href", "onload"}]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_brings_all_that_it_shows_and_runs_nothing() -> None:
    text = page(week())
    reader = read(text)
    assert reader.outside == []
    assert not {"script", "link", "img", "iframe"} & set(reader.tags)
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text
    assert "default-src 'none'" in text
    assert reader.tags.count("svg") == 6  # tenants, fleet and vendors, of two classes each


HOSTILE = "<script>alert(1)</script>\"&'<svg onload=x>"


def test_a_name_that_is_html_is_shown_as_it_is_written() -> None:
    facts = week((HOSTILE, "b"))
    vendor = usage({"vendor": HOSTILE}, "train_llm", 5, "7")
    text = page(replace(facts, by_vendor=summary(vendor), asker=HOSTILE))
    reader = read(text)
    assert reader.tags.count("script") == 0
    assert reader.outside == []
    assert HOSTILE in reader.text


def test_each_tenants_colour_is_the_same_in_every_plot_and_the_many_are_one() -> None:
    names = tuple(f"t{n:02}" for n in range(12))
    text = page(week(names))
    keys = re.findall(r'<i class="(s\d|others)"></i>([^<]+)</span>', text)
    by_name: dict[str, set[str]] = {}
    for colour, name in keys:
        by_name.setdefault(name, set()).add(colour)
    assert all(len(colours) == 1 for colours in by_name.values())
    assert by_name[OTHERS] == {"others"}
    assert len(by_name) == 8


def test_what_is_not_known_is_said_and_never_drawn_as_nothing() -> None:
    text = page(week())
    assert text.count(">unknown</text>") == 2  # what huawei cost us, in either class
    bare = page(replace(week(), fleet=None))
    assert "Capacity, granted, used" not in bare
    assert "cost us" not in bare


def test_an_empty_system_has_a_page_too() -> None:
    nothing = Facts("a", T0, (T0, T0 + 1), DAY, summary(), {}, None, summary(), None)
    assert "Nothing was used in this span" in page(nothing)


def test_two_years_of_days_become_no_more_bars_than_can_be_seen() -> None:
    facts = replace(week(), span=(T0, T0 + 730 * DAY))
    text = page(facts)
    xs = set(re.findall(r'<rect class="s\d" x="([\d.]+)"', text))
    assert 1 <= len(xs) <= BARS_MAX


def test_bars_stand_on_one_another_and_reach_as_high_as_their_sum() -> None:
    first = Series("a", "s0", (Decimal(2), None))
    second = Series("b", "s1", (Decimal(2), Decimal(1)))
    text = plots.stacked(["x", "y"], [first, second], "STU")
    bars = [
        (colour, float(y), float(height))
        for colour, y, height in re.findall(
            r'<rect class="(s\d)"[^>]* y="([\d.]+)" [^>]*height="([\d.]+)"', text
        )
    ]
    (_, y_a, h_a), (_, y_b, h_b), (_, y_c, h_c) = bars
    assert y_b + h_b == pytest.approx(y_a)
    assert h_a == pytest.approx(h_b) == pytest.approx(2 * h_c)
    assert y_b == pytest.approx(plots.TOP), "4 is a round number: the scale ends there"
    assert y_c + h_c == pytest.approx(plots.HEIGHT - plots.BOTTOM)


def test_a_gap_in_a_line_is_a_gap() -> None:
    line = Series("capacity", "line", (Decimal(1), None, Decimal(1)))
    text = plots.stacked(["a", "b", "c"], [], "STU", line)
    [path] = re.findall(r' d="([^"]+)"', text)
    assert path.count("M") == 2


@given(st.decimals("0.000000001", "1e15", places=9))
def test_a_scale_ends_at_a_round_number_not_below_the_highest_value(value: Decimal) -> None:
    top = ceiling(value)
    assert value <= top <= value * Decimal("2.5")
    assert len(top.normalize().as_tuple().digits) <= 2


@given(st.decimals("-1e12", "1e12", places=9))
def test_a_number_is_said_within_half_a_per_cent_and_nothing_is_not_said_as_0(
    value: Decimal,
) -> None:
    text = said(value).replace(",", "")
    assert abs(Decimal(text) - value) <= max(abs(value) / 200, Decimal("1e-9"))
    assert (text == "0") == (value == 0)
