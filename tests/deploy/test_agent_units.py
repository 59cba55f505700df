"""The agent's units: watched by real progress, tight, and apart from what acts."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SYSTEMD = Path(__file__).parents[2] / "deploy" / "systemd"
ANALYZE = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")

EXPOSURE_MAX = 4.0


def unit(name: str) -> dict[str, dict[str, list[str]]]:
    sections: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in (SYSTEMD / name).read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            sections.setdefault(section, {}).setdefault(key, []).append(value)
    return sections


def here(folder: Path) -> Path:
    """The units as they can be verified here: with a program and an environment that exist."""
    for path in SYSTEMD.glob("quintal-[at]*"):
        if path.is_file():
            text = re.sub(r"(?m)^ExecStart=.*$", "ExecStart=/bin/true", path.read_text())
            (folder / path.name).write_text(
                text.replace("/etc/quintal/quintal.env", str(folder / "quintal.env"))
            )
    (folder / "quintal.env").touch()
    return folder


@ANALYZE
@pytest.mark.parametrize(
    "names",
    [["quintal-agent.service"], ["quintal-task.socket", "quintal-task@.service"]],
    ids=["agent", "task"],
)
def test_systemd_has_nothing_to_say_about_the_units(names: list[str], tmp_path: Path) -> None:
    paths = [str(here(tmp_path) / name) for name in names]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *paths],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@ANALYZE
def test_the_agent_is_exposed_no_more_than_it_must() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(SYSTEMD / "quintal-agent.service")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.search(r"exposure level for quintal-agent.service: ([\d.]+)", done.stdout)
    assert found, done.stderr
    assert float(found[1]) <= EXPOSURE_MAX


def test_the_agent_can_reach_devices_credentials_and_its_spool() -> None:
    service = unit("quintal-agent.service")["Service"]
    assert service["Type"] == ["notify"]
    assert int(service["WatchdogSec"][0]) >= 30
    assert service["LoadCredential"] == ["node.creds:/etc/quintal/creds/node.creds"]
    assert service["StateDirectory"] == ["quintal-agent"]
    assert "PrivateDevices" not in service
    allowed = {line.split()[0] for line in service["DeviceAllow"]}
    assert {"/dev/nvidiactl", "char-nvidia-frontend", "char-nvidia", "char-nvidia-caps"} <= allowed
    assert service["ProtectProc"] == ["default"]
    assert "AF_NETLINK" in service["RestrictAddressFamilies"][0], "network cards are listed by it"


def test_what_acts_holds_no_credentials_of_the_bus() -> None:
    service = unit("quintal-task@.service")["Service"]
    assert not {"LoadCredential", "EnvironmentFile", "Environment"} & service.keys()
    assert service["StandardInput"] == ["socket"]
    assert "/etc/quintal/creds" in service["InaccessiblePaths"][0]
    socket = unit("quintal-task.socket")["Socket"]
    assert (socket["Accept"], socket["SocketMode"]) == (["yes"], ["0660"])
    drop_in = configparser.ConfigParser(strict=False)
    drop_in.read(SYSTEMD / "quintal-agent.service.d" / "task.conf")
    assert socket["ListenStream"][0] in drop_in["Service"]["Environment"]
    assert drop_in["Service"]["SupplementaryGroups"] == socket["SocketGroup"][0]
