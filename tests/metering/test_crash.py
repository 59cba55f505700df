"""SIGKILL between any two steps of a batch: nothing is lost, nothing is doubled.

A script that shares nothing with metering reads the store afterwards, slice by slice.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from tests.metering.dying import BATCH, STEPS, story
from tests.metering.test_independent import assert_the_store_is_equal
from tests.support.engine_server import EngineServer

ROOT = Path(__file__).parents[2]


def run(folder: Path, count: int, step: str) -> subprocess.CompletedProcess[str]:
    paths = (str(ROOT), str(ROOT / "services/metering"), os.environ.get("PYTHONPATH", ""))
    return subprocess.run(
        [sys.executable, str(Path(__file__).with_name("dying.py")), str(folder), str(count), step],
        env={**os.environ, "PYTHONPATH": ":".join(paths)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.engine
@pytest.mark.crash
@pytest.mark.timeout(180)
def test_killed_between_any_two_steps_the_store_ends_as_if_nothing_was(tmp_path: Path) -> None:
    """Each process goes on where the last one was killed, and is killed one step later."""
    for number, step in enumerate(STEPS, 1):
        died = run(tmp_path, number * 2 * BATCH, step)
        assert died.returncode == -signal.SIGKILL, died.stderr
    assert_as_if_nothing_was(tmp_path)


@pytest.mark.engine
@pytest.mark.crash
@pytest.mark.timeout(1200)
def test_killed_at_random_inserts_the_store_ends_as_if_nothing_was(tmp_path: Path) -> None:
    kills = 50 if os.environ.get("QUINTAL_PROOF") else 8
    seed = random.randrange(2**32)
    print(f"seed {seed}, {kills} kills")
    drawn = random.Random(seed)
    died = 0
    for _ in range(kills):
        step = f"#{drawn.randint(2, 14)}{drawn.choice(('', '-'))}"
        died += run(tmp_path, len(story().groups), step).returncode == -signal.SIGKILL
    assert died > kills // 4, "most ended before they were killed"
    assert_as_if_nothing_was(tmp_path)


def assert_as_if_nothing_was(tmp_path: Path) -> None:
    """What one quiet run gives, which is what a reckoning that shares nothing gives."""
    told = story().told()
    lived = run(tmp_path, len(story().groups), "none")
    assert lived.returncode == 0, lived.stderr
    found = json.loads(lived.stdout)
    assert found["ids"] == sorted(row.id for row in told.slices)
    assert int(found["quantity"]) == told.quantity()
    assert Decimal(found["cost"]) == sum(row.cost for row in told.slices)
    assert found["ok"]
    assert found["hours"] == 15
    server = EngineServer(tmp_path)
    server.start()
    try:
        assert_the_store_is_equal(server.url, "quintal", story())
    finally:
        server.kill()
