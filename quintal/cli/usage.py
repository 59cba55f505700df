"""`usage`, `slices`, `verify`: what was used, the rows beneath it, and whether it all agrees."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

import typer

from quintal.cli import render, session
from quintal.cli.render import Table
from quintal.contracts.usage import (
    Difference,
    GroupBy,
    LabelBy,
    Slice,
    SlicesAsk,
    SummaryAsk,
    UsageRow,
    VerifyAsk,
)
from quintal.names import meant
from quintal.units import PARTS, unit_hours, unit_name

DIFFERENCES_SHOWN = 50

From = Annotated[
    str | None, typer.Option("--from", help="UTC, such as 2026-05-01 or 2026-05-01T13:00.")
]
To = Annotated[str | None, typer.Option("--to", help="UTC; what begins before it counts.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")]


def usage(
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            help="tenant, project, profile, model, pool, class, vendor, label:KEY, month, "
            "day, hour; several times, or with commas.",
        ),
    ] = None,
    from_: From = None,
    to: To = None,
    tenant: OfTenant = None,
    project: Annotated[str | None, typer.Option(help="Only this project's.")] = None,
    profile: Annotated[str | None, typer.Option(help="Only this profile's.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model's.")] = None,
) -> None:
    """Show usage and cost, up to the watermark; open leases count up to there.

    Full hours are counted: --from goes down to one, --to up.
    """
    ask = SummaryAsk(
        from_ms=instant_ms(from_),
        to_ms=instant_ms(to),
        by=_groups(by or ["tenant"]),
        tenant=tenant,
        project=project,
        profile=profile,
        model=model,
    )
    answer = session.ask(lambda client: client.usage(ask))
    columns = (*ask.by, "unit", "unit-hours>", "card-hours>", "leases>", "cost>", "", "notes")
    footer = f"up to {instant(answer.watermark_ms)}, ledger sequence {answer.sequence}"
    if from_ or to:
        # A span is widened to full hours: say which were counted.
        span = f"{instant(answer.from_ms)} to {instant(answer.to_ms)}"
        footer = f"full hours from {span}; {footer}"
    if answer.restated:
        footer += "; some of it was restated by adjustments"
    if not answer.rows and tenant:
        # A misspelt name would look like a month without use.
        everybody = session.ask(lambda client: client.usage())
        names = [row.group["tenant"] for row in everybody.rows]
        if tenant not in names:
            render.complain(f"{tenant!r} never used anything{meant(tenant, names)}")
    render.show(answer, Table(columns, [_usage(ask.by, row) for row in answer.rows], footer=footer))


def _usage(by: tuple[str, ...], row: UsageRow) -> tuple[object, ...]:
    return (
        *(row.group.get(name) for name in by),
        unit_name(row.workload_class),
        Decimal(row.unit_hours),
        (Decimal(row.card_ms) / 3_600_000).quantize(Decimal("0.001")),
        row.leases,
        render.money(row.cost) if row.currency else None,
        row.currency,
        [
            f"{share} {word}"
            for share, word in (
                (_share(row.estimated_quantity, row.quantity), "estimated"),
                (_share(row.unpriced_quantity, row.quantity), "without a price"),
            )
            if share
        ],
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part // whole} %" if part and whole else ""


def slices(
    lease: Annotated[str | None, typer.Argument(help="Only this lease's.")] = None,
    from_: From = None,
    to: To = None,
    tenant: OfTenant = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many rows.")] = 1_000,
) -> None:
    """Show the rows beneath a usage line, oldest first: what a bill rests on."""
    ask = SlicesAsk(
        from_ms=instant_ms(from_), to_ms=instant_ms(to), tenant=tenant, lease=lease, limit=limit
    )
    answer = session.ask(lambda client: client.slices(ask))
    columns = (
        "from", "for>", "kind", "tenant", "lease", "model", "cards>", "unit", "unit-hours>",
        "price>", "per", "cost>", "", "rev>",
    )  # fmt: skip
    footer = f"up to {instant(answer.watermark_ms)}"
    render.show(answer, Table(columns, [_slice(row) for row in answer.rows], footer=footer))


def _slice(row: Slice) -> tuple[object, ...]:
    return (
        instant(row.from_ms),
        render.duration(row.to_ms - row.from_ms),
        row.kind_of,
        row.tenant,
        row.lease,
        row.model,
        Decimal(row.devices * row.parts) / PARTS,
        unit_name(row.workload_class),
        unit_hours(row.quantity),
        row.price and Decimal(row.price),
        row.price_per.replace("_", "-"),
        row.cost if row.currency else None,
        row.currency,
        row.revision,
    )


def verify(from_: From = None, to: To = None) -> None:
    """Hold census, hours, store and ledger against each other; exit 1 if anything differs.

    Without --to, up to the last census.
    """
    ask = VerifyAsk(from_ms=instant_ms(from_), to_ms=instant_ms(to))
    answer = session.ask(lambda client: client.verify(ask))
    said = (
        f"{answer.censuses} censuses, {answer.hours} closed hours, {answer.slices} slices "
        f"up to ledger sequence {answer.sequence}: "
        f"{'all agree' if answer.ok else f'{len(answer.differences)} differences'}"
    )
    shown = answer.differences[:DIFFERENCES_SHOWN]
    columns = ("check", "at", "pool", "model", "what", "expected", "found")
    tables = [Table(columns, [_difference(one) for one in shown])] if shown else []
    if answer.ok and not answer.censuses:
        said += "; no census to hold against inventory yet: `quintal snapshot` makes one"
    render.show(answer, *tables, line=said)
    if not answer.ok:
        raise typer.Exit(1)


def _difference(one: Difference) -> tuple[object, ...]:
    return (
        one.check, instant(one.at_ms), one.pool, one.model, one.subject, one.expected, one.found,
    )  # fmt: skip


def instant_ms(text: str | None) -> int | None:
    """An ISO instant, UTC where it names no zone, as milliseconds. Raises BadParameter."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as exc:
        raise typer.BadParameter(f"{text!r} is no instant: write 2026-05-01T13:00") from exc
    zoned = found if found.tzinfo else found.replace(tzinfo=UTC)
    return int(zoned.timestamp()) * 1000


def instant(ms: int) -> str:
    """Milliseconds as UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _groups(by: list[str]) -> tuple[GroupBy | LabelBy, ...]:
    names = tuple(name.strip() for text in by for name in text.split(","))
    known: tuple[GroupBy, ...] = GroupBy.__args__  # type: ignore[attr-defined]
    for name in names:
        if name not in known and not name.startswith("label:"):
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}, label:KEY")
    return names


COMMANDS: dict[str, Callable[..., None]] = {"usage": usage, "slices": slices, "verify": verify}
