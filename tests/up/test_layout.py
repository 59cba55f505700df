"""The installation's folder: one owner, found by everybody, its name for this host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quintal.errors import SetupError
from quintal.up import server
from quintal.up.layout import Layout, System, local_access, node_name


def test_a_folder_has_one_owner_at_a_time(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    layout.create()
    script = (
        "import sys; from pathlib import Path; from quintal.up.layout import Layout\n"
        "with Layout(Path(sys.argv[1])).locked(): print('got it')"
    )
    command = [sys.executable, "-c", script, str(layout.data)]
    with layout.locked():
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert f"is in use by process {os.getpid()}" in refused.stderr
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "got it\n"


def test_a_missing_installation_and_a_missing_credential_say_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="quintal up"):
        local_access(tmp_path, "operator")
    layout = Layout(tmp_path)
    layout.create()
    layout.write_system(System("nats://127.0.0.1:4300", "http://127.0.0.1:1", "/creds", 1, "now"))
    with pytest.raises(SetupError, match="quintal auth add"):
        local_access(tmp_path, "operator")
    layout.stopped()
    assert json.loads(layout.system_file.read_text())["pid"] is None
    assert layout.system().port == 4300  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("hostname", "node"),
    [
        ("gpu-01.rack3.example.org", "gpu-01-rack3-example-org"),
        ("x" * 80, "x" * 59),
        ("placer", "node-placer"),
        ("vision", "node-vision"),
        ("...", "node"),
    ],
)
def test_a_hosts_name_becomes_one_token(hostname: str, node: str) -> None:
    assert node_name(hostname) == node


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"version": "2.14.9"}, "too old"),
        ({}, "too old"),
        ({"version": "2.15.1", "jetstream": {"config": {}}}, "before it syncs"),
        ({"version": "2.16.0-beta", "jetstream": {"config": {"sync_always": False}}}, "syncs"),
    ],
)
def test_a_server_that_does_not_sync_is_refused(said: dict[str, object], complaint: str) -> None:
    with pytest.raises(SetupError, match=complaint):
        server.check_durable(said)
    server.check_durable({"version": "2.15.1", "jetstream": {"config": {"sync_always": True}}})
