"""The lease set on disk: whole after a kill at any instant, never silently empty."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quintal.errors import SetupError
from quintal_agent.leases import Fence, LeaseSet
from quintal_agent.state import LeaseFiles, StateLostError, Store, boot_id, write_durably
from tests.agent.builders import GPU, a_lease

WRITER = """
import sys
from pathlib import Path
from quintal_agent import leases
from quintal_agent.state import LeaseFiles, Store
from tests.agent.builders import GPU, a_lease, a_raw

folder = Path(sys.argv[1])
store, files = Store(folder, "n1"), LeaseFiles(folder / "leases", "n1")
store.open()
state = store.load("boot-1")
files.reconcile(state, {})
token = max((f.newest for f in state.fences.values()), default=0)
while True:
    token += 1
    for lease in list(state.leases.values()):
        state = leases.end(state, lease.lease, lease.token)
        store.save(state, "boot-1")
        files.remove(lease.lease)
    lease = a_lease(f"l-{token}", token)
    state = leases.bind(state, lease, {GPU: a_raw()})
    store.save(state, "boot-1")
    files.write(lease, {})
    print(token, flush=True)
"""


def opened(folder: Path, node: str = "n1") -> Store:
    store = Store(folder, node)
    store.open()
    return store


def test_what_was_kept_is_read_back(tmp_path: Path) -> None:
    store = opened(tmp_path)
    state = LeaseSet({"l-1": a_lease("l-1", 7)}, {GPU: Fence(7, 7)}, {"l-0": 5})
    store.save(state, "boot-1")
    assert store.load("boot-1") == state


def test_a_new_boot_empties_the_set_and_keeps_the_fences(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save(LeaseSet({"l-1": a_lease("l-1", 7)}, {GPU: Fence(7, 7)}), "boot-1")
    state = store.load("boot-2")
    assert not state.leases
    assert state.fences == {GPU: Fence(7, 7)}


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 99}', b'{"version": 1, "node": 3}'])
def test_a_damaged_file_is_told_and_left_where_it_is(tmp_path: Path, content: bytes) -> None:
    store = opened(tmp_path)
    store.path.write_bytes(content)
    with pytest.raises(StateLostError, match="delete the file"):
        store.load("boot-1")
    assert store.path.read_bytes() == content


def test_another_nodes_state_is_not_taken_over(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save(LeaseSet(), "boot-1")
    store.close()
    with pytest.raises(StateLostError, match="belongs to node n1"):
        opened(tmp_path, "n2").load("boot-1")


def test_two_agents_never_share_a_state_directory(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(SetupError, match="in use"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_a_lease_file_is_readable_by_all_and_goes_with_its_lease(tmp_path: Path) -> None:
    files = LeaseFiles(tmp_path / "leases", "n1")
    files.reconcile(LeaseSet(), {})
    files.write(a_lease("l-1", 7), {"nvidia": "570"})
    path = tmp_path / "leases" / "l-1.json"
    assert path.stat().st_mode & 0o777 == 0o644
    assert json.loads(path.read_text())["libraries"] == {"nvidia": "570"}
    files.remove("l-1")
    files.remove("l-1")
    assert not path.exists()


def test_leftover_lease_files_are_cleared_and_missing_ones_written(tmp_path: Path) -> None:
    files = LeaseFiles(tmp_path, "n1")
    (tmp_path / "l-9.json").write_text("{}")
    files.reconcile(LeaseSet({"l-1": a_lease("l-1", 7)}), {})
    assert [path.name for path in tmp_path.glob("*.json")] == ["l-1.json"]


def test_a_lease_id_never_leads_out_of_the_folder(tmp_path: Path) -> None:
    files = LeaseFiles(tmp_path / "leases", "n1")
    files.reconcile(LeaseSet(), {})
    with pytest.raises(ValueError, match="no lease id"):
        files.write(a_lease("../../etc/cron.d/x", 1), {})


def test_a_write_replaces_the_file_and_never_writes_into_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old")
    with path.open("rb") as before:
        write_durably(path, b"new")
        assert before.read() == b"old"
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old")
    with pytest.raises(TypeError):
        write_durably(path, "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"


def test_the_boot_id_is_the_kernels() -> None:
    assert len(boot_id()) == 36
    with pytest.raises(SetupError, match="boot id"):
        boot_id(Path("/nowhere"))


@pytest.mark.crash
def test_a_kill_in_the_middle_loses_no_token_that_was_told(tmp_path: Path) -> None:
    """Real processes, killed by SIGKILL while they bind and end as fast as the disk allows."""
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'services/agent'}"}
    told = 0
    for attempt in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(0.03 + 0.017 * attempt)
        process.send_signal(signal.SIGKILL)
        lines = [first, *process.stdout.read().splitlines(keepends=True)]
        process.wait()
        told = max(told, *(int(line) for line in lines if line.endswith("\n")))
        store = opened(tmp_path)
        state = store.load("boot-1")
        assert state.fences[GPU].newest >= told
        assert all(lease.token == state.fences[GPU].newest for lease in state.leases.values())
        files = LeaseFiles(tmp_path / "leases", "n1")
        files.reconcile(state, {})
        assert {p.stem for p in files.folder.glob("*.json")} == set(state.leases)
        store.close()
    assert told > 6
