"""What Prometheus reads: the numbers, and rules that speak of metrics that are there."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from quintal_metering.metrics import Metrics, look
from quintal_metering.store import Store
from tests.metering.shelves import Clock
from tests.metering.test_store import a_story, begun, messages

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "quintal-metering.rules.yaml"


class Follower:
    """What the metrics need of a follower."""

    failures = 3
    waiting_since_s: float | None = None


class Observer:
    """What the metrics need of an observer."""

    stream, position, failures = "TELEMETRY", 17, 1


def scraped(metrics: Metrics) -> dict[str, float]:
    lines = metrics.text().decode().splitlines()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    }


def ledger(last: int, held: int, bound: int = 10_000) -> dict[str, Any]:
    """A stream as the server describes it."""
    return {"state": {"last_seq": last, "bytes": held}, "config": {"max_bytes": bound}}


def over(store: Store) -> tuple[Any, Metrics]:
    story = a_story()
    meter = begun(store, story)
    meter.take(messages(story), 0)
    return meter, Metrics(meter, Follower(), [Observer()], Clock())  # type: ignore[arg-type, list-item]


@pytest.mark.engine
def test_what_is_not_known_yet_is_left_out_and_never_0(open_store: Callable[[], Store]) -> None:
    _, metrics = over(open_store())
    found = scraped(metrics)
    assert "quintal_metering_unconserved_cells" not in found
    assert "quintal_metering_ledger_lag_messages" not in found
    assert found["quintal_metering_ledger_position"] == len(a_story().groups)
    assert found["quintal_metering_failures_total"] == 3
    assert found['quintal_metering_stream_position{stream="TELEMETRY"}'] == 17


@pytest.mark.engine
def test_hours_that_do_not_sum_up_and_dead_letters_are_counted(
    open_store: Callable[[], Store],
) -> None:
    meter, metrics = over(open_store())
    metrics.watched.stream(ledger(meter.position + 5, 3_000))
    look(metrics)
    found = scraped(metrics)
    assert found["quintal_metering_unconserved_cells"] == 0
    assert found["quintal_metering_watched_hours"] == 2
    assert found["quintal_metering_dead_letters_waiting"] == 0
    assert found["quintal_metering_ledger_lag_messages"] == 5
    assert found["quintal_metering_ledger_bytes"] == 3_000
    assert found["quintal_metering_ledger_bytes_max"] == 10_000
    metrics.watched.stream(ledger(meter.position, 3_000, bound=-1))
    assert "quintal_metering_ledger_bytes_max" not in scraped(metrics), "no bound is not 0"
    meter.store.command(
        "ALTER TABLE capacity DELETE WHERE reason = 'free' SETTINGS mutations_sync = 2"
    )
    look(metrics)
    assert scraped(metrics)["quintal_metering_unconserved_cells"] == 2


@pytest.mark.engine
def test_every_rule_speaks_of_a_metric_that_is_there(open_store: Callable[[], Store]) -> None:
    _, metrics = over(open_store())
    metrics.watched.stream(ledger(0, 0))
    look(metrics)
    names = {name.partition("{")[0] for name in scraped(metrics)}
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert len(rules) > 7
    for rule in rules:
        for name in re.findall(r"quintal_\w+", rule["expr"]):
            assert name in names, f"{rule['alert']} speaks of {name}"
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_there_is_a_rule_for_each_thing_that_must_not_go_unseen() -> None:
    """Here, or among Grafana's own alerts for what the store alone can tell."""
    ours = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
    path = RULES.parents[1] / "grafana/provisioning/alerting/quintal.yaml"
    theirs = {r["uid"] for r in yaml.safe_load(path.read_text())["groups"][0]["rules"]}
    assert {"QuintalNotConserved", "QuintalDeadLetters", "QuintalMeteringLags",
            "QuintalLedgerFills", "QuintalLedgerFull"} <= ours.keys()  # fmt: skip
    assert {"quintal-conservation", "quintal-letters", "quintal-silent", "quintal-quota",
            "quintal-budget"} <= theirs  # fmt: skip
    for rule in ours.values():
        assert len(rule["annotations"]["description"]) > 20
        assert rule["expr"].count("(") == rule["expr"].count(")")


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not on this machine"
)


@needs_promtool
def test_promtool_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(RULES)], check=True)


@needs_promtool
def test_the_rule_of_a_filling_ledger_fires_when_it_fills_and_not_before(tmp_path: Path) -> None:
    labels = {"severity": "warning"}
    said = {
        "summary": "The ledger is 70% full",
        "description": "From 80 % on grants are refused. It is purged up to the second newest "
        "snapshot, metering's and the standby's position; see who is behind.",
    }
    case = {
        "interval": "1m",
        "input_series": [
            {"series": "quintal_metering_ledger_bytes", "values": "50x9 70x20"},
            {"series": "quintal_metering_ledger_bytes_max", "values": "100x30"},
        ],
        "alert_rule_test": [
            {"eval_time": "9m", "alertname": "QuintalLedgerFills", "exp_alerts": []},
            {"eval_time": "20m", "alertname": "QuintalLedgerFills",
             "exp_alerts": [{"exp_labels": labels, "exp_annotations": said}]},
            {"eval_time": "20m", "alertname": "QuintalLedgerFull", "exp_alerts": []},
        ],
    }  # fmt: skip
    path = tmp_path / "rules.test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [case]}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
