"""`quintal rate` and `convert` against the real service with the starter catalog."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import pytest

from quintal.contracts.subjects import Role
from quintal_catalog import app
from tests.catalog.test_commands import Shell
from tests.catalog.test_service import settings
from tests.support.nats import NatsServer

pytestmark = pytest.mark.bus

SITE = """\
apiVersion: quintal/v1
kind: Rating
metadata: {name: ours}
spec:
  model: nvidia-l4-24gb
  ratings:
  - {class: train_llm, value: 0.07, low80: 0.065, high80: 0.075, provenance: measured,
     evidence: 5 repeats here, date: 2026-11-01}
  - {class: llm_large, value: 0.05, provenance: operator, evidence: agreed with finance}
---
apiVersion: quintal/v1
kind: EnergyProfile
metadata: {name: l4}
spec: {model: nvidia-l4-24gb, watts: 70, evidence: mean of 16 cards over a day}
---
apiVersion: quintal/v1
kind: AcceleratorModel
metadata: {name: newco-one-64gb}
spec:
  vendor: newco
  family: newco-one
  memory_bytes: 68719476736
  memory_bandwidth_gbs: 1600
  tdp_watts: 400
  tflops: {bf16: 400, fp8: 800}
  runtime: newrt
  match:
  - {vendor: newco, names: [NewCo One], memory: 62GiB..65GiB}
  ratings:
  - {class: vision, value: 0.4, provenance: operator}
"""


@pytest.fixture
async def shell(fresh_nats: NatsServer, tmp_path: Path) -> AsyncIterator[Shell]:
    stop = asyncio.Event()
    task = asyncio.create_task(app.run(settings(fresh_nats, tmp_path, starter=True), stop))
    reach = fresh_nats.access("operator", Role.OPERATOR)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "QUINTAL_URL": reach.url,
        "QUINTAL_CREDENTIALS": str(reach.credentials),
    }
    yield Shell(env, tmp_path)
    stop.set()
    await asyncio.wait_for(task, 10)


async def test_what_a_card_is_worth_and_what_that_rests_on(shell: Shell) -> None:
    told = (await shell.quintal("rate", "nvidia-l40s-48gb", "--class", "SIU", "-o", "json")).json
    (row,) = told["rows"]
    assert (row["class"], row["unit"], row["provenance"]) == ("llm_large", "SIU", "benchmark")
    assert row["applies"]
    assert Decimal(row["low80"]) < Decimal(row["value"]) < Decimal(row["high80"])
    assert "MLPerf" in row["evidence"]
    assert told["official"] is False
    table = (await shell.quintal("rate", "NVIDIA L40S")).out
    assert "not official MLPerf results" in table
    assert "roofline ~" in table

    fp4 = await shell.quintal(
        "rate", "nvidia-b200-sxm6-180gb", "--class", "SIU", "--precision", "fp4", "-o", "json"
    )
    assert [(row["precision"], row["value"], row["applies"]) for row in fp4.json["rows"]] == [
        ("fp4", "3.7262", True), ("", "2.1575", False)
    ]  # fmt: skip

    unknown = await shell.quintal("rate", "nvidia-l40s")
    assert unknown.code == 3
    assert "did you mean" in unknown.err


async def test_what_the_site_says_wins_and_is_shown_as_what_it_is(shell: Shell) -> None:
    (shell.directory / "site.yaml").write_text(SITE)
    assert (await shell.quintal("apply", "-f", "site.yaml")).code == 0
    told = (await shell.quintal("rate", "nvidia-l4-24gb", "-o", "json")).json
    first = {row["class"]: row for row in told["rows"] if row["applies"]}
    assert (first["train_llm"]["value"], first["train_llm"]["provenance"]) == ("0.07", "measured")
    assert first["train_llm"]["document"] == "Rating/ours"
    assert first["train_llm"]["units_per_watt"] == "0.001000"
    assert first["train_llm"]["watts_from"] == "mean of 16 cards over a day"
    assert first["llm_large"]["override"]
    others = [row["provenance"] for row in told["rows"] if row["class"] == "train_llm"]
    assert others == ["measured", "benchmark"], "what was there before is still shown"
    table = (await shell.quintal("rate", "nvidia-l4-24gb")).out
    assert "OPERATOR OVERRIDE" in table

    proposed = (await shell.quintal("rate", "NewCo One", "-o", "json")).json
    assert set(proposed["unrated"]) == {
        "train_llm", "train_other", "llm_large", "llm_small", "llm_decode", "scientific"
    }  # fmt: skip
    assert {row["class"] for row in proposed["proposals"]} == set(proposed["unrated"]) - {
        "scientific"
    }
    assert not any(row["applies"] for row in proposed["proposals"])


async def test_cards_add_up_in_one_class_and_units_never_cross(shell: Shell) -> None:
    said = await shell.quintal(
        "convert", "16 nvidia-a100-sxm4-80gb + 8 nvidia-l4-24gb", "--to", "STU", "-o", "json"
    )
    assert said.code == 0
    assert Decimal(said.json["units"]) == 16 * Decimal("0.3151") + 8 * Decimal("0.0598")
    assert said.json["estimated_percent"] == 0
    mixed = (await shell.quintal("convert", "4 nvidia-a100-sxm4-80gb + 1 SIU", "--to", "SIU")).out
    assert "% estimated" in mixed
    assert "not official MLPerf results" in mixed

    crossed = await shell.quintal("convert", "3 STU + 1 nvidia-l4-24gb", "--to", "SIU")
    assert crossed.code == 3
    assert "STU does not convert to SIU" in crossed.err
    unrated = await shell.quintal("convert", "2 nvidia-a100-sxm4-80gb-mig-1g.10gb", "--to", "STU")
    assert unrated.code == 3
    assert "unrated" in unrated.err
    wrong = await shell.quintal("convert", "3", "--to", "STU")
    assert wrong.code == 2


async def test_ten_units_of_inference_are_21_of_a_card_whatever_its_band(shell: Shell) -> None:
    said = await shell.quintal(
        "convert", "10 SIU", "--to", "nvidia-h20-96gb", "--class", "SIU", "-o", "json"
    )
    assert said.json["cards"] == 21
