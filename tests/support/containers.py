"""Real servers in containers, where Docker is at hand; else the test is skipped with the reason."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

CLICKHOUSE = "clickhouse/clickhouse-server:25.8"
GRAFANA = "grafana/grafana:12.4.0"


@contextlib.contextmanager
def started(container: Any) -> Iterator[Any]:
    """The container while it runs."""
    try:
        container.start()
    except Exception as exc:
        pytest.skip(f"Docker does not run {container.image}: {exc}")
    try:
        yield container
    finally:
        container.stop()


def docker() -> Any:
    """The library's module; skips where it or Docker is not there."""
    core = pytest.importorskip("testcontainers.core.container", reason="testcontainers is not here")
    import docker

    try:
        docker.from_env().ping()
    except Exception as exc:
        pytest.skip(f"Docker does not answer: {exc}")
    return core


@contextlib.contextmanager
def clickhouse() -> Iterator[str]:
    """A ClickHouse server's address, as `QUINTAL_CLICKHOUSE_URL` has it."""
    from testcontainers.core.waiting_utils import wait_for_logs

    container = (
        docker()
        .DockerContainer(CLICKHOUSE)
        .with_exposed_ports(8123)
        .with_env("CLICKHOUSE_USER", "quintal")
        .with_env("CLICKHOUSE_PASSWORD", "quintal")
        .with_env("CLICKHOUSE_DEFAULT_ACCESS_MANAGEMENT", "1")
    )
    with started(container):
        wait_for_logs(container, "Ready for connections", timeout=60)
        host, port = container.get_container_host_ip(), container.get_exposed_port(8123)
        yield f"http://quintal:quintal@{host}:{port}"
