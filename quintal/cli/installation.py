"""`up`, `doctor`, `version`: the installation itself."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from quintal.cli import render, session
from quintal.cli.render import Table
from quintal.errors import QuintalError

SERVICES = ("catalog", "placer", "metering")
FREE_BYTES_MIN = 2 * 2**30


_SAID = {True: "ok", False: "NOT OK", None: "?"}


class _UnseenError(Exception):
    """Neither well nor ill: it cannot be seen from here."""


def up(
    demo: Annotated[
        bool, typer.Option("--demo", help="Add nodes of many vendors and a small load.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Where the server listens; else as last time, or 4222"),
    ] = None,
) -> None:
    """Run a whole system on this machine until Ctrl-C: server, services, an agent for this host.

    A second start on the same folder goes on where the first one stopped.
    """
    from quintal.up.run import main

    raise typer.Exit(main(session.data_folder(), demo=demo, port=port))


def doctor() -> None:
    """Say what of an installation is well and what is not; exit 1 if something is not."""
    from quintal.process import chain

    rows: list[dict[str, Any]] = []

    def check(name: str, look: Callable[[], str]) -> None:
        try:
            rows.append({"check": name, "ok": True, "found": look()})
        except _UnseenError as exc:
            rows.append({"check": name, "ok": None, "found": str(exc)})
        except QuintalError as exc:
            rows.append({"check": name, "ok": False, "found": chain(exc)})

    check("server reachable", _server)
    check("synced before acknowledged", _synced)
    # Where the server does not answer, each of these would wait for it once more.
    reachable = rows[0]["ok"]
    check("services answer", _services if reachable else _unasked)
    check("fleet and ledger", _fleet if reachable else _unasked)
    check("usage store", _store)
    check("room on disk", _room)
    check("clock", _clock)
    table = Table(
        ("check", "", "found"),
        [(row["check"], _SAID[row["ok"]], row["found"]) for row in rows],
    )
    well = all(row["ok"] is not False for row in rows)
    render.show({"ok": well, "checks": rows}, table)
    if not well:
        raise typer.Exit(1)


def _server() -> str:
    access = session.access()

    async def greet() -> str:
        from quintal.bus import Bus

        async with await Bus.connect(access, wait_s=1) as bus:
            await bus.flush()
            return f"{access.url}, as {access.principal}"

    return asyncio.run(greet())


def _unasked() -> str:
    raise _UnseenError("not asked: the server is not reachable")


def _synced() -> str:
    from quintal.errors import SetupError
    from quintal.up.layout import Layout
    from quintal.up.server import check_durable, varz

    system = Layout(session.data_folder()).system()
    if system is None:
        raise _UnseenError("not seen from here: ask on the server's own machine")
    said = varz(system.monitor_url)
    if said is None:
        raise SetupError(f"{system.monitor_url} does not answer: is `quintal up` running?")
    check_durable(said)
    return f"nats-server {said['version']}, sync_interval always"


def _services() -> str:
    from quintal.bus import Bus
    from quintal.errors import SetupError

    async def ping() -> list[dict[str, Any]]:
        async with await Bus.connect(session.access(), wait_s=3) as bus:
            return await bus.ping()

    found = Counter(
        str(one.get("name", "")).removeprefix("quintal-") for one in asyncio.run(ping())
    )
    silent = [name for name in SERVICES if not found[name]]
    if silent:
        raise SetupError(f"{', '.join(silent)} do not answer $SRV.PING: see DIR/logs")
    return ", ".join(f"{count} x {name}" for name, count in sorted(found.items()))


def _fleet() -> str:
    fleet = session.ask(lambda client: client.fleet(), patience_s=1)
    ready = sum(node.liveness == "ready" for node in fleet.nodes)
    return f"{ready} of {len(fleet.nodes)} nodes ready, ledger at {fleet.sequence}"


def _store() -> str:
    import json
    from urllib.request import urlopen

    from quintal.errors import SetupError

    place = session.data_folder() / "metering" / "endpoint.json"
    if not place.is_file():
        raise _UnseenError("not seen from here: ask on metering's own machine")
    known: dict[str, str] = json.loads(place.read_text())
    try:
        with urlopen(f"{known['url']}/ping", timeout=3) as answer:  # noqa: S310 - our own address
            answer.read()
    except OSError as exc:
        raise SetupError(f"the usage store at {known['url']} does not answer") from exc
    return f"{known['url']}, database {known['database']}, token in {known['token_file']}"


def _room() -> str:
    from quintal.errors import SetupError

    at: Path = session.data_folder()
    while not at.exists():
        at = at.parent
    free = shutil.disk_usage(at).free
    if free < FREE_BYTES_MIN:
        raise SetupError(f"{render.size(free)} left at {at}: the ledger stops when it is full")
    return f"{render.size(free)} left at {at}"


def _clock() -> str:
    from quintal.errors import SetupError
    from quintal.up.layout import Layout
    from quintal.up.server import varz

    system = Layout(session.data_folder()).system()
    said = varz(system.monitor_url) if system else None
    if said is None:
        raise _UnseenError("not compared: the server's monitor is not reachable from here")
    from datetime import datetime

    from quintal.clock import SystemClock

    server = datetime.fromisoformat(said["now"]).timestamp()
    apart_ms = abs(SystemClock().now_ms() - int(server * 1000))
    if apart_ms > 2_000:  # noqa: PLR2004 - two seconds
        raise SetupError(f"this machine's clock and the server's are {apart_ms} ms apart")
    return f"{apart_ms} ms from the server's"


COMMANDS: dict[str, Callable[..., None]] = {"up": up, "doctor": doctor}
