"""The README, typed: its commands and its raw client run against a whole system, as written."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
REFUSED = 3

pytestmark = [pytest.mark.bus, pytest.mark.engine, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A system that is up, as `quintal up --demo` leaves it."""
    folder = tmp_path_factory.mktemp("readme") / "quintal-data"
    up = subprocess.Popen(
        [sys.executable, "-m", "quintal.cli", "up", "--demo", "--data", str(folder)],
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert up.stdout is not None
    line = up.stdout.readline()
    assert "quintal is up at" in line, (folder / "logs").exists() and [
        path.read_text()[-1000:] for path in (folder / "logs").iterdir()
    ]
    yield folder
    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 0


def tour() -> list[str]:
    """Every command of the README's console blocks, but those that install or run for ever."""
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line for line in lines if line.startswith("quintal ") and " up" not in line]


def quintal(command: str, data: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quintal.cli", *shlex.split(command)[1:]],
        env={**os.environ, "QUINTAL_DATA": str(data)},
        cwd=data.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_tour_does_what_it_says(data: Path) -> None:
    commands = tour()
    assert len(commands) >= 10
    for command in commands:
        done = quintal(command, data)
        wanted = REFUSED if "--nodes 2" in command else 0
        assert done.returncode == wanted, f"{command}: {done.stdout}{done.stderr}"
        assert done.stdout or done.stderr
    assert "STU-hours by tenant" in (data.parent / "quintal-report.html").read_text()


def test_the_raw_client_places_and_releases(data: Path, tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    url = json.loads((data / "system.json").read_text())["url"]
    assert "nats://127.0.0.1:4222" in code
    assert "quintal-data/auth" in code
    script = tmp_path / "client.py"
    script.write_text(
        code.replace("nats://127.0.0.1:4222", url).replace("quintal-data/auth", f"{data}/auth")
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lease l"), done.stdout
    assert "VISIBLE_" in done.stdout


def test_a_script_that_shares_nothing_comes_to_the_same_usage(data: Path) -> None:
    system = json.loads((data / "system.json").read_text())
    creds = data / "auth" / "creds"
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests" / "independent" / "recompute.py"),
            system["url"],
            str(creds / "metering.creds"),
            str(creds / "finance.creds"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "language" in done.stdout


def test_the_independent_script_imports_nothing_of_ours() -> None:
    text = (ROOT / "tests" / "independent" / "recompute.py").read_text()
    assert "quintal" not in re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
    assert len(text.splitlines()) <= 120
