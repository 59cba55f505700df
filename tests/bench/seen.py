"""How old usage is when `quintal usage` shows it, in an installation that `quintal up` started.

    python -m tests.bench.seen [SECONDS]

One lease is open and nothing else happens: then only the ledger's tick moves what is known, which
is the slowest that it gets. A reader asks four times a second and takes the age of what it is told:
its own clock less the watermark. Beside it, how long after `place` and after `release` the lease's
own milliseconds were in the answer.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintal.client import Client
from quintal.contracts.subjects import Role
from quintal.contracts.usage import SummaryAsk, UsageSummary
from quintal.up.layout import local_access

BOUND_S = 5.0
SECONDS = 40.0
EVERY_S = 0.25
TENANT = "vision"


@dataclass
class Seen:
    """Seconds of age."""

    ages_s: list[float] = field(default_factory=list)
    first_s: float = 0.0
    last_s: float = 0.0

    def line(self) -> str:
        """For people."""
        ages = sorted(self.ages_s)
        return (
            f"age of usage over {len(ages)} answers: p50 {statistics.median(ages):.2f} s, "
            f"p99 {ages[int(0.99 * (len(ages) - 1))]:.2f} s, most {ages[-1]:.2f} s "
            f"(bound {BOUND_S:.0f} s); a new lease is seen after {self.first_s:.2f} s, "
            f"its last millisecond after {self.last_s:.2f} s"
        )


def quintal(data: Path, *words: str) -> Any:
    """A command's answer."""
    done = subprocess.run(
        [sys.executable, "-m", "quintal.cli", *words, "--data", str(data), "-o", "json"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


async def measured(data: Path, seconds: float) -> Seen:
    """Over a system that is up on `data`."""
    found = Seen()
    async with await Client.connect(local_access(data, str(Role.FINANCE))) as client:
        placed = quintal(data, "place", "cpu-batch", "--tenant", TENANT, "--ttl", "10m")
        begun = time.time()
        while not (await _usage(client)).rows:
            await asyncio.sleep(EVERY_S / 5)
        found.first_s = time.time() - begun
        give_up = time.time() + seconds
        while time.time() < give_up:
            answer = await _usage(client)
            found.ages_s.append(time.time() - answer.watermark_ms / 1000)
            await asyncio.sleep(EVERY_S)
        quintal(data, "release", placed["lease"], "--tenant", TENANT)
        released = time.time()
        while (await _usage(client)).watermark_ms < released * 1000:
            await asyncio.sleep(EVERY_S / 5)
        found.last_s = time.time() - released
    return found


async def _usage(client: Client) -> UsageSummary:
    return await client.usage(SummaryAsk(tenant=TENANT))


def main(words: list[str] | None = None) -> int:
    """0 if it is as it must be."""
    seconds = float((words or [str(SECONDS)])[0])
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        up = subprocess.Popen(
            [sys.executable, "-m", "quintal.cli", "up", "--data", str(data)],
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            assert up.stdout is not None
            up.stdout.readline()
            while not quintal(data, "nodes")["nodes"]:
                time.sleep(EVERY_S)
            found = asyncio.run(measured(data, seconds))
        finally:
            up.terminate()
            up.wait(60)
    print(found.line())
    return 0 if max(found.ages_s) <= BOUND_S else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
