"""The demo's load: three tenants that ask, hold, renew and give back, the same way every time.

Each tenant has a random sequence of its own seed, so that two runs ask for the same things in the
same order; what they get depends on what the fleet has. Refusals are part of it and are counted.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quintal import process
from quintal.client import Client
from quintal.contracts.catalog import DocumentsAsk
from quintal.contracts.placement import Lease, ListAsk, PlaceAsk, Wait
from quintal.errors import QuintalError, Refused, SetupError
from quintal.settings import Access, environment
from quintal.up.layout import TENANTS

log = logging.getLogger("quintal.load")

PAUSE_S: Final = 2.0
"""Between two steps of one tenant."""
HELD_MAX: Final = 4
TTL_MS: Final = 60_000
QUEUE_MS: Final = 30_000
QUEUED_SHARE: Final = 0.3
RENEW_SHARE: Final = 0.5


@dataclass(slots=True)
class Load:
    """What one tenant does, step by step."""

    client: Client
    profiles: list[str]
    chance: random.Random
    run: str
    """Part of each request id, so that another run asks anew."""
    held: list[str] = field(default_factory=list)
    asked: int = 0
    refused: dict[str, int] = field(default_factory=dict)

    async def step(self) -> None:
        """Ask for more, hold on to something, or give something back."""
        try:
            if len(self.held) < HELD_MAX and self.chance.random() < 1 / (1 + len(self.held)):
                await self._place()
            elif self.chance.random() < RENEW_SHARE:
                await self.client.renew(self.chance.choice(self.held))
            else:
                await self.client.release(self.held.pop(self.chance.randrange(len(self.held))))
        except Refused as exc:
            self.refused[exc.code] = self.refused.get(exc.code, 0) + 1
            await self.look()
        except QuintalError as exc:
            log.warning("%s: %s", self.client.bus.principal, process.chain(exc))

    async def _place(self) -> None:
        self.asked += 1
        queued = self.chance.random() < QUEUED_SHARE
        answer = await self.client.place(
            PlaceAsk(
                request_id=f"load-{self.run}-{self.asked}",
                profile=self.chance.choice(self.profiles),
                ttl_ms=TTL_MS,
                wait=Wait(mode="queue", deadline_ms=QUEUE_MS) if queued else Wait(),
                requester="quintal.up.load",
            )
        )
        if isinstance(answer, Lease):
            self.held.append(answer.lease)

    async def look(self) -> None:
        """What we hold, as the placer knows it: leases expire, and queued ones come true."""
        known = await self.client.leases(ListAsk(states=("granted", "bound")))
        ours = [lease for lease in known.leases if lease.request_id.startswith("load-")]
        self.held = [lease.lease for lease in reversed(ours)]


async def main(stop: asyncio.Event) -> None:
    """Load until told to stop; what is held then ends by itself, within a ttl."""
    env = environment()
    folder = Path(env.get("QUINTAL_CREDENTIALS_DIR", ""))
    seed = env.get("QUINTAL_LOAD_SEED", "1")
    if not env.get("QUINTAL_URL") or not env.get("QUINTAL_CREDENTIALS_DIR"):
        raise SetupError("set QUINTAL_URL and QUINTAL_CREDENTIALS_DIR: the load needs both")
    async with asyncio.TaskGroup() as tasks:
        for tenant in TENANTS:
            access = Access(env["QUINTAL_URL"], folder / f"{tenant}.creds", tenant)
            tasks.create_task(_tenant(access, f"{seed}-{tenant}", stop))
        process.notify("READY=1")


async def _tenant(access: Access, seed: str, stop: asyncio.Event) -> None:
    async with await Client.connect(access) as client:
        rows = (await client.document_list(DocumentsAsk(kind="Profile"))).rows
        profiles = sorted(row.name for row in rows)
        if not profiles:
            raise SetupError(f"the catalog shows {access.principal} no profile: nothing to ask for")
        chance = random.Random(seed)  # noqa: S311 - a load, not a secret
        known = await client.leases(ListAsk(states=(), limit=1))
        load = Load(client, profiles, chance, f"{seed}-{known.sequence}")
        await load.look()  # what an earlier run left behind is ours
        while not stop.is_set():
            await load.step()
            try:
                await asyncio.wait_for(stop.wait(), PAUSE_S * (0.5 + chance.random()))
            except TimeoutError:
                continue
        log.info("%s asked %d times, refused: %s", access.principal, load.asked, load.refused)


if __name__ == "__main__":
    sys.exit(process.run(main))
