"""`events`: what happened to leases and nodes, and with `--watch` what happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import typer

from quintal.cli import render, session
from quintal.cli.choices import Output, chosen
from quintal.cli.placement import duration_ms
from quintal.cli.render import Table
from quintal.client import Client
from quintal.contracts import subjects
from quintal.contracts.placement import Events, EventsAsk, News
from quintal.contracts.subjects import Role

COLUMNS = ("at", "what", "node", "lease", "tenant", "why", "ledger>")


def events(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on: a line for each that comes.")
    ] = False,
    node: Annotated[str | None, typer.Option(help="Only of this node.")] = None,
    lease: Annotated[str | None, typer.Option(help="Only of this lease.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant's leases.")] = None,
    since: Annotated[str | None, typer.Option(help="Not older than, such as 30m.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="The newest so many.")] = 50,
    during: Annotated[
        str | None, typer.Option("--for", help="With --watch: end after so long.")
    ] = None,
) -> None:
    """Show what happened to leases and nodes: a tenant its own leases, an operator all."""
    own = session.speaker() is Role.TENANT
    if own:
        chosen.tenant = tenant or chosen.tenant
    since_ms = time.time_ns() // 1_000_000 - duration_ms(since) if since else None
    ask = EventsAsk(
        node=node, lease=lease, tenant=None if own else tenant, since_ms=since_ms, limit=limit
    )
    role = Role.TENANT if own else Role.OPERATOR
    if watch:
        seconds = duration_ms(during) / 1000 if during else None
        with contextlib.suppress(KeyboardInterrupt):
            session.ask(lambda client: _watched(client, ask, own=own, seconds=seconds), role)
        return
    answer = session.ask(lambda client: _past(client, ask, own=own), role)
    footer = f"as of ledger sequence {answer.sequence}"
    if answer.more:
        footer += "; there are older ones: --limit, --since"
    rows = [_row(it) for it in answer.events]
    render.show(answer, Table(COLUMNS, rows, footer=footer))


async def _past(client: Client, ask: EventsAsk, *, own: bool) -> Events:
    return await (client.events(ask) if own else client.all_events(ask))


async def _watched(client: Client, ask: EventsAsk, *, own: bool, seconds: float | None) -> None:
    """Listen first, then tell the past, then go on: nothing falls between the two."""
    heard: asyncio.Queue[News] = asyncio.Queue()

    def hear(news: News, tokens: tuple[str, ...]) -> None:
        whose = tokens[3] if news.lease else ""
        heard.put_nowait(news.model_copy(update={"tenant": whose}))

    whose = client.bus.principal if own else ask.tenant
    of_one = {} if whose is None else {"tenant": whose}
    if ask.node is None:
        await client.bus.hear(subjects.LEASE_NEWS, hear, **of_one)
    if not own and ask.tenant is None and ask.lease is None:
        of_node = {} if ask.node is None else {"node": ask.node}
        await client.bus.hear(subjects.NODE_NEWS, hear, **of_node)
    await client.bus.flush()
    past = await _past(client, ask, own=own)
    for it in past.events:
        _line(it)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                it = await heard.get()
                if it.sequence > past.sequence and ask.lease in {None, it.lease}:
                    _line(it)


def _row(it: News) -> tuple[object, ...]:
    return (_at(it.at), it.what, it.node, it.lease, it.tenant, it.reason, it.sequence)


def _line(it: News) -> None:
    """One event, as it comes: a line for people, a document for programs."""
    if chosen.output is Output.TABLE:
        what = f"lease {it.lease}" if it.lease else f"node {it.node}"
        whose = f" of {it.tenant}" if it.tenant else ""
        render.say(f"{_at(it.at)}  {it.what:<16} {what}{whose}  {it.reason}".rstrip())
        return
    plain = it.model_dump(mode="json")
    if chosen.output is Output.JSON:
        render.say(json.dumps(plain, ensure_ascii=False))
        return
    import yaml

    render.say("---\n" + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip())


def _at(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).isoformat(sep=" ", timespec="milliseconds")


COMMANDS: dict[str, Callable[..., None]] = {"events": events}
