"""`auth add`, `auth list`: credentials, made on the machine that holds the keys."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from quintal.auth import Authority
from quintal.cli import render, session
from quintal.cli.render import Table
from quintal.contracts.subjects import Role
from quintal.errors import SetupError
from quintal.up.layout import Layout


class Outsider(StrEnum):
    """Roles that a person hands out; a service's credentials are `up`'s business."""

    TENANT = "tenant"
    FINANCE = "finance"
    OPERATOR = "operator"
    AGENT = "agent"


def add(
    role: Annotated[Outsider, typer.Argument(help="What it may be.")],
    name: Annotated[str, typer.Argument(help="Letters, digits, _ and -; an agent's is its node.")],
) -> None:
    """Issue a credential, or say where the one lies that was issued before."""
    path = _authority().issue(name, Role(role))
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


def _authority() -> Authority:
    layout = Layout(session.data_folder())
    if not (layout.auth / "keys.json").is_file():
        raise SetupError(
            f"no keys in {layout.auth}: run this on the installation's machine, with its --data"
        )
    return layout.authority()


_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_app.command("add")(add)
_app.command("list")(list_)

COMMANDS = {"auth": _app}
