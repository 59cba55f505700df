"""The device script where there is no device: through the faked library, and with nothing at all.

A dry run says that the script itself works; what it is for needs a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.agent import nvml
from tests.agent.nvml import State

SCRIPT = Path(__file__).parent / "run.sh"

XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>{driver}</driver_version>
<gpu id="{bus}"><product_name>NVIDIA H100 80GB HBM3</product_name>
<uuid>GPU-00000000-0000-4000-8000-000000000000</uuid>
<fb_memory_usage><total>{mib} MiB</total></fb_memory_usage>
<current_power_limit>700.00 W</current_power_limit></gpu></nvidia_smi_log>
"""


def nvidia_smi(folder: Path, *, mib: int = nvml.TOTAL // 2**20) -> None:
    """A tool that prints by hand what the fake tells by its library."""
    folder.mkdir()
    text = XML.format(driver="570.133.20", bus="00000000:10:00.0", mib=mib)
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\ncat <<'X'\n{text}X\n")
    path.chmod(0o755)


def run(tmp_path: Path, environment: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", str(SCRIPT), str(tmp_path / "out")],
        env={"LIMIT_S": "55", **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(nvml.COMPILER is None, reason="fake_nvml: no C compiler here to build it with")
def test_the_script_runs_through_on_the_fake(tmp_path: Path) -> None:
    state = State(tmp_path / "state", 1)
    environment = state.environment(nvml.build(tmp_path / "lib"))
    nvidia_smi(tmp_path / "bin")
    environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{environment['PATH']}"
    status, said = run(tmp_path, environment)
    assert status == 0, said
    assert "ok    memory: 85520809984 B" in said
    assert "ok    a look costs less than 1 % of a core" in said
    kept = json.loads((tmp_path / "out" / "probe.json").read_text())
    assert len(kept["devices"]) == 1
    assert len(list((tmp_path / "out").iterdir())) <= 8


@pytest.mark.skipif(nvml.COMPILER is None, reason="fake_nvml: no C compiler here to build it with")
def test_a_tool_that_says_otherwise_than_the_probe_fails_it(tmp_path: Path) -> None:
    state = State(tmp_path / "state", 1)
    environment = state.environment(nvml.build(tmp_path / "lib"))
    nvidia_smi(tmp_path / "bin", mib=40_000)
    environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{environment['PATH']}"
    status, said = run(tmp_path, environment)
    assert status == 1
    assert "FAIL  memory" in said


def test_without_a_device_it_says_so_and_fails(tmp_path: Path) -> None:
    status, said = run(tmp_path, dict(os.environ))
    assert status == 1
    assert "FAIL  the probe finds a device" in said
