"""`make demo`, shortened: the main job ends with exit 0, and its file says what it showed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.bus
@pytest.mark.engine
@pytest.mark.timeout(180)
def test_the_main_job_runs_from_request_to_bill(tmp_path: Path) -> None:
    file = tmp_path / "demo.json"
    done = subprocess.run(
        [sys.executable, "-m", "quintal.cli", "demo", "--seconds", "5", "--file", str(file)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert found["faults"] == []
    assert len(set(found["vendors"]) - {"cpu"}) >= 5
    assert len({d["vendor"] for le in found["leases"] for d in le["devices"]}) >= 2
    assert found["adopted"]["adopted"] is True
    assert found["refusal"]["reasons"]
    assert found["verify"]["ok"] is True
    assert {row["group"]["tenant"] for row in found["usage"]["rows"]} == {
        "vision",
        "language",
        "climate",
    }
    assert list(tmp_path.iterdir()) == [file], "nothing else is left behind"
