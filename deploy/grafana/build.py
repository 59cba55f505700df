"""The boards as code: `python deploy/grafana/build.py` writes `dashboards/*.json` and the alerts.

Each panel asks one of metering's own questions (`quintal_metering.reports`), with Grafana's
variables where the question has its parameters, so that a board and an answer cannot differ. A
small builder of dicts of our own: the published builders know no ClickHouse and pin old schemas.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from quintal_metering import reports
from quintal_metering.reports import Window

HERE = Path(__file__).parent
PLUGIN = "grafana-clickhouse-datasource"
SOURCE = {"type": PLUGIN, "uid": "${datasource}"}
METRICS = {"type": "prometheus", "uid": "${metrics}"}
ALERT_SOURCE = "quintal"
WINDOW = Window(0, 1)

VARIABLES = {
    "tenant": ("Tenant", "SELECT DISTINCT tenant FROM usage_hours ORDER BY tenant"),
    "pool": ("Pool", "SELECT DISTINCT pool FROM capacity WHERE pool != '' ORDER BY pool"),
    "model": ("Model", "SELECT DISTINCT model FROM capacity WHERE model != '' ORDER BY model"),
    "class": ("Class", "SELECT DISTINCT workload_class FROM usage_hours ORDER BY workload_class"),
}
_LISTS = {"tenants": "tenant", "pools": "pool", "models": "model", "classes": "class"}


def sql(question: Any, *, step_s: int = 3600) -> str:
    """A question's text with Grafana's macros and variables where its parameters were."""
    text, bound = question.sql()
    said = {
        "from_ms": "(toUnixTimestamp($__fromTime) * 1000)",
        "to_ms": "(toUnixTimestamp($__toTime) * 1000)",
        "bucket_ms": f"(greatest({step_s}, $__interval_s) * 1000)",
        **{name: f"[${{{variable}:singlequote}}]" for name, variable in _LISTS.items()},
    }

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name in said:
            return said[name]
        value = bound[name]
        if isinstance(value, list):
            return "[" + ", ".join(f"'{one}'" for one in value) + "]"
        return f"'{value}'" if isinstance(value, str) else str(value)

    return re.sub(r"\{(\w+):[^}]+\}", put, text).strip()


@dataclass
class Panel:
    """One panel. `rows` of a time series are spread by `by`, one line a name."""

    title: str
    description: str
    text: str
    unit: str
    value: str = ""
    by: str = ""
    kind: str = "timeseries"
    width: int = 12
    steps: tuple[tuple[str, float | None], ...] = (("green", None),)
    stacked: bool = False
    columns: tuple[str, ...] = ()
    """What the answer must have, beside `time`, `value` and `by`."""

    def query(self) -> str:
        """As the panel sends it: a time series has `time`, a name and one number."""
        if self.kind != "timeseries" or not self.value:
            return self.text
        name = f"toString({self.by}) AS name, " if self.by else ""
        return f"SELECT time, {name}{self.value} AS value FROM (\n{self.text}\n) ORDER BY time"

    def build(self, number: int, x: int, y: int) -> dict[str, Any]:
        """Grafana's dict."""
        series = self.kind == "timeseries"
        custom: dict[str, Any] = {}
        if series:
            custom = {"drawStyle": "line", "fillOpacity": 15, "spanNulls": False}
            if self.stacked:
                custom["stacking"] = {"mode": "normal", "group": "A"}
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": SOURCE,
            "gridPos": {"h": 8, "w": self.width, "x": x, "y": y},
            "fieldConfig": {
                "defaults": {
                    "unit": self.unit,
                    "custom": custom,
                    "noValue": "unknown",
                    "thresholds": {
                        "mode": "absolute",
                        "steps": [{"color": c, "value": v} for c, v in self.steps],
                    },
                },
                "overrides": [],
            },
            "options": {"legend": {"displayMode": "table", "placement": "bottom"}}
            if series
            else {},
            "transformations": [{"id": "prepareTimeSeries", "options": {"format": "multi"}}]
            if series
            else [],
            "targets": [
                {
                    "refId": "A",
                    "datasource": SOURCE,
                    "editorType": "sql",
                    "pluginVersion": "4.20.0",
                    "queryType": "timeseries" if series else "table",
                    "format": 0 if series else 1,
                    "rawSql": self.query(),
                }
            ],
        }


@dataclass
class Gauge(Panel):
    """One panel over a placer's own metrics, which Prometheus has; `by` is the lines' legend."""

    def build(self, number: int, x: int, y: int) -> dict[str, Any]:
        """Grafana's dict."""
        built = super().build(number, x, y)
        target = {
            "refId": "A", "datasource": METRICS, "expr": self.text, "legendFormat": self.by,
            "editorMode": "code", "range": True,
        }  # fmt: skip
        return {**built, "datasource": METRICS, "transformations": [], "targets": [target]}


@dataclass
class Board:
    """One dashboard."""

    uid: str
    title: str
    description: str
    panels: list[Panel]
    variables: tuple[str, ...] = ()
    span: str = "now-7d"
    metrics: bool = False
    """Whether its data source is Prometheus, and not metering's store."""

    def build(self) -> dict[str, Any]:
        """Grafana's dict, panels laid out row by row."""
        x = y = 0
        built = []
        for number, panel in enumerate(self.panels, 1):
            if x + panel.width > 24:  # noqa: PLR2004 - the grid's width
                x, y = 0, y + 8
            built.append(panel.build(number, x, y))
            x += panel.width
        return {
            "uid": f"quintal-{self.uid}",
            "title": f"Quintal: {self.title}",
            "description": self.description,
            "tags": ["quintal"],
            "timezone": "utc",
            "schemaVersion": 39,
            "version": 1,
            "editable": True,
            "refresh": "1m",
            "time": {"from": self.span, "to": "now"},
            "templating": {
                "list": [
                    _metrics() if self.metrics else _source(),
                    *(_variable(name) for name in self.variables),
                ]
            },
            "links": [
                {
                    "title": "Quintal", "type": "dashboards", "tags": ["quintal"],
                    "asDropdown": True, "includeVars": True, "keepTime": True,
                    "icon": "external link", "tooltip": "", "targetBlank": False,
                }
            ],
            "annotations": {"list": []},
            "panels": built,
        }  # fmt: skip


def _source() -> dict[str, Any]:
    return {
        "name": "datasource", "label": "Data source", "type": "datasource", "query": PLUGIN,
        "hide": 0, "refresh": 1, "multi": False, "includeAll": False,
        "description": "Metering's store: a ClickHouse server, or metering's own endpoint.",
    }  # fmt: skip


def _metrics() -> dict[str, Any]:
    return {
        "name": "metrics", "label": "Prometheus", "type": "datasource", "query": "prometheus",
        "hide": 0, "refresh": 1, "multi": False, "includeAll": False,
        "description": "A Prometheus that scrapes the placers (QUINTAL_PLACER_METRICS).",
    }  # fmt: skip


def _variable(name: str) -> dict[str, Any]:
    label, query = VARIABLES[name]
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "query": query,
        "refresh": 2, "multi": True, "includeAll": True, "sort": 1,
        "current": {"text": ["All"], "value": ["$__all"]}, "hide": 0,
        "description": f"{label}: one, several, or all of them.",
    }  # fmt: skip


CARD_HOURS, UNIT_HOURS = "suffix: card-h", "suffix: unit-h"
"""No duration of Grafana's own: it would show 30 card-hours as 1.25 days."""

WARN = (("green", None), ("yellow", 80), ("red", 95))
ANY_IS_BAD = (("green", None), ("red", 1))
_FLEET = ("pool", "model")
_ALL = ("tenant", "pool", "model", "class")
_LEDGER_MESSAGES = """
SELECT toDateTime(intDiv(at_ms, b) * b / 1000, 'UTC') AS time, uniqExact(sequence) AS messages,
    max(sequence) AS newest, (greatest(60, $__interval_s) * 1000) AS b
FROM transitions
WHERE at_ms >= toUnixTimestamp($__fromTime) * 1000 AND at_ms < toUnixTimestamp($__toTime) * 1000
GROUP BY time ORDER BY time""".strip()
_CENSUSES = """
SELECT toDateTime(at_ms / 1000, 'UTC') AS time, cause, cells, sequence,
    if(differences = '[]', 'agrees', differences) AS verdict
FROM censuses
WHERE at_ms >= toUnixTimestamp($__fromTime) * 1000 AND at_ms < toUnixTimestamp($__toTime) * 1000
ORDER BY at_ms DESC, sequence, refolded DESC LIMIT 1 BY sequence, at_ms, cause LIMIT 200""".strip()
_UNCONSERVED = """
SELECT toDateTime(hour_ms / 1000, 'UTC') AS time, countIf(total != parts OR least < 0) AS cells
FROM (
    SELECT pool, model, hour_ms, sumIf(n, reason = 'total') AS total,
        sumIf(n, reason != 'total') AS parts, min(n) AS least
    FROM (
        SELECT pool, model, hour_ms, reason, sum(toInt256(part_ms)) AS n
        FROM (
            SELECT * FROM capacity
            WHERE hour_ms >= toUnixTimestamp($__fromTime) * 1000
                AND hour_ms < toUnixTimestamp($__toTime) * 1000 LIMIT 1 BY id
        ) GROUP BY pool, model, hour_ms, reason
    ) GROUP BY pool, model, hour_ms
) GROUP BY time ORDER BY time""".strip()
_LETTERS = """
SELECT toDateTime(at_ms / 1000, 'UTC') AS time, stream, sequence, code, message
FROM dead_letters
WHERE id NOT IN (SELECT id FROM letters_taken)
    AND at_ms >= toUnixTimestamp($__fromTime) * 1000 AND at_ms < toUnixTimestamp($__toTime) * 1000
ORDER BY at_ms DESC, id LIMIT 1 BY id LIMIT 200""".strip()
_EVENTS = """
SELECT toDateTime(at_ms / 1000, 'UTC') AS time, node, device, kind, before, after, code, message
FROM health_events
WHERE at_ms >= toUnixTimestamp($__fromTime) * 1000 AND at_ms < toUnixTimestamp($__toTime) * 1000
ORDER BY at_ms DESC, sequence LIMIT 1 BY sequence LIMIT 200""".strip()
_SILENT = """
SELECT node, max(newest) AS newest_ms, (toUnixTimestamp($__toTime) * 1000 - newest_ms) / 1000 AS silent_s
FROM (
    SELECT node, max(newest_ms) AS newest FROM nodes_seen
    WHERE hour_ms >= intDiv(toUnixTimestamp($__fromTime), 3600) * 3600000
        AND hour_ms < toUnixTimestamp($__toTime) * 1000 GROUP BY node
) GROUP BY node ORDER BY silent_s DESC LIMIT 100""".strip()  # noqa: E501


def boards() -> list[Board]:
    """All of them."""
    usage = sql(reports.UsageOverTime(WINDOW))
    reasons = sql(reports.CapacityByReason(WINDOW))
    busy = sql(reports.Utilization(WINDOW))
    units = sql(reports.FleetUnits(WINDOW))
    decisions = sql(reports.DecisionsOverTime(WINDOW), step_s=60)
    quota = sql(reports.QuotaAttained(WINDOW))
    return [
        Board("fleet", "Fleet", "What there is, and what became of it.", [
            Panel("Card-hours by what they were", "Leased, free, or unavailable for a reason, by "
                  "closed hour. The sum is the inventory.", reasons, CARD_HOURS, "card_hours",
                  "reason", width=24, stacked=True),
            Panel("Capacity in units", "What the fleet could deliver at once, by class. Nothing "
                  "is summed over classes.", units, "short", "units", "concat(unit_class, ' ', "
                  "model)", columns=("cards",)),
            Panel("Unavailable", "Card-hours that nobody could have been given, by reason.",
                  sql(reports.CapacityByReason(WINDOW, ("binding", "releasing", "stranded",
                      "suspect", "lost", "cordoned", "tainted", "disputed", "unhealthy",
                      "unresolved", "partition_overhead"))), CARD_HOURS, "card_hours", "reason"),
            Panel("Health events", "Transitions and vendors' events as agents reported them.",
                  _EVENTS, "none", kind="table", width=24,
                  columns=("time", "node", "device", "kind", "code")),
        ], (*_FLEET, "class")),
        Board("tenants", "Tenants", "Who used how much, under which cap, at what price.", [
            Panel("Unit-hours", "Delivered, by tenant and class.", usage, UNIT_HOURS, "unit_hours",
                  "concat(name, ' ', unit_class)", columns=("restated",)),
            Panel("Cost", "As charged, adjustments included.", usage, "short", "cost", "name",
                  stacked=True),
            Panel("Quota held", "Share of the cap that was held on the mean of each hour; a cap "
                  "per family or model is not shown.", quota, "percent", "percent",
                  "concat(tenant, ' ', unit_class)", steps=WARN,
                  columns=("held_units", "cap_units")),
            Panel("Budget used", "Share of the month's budget in unit-hours, by calendar month, "
                  "UTC.", sql(reports.BudgetAttained(WINDOW)), "percent", kind="table",
                  steps=WARN, columns=("tenant", "used_unit_hours", "budget_unit_hours",
                                       "percent")),
            Panel("Commitments used", "Share of each paid floor that was used, on the mean of "
                  "each hour; more than the floor counts as all of it.",
                  sql(reports.CommitmentsAttained(WINDOW)), "percent", "percent", "commitment",
                  columns=("used", "committed")),
            Panel("Utilization of what was leased", "How busy leased cards were, where readings "
                  "came; a gap is a gap.", busy, "percent", "busy_percent", "name"),
            Panel("Coverage", "Share of leased time for which there were readings.", busy,
                  "percent", "covered_percent", "name"),
        ], _ALL),
        Board("placement", "Placement", "What was asked for, and what came of it.", [
            Panel("Requests by outcome", "Verdict, or the code of a refusal.", decisions, "short",
                  "requests", "outcome", stacked=True),
            Panel("Time to decide, p99", "By the placer's own clock, from the request to its "
                  "decision.", decisions, "ms", "p99_ms", "outcome", columns=("p50_ms",)),
            Panel("Objectives kept", "Share of grants within the profile's time to place.",
                  sql(reports.ObjectivesAttained(WINDOW)), "percent", "kept_percent", "profile",
                  columns=("p95_ms", "objective_ms"), width=24),
        ], ("tenant",), span="now-24h"),
        Board("telemetry", "Telemetry", "What agents read. Unknown is unknown, never 0.", [
            *(
                Panel(title, f"{text} From minute rollups; only good readings enter.",
                      sql(reports.ReadingOverTime(WINDOW, reading), step_s=60), unit, "mean",
                      columns=("low", "high", "devices", "silent_devices"))
                for title, reading, unit, text in (
                    ("Utilization", "utilization_percent", "percent", "Mean over devices."),
                    ("Power", "power_watts", "watt", "Mean per device."),
                    ("Temperature", "temperature_celsius", "celsius", "Mean per device."),
                    ("Memory used", "memory_used_bytes", "bytes", "Mean per device."),
                )
            ),
            Panel("Utilization, by the hour", "The same from hour rollups, for long spans.",
                  sql(reports.ReadingOverTime(WINDOW, "utilization_percent", hours=True)),
                  "percent", "mean"),
            Panel("Devices without a good reading", "Seen, but with nothing that counts.",
                  sql(reports.ReadingOverTime(WINDOW, "utilization_percent"), step_s=60), "short",
                  "silent_devices"),
        ], span="now-24h"),
        Board("economics", "Economics", "What a unit costs, by vendor and generation.", [
            Panel("Cost per unit-hour", "Charged, own cost (leased time), full cost (idle and "
                  "unavailable time shared out). Needs price lists of type cost.",
                  sql(reports.CostPerUnit(WINDOW)), "short", kind="table", width=24,
                  columns=("vendor", "model", "release_year", "unit_class", "delivered",
                           "charged_per_unit_hour", "own_cost_per_unit_hour",
                           "full_cost_per_unit_hour", "leased_share", "units_per_watt")),
            Panel("Cost of capacity by what it was", "What the fleet cost us: leased, free, or "
                  "unavailable.", reasons, "short", "cost", "reason", stacked=True),
            Panel("Cost of what was used", "The share of the charge in which cards were busy, "
                  "where readings came: a report, not a bill.", busy, "short", "used_cost", "name",
                  columns=("cost",)),
            Panel("Held and idle", "Leases whose cards were seen and did nothing.",
                  sql(reports.HeldIdle(WINDOW)), "short", kind="table", width=24,
                  columns=("lease", "tenant", "held_card_hours", "busy_percent",
                           "covered_percent")),
        ], _ALL, span="now-30d"),
        Board("operations", "Operations", "Whether the books can be trusted.", [
            Panel("Cells that do not sum up", "Pool, model and closed hour whose parts are not "
                  "its inventory. Anything but 0 is an alarm.", _UNCONSERVED, "short", "cells",
                  steps=ANY_IS_BAD),
            Panel("Messages of the ledger", "As they were stored; the gap to the stream is in the "
                  "metrics.", _LEDGER_MESSAGES, "short", "messages"),
            Panel("Censuses", "The placer's count held against metering's.", _CENSUSES, "none",
                  kind="table", columns=("time", "cause", "cells", "verdict")),
            Panel("Dead letters", "What could not be taken in, and why.", _LETTERS, "none",
                  kind="table", columns=("time", "stream", "sequence", "code", "message")),
            Panel("Silent agents", "How long no reading came from a node that sent some before.",
                  _SILENT, "s", kind="table", width=24, columns=("node", "silent_s"),
                  steps=(("green", None), ("yellow", 120), ("red", 600))),
        ], span="now-24h"),
    ]  # fmt: skip


@dataclass
class Alert:
    """One alert rule of Grafana's: the last value of a query, above a limit."""

    uid: str
    title: str
    summary: str
    text: str
    above: float
    lasts: str = "5m"
    labels: dict[str, str] = field(default_factory=lambda: {"severity": "warning"})

    def build(self) -> dict[str, Any]:
        """Grafana's provisioning dict."""
        span = {"from": 86_400, "to": 0}
        return {
            "uid": f"quintal-{self.uid}",
            "title": self.title,
            "condition": "C",
            "for": self.lasts,
            "noDataState": "OK",
            "execErrState": "Error",
            "annotations": {"summary": self.summary},
            "labels": self.labels,
            "data": [
                {"refId": "A", "datasourceUid": ALERT_SOURCE, "relativeTimeRange": span,
                 "model": {"refId": "A", "editorType": "sql", "queryType": "table", "format": 1,
                           "rawSql": self.text}},
                {"refId": "C", "datasourceUid": "__expr__", "relativeTimeRange": span,
                 "model": {"refId": "C", "type": "threshold", "expression": "A",
                           "conditions": [{"evaluator": {"type": "gt",
                                                         "params": [self.above]}}]}},
            ],
        }  # fmt: skip


def metric_boards() -> list[Board]:
    """Those over the placers' own metrics. A standby has no such numbers: the leader's count."""
    of = 'quintal_placer_{}_cards{{pool=~".+"}}'
    free, usable, stranded = (
        f"max by (pool, model) ({of.format(name)})" for name in ("free", "usable", "stranded")
    )
    return [
        Board("packing", "Packing", "What still fits, and what of the free cards is fragmented.", [
            Gauge("What still fits", "Leases of each profile, at its least counts, by cards, CPU "
                  "and memory. 0 is a profile that waits for somebody to leave.",
                  "max by (profile, pool) (quintal_placer_profile_fits)", "short",
                  by="{{profile}} in {{pool}}", width=24),
            Gauge("Fragmented", "Free cards that a request for cards like those of late could not "
                  "use, on the mean.", f"{free} - {usable}", "short",
                  by="{{model}} in {{pool}}", stacked=True),
            Gauge("Stranded", "Free cards beside which too little CPU or memory is left.",
                  stranded, "short", by="{{model}} in {{pool}}", stacked=True),
        ], span="now-24h", metrics=True),
    ]  # fmt: skip


def alerts() -> list[Alert]:
    """Those that the store alone can tell; the others are Prometheus's (`deploy/prometheus`)."""

    def everyone(question: Any) -> str:
        return re.sub(r"\[\$\{\w+:singlequote\}\]", "[]", sql(question))

    quota = everyone(reports.QuotaAttained(WINDOW))
    budget = everyone(reports.BudgetAttained(WINDOW))
    return [
        Alert("quota", "A tenant holds nearly all of its quota", "Over 95 % of the cap is held.",
              f"SELECT concat(tenant, ' ', unit_class) AS name, argMax(percent, time) AS value "
              f"FROM (\n{quota}\n) GROUP BY name", 95),
        Alert("budget", "A tenant's budget is nearly used up", "Over 90 % of the month's budget.",
              f"SELECT concat(tenant, ' ', unit_class) AS name, argMax(percent, time) AS value "
              f"FROM (\n{budget}\n) GROUP BY name", 90),
        Alert("silent", "Agents are silent", "A node that sent readings today sends none.",
              f"SELECT node AS name, silent_s AS value FROM (\n{_SILENT}\n)", 600),
        Alert("conservation", "The parts of an hour do not sum up", "Run `quintal verify`.",
              f"SELECT max(cells) AS value FROM (\n{_UNCONSERVED}\n)", 0, "0s",
              {"severity": "critical"}),
        Alert("letters", "Something could not be taken in", "Run `quintal dead-letters`.",
              f"SELECT count() AS value FROM (\n{_LETTERS}\n)", 0, "0s"),
    ]  # fmt: skip


def written() -> dict[Path, str]:
    """Every file that is made here, with its text."""
    made = {
        HERE / "dashboards" / f"{board.uid}.json": json.dumps(board.build(), indent=1) + "\n"
        for board in (*boards(), *metric_boards())
    }
    group = {
        "orgId": 1, "name": "quintal", "folder": "Quintal", "interval": "1m",
        "rules": [alert.build() for alert in alerts()],
    }  # fmt: skip
    head = "# Made by deploy/grafana/build.py.\n"
    text = yaml.safe_dump({"apiVersion": 1, "groups": [group]}, sort_keys=False, width=100)
    made[HERE / "provisioning" / "alerting" / "quintal.yaml"] = head + text
    return made


def main() -> None:
    """Write them all."""
    for path, text in written().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        sys.stdout.write(f"{path.relative_to(HERE)}\n")


if __name__ == "__main__":
    main()
