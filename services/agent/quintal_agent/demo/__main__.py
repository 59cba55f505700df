"""`python -m quintal_agent.demo`: every node of the fleet file, each with its own credentials.

QUINTAL_URL, QUINTAL_CREDENTIALS_DIR (`<node>.creds` in it), QUINTAL_STATE (`<node>/` in it);
the beats as for a real agent. `--list` prints the nodes' names and connects to nothing.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from quintal import process
from quintal.clock import Clock, SystemClock
from quintal.errors import SetupError
from quintal.settings import Access, environment
from quintal_agent import settings as agent_settings
from quintal_agent.app import Agent
from quintal_agent.demo import fleet
from quintal_agent.report import Sighting
from quintal_agent.settings import Settings
from quintal_agent.state import boot_age_ms, boot_id

log = logging.getLogger("quintal_agent.demo")


class ScriptedSource:
    """A node's probes, played from its description."""

    def __init__(self, node: fleet.Node, clock: Clock) -> None:
        self.vendor = "demo"
        self._node = node
        self._clock = clock
        self.held: Callable[[], frozenset[str]] = frozenset

    async def look(self) -> Sighting:
        """What the description says of this instant."""
        return Sighting(fleet.observe(self._node, at_ms=self._clock.now_ms(), held=self.held()))

    async def close(self) -> None:
        """Nothing is held."""


def described() -> tuple[fleet.Node, ...]:
    """The fleet that ships."""
    import yaml

    text = (files("quintal_agent.demo") / "fleet.yaml").read_text()
    return fleet.nodes_in(yaml.safe_load(text))


def agents(env: Mapping[str, str], nodes: tuple[fleet.Node, ...]) -> list[Agent]:
    """An agent per node. Raises SetupError that names what is missing."""
    url, folder = env.get("QUINTAL_URL", ""), env.get("QUINTAL_CREDENTIALS_DIR", "")
    state = env.get("QUINTAL_STATE", "")
    if not url or not folder or not state:
        raise SetupError("set QUINTAL_URL, QUINTAL_CREDENTIALS_DIR and QUINTAL_STATE")
    missing = [n.name for n in nodes if not (Path(folder) / f"{n.name}.creds").is_file()]
    if missing:
        raise SetupError(f"{folder} has no credentials for {', '.join(missing)}")
    beats = agent_settings.beats_from(env)
    common = Settings(
        access=Access(url, Path(folder), ""),
        state=Path(state),
        lease_dir=Path(state),
        beats=beats,
        bounds=agent_settings.bounds_from(env, beats),
    )
    clock, host_boot = SystemClock(), boot_id()
    made = []
    for node in nodes:
        own = replace(
            common,
            access=Access(url, Path(folder) / f"{node.name}.creds", node.name),
            state=Path(state) / node.name,
            lease_dir=Path(state) / node.name / "leases",
            cluster=node.cluster,
            location=node.location,
            labels=node.labels,
        )
        source = ScriptedSource(node, clock)
        agent = Agent(
            own,
            [source],
            boot=fleet.boot_id(host_boot, node.name),
            clock=clock,
            sequence=boot_age_ms(),
        )
        source.held = lambda agent=agent: agent.keeper.state.held  # type: ignore[misc]
        made.append(agent)
    return made


async def run(env: Mapping[str, str], stop: asyncio.Event) -> int:
    """All agents until `stop`; one that fails ends all, since the supervisor restarts one whole."""
    everyone = agents(env, described())

    async def tell() -> None:
        for agent in everyone:
            await agent.ready.wait()
        process.notify("READY=1")
        log.info("%d nodes are up", len(everyone))

    async with asyncio.TaskGroup() as group:
        telling = group.create_task(tell())
        running = [group.create_task(agent.run(stop)) for agent in everyone]
        await asyncio.gather(*running)
        telling.cancel()
    return 0


def main() -> None:
    """Run until SIGTERM or Ctrl-C; or list the nodes."""
    if sys.argv[1:] == ["--list"]:
        print("\n".join(node.name for node in described()))  # noqa: T201 - what was asked for
        return
    if sys.argv[1:]:
        sys.exit("usage: python -m quintal_agent.demo [--list]")

    async def body(stop: asyncio.Event) -> int:
        return await run(environment(), stop)

    sys.exit(process.run(body))


if __name__ == "__main__":
    main()
