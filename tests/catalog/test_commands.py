"""The catalog's commands, run as a person runs them, against the service on a real bus."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quintal.contracts.subjects import Role
from quintal_catalog import app
from tests.catalog.given import SMALL, document
from tests.catalog.test_service import settings
from tests.support.nats import NatsServer

pytestmark = pytest.mark.bus


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Shell:
    """`quintal ...` in an environment that names server and credentials."""

    env: dict[str, str]
    directory: Path

    async def quintal(self, *words: str, text: str = "") -> Said:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from quintal.cli.__main__ import main; main()", *words,
            cwd=self.directory, env=self.env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate(text.encode())
        assert process.returncode is not None
        return Said(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def shell(fresh_nats: NatsServer, tmp_path: Path) -> AsyncIterator[Shell]:
    stop = asyncio.Event()
    task = asyncio.create_task(app.run(settings(fresh_nats, tmp_path), stop))
    reach = fresh_nats.access("operator", Role.OPERATOR)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "QUINTAL_URL": reach.url,
        "QUINTAL_CREDENTIALS": str(reach.credentials),
    }
    yield Shell(env, tmp_path)
    stop.set()
    await asyncio.wait_for(task, 10)


async def test_files_go_in_and_come_out_again_and_there_is_a_way_back(shell: Shell) -> None:
    folder = shell.directory / "site"
    folder.mkdir()
    (folder / "all.yaml").write_text(SMALL)
    first = await shell.quintal("apply", "-f", "site", "--why", "begin")
    assert first.code == 0, first.err
    assert "revision 1 is the catalog: 8 added" in first.out
    again = await shell.quintal("apply", "-f", "site")
    assert "unchanged: revision 1" in again.out

    changed = SMALL.replace("units: 8", "units: 9") + document("Tenant", "red", "{}")
    dry = await shell.quintal("apply", "-f", "-", "--dry-run", "-o", "json", text=changed)
    assert (dry.json["revision"], dry.json["dry_run"]) == (2, True)
    made = await shell.quintal("apply", "-f", "-", "--delete", "Profile/train", text=changed)
    assert made.code != 0
    assert "stands in a file as well" in made.err
    made = await shell.quintal("apply", "-f", "-", text=changed)
    assert made.code == 0, made.err

    one = await shell.quintal("get", "quota", "blue", "-o", "json")
    assert one.json["spec"]["caps"][0] == {"class": "train_llm", "units": "9"}
    written = (await shell.quintal("get", "quota", "blue")).out
    same = await shell.quintal("apply", "-f", "-", text=written)
    assert "unchanged: revision 2" in same.out, same.err

    diff = await shell.quintal("diff", "1", "-o", "json")
    fields = {c["name"]: c["fields"] for c in diff.json["changes"]}
    assert fields == {"blue": {"spec.caps.0.units": ["8", "9"]}, "red": {}}
    back = await shell.quintal("rollback", "1")
    assert back.code == 0, back.err
    assert "revision 3 is the catalog: 1 changed, 1 removed" in back.out
    same = await shell.quintal("diff", "1", "3", "-o", "json")
    assert same.json["changes"] == []
    history = await shell.quintal("history", "-o", "json")
    told = [(each["revision"], each["why"]) for each in history.json["revisions"]]
    assert told == [(3, "back to revision 1"), (2, ""), (1, "begin")]
    listed = await shell.quintal("list", "Tenant", "-o", "json")
    assert [row["name"] for row in listed.json["rows"]] == ["blue", "green"]


async def test_faults_are_printed_with_file_and_line_and_the_status_says_refused(
    shell: Shell,
) -> None:
    (shell.directory / "bad.yaml").write_text(document("Quota", "x", "{tenant: x, capz: []}"))
    applied = await shell.quintal("apply", "-f", "bad.yaml")
    assert applied.code == 3
    assert "bad.yaml:5: Quota/x: spec.capz: no such field; did you mean 'caps'?" in applied.err
    checked = await shell.quintal("check", "-f", "bad.yaml")
    assert checked.code == 1
    assert "bad.yaml:5" in checked.err


@pytest.mark.parametrize("kind", ["Quota", "profiles", "models"])
async def test_a_schema_needs_no_service(tmp_path: Path, kind: str) -> None:
    shell = Shell({**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, tmp_path)
    said = await shell.quintal("schema", kind)
    assert said.code == 0, said.err
    assert said.json["properties"]["spec"]["additionalProperties"] is False
