"""`auth add`, `auth list`, `auth config`: identities, made on the machine that holds the keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from quintal.auth import Authority, Listen
from quintal.bus import Bus
from quintal.cli import render, session
from quintal.cli.render import Table
from quintal.contracts.streams import STREAMS
from quintal.contracts.subjects import Role
from quintal.errors import SetupError
from quintal.up.layout import Layout


def add(
    role: Annotated[Role, typer.Argument(help="What it may be.")],
    name: Annotated[str, typer.Argument(help="Letters, digits, _ and -; an agent's is its node.")],
) -> None:
    """Issue a credential, or say where the one lies that was issued before."""
    path = _authority().issue(name, role)
    render.show(
        {"principal": name, "role": str(role), "credentials": str(path)},
        line=f"{name} ({role}): {path}",
    )


def list_() -> None:
    """List who was issued a credential."""
    authority = _authority()
    found = sorted(authority.principals().items())
    rows = [(name, str(role), str(authority.credentials / f"{name}.creds")) for name, role in found]
    render.show(
        {
            "principals": [
                {"principal": name, "role": role, "credentials": path} for name, role, path in rows
            ]
        },
        Table(("principal", "role", "credentials"), rows),
    )


def config(
    store: Annotated[Path, typer.Option(help="Where JetStream keeps its files.")] = Path(
        "/var/lib/nats"
    ),
    host: Annotated[str, typer.Option(help="Where the server listens.")] = "0.0.0.0",  # noqa: S104
    port: Annotated[int, typer.Option(min=1, max=65535)] = 4222,
    monitor_port: Annotated[int, typer.Option(min=1, max=65535, help="On loopback.")] = 8222,
) -> None:
    """Print the configuration for a nats-server that is not run by `up`.

    Makes the keys of the installation in --data where it has none yet.
    """
    layout = Layout(session.data_folder())
    layout.create()
    listen = Listen(store, port=port, monitor_port=monitor_port, host=host)
    render.say(layout.authority().server_config(listen).rstrip())


def declare(
    url: Annotated[str, typer.Option(help="The server, such as nats://bus:4222")],
) -> None:
    """Make the streams and buckets on a server, or bring them to this release's form."""
    access = _authority().access(url, "bootstrap", Role.BOOTSTRAP)

    async def body() -> None:
        async with await Bus.connect(access) as bus:
            await bus.declare()

    asyncio.run(body())
    names = [str(stream["name"]) for stream in STREAMS]
    render.show({"streams": names}, line=f"declared: {', '.join(names)}")


def _authority() -> Authority:
    layout = Layout(session.data_folder())
    if not (layout.auth / "keys.json").is_file():
        raise SetupError(
            f"no keys in {layout.auth}: run this where `up` or `auth config` made them"
        )
    return layout.authority()


_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_app.command("add")(add)
_app.command("list")(list_)
_app.command("config")(config)
_app.command("declare")(declare)

COMMANDS = {"auth": _app}
