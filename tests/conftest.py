"""Fixtures that every part's tests may use, and the count of what touched the real thing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.nats import NatsServer


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One real server for the whole session, its streams declared. Do not kill it."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    server.declare()
    yield server
    server.kill()


@pytest.fixture
def fresh_nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A real server of the test's own, its streams declared and empty; kill it as you like."""
    server = NatsServer(tmp_path / "fresh")
    server.start()
    server.declare()
    yield server
    server.kill()
