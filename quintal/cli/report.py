"""`report`: use and cost as one page of HTML; `report generations`: what each generation costs."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quintal.cli import render, session
from quintal.cli.choices import chosen
from quintal.cli.page import Facts, leading, page
from quintal.cli.render import Table
from quintal.cli.usage import From, To, instant, instant_ms
from quintal.clock import SystemClock
from quintal.contracts.catalog import DocumentsAsk
from quintal.contracts.documents import Catalog
from quintal.contracts.placement import Capacity, FleetAsk
from quintal.contracts.reports import Report, ReportAsk
from quintal.contracts.subjects import Role
from quintal.contracts.usage import GroupBy, SummaryAsk, UsageSummary
from quintal.conversion import class_of
from quintal.errors import SetupError
from quintal.generations import Generation, generations as figures
from quintal.units import CLASSES, unit_name

if TYPE_CHECKING:
    from quintal.client import Client

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
PAGE = Path("quintal-report.html")

HARDLY = Decimal("0.1")
"""Per cent of use below which the cost of a used unit says nothing but that."""

HOURLY_DAYS_MAX = 4
"""A page over more days than these shows days."""

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def report(
    context: typer.Context,
    from_: From = None,
    to: To = None,
    out: Annotated[
        Path,
        typer.Option("--out", help="Where it is written, over what is there."),
    ] = PAGE,
) -> None:
    """Write use and cost as one page that a browser opens from disk: plots, and their numbers.

    Usage by tenant and class, what a unit costs by vendor, capacity, granted and used; a tenant's
    page shows its own use. Without --from: the last seven days. `report generations` is a table.
    """
    if context.invoked_subcommand is not None:
        return
    speaker, now = session.speaker(), SystemClock().now_ms()
    span = _span(from_, to, now)

    async def gathered(client: Client) -> Facts:
        begun = span[0] if from_ else await _first_use(client, span)
        return await _facts(client, speaker, (begun, span[1]))

    facts = session.ask(gathered, speaker, patience_s=90)
    text = page(replace(facts, asker=chosen.principal or str(speaker), made_at_ms=now))
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise SetupError(f"writing {out}") from exc
    line = f"wrote {out.absolute()} ({len(text.encode()) // 1024} KiB): open it in a browser"
    told = {"page": str(out.absolute()), "from_ms": facts.span[0], "to_ms": facts.span[1]}
    render.show(told, line=line)


async def _first_use(client: Client, span: tuple[int, int]) -> int:
    """Where nobody said from when: the first hour in which anything was used."""
    found = await client.usage(SummaryAsk(from_ms=span[0], to_ms=span[1], by=("hour",)))
    first = min((instant_ms(row.group["hour"]) or 0 for row in found.rows), default=0)
    return max(span[0], first)


async def _facts(client: Client, speaker: Role, span: tuple[int, int]) -> Facts:
    start, end = span
    stretch_ms = HOUR_MS if end - start <= HOURLY_DAYS_MAX * DAY_MS else DAY_MS
    by: GroupBy = "hour" if stretch_ms == HOUR_MS else "day"

    async def fleet() -> Report | None:
        if speaker is Role.TENANT:
            return None
        return await client.report(ReportAsk(from_ms=start, to_ms=end, stretch_ms=stretch_ms))

    async def used(by: GroupBy, tenant: str | None = None) -> UsageSummary:
        return await client.usage(SummaryAsk(from_ms=start, to_ms=end, by=(by,), tenant=tenant))

    tenants, by_vendor, seen = await asyncio.gather(used("tenant"), used("vendor"), fleet())
    # One question a tenant that is drawn: all of them by all hours might be more than fits.
    names = leading(tenants)
    over_time = await asyncio.gather(*(used(by, name) for name in names))
    more = {row.group["tenant"] for row in tenants.rows} - set(names)
    together = await used(by) if more else None
    # The page ends where something is known, not in the future of a span that goes on.
    known = tenants.watermark_ms or end
    until = min(end, max(known, start + 1))
    return Facts(
        "", 0, (start, until), stretch_ms, tenants, dict(zip(names, over_time, strict=True)),
        together, by_vendor, seen,
    )  # fmt: skip


def _span(from_: str | None, to: str | None, now_ms: int) -> tuple[int, int]:
    end = instant_ms(to) or now_ms
    start = instant_ms(from_)
    start = end - 7 * DAY_MS if start is None else start
    if start >= end:
        raise typer.BadParameter("--from must lie before --to")
    return start, end


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
    start, end = _span(from_, to, SystemClock().now_ms())
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
