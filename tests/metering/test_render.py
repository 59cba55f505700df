"""Bills as people and spreadsheets read them: no text is a formula, no amount seems nothing."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import pytest

from quintal.cli.bills import CSV_COLUMNS, _csv, _notes
from quintal.cli.render import csv as print_csv, csv_cell, money
from quintal.contracts.bills import Bill, BillLine

LINE = BillLine(
    project='=HYPERLINK("http://x")', profile="@SUM(A1)", pool="+1", model="-2+3|cmd", vendor="v",
    workload_class="train_llm", price="2", price_per="unit_hour", price_list="\t=1",
    quantity=-10, unit_hours="-0.000001", cost=Decimal("-0.004"), amount=Decimal("0.00"),
    residue=Decimal("-0.004"), currency="EUR", slices=2, adjustments=1, estimated_quantity=-5,
)  # fmt: skip
BILL = Bill(
    tenant="a", month="2026-11", from_ms=0, to_ms=1, watermark_ms=2, sequence=3, closed=True,
    lines=(LINE,),
)  # fmt: skip


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0d"])
def test_text_that_a_spreadsheet_would_run_is_led_by_an_apostrophe(start: str) -> None:
    assert csv_cell(f"{start}1+1") == f"'{start}1+1"
    assert csv_cell(Decimal("-1.50")) == "-1.50"
    assert csv_cell(-3) == "-3"
    assert csv_cell(None) == ""


def test_a_bill_as_csv_reads_back_and_holds_no_formula(capsys: pytest.CaptureFixture[str]) -> None:
    print_csv(CSV_COLUMNS, [_csv(BILL, LINE)])
    [row] = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert tuple(row) == CSV_COLUMNS
    assert row["project"] == '\'=HYPERLINK("http://x")'
    assert (row["cost"], row["unit_hours"], row["estimated_percent"]) == (
        "-0.004", "-0.000001", "50",
    )  # fmt: skip
    texts = [value for value in row.values() if not value.lstrip("-").replace(".", "").isdigit()]
    assert not [value for value in texts if value[:1] in "=+-@\t" and value]


def test_a_line_says_what_is_odd_about_it() -> None:
    assert _notes(LINE) == ["restated (1 of 2)", "50 % on estimates"]
    assert _notes(LINE.model_copy(update={"price": None}))[-1] == "no price was in force"


def test_an_amount_below_half_a_cent_is_not_shown_as_nothing() -> None:
    assert money(Decimal("0.000012345")) == Decimal("0.000012345")
    assert money(Decimal("12.345678901")) == Decimal("12.3457")
    assert money(Decimal("0.000000000")) == 0
