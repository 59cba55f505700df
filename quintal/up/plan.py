"""Which processes make a system, in which order, each with its identities and its own folder."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from typing import Final

from quintal.auth import Authority
from quintal.contracts.subjects import Role
from quintal.errors import SetupError
from quintal.settings import environment
from quintal.up.layout import TENANTS, Layout, node_name
from quintal.up.supervisor import Process, python

SERVICES: Final[dict[str, tuple[str, Role, Role]]] = {
    "catalog": ("quintal_catalog", Role.CATALOG_FRONT, Role.CATALOG_BACK),
    "placer-1": ("quintal_placer", Role.PLACER_FRONT, Role.PLACER_BACK),
    "placer-2": ("quintal_placer", Role.PLACER_FRONT, Role.PLACER_BACK),
    "metering": ("quintal_metering", Role.METERING_FRONT, Role.METERING_BACK),
}
"""Process -> module, role in front, role behind. Its principals: `<process>-front`, `<process>`."""

SOCKET_PATH_MAX: Final = 100
"""A Unix socket's path has at most 107 bytes."""

CENSUS_S: Final = 10.0
"""A placer's time to write its last census."""


def issue_people(authority: Authority) -> None:
    """Credentials of those who are there from the start."""
    authority.issue("operator", Role.OPERATOR)
    authority.issue("finance", Role.FINANCE)
    for tenant in TENANTS:
        authority.issue(tenant, Role.TENANT)


def groups(layout: Layout, authority: Authority, url: str, *, demo: bool) -> list[list[Process]]:
    """Processes in the order of their start; those of one group start together.

    The catalog goes first, since all read it; placer-1 before placer-2, so that the first leads.
    """
    base = {**_inherited(), "QUINTAL_URL": url, "QUINTAL_PRINCIPALS": str(authority.registry)}
    service = {name: _service(name, layout, authority, base) for name in SERVICES}
    plan = [
        [service["catalog"]],
        [service["placer-1"]],
        [service["placer-2"], service["metering"], *_node(layout, authority, base)],
    ]
    if demo:
        plan += [[_demo_nodes(layout, authority, base)], [_load(layout, authority, base)]]
    return plan


def _inherited() -> dict[str, str]:
    """Our own environment less what names another installation; the log's level stays."""
    kept = {"QUINTAL_LOG"}
    return {
        key: value
        for key, value in environment().items()
        if (key in kept or not key.startswith("QUINTAL_")) and key != "NOTIFY_SOCKET"
    }


def _service(name: str, layout: Layout, authority: Authority, base: Mapping[str, str]) -> Process:
    module, front, back = SERVICES[name]
    return Process(
        name,
        python(module),
        {
            **base,
            "QUINTAL_CREDENTIALS_FRONT": str(authority.issue(f"{name}-front", front)),
            "QUINTAL_CREDENTIALS_BACK": str(authority.issue(name, back)),
            "QUINTAL_STATE": str(layout.state(name)),
        },
        stop_s=CENSUS_S,
    )


def _node(layout: Layout, authority: Authority, base: Mapping[str, str]) -> list[Process]:
    """This host's agent, and beside it the runner of what is installed in DIR/tasks.

    A socket's path has little room: in a folder that lies too deep nothing acts (`not_enabled`).
    """
    socket = layout.state("tasks") / "task.sock"
    folder = layout.state("tasks") / "tasks.d"
    listen = (*python("quintal_agent.tasks"), "--listen", str(socket), "--tasks", str(folder))
    runner = [Process("tasks", listen, dict(base))] if len(str(socket)) < SOCKET_PATH_MAX else []
    agent = Process(
        "agent",
        python("quintal_agent"),
        {
            **base,
            "QUINTAL_CREDENTIALS": str(authority.issue(node_name(), Role.AGENT)),
            "QUINTAL_STATE": str(layout.state("agent")),
            "QUINTAL_TASK_SOCKET": str(socket),
        },
    )
    return [*runner, agent]


def _demo_nodes(layout: Layout, authority: Authority, base: Mapping[str, str]) -> Process:
    for node in _demo_names(base):
        authority.issue(node, Role.AGENT)
    return Process(
        "demo",
        python("quintal_agent.demo"),
        {
            **base,
            "QUINTAL_CREDENTIALS_DIR": str(authority.credentials),
            "QUINTAL_STATE": str(layout.state("demo")),
        },
    )


def _demo_names(base: Mapping[str, str]) -> Iterator[str]:
    asked = subprocess.run(
        [*python("quintal_agent.demo"), "--list"],
        env=dict(base), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if asked.returncode != 0:
        last = (asked.stderr.strip().splitlines() or ["no word"])[-1]
        raise SetupError(f"the demo's nodes cannot be listed: {last}")
    text = asked.stdout.strip()
    yield from json.loads(text) if text.startswith("[") else text.split()


def _load(layout: Layout, authority: Authority, base: Mapping[str, str]) -> Process:
    return Process(
        "load",
        python("quintal.up.load"),
        {
            **base,
            "QUINTAL_CREDENTIALS_DIR": str(authority.credentials),
            "QUINTAL_STATE": str(layout.state("load")),
        },
    )
