"""A workload asks where it is."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from quintal.errors import SetupError
from quintal.here import here
from quintal_agent.leases import LeaseSet
from quintal_agent.state import LeaseFiles
from tests.agent.builders import GPU, a_lease


def written(folder: Path, *names: str) -> Path:
    files = LeaseFiles(folder, "n1")
    files.reconcile(LeaseSet(), {})
    for name in names:
        files.write(
            a_lease(
                name, 7, GPU, "GPU-b", precision="bf16", environment={"CUDA_VISIBLE_DEVICES": GPU},
                **{"class": "train_llm"},
            ),
            {"cuda": "12.8"},
        )  # fmt: skip
    return folder


def test_the_only_lease_on_the_node_is_found(tmp_path: Path) -> None:
    found = here({}, written(tmp_path, "l-1"))
    assert (found.node, found.lease, found.token, found.tenant) == ("n1", "l-1", 7, "acme")
    assert [device.uuid for device in found.devices] == [GPU, "GPU-b"]
    assert found.memory_bytes == 2 * 85_520_809_984
    assert found.units == Decimal(2)
    assert found.workload_class == "train_llm"
    assert found.precisions == ("bf16",)
    assert found.libraries["cuda"] == "12.8"
    assert found.environment["CUDA_VISIBLE_DEVICES"] == GPU


def test_of_several_leases_the_environment_names_one(tmp_path: Path) -> None:
    folder = written(tmp_path, "l-1", "l-2")
    assert here({"QUINTAL_LEASE": "l-2"}, folder).lease == "l-2"
    assert here({"QUINTAL_LEASE_FILE": str(folder / "l-1.json")}).lease == "l-1"
    assert here({"QUINTAL_LEASE": "l-2", "QUINTAL_LEASE_DIR": str(folder)}).lease == "l-2"
    with pytest.raises(SetupError, match="holds 2 leases: set QUINTAL_LEASE"):
        here({}, folder)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="holds no lease"):
        here({}, tmp_path)
    with pytest.raises(SetupError, match="lease has ended"):
        here({"QUINTAL_LEASE": "l-9"}, tmp_path)
    (tmp_path / "l-1.json").write_text("{}")
    with pytest.raises(SetupError, match="no lease file of this version"):
        here({}, tmp_path)


def test_asking_loads_nothing_heavy() -> None:
    code = (
        "import quintal.here, sys\n"
        "print([m for m in ('pydantic', 'nats', 'yaml') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == "[]"
