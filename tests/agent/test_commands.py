"""`quintal probe`: this machine, or a captured output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from quintal_agent.commands import COMMANDS, probe

CAPTURE = b"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>570.1</driver_version>
<gpu id="00000000:1B:00.0"><product_name>NVIDIA Test</product_name><uuid>GPU-1</uuid>
<fb_memory_usage><total>81559 MiB</total><used>N/A</used></fb_memory_usage>
<utilization><gpu_util>5 %</gpu_util></utilization></gpu></nvidia_smi_log>
"""
MODEL = """
apiVersion: quintal/v1
kind: AcceleratorModel
metadata: {name: nvidia-test}
spec: {vendor: nvidia, family: test, match: [{vendor: nvidia, names: [NVIDIA Test]}]}
"""


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(probe)
    return made


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "capture.xml"
    path.write_bytes(CAPTURE)
    return path


def test_a_capture_is_a_document_with_its_vendor_found(app: typer.Typer, capture: Path) -> None:
    said = CliRunner().invoke(app, ["--from", str(capture), "-o", "json"])
    assert said.exit_code == 0
    body = json.loads(said.stdout)
    (device,) = body["devices"]
    assert (body["vendor"], device["memory_bytes"]) == ("nvidia", 81559 * 2**20)
    assert device["readings"]["memory_used_bytes"] == {
        "value": None, "quality": "unsupported", "raw": "N/A",
    }  # fmt: skip


def test_yaml_says_the_same_as_json(app: typer.Typer, capture: Path) -> None:
    told = [
        CliRunner().invoke(app, ["--from", str(capture), "-o", form]).stdout
        for form in ("json", "yaml")
    ]
    assert json.loads(told[0]) == yaml.safe_load(told[1])


def test_a_table_shows_words_where_there_is_no_number(app: typer.Typer, capture: Path) -> None:
    said = CliRunner().invoke(app, ["--from", str(capture)], env={"COLUMNS": "160"})
    assert "NVIDIA Test" in said.stdout
    assert "5 %" in said.stdout
    assert "unsupported" in said.stdout


def test_a_catalog_file_names_the_model(app: typer.Typer, capture: Path, tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(MODEL)
    arguments = ["--from", str(capture), "--catalog", str(tmp_path / "models.yaml"), "-o", "json"]
    said = CliRunner().invoke(app, arguments)
    assert json.loads(said.stdout)["devices"][0]["model"] == "nvidia-test"


def test_content_that_nobody_knows_is_one_clear_line(app: typer.Typer, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("buy milk")
    said = CliRunner().invoke(app, ["--from", str(path)])
    assert said.exit_code == 1
    assert said.stderr.splitlines() == [f"{path}: this is no vendor's output that Quintal can read"]


def test_a_file_that_is_not_there_is_one_clear_line(app: typer.Typer) -> None:
    said = CliRunner().invoke(app, ["--from", "/nowhere/x.xml"])
    assert said.exit_code == 1
    assert said.stderr.strip() == "/nowhere/x.xml: No such file or directory"


def test_an_unknown_vendor_is_a_usage_error(app: typer.Typer, capture: Path) -> None:
    assert CliRunner().invoke(app, ["--from", str(capture), "--vendor", "acme"]).exit_code == 2
    assert CliRunner().invoke(app, ["--vendor", "acme"]).exit_code == 2


def test_without_a_capture_this_machine_is_shown(app: typer.Typer) -> None:
    said = CliRunner().invoke(app, ["--vendor", "cpu", "-o", "json"])
    assert said.exit_code == 0, said.stderr
    assert json.loads(said.stdout)["devices"][0]["name"]


def test_the_command_is_registered_by_name() -> None:
    assert {"probe": probe} == COMMANDS
