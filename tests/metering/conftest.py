"""One engine for all tests of a process, which may open one path only; a database a test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quintal_metering.settings import Where
from quintal_metering.store import Store

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def engine_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.fixture
def open_store(engine_path: Path) -> Iterator[Callable[[], Store]]:
    """Opens the test's own database, as often as asked: another call is another process's start."""
    where = Where(engine_path, database=f"q{next(_numbers)}")
    opened: list[Store] = []

    def start() -> Store:
        opened.append(Store.open(where))
        return opened[-1]

    yield start
    for store in opened:
        store.close()
