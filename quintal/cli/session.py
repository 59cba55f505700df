"""Whom a command speaks to, and in whose name.

The installation is the one in `--data` (or QUINTAL_DATA, or ./quintal-data); else the server that
QUINTAL_URL names with the credentials file in QUINTAL_CREDENTIALS. In a local installation the
operator speaks, unless `--as` (QUINTAL_AS) names another; placement is asked in a tenant's name:
`--tenant`, QUINTAL_TENANT, or the only tenant there is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from quintal.cli.choices import chosen
from quintal.client import PATIENCE_S, Client
from quintal.contracts.subjects import Role
from quintal.errors import BusUnavailable, SetupError
from quintal.settings import Access, access as access_from, environment
from quintal.up.layout import DEFAULT, TENANTS, Layout, local_access

T = TypeVar("T")


def ask(
    work: Callable[[Client], Awaitable[T]],
    role: Role = Role.OPERATOR,
    *,
    patience_s: float = PATIENCE_S,
) -> T:
    """Run `work` with a client that speaks as `role`'s principal (see `access`)."""

    async def body() -> T:
        where = access(role)
        try:
            connected = await Client.connect(where, patience_s=patience_s, wait_s=5)
        except BusUnavailable as exc:
            if isinstance(exc.__cause__, TimeoutError | OSError):
                raise SetupError(f"{where.url} does not answer: is `quintal up` running?") from None
            raise
        async with connected as client:
            return await work(client)

    return asyncio.run(body())


def ask_as_tenant(work: Callable[[Client], Awaitable[T]]) -> T:
    """Run `work` in the tenant's name."""
    return ask(work, Role.TENANT)


def access(role: Role = Role.OPERATOR) -> Access:
    """The connection's address and name. Raises SetupError with the way out."""
    env = environment()
    data = data_folder()
    if Layout(data).system() is None and env.get("QUINTAL_URL"):
        return access_from(env)
    return local_access(data, _principal(role, data, env))


def data_folder() -> Path:
    """The folder of the local installation, whether it is there or not."""
    return (chosen.data or Path(environment().get("QUINTAL_DATA") or DEFAULT)).absolute()


def speaker() -> Role:
    """The role of whoever speaks, as far as this machine knows: an unknown name is a tenant."""
    env = environment()
    data = data_folder()
    name = chosen.principal or env.get("QUINTAL_AS", "")
    if not name and Layout(data).system() is None and env.get("QUINTAL_URL"):
        name = access_from(env).principal
    return _principals(data).get(name, Role.TENANT) if name else Role.OPERATOR


def _principal(role: Role, data: Path, env: Mapping[str, str]) -> str:
    if role is Role.TENANT:
        return _tenant(data, env)
    return chosen.principal or env.get("QUINTAL_AS", "") or str(role)


def _tenant(data: Path, env: Mapping[str, str]) -> str:
    named = (
        chosen.tenant or env.get("QUINTAL_TENANT", "") or chosen.principal
        or env.get("QUINTAL_AS", "")
    )  # fmt: skip
    other = chosen.principal
    if other and other != named and _principals(data).get(other) is Role.TENANT:
        raise SetupError(f"--as {other} and --tenant {named}: {other} speaks for itself alone")
    if named:
        return named
    tenants = sorted(name for name, has in _principals(data).items() if has is Role.TENANT)
    if len(tenants) == 1:
        return tenants[0]
    which = ", ".join(tenants or TENANTS)
    raise SetupError(f"in which tenant's name? give --tenant or QUINTAL_TENANT: {which}")


def _principals(data: Path) -> dict[str, Role]:
    path = Layout(data).auth / "principals.json"
    if not path.is_file():
        return {}
    found: dict[str, str] = json.loads(path.read_text())
    return {name: Role(value) for name, value in found.items()}
