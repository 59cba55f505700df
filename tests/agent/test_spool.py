"""What waits for the bus: in order, within its bound, told when it overflows, over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintal_agent.spool import Spool


def opened(tmp_path: Path, bytes_max: int = 2**20) -> Spool:
    spool = Spool(tmp_path / "spool.db", bytes_max=bytes_max)
    spool.open()
    return spool


def times(spool: Spool) -> list[int]:
    return [kept.at_ms for kept in spool.oldest("telemetry", 10_000)]


def test_nothing_is_written_while_nothing_waits(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_what_waited_longest_goes_first_and_is_forgotten_once_said(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    for at in range(10):
        assert spool.put("telemetry", at, b"x" * 100)
    assert (spool.depth, spool.size) == (10, 1_000)
    first = spool.oldest("telemetry", 4)
    spool.forget(first)
    assert [kept.at_ms for kept in first] == [0, 1, 2, 3]
    assert times(spool) == [4, 5, 6, 7, 8, 9]
    assert (spool.depth, spool.size) == (6, 600)
    spool.forget(first)
    assert spool.depth == 6, "said twice is forgotten once"
    spool.close()


def test_a_full_spool_drops_the_oldest_and_counts_them(tmp_path: Path) -> None:
    spool = opened(tmp_path, bytes_max=100_000)
    for at in range(1_000):
        spool.put("telemetry", at, b"x" * 1_000)
        assert spool.size <= 100_000
    kept = times(spool)
    assert kept == list(range(1_000 - len(kept), 1_000))
    assert spool.dropped == 1_000 - len(kept)
    spool.close()
    again = opened(tmp_path, bytes_max=100_000)
    assert (times(again), again.dropped) == (kept, 1_000 - len(kept))
    again.close()


def test_the_file_itself_stays_bounded(tmp_path: Path) -> None:
    spool = opened(tmp_path, bytes_max=200_000)
    for at in range(5_000):
        spool.put("telemetry", at, b"x" * 1_000)
    spool.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3 * 200_000


def test_an_event_is_not_dropped_for_readings_sake(tmp_path: Path) -> None:
    spool = opened(tmp_path, bytes_max=50_000)
    spool.put("health", 7, b"event")
    for at in range(500):
        spool.put("telemetry", at, b"x" * 1_000)
    assert [kept.body for kept in spool.oldest("health", 10)] == [b"event"]
    assert spool.waiting("health") == 1
    spool.close()


def test_what_was_kept_outlives_the_process(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.put("telemetry", 5, b"body")
    del spool  # no close: as a crash does
    again = opened(tmp_path)
    assert [(kept.at_ms, kept.body) for kept in again.oldest("telemetry", 9)] == [(5, b"body")]
    again.close()


def test_a_damaged_file_is_set_aside_and_the_spool_goes_on(tmp_path: Path) -> None:
    (tmp_path / "spool.db").write_bytes(b"this is no database" * 200)
    spool = opened(tmp_path)
    assert spool.put("telemetry", 1, b"x")
    assert (tmp_path / "spool.damaged").exists()
    spool.close()


def test_a_disk_that_refuses_costs_samples_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "spool.db").mkdir()
    spool = opened(tmp_path)
    assert not spool.put("telemetry", 1, b"x")
    assert spool.dropped == 1
    assert spool.trouble
    assert spool.oldest("telemetry", 1) == []
    spool.forget([])
    spool.close()


@pytest.mark.parametrize("rounds", [3])
def test_memory_stays_flat_however_long_the_outage(tmp_path: Path, rounds: int) -> None:
    import tracemalloc

    spool = opened(tmp_path, bytes_max=100_000)
    for at in range(500):
        spool.put("telemetry", at, b"x" * 2_000)
    tracemalloc.start()
    for at in range(500 * rounds):
        spool.put("telemetry", at, b"x" * 2_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    spool.close()
    assert peak < 200_000
