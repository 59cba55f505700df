"""`queue`: who waits, in which order, and for how long yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from quintal.cli import render, session
from quintal.cli.choices import chosen
from quintal.cli.render import Table
from quintal.contracts.placement import QueueAsk, QueueRow
from quintal.contracts.subjects import Role


def queue(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 200,
) -> None:
    """Show what waits: a tenant its own with their places, an operator all.

    The estimate is when a request would be placed if every lease ran to its deadline unrenewed and
    nobody came before it; where more than that stands in the way there is none.
    """
    if session.speaker() is Role.TENANT:
        chosen.tenant = tenant or chosen.tenant
        ask = QueueAsk(limit=limit)
        answer = session.ask_as_tenant(lambda client: client.queue(ask))
    else:
        ask = QueueAsk(limit=limit, tenant=tenant)
        answer = session.ask(lambda client: client.all_queues(ask))
    columns = (
        "place>", "request", "tenant", "priority", "asks for", "waits>", "estimate>",
        "gives up in>",
    )  # fmt: skip
    rows = [
        (
            row.place, row.request_id, row.tenant, row.priority, _asks(row),
            render.duration(row.waits_ms),
            render.duration(row.estimate_ms) if row.estimate_ms is not None else "unknown",
            render.duration(row.deadline_in_ms),
        )
        for row in answer.rows
    ]  # fmt: skip
    footer = f"{len(answer.rows)} of {answer.waiting} that wait" if answer.waiting else ""
    render.show(answer, Table(columns, rows, footer=footer))


def _asks(row: QueueRow) -> str:
    what = row.workload or row.profile or row.workload_class
    gang = f" x {row.nodes} nodes" if row.nodes is not None and row.nodes > 1 else ""
    return f"{what}, {row.cards} cards{gang}" if row.cards is not None else f"{what}{gang}"


COMMANDS: dict[str, Callable[..., None]] = {"queue": queue}
