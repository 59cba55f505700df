"""What a command prints: a table for people, JSON or YAML for programs. The only room that prints.

JSON is the answer's own wire form, so that it is as stable as the contracts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from quintal.cli.choices import Output, chosen
from quintal.units import from_micro, unit_name

if TYPE_CHECKING:
    from pydantic import ValidationError

    from quintal.contracts.message import Message, Refusal

EMPTY = "-"
"""How nothing is shown: unknown is not 0."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows; a column whose name ends in `>` stands to the right."""

    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]
    title: str = ""
    footer: str = ""


def show(answer: Message | Mapping[str, Any], *tables: Table, line: str = "") -> None:
    """Print an answer as `-o` says: the tables, the one line, or the answer itself."""
    if chosen.output is Output.TABLE:
        for table in tables:
            _table(table)
        if line:
            say(line)
        elif not tables:
            _data(_plain(answer), Output.YAML)
        return
    _data(_plain(answer), chosen.output)


def say(line: str) -> None:
    """One line for people."""
    print(line, flush=True)


def complain(line: str) -> None:
    """One line about what went wrong."""
    print(line, file=sys.stderr, flush=True)


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet takes for a formula at the start of a cell, full-width forms too."""


def csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Comma-separated values for programs and spreadsheets; no text in them is a formula."""
    import csv as writing

    out = writing.writer(sys.stdout, lineterminator="\n")
    out.writerow(columns)
    out.writerows([csv_cell(value) for value in row] for row in rows)


def csv_cell(value: Any) -> str:
    """A cell; text that a spreadsheet would run is led by an apostrophe, a number stays one."""
    if value is None:
        return ""
    if isinstance(value, (int, Decimal)):
        return format(value, "f") if isinstance(value, Decimal) else str(value)
    text = str(value)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def money(amount: Decimal) -> Decimal:
    """An amount with as many digits as it takes to see that it is not nothing."""
    short = amount.quantize(Decimal("0.0001"))
    return short if short or not amount else amount


def refusal(said: Refusal) -> None:
    """A refusal: on stderr for people, on stdout in the form that was asked for."""
    if chosen.output is not Output.TABLE:
        _data(said.model_dump(mode="json"), chosen.output)
        return
    verdict = f" ({said.verdict})" if said.verdict and said.verdict != said.code else ""
    complain(f"refused: {said.code}{verdict}: {said.message}  [{said.owner}'s move]")
    for reason in said.reasons:
        names = f": {', '.join(reason.names)}" if reason.names else ""
        pool = f" in {reason.pool}" if reason.pool else ""
        text = f" - {reason.message}" if reason.message else ""
        complain(f"  {reason.count:>6} x {reason.code}{pool}{text} [{reason.owner}]{names}")
    for fault in said.details.get("faults", ()):
        if isinstance(fault, dict):
            complain(f"  {_where(fault)}{fault.get('message', '')}")


def _where(fault: Mapping[str, Any]) -> str:
    spot = ":".join(str(fault[key]) for key in ("file", "line") if fault.get(key))
    name = fault.get("document") or ""
    path = fault.get("field") or ""
    return "".join(f"{part}: " for part in (spot, name, path) if part)


def units(micro: int, workload_class: str) -> str:
    """Micro-units with their unit's name: `12.5 STU`."""
    return f"{number(from_micro(micro))} {unit_name(workload_class)}"


def number(value: Decimal) -> str:
    """A decimal without the zeros that say nothing."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(ms: int | None) -> str:
    """Milliseconds as people say them: `4m 10s`."""
    if ms is None:
        return EMPTY
    seconds, sign = abs(ms) // 1000, "-" if ms < 0 else ""
    for size, unit, lower, below in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m")):
        if seconds >= size:
            return f"{sign}{seconds // size}{unit} {seconds % size // lower}{below}"
    return f"{sign}{seconds // 60}m {seconds % 60}s" if seconds >= 60 else f"{sign}{seconds}s"  # noqa: PLR2004


def size(count: int | None) -> str:
    """Bytes as GiB."""
    return EMPTY if count is None else f"{count / 2**30:.0f} GiB"


def _plain(answer: Message | Mapping[str, Any]) -> Any:
    if isinstance(answer, Mapping):
        return dict(answer)
    return answer.model_dump(mode="json", by_alias=True)


def _data(value: Any, output: Output) -> None:
    if output is Output.JSON:
        print(json.dumps(value, indent=2, ensure_ascii=False))
        return
    import yaml

    print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), end="")


WIDE = 400
"""Columns of a table that nobody folds."""


def _table(table: Table) -> None:
    rows = [[_cell(value) for value in row] for row in table.rows]
    if table.title:
        print(table.title)
    if not rows:
        print("nothing")
        return
    import rich.box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in table.columns:
        drawn.add_column(name.rstrip(">"), justify="right" if name.endswith(">") else "left")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    # Into a pipe a table is as wide as it must be: nothing is cut off. Nor is it on a terminal
    # that is too narrow for its longest words: lines that go on are read, `a100-...` is not.
    console = Console(highlight=False, soft_wrap=False)
    wide = Console(width=WIDE, highlight=False, soft_wrap=False)
    least = Measurement.get(wide, wide.options, drawn).minimum
    fits = sys.stdout.isatty() and least <= console.width
    (console if fits else wide).print(drawn)
    if table.footer:
        print(table.footer)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return EMPTY
    if isinstance(value, Decimal):
        return number(value)
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value)) or EMPTY
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_cell(item)}" for key, item in value.items()) or EMPTY
    return str(value)


def faults(error: ValidationError) -> str:
    """All that is wrong with what was asked, in one line."""
    from quintal.contracts.message import faults_of

    return "; ".join(f"{its['field'] or 'request'}: {its['message']}" for its in faults_of(error))
