"""What lies in deploy/ agrees with the code, and systemd understands all of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from quintal.up import example

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def test_the_example_configuration_is_what_the_code_writes() -> None:
    committed = (ROOT / "deploy" / "nats" / "nats-server.conf").read_text()
    assert committed == example.text(), "run: make docs"
    assert "sync_interval: always" in committed
    assert not re.search(r"\bS[AOU][A-Z2-7]{56}\b|\bey[\w-]{20,}", committed), "a seed or a token"


def test_every_unit_starts_a_script_that_the_package_has() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    lines = "\n".join(unit.read_text() for unit in UNITS)
    started = set(re.findall(r"^ExecStart=\S*/(\S+)", lines, re.MULTILINE))
    services = {"quintal-agent", "quintal-catalog", "quintal-metering", "quintal-placer"}
    assert started == {*services, "quintal-task"}
    assert started <= set(scripts)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_every_line(unit: Path, tmp_path: Path) -> None:
    """It exits with 0 on a key it does not know, and only says so: stderr must be empty."""
    name = unit.name.replace("@.", "@placer-1.")
    copy = tmp_path / name
    environment = tmp_path / "quintal.env"
    environment.touch()
    text = re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE)
    copy.write_text(text.replace("/etc/quintal/quintal.env", str(environment)))
    verify = ["systemd-analyze", "verify", "--man=no", str(copy)]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if name in line or str(copy) in line]
    assert ours == []
    assert done.returncode == 0, done.stderr
    copy.write_text(copy.read_text().replace("NoNewPrivileges=", "DynamicUsr="))
    broken = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert "DynamicUsr" in broken.stderr, "the control: an unknown key is complained of"
