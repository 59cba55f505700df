"""Grafana itself, in a container, takes what is provisioned; skipped where Docker is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.support.containers import GRAFANA, docker, started

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
BOARDS_AT = "/etc/quintal/grafana/dashboards"


@pytest.fixture(scope="module")
def grafana() -> Iterator[str]:
    from testcontainers.core.waiting_utils import wait_for_logs

    container = (
        docker()
        .DockerContainer(GRAFANA)
        .with_exposed_ports(3000)
        .with_env("GF_AUTH_ANONYMOUS_ENABLED", "true")
        .with_env("GF_AUTH_ANONYMOUS_ORG_ROLE", "Admin")
        .with_env("GF_INSTALL_PLUGINS", "grafana-clickhouse-datasource")
        .with_volume_mapping(str(FOLDER / "provisioning"), "/etc/grafana/provisioning")
        .with_volume_mapping(str(FOLDER / "dashboards"), BOARDS_AT)
    )
    with started(container):
        wait_for_logs(container, "HTTP Server Listen", timeout=120)
        yield f"http://{container.get_container_host_ip()}:{container.get_exposed_port(3000)}"


def asked(url: str, path: str) -> object:
    with urlopen(Request(f"{url}{path}"), timeout=30) as answer:
        return json.loads(answer.read())


@pytest.mark.timeout(240)
def test_the_boards_the_source_and_the_alerts_are_there(grafana: str) -> None:
    found = asked(grafana, "/api/search?tag=quintal")
    assert isinstance(found, list)
    assert {board["uid"] for board in found} == {
        json.loads(path.read_text())["uid"] for path in (FOLDER / "dashboards").glob("*.json")
    }
    sources = asked(grafana, "/api/datasources")
    assert isinstance(sources, list)
    assert [source["type"] for source in sources] == ["grafana-clickhouse-datasource"]
    rules = asked(grafana, "/api/v1/provisioning/alert-rules")
    assert isinstance(rules, list)
    assert len(rules) == 5
