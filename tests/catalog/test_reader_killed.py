"""Readers killed while revisions are written: what one read is a whole revision, always."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quintal.contracts.catalog import ApplyAsk
from quintal.contracts.subjects import Role
from tests.catalog.given import SMALL, document, file
from tests.catalog.test_service import Running, serving
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.bus, pytest.mark.crash]

TENANTS = 12
READ = """\
import asyncio, sys
from quintal.bus import Bus
from quintal.catalog_reader import load
from quintal.settings import access, environment

async def main():
    async with await Bus.connect(access(environment())) as bus:
        while True:
            catalog = await load(bus)
            titles = {spec.title for name, spec in catalog.tenants.items() if name[0] == "t"}
            print(catalog.revision, len(titles), *titles, flush=True)

asyncio.run(main())
"""


def turn(number: int) -> ApplyAsk:
    """All of the tenants change together: two titles at once are half a revision."""
    texts = (document("Tenant", f"t{index}", f"{{title: n{number}}}") for index in range(TENANTS))
    return ApplyAsk(files=(file("".join(texts)),), why=str(number))


@pytest.fixture
async def running(fresh_nats: NatsServer, tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(fresh_nats, tmp_path) as found:
        await found.operator.apply(ApplyAsk(files=(file(SMALL),)))
        await found.operator.apply(turn(0))
        yield found


async def test_a_reader_that_is_killed_at_any_moment_never_saw_half_a_revision(
    running: Running,
) -> None:
    reach = running.server.access("placer-1", Role.PLACER_BACK)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "QUINTAL_URL": reach.url,
        "QUINTAL_CREDENTIALS": str(reach.credentials),
    }
    lines: list[str] = []
    for life in range(4):
        reader = await asyncio.create_subprocess_exec(
            sys.executable, "-c", READ, env=env, stdout=asyncio.subprocess.PIPE
        )
        assert reader.stdout is not None
        lines.append((await reader.stdout.readline()).decode())
        for number in range(6):
            await running.operator.apply(turn(1 + life * 6 + number))
            await asyncio.sleep(0.003 * life)
        reader.send_signal(signal.SIGKILL)
        rest = (await reader.stdout.read()).decode()
        await reader.wait()
        # The last line may be cut off: its reader died while it spoke.
        lines += rest.splitlines(keepends=True)
    whole = [line.split() for line in lines if line.endswith("\n")]
    assert len({revision for revision, *_ in whole}) > 8, "too few revisions were looked at"
    for revision, count, *titles in whole:
        assert count == "1", (revision, titles)
        assert titles == [f"n{int(revision) - 2}"]
