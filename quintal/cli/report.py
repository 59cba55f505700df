"""`report generations`: what each generation costs for what it delivers."""

from __future__ import annotations

import asyncio
import dataclasses
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quintal.cli import render, session
from quintal.cli.render import Table
from quintal.cli.usage import From, To, instant, instant_ms
from quintal.clock import SystemClock
from quintal.contracts.catalog import DocumentsAsk
from quintal.contracts.documents import Catalog
from quintal.contracts.placement import Capacity, FleetAsk
from quintal.contracts.usage import SummaryAsk, UsageSummary
from quintal.conversion import class_of
from quintal.generations import Generation, generations as figures
from quintal.units import CLASSES, unit_name

if TYPE_CHECKING:
    from quintal.client import Client

DAY_MS = 86_400_000

HARDLY = Decimal("0.1")
"""Per cent of use below which the cost of a used unit says nothing but that."""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Reports over the fleet, its cost, and its use."""


@app.command()
def generations(
    class_: Annotated[str, typer.Option("--class", help="STU, SIU, or a class.")] = "STU",
    from_: From = None,
    to: To = None,
    pool: Annotated[str | None, typer.Option(help="Only this pool's devices.")] = None,
) -> None:
    """Show cost per unit, use, and the price up to which old hardware pays, by model.

    Costs are those of the `cost` price lists. Without --from: the last seven days.
    """
    workload_class = class_of(class_)
    if workload_class is None:
        raise typer.BadParameter(f"{class_!r} is no class: there are {', '.join(CLASSES)}")
    end = instant_ms(to) or SystemClock().now_ms()
    start = instant_ms(from_)
    start = end - 7 * DAY_MS if start is None else start
    if start >= end:
        raise typer.BadParameter("--from must lie before --to")

    catalog, capacity, usage = session.ask(
        lambda client: _gather(client, start, end, pool), session.speaker()
    )
    span = (start, min(end, usage.watermark_ms or end))
    rows = figures(catalog, workload_class, capacity.rows, usage.rows, span)
    currency = next((spec.currency for spec in catalog.prices.values()), "")
    unit = unit_name(workload_class)
    columns = (
        "generation", "year>", "model", "devices>", f"{unit} each>", f"{currency}/card-hour>",
        f"{currency}/{unit}-hour>", "used>", f"{currency}/used {unit}-hour>", "pays up to>",
        "against",
    )  # fmt: skip
    footer = (
        f"{instant(start)} to {instant(span[1])}; ~ is an estimated rating; `pays up to` is the"
        " cost per card-hour at which a unit is as cheap as on the model it is held against; use"
        " is of the devices that there are now"
    )
    render.show(
        {"class": workload_class, "currency": currency, "from_ms": start, "to_ms": span[1],
         "rows": [_plain(row) for row in rows]},
        Table(columns, [_row(row) for row in rows], footer=footer),
    )  # fmt: skip


async def _gather(
    client: Client, start: int, end: int, pool: str | None
) -> tuple[Catalog, Capacity, UsageSummary]:
    documents, capacity, usage = await asyncio.gather(
        client.documents(DocumentsAsk()),
        client.capacity(FleetAsk(pool=pool)),
        client.usage(SummaryAsk(from_ms=start, to_ms=end, by=("model", "pool"))),
    )
    if pool is not None:
        kept = tuple(row for row in usage.rows if row.group.get("pool") == pool)
        usage = usage.model_copy(update={"rows": kept})
    return Catalog(documents.documents, revision=documents.revision), capacity, usage


def _row(row: Generation) -> tuple[object, ...]:
    each = render.number(row.units_each)
    over = row.card_hour_cost is not None and row.break_even is not None
    dear = over and row.card_hour_cost > row.break_even  # type: ignore[operator]
    return (
        row.generation,
        row.year,
        row.model,
        row.devices,
        f"~{each}" if row.estimated else each,
        _money(row.card_hour_cost),
        _money(row.unit_hour_cost),
        None if row.used_percent is None else f"{row.used_percent:.1f} %",
        _money(row.used_unit_hour_cost)
        if row.used_percent and row.used_percent >= HARDLY
        else None,
        f"{_money(row.break_even)}{' !' if dear else ''}" if row.break_even is not None else None,
        row.against,
    )


def _money(value: Decimal | None) -> str | None:
    return None if value is None else f"{value:.4f}"


def _plain(row: Generation) -> dict[str, Any]:
    return {
        name: format(value, "f") if isinstance(value, Decimal) else value
        for name, value in dataclasses.asdict(row).items()
    }


COMMANDS = {"report": app}
