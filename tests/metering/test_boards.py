"""Reports and boards: every text runs on the real engine and says what the demo's numbers are."""

from __future__ import annotations

import importlib.util
import json
import re
import string
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from quintal_metering import reports
from quintal_metering.reports import Window
from quintal_metering.settings import Where
from quintal_metering.store import Store
from tests.metering import boards
from tests.metering.boards import BOARDS, GRAFANA, VALUES, expanded
from tests.metering.demo import AMD, FROM_MS, TO_MS, filled
from tests.metering.story import HOUR, MODEL, T0

ALL = Window(FROM_MS, TO_MS)
WHOLE = 10**12
"""One stretch for all of it."""
engine = pytest.mark.engine


def built() -> Any:
    spec = importlib.util.spec_from_file_location("build_boards", GRAFANA / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["build_boards"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def store(engine_path: Path) -> Iterator[Store]:
    opened = filled(Store.open(Where(engine_path, database="demo")))
    yield opened
    opened.close()


QUESTIONS = [
    reports.UsageOverTime(ALL), reports.UsageOverTime(ALL, "label:team"),
    reports.CapacityByReason(ALL), reports.CapacityByReason(ALL, ("cordoned",)),
    reports.FleetUnits(ALL), reports.CostPerUnit(ALL), reports.Utilization(ALL),
    reports.Utilization(ALL, "model"), reports.HeldIdle(ALL), reports.QuotaAttained(ALL),
    reports.BudgetAttained(ALL), reports.CommitmentsAttained(ALL),
    reports.ObjectivesAttained(ALL), reports.DecisionsOverTime(ALL),
    reports.ReadingOverTime(ALL, "power_watts"), reports.ReadingOverTime(ALL, "power_watts", True),
]  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: type(q).__name__)
def test_a_question_binds_all_that_comes_from_outside(question: Any) -> None:
    text, bound = question.sql()
    assert set(re.findall(r"\{(\w+):", text)) == set(bound)
    assert str(FROM_MS) not in text
    assert "power_watts" not in text


@engine
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: type(q).__name__)
def test_a_question_has_an_answer(store: Store, question: Any) -> None:
    rows = store.ask(question)
    assert rows
    assert all(isinstance(row["time"], datetime) for row in rows if "time" in row)


@engine
def test_usage_is_by_hour_and_tenant_and_an_empty_choice_is_all(store: Store) -> None:
    rows = store.ask(reports.UsageOverTime(ALL))
    assert {row["name"]: row["unit_hours"] for row in rows if row["time"].hour == 22} == {
        "a": 1, "b": 1.3,
    }  # fmt: skip
    assert len(rows) == 5
    only = store.ask(reports.UsageOverTime(Window(FROM_MS, TO_MS, tenants=("b",))))
    assert {row["name"] for row in only} == {"b"}
    nobody = store.ask(reports.UsageOverTime(Window(FROM_MS, TO_MS, tenants=("nobody",))))
    assert nobody == []
    wide = store.ask(reports.UsageOverTime(Window(FROM_MS, TO_MS, WHOLE), "label:team"))
    assert {row["name"]: row["cost"] for row in wide} == {"x": 6, "y": 5.2}


@engine
def test_capacity_is_the_inventory_and_costs_what_cost_lists_say(store: Store) -> None:
    rows = store.ask(reports.CapacityByReason(Window(FROM_MS, TO_MS, WHOLE)))
    hours = {row["reason"]: (row["card_hours"], row["cost"]) for row in rows}
    assert hours == {"leased": (5, 7.5), "cordoned": (6, 9), "free": (1, 1.5)}
    units = store.ask(reports.FleetUnits(ALL))
    assert {(row["unit_class"], row["model"]): row["units"] for row in units} == {
        ("train_llm", MODEL): 3, ("llm_large", MODEL): pytest.approx(3.6), ("train_llm", AMD): 1.3,
    }  # fmt: skip


@engine
def test_cost_per_unit_is_by_vendor_and_generation_with_and_without_idle_time(store: Store) -> None:
    rows = {row["vendor"]: row for row in store.ask(reports.CostPerUnit(ALL))}
    amd, nvidia = rows["amd"], rows["nvidia"]
    assert (amd["release_year"], amd["delivered"]) == (2023, pytest.approx(2.6))
    assert amd["own_cost_per_unit_hour"] == pytest.approx(1.5 / 1.3)
    assert amd["full_cost_per_unit_hour"] == pytest.approx(4.5 / 2.6)
    assert nvidia["full_cost_per_unit_hour"] == pytest.approx(3 * 1.5)
    assert nvidia["charged_per_unit_hour"] == 2
    assert nvidia["units_per_watt"] == pytest.approx(1 / 700)


@engine
def test_attainment_is_held_against_cap_budget_and_objective(store: Store) -> None:
    quota = store.ask(reports.QuotaAttained(ALL))
    assert [(row["tenant"], row["held_units"], row["percent"]) for row in quota] == [
        ("a", 1, 25)
    ] * 3
    [budget] = store.ask(reports.BudgetAttained(ALL))
    assert (budget["used_unit_hours"], budget["percent"]) == (3, 30)
    floors = store.ask(reports.CommitmentsAttained(ALL))
    assert [(r["commitment"], r["committed"], r["used"], r["percent"]) for r in floors] == [
        ("cards", 1, 1, 100), ("floor", 2, 1, 50), ("cards", 1, 1, 100), ("floor", 2, 1, 50),
        ("cards", 1, 0, 0), ("floor", 2, 1, 50),
    ]  # fmt: skip
    kept = store.ask(reports.ObjectivesAttained(ALL))
    assert [(row["profile"], row["granted"], row["kept_percent"]) for row in kept] == [
        ("train", 2, 50)
    ]


@engine
def test_case_j10_a_lease_that_was_seen_and_did_nothing_is_held_idle(store: Store) -> None:
    [row] = store.ask(reports.HeldIdle(ALL))
    assert (row["lease"], row["busy_percent"], row["covered_percent"]) == ("l1", 0, 50)
    busy = store.ask(reports.Utilization(Window(FROM_MS, TO_MS, WHOLE)))
    told = {row["name"]: (row["busy_percent"], row["covered_percent"]) for row in busy}
    assert told == {"a": (0, 50), "b": (None, 0)}, "b was never seen: unknown, not 0"


# --- boards -----------------------------------------------------------------------------------


def panels() -> list[tuple[str, dict[str, Any]]]:
    return [(f"{board}: {panel['title']}", panel) for board, panel in boards.panels()]


def choices() -> dict[str, dict[str, list[str]]]:
    return {
        "All": VALUES,
        "one": {name: values[:1] for name, values in VALUES.items()},
        "many": {name: values * 2 for name, values in VALUES.items()},
        "empty": {name: [] for name in VALUES},
    }


@engine
@pytest.mark.parametrize("choice", choices())
def test_every_panel_runs_over_the_demo_and_is_not_empty(store: Store, choice: str) -> None:
    faults = []
    for name, panel in panels():
        text = expanded(panel["targets"][0]["rawSql"], choices()[choice])
        rows = store.rows(text)
        if not rows:
            faults.append(f"{name}: no rows")
        elif panel["type"] == "timeseries":
            if not isinstance(rows[0].get("time"), datetime):
                faults.append(f"{name}: no column time")
            if not any(isinstance(value, (int, float)) for value in rows[0].values()):
                faults.append(f"{name}: no number")
    assert faults == []
    assert len(panels()) > 20


@engine
def test_every_panel_has_its_columns_and_reads_its_time_range_only(store: Store) -> None:
    build = built()
    outside = {"FROM": FROM_MS - 90 * 24 * HOUR}
    for board in build.boards():
        for panel in board.panels:
            rows = store.rows(expanded(panel.text, VALUES))
            wanted = {*panel.columns} | ({"time"} if panel.kind == "timeseries" else set())
            assert wanted <= rows[0].keys(), (panel.title, rows[0].keys())
            early = expanded(panel.query(), VALUES).replace(
                f"toDateTime({TO_MS // 1000})", f"toDateTime({outside['FROM'] // 1000 + 3600})"
            )
            early = early.replace(
                f"toDateTime({FROM_MS // 1000})", f"toDateTime({outside['FROM'] // 1000})"
            )
            for row in store.rows(early):
                passed = (
                    row["time"].replace(tzinfo=UTC).timestamp() * 1000 - outside["FROM"]
                    if "time" in row
                    else -1
                )
                unused = panel.title == "Commitments used" and row["value"] == 0
                assert unused, f"{panel.title} reads beyond its range"
                assert 0 <= passed < HOUR, f"{panel.title} tells of what was not asked"


OLD_MS = 90 * 24 * HOUR
OLD_ROWS = 20_000
TIMES = {
    "slices": ("from_ms", "to_ms"), "capacity": ("hour_ms",), "leases_by_hour": ("hour_ms",),
    "decisions": ("at_ms", "stored_ms"), "telemetry_minutes": ("minute_ms",),
    "telemetry_hours": ("hour_ms",), "transitions": ("at_ms",), "usage_hours": ("hour_ms",),
    "telemetry_fleet": ("at_ms",), "nodes_seen": ("hour_ms",), "held_hours": ("hour_ms",),
    "health_events": ("at_ms", "stored_ms"),
}  # fmt: skip
"""Tables that grow, by their times. Of censuses and dead letters there is one an hour, or fewer."""


@engine
def test_every_panel_reads_the_rows_of_its_time_range_and_not_those_of_a_past_quarter(
    engine_path: Path,
) -> None:
    store = filled(Store.open(Where(engine_path, database="quarter")))
    try:
        for table, times in TIMES.items():
            [found] = store.rows(f"SELECT count() AS n FROM {table}")
            old = ", ".join(f"{time} - {OLD_MS} - number AS {time}" for time in times)
            again = OLD_ROWS // int(found["n"]) + 1
            store.command(
                f"INSERT INTO {table} SELECT {table}.* REPLACE({old}) FROM {table} "
                f"CROSS JOIN numbers({again}) AS again"
            )
        faults = []
        for name, panel in panels():
            text = expanded(panel["targets"][0]["rawSql"], VALUES)
            faults += [
                f"{name} reads {row['rows']} rows of {row['table']}"
                for row in store.rows(f"EXPLAIN ESTIMATE {text}")
                if int(row["rows"]) >= OLD_ROWS // 2
            ]
        assert faults == []
    finally:
        store.close()


@engine
def test_every_variable_has_values(store: Store) -> None:
    asked = {variable["query"] for _, variable in boards.variables()}
    assert asked == {query for _, query in built().VARIABLES.values()}
    for query in asked:
        assert store.rows(query), query


@engine
def test_the_boards_are_printed_panel_by_panel_with_their_first_values(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert boards.printed(store) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(panels())
    [quota] = [line for line in lines if "Quota held" in line]
    assert "3 rows" in quota
    assert "name a train_llm, value 25" in quota
    assert "<svg" in boards.drawn(store)


def test_units_are_shown_as_units_and_never_as_days() -> None:
    for name, panel in panels():
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert unit not in {"h", "m", "d"}, f"{name}: Grafana shows 30 h as 1.25 days"


@engine
def test_every_alert_runs_and_gives_a_number(store: Store) -> None:
    for alert in built().alerts():
        rows = store.rows(expanded(alert.text, {}))
        assert all(isinstance(row["value"], (int, float)) for row in rows), alert.title


def test_the_committed_files_are_what_is_built() -> None:
    build = built()
    written = build.written()
    stale = [str(path) for path, text in written.items() if path.read_text() != text]
    assert stale == [], "run: python deploy/grafana/build.py"
    assert {path for path in written if path.suffix == ".json"} == set(BOARDS)
    assert [board.title for board in build.boards()] == [
        "Fleet", "Tenants", "Placement", "Telemetry", "Economics", "Operations",
    ]  # fmt: skip


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_board_is_well_made(path: Path) -> None:
    board = json.loads(path.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert board["uid"].startswith("quintal-")
    names = {variable["name"] for variable in board["templating"]["list"]}
    (source,) = names & {"datasource", "metrics"}  # metering's store, or Prometheus
    assert board["links"]
    for panel in board["panels"]:
        where = f"{path.stem}: {panel['title']}"
        assert panel["title"], where
        assert len(panel["description"]) > 20, where
        assert panel["fieldConfig"]["defaults"]["unit"], where
        assert panel["datasource"]["uid"] == f"${{{source}}}", where
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == f"${{{source}}}", where
            asked = target["rawSql" if source == "datasource" else "expr"]
            used = set(re.findall(r"\$\{(\w+):singlequote\}", asked))
            assert used <= names | set(), f"{where} uses {used - names}, which the board lacks"
            assert set(asked) <= set(string.printable), where


def test_the_provisioning_files_read_as_yaml_and_name_the_plugin() -> None:
    for path in (GRAFANA / "provisioning").rglob("*.yaml"):
        assert yaml.safe_load(path.read_text())["apiVersion"] == 1
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/quintal.yaml").read_text())
    assert source["datasources"][0]["type"] == built().PLUGIN
    assert T0 < TO_MS
