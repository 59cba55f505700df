"""The boards over the demo's store, without Grafana: what each panel would be shown.

    python -m tests.metering.boards            panel, rows, first values
    python -m tests.metering.boards --page F   the same as a page of plots, to look at

The texts are those of the committed JSON, with Grafana's macros and variables put in as Grafana and
its ClickHouse plugin put them in. Grafana itself is not run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from html import escape
from pathlib import Path
from typing import Any

from quintal.cli import plots
from quintal.cli.page_style import STYLE
from quintal_metering.settings import Where
from quintal_metering.store import Store
from tests.metering.demo import AMD, FROM_MS, TO_MS, filled
from tests.metering.story import MODEL

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
BOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
VALUES = {
    "tenant": ["a", "b"], "pool": ["main"], "model": [MODEL, AMD], "class": ["train_llm"],
}  # fmt: skip
SHOWN = 3
"""Values of the first row that are printed."""


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    """(board, panel) of those over metering's store, in the order of the boards."""
    for path in BOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            if panel["datasource"]["uid"] == "${datasource}":
                yield path.stem, panel


def variables() -> Iterator[tuple[str, dict[str, Any]]]:
    """(board, variable) for each variable that asks the store."""
    for path in BOARDS:
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                yield path.stem, variable


def expanded(
    text: str,
    chosen: Mapping[str, Sequence[str]],
    step_s: int = 3600,
    span_ms: tuple[int, int] = (FROM_MS, TO_MS),
) -> str:
    """As Grafana and its plugin send it."""
    for name, values in chosen.items():
        quoted = ",".join(f"'{value}'" for value in values)
        text = text.replace(f"${{{name}:singlequote}}", quoted)
    start, end = (ms // 1000 for ms in span_ms)
    condition = (
        r"time >= toDateTime({}) AND time <= toDateTime({})".format(start, end)  # noqa: UP032
    )
    text = text.replace("$__timeFilter(time)", condition)
    text = text.replace("$__fromTime", f"toDateTime({start})")
    text = text.replace("$__toTime", f"toDateTime({end})")
    text = text.replace("$__interval_s", str(step_s))
    assert "$" not in text, f"a macro or variable is left: {text}"
    return text


def answered(store: Store) -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]], float]]:
    """(board, panel, rows, milliseconds)."""
    for board, panel in panels():
        begun = time.perf_counter()
        rows = store.rows(expanded(panel["targets"][0]["rawSql"], VALUES))
        yield board, panel, rows, (time.perf_counter() - begun) * 1000


def printed(store: Store) -> int:
    """A line a panel; how many had no rows."""
    empty = 0
    for board, panel, rows, ms in answered(store):
        empty += not rows
        first = (
            ", ".join(f"{k} {_said(v)}" for k, v in list(rows[0].items())[:SHOWN]) if rows else ""
        )
        print(
            f"{board:<11}{panel['title']:<34}{len(rows):>5} rows {ms:>6.0f} ms  {first or 'EMPTY'}"
        )
    return empty


def _said(value: Any) -> str:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%MZ")
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:39]}\u2026"


# --- as a page --------------------------------------------------------------------------------


def drawn(store: Store) -> str:
    """All boards as one page: time series as bars, tables as tables."""
    parts, last = [], ""
    for board, panel, rows, _ in answered(store):
        if board != last:
            parts.append(f"{'</div>' if last else ''}<h2>{escape(board)}</h2><div class=cards>")
            last = board
        inside = _series(panel, rows) if panel["type"] == "timeseries" else _table(rows)
        parts.append(f"<article><h3>{escape(panel['title'])}</h3>{inside}</article>")
    return f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>{''.join(parts)}</div>"


def _series(panel: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    times = sorted({row["time"] for row in rows})
    value = "value" if "value" in rows[0] else next(k for k in rows[0] if k not in {"time", "name"})
    names = sorted({str(row.get("name", value)) for row in rows})[:7]
    found = {(str(row.get("name", value)), row["time"]): row[value] for row in rows}
    series = [
        plots.Series(
            name, f"s{n}",
            tuple(None if found.get((name, t)) is None else Decimal(str(found[name, t]))
                  for t in times),
        )
        for n, name in enumerate(names)
    ]  # fmt: skip
    unit = panel["fieldConfig"]["defaults"]["unit"]
    text = plots.stacked([t.strftime("%H:%M") for t in times], series, unit)
    return text + plots.legend((one.colour, one.name) for one in series)


def _table(rows: list[dict[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(_said(v))}</td>' for v in row.values())}</tr>"
        for row in rows[:8]
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def main() -> int:
    """0 if every panel has rows."""
    reading = argparse.ArgumentParser(description="The boards over the demo's store.")
    reading.add_argument("--page", type=Path, help="Write plots to this file.")
    page = reading.parse_args().page
    with tempfile.TemporaryDirectory() as folder:
        store = filled(Store.open(Where(Path(folder))))
        try:
            if page:
                page.write_text(drawn(store))
                return 0
            return 1 if printed(store) else 0
        finally:
            store.close()


if __name__ == "__main__":
    sys.exit(main())
