"""`bill`, `quote`, `rerate`, `dead-letters`: money, what is corrected, what went astray."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from enum import StrEnum
from typing import Annotated

import typer

from quintal.cli import render, session
from quintal.cli.choices import Output, chosen
from quintal.cli.placement import duration_ms
from quintal.cli.render import Table
from quintal.cli.usage import From, OfTenant, To, instant, instant_ms
from quintal.contracts.bills import (
    Bill,
    BillAsk,
    BillLine,
    DeadLetterRow,
    DeadLettersAsk,
    Offer,
    QuoteAsk,
    RerateAsk,
    Rerated,
)
from quintal.units import PARTS, unit_name

RERATE_PATIENCE_S = 600


class BillOutput(StrEnum):
    """How a bill is printed: one form more than other answers have."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


class What(StrEnum):
    """What of a revision is applied."""

    BOTH = "both"
    RATINGS = "ratings"
    PRICES = "prices"


def bill(
    of: Annotated[str, typer.Argument(metavar="TENANT", help="Whose bill.")],
    month: Annotated[str, typer.Option(help="Such as 2026-11, UTC.")],
    output: Annotated[
        BillOutput | None, typer.Option("-o", "--output", help="table, json, yaml or csv.")
    ] = None,
) -> None:
    """Show a tenant's bill of a month: each line with its evidence and what rounding left."""
    if output is not None and output is not BillOutput.CSV:
        chosen.output = Output(output)
    ask = BillAsk.model_validate({"month": month, "tenant": of}) if _is_month(month) else None
    if ask is None:
        raise typer.BadParameter(f"{month!r} is no month: write 2026-11")
    answer = session.ask(lambda client: client.bill(ask.month, ask.tenant), patience_s=60)
    if output is BillOutput.CSV:
        render.csv(CSV_COLUMNS, [_csv(answer, line) for line in answer.lines])
        return
    columns = (
        "project", "profile", "model", "pool", "unit", "unit-hours>", "card-hours>", "price>",
        "per", "amount>", "residue>", "", "ledger", "notes",
    )  # fmt: skip
    totals = ", ".join(
        f"{render.number(total.amount)} {total.currency} "
        f"(rounding left {render.number(total.residue)})"
        for total in answer.totals
    )
    until = "closed" if answer.closed else f"open, up to {instant(answer.watermark_ms)}"
    footer = f"{answer.tenant}, {answer.month}, {until}: {totals or 'nothing to pay'}"
    if answer.restated:
        footer += "; restated by adjustments"
    render.show(answer, Table(columns, [_line(line) for line in answer.lines], footer=footer))


def _is_month(text: str) -> bool:
    year, dash, number = text.partition("-")
    known = {f"{n:02}" for n in range(1, 13)}
    return len(year) == 4 and year.isdecimal() and dash == "-" and number in known  # noqa: PLR2004


def _card_hours(card_ms: int) -> Decimal:
    return (Decimal(card_ms) / 3_600_000).quantize(Decimal("0.001"))


def _line(line: BillLine) -> tuple[object, ...]:
    return (
        line.project, line.profile, line.model, line.pool, unit_name(line.workload_class),
        Decimal(line.unit_hours), _card_hours(line.card_ms),
        line.price and Decimal(line.price), line.price_per.replace("_", "-"),
        line.amount if line.currency else None, line.residue if line.currency else None,
        line.currency, f"{line.first_sequence}..{line.last_sequence}", _notes(line),
    )  # fmt: skip


def _notes(line: BillLine) -> list[str]:
    notes = []
    if line.adjustments:
        notes.append(f"restated ({line.adjustments} of {line.slices})")
    if line.estimated_quantity and line.quantity:
        notes.append(f"{100 * line.estimated_quantity // line.quantity} % on estimates")
    if line.price is None:
        notes.append("no price was in force")
    return notes


CSV_COLUMNS = (
    "tenant", "month", "closed", "project", "profile", "pool", "model", "vendor", "class", "unit",
    "unit_hours", "card_hours", "price", "price_per", "price_list", "cost", "amount", "residue",
    "currency", "leases", "slices", "adjustments", "estimated_percent", "ratings", "revisions",
    "first_sequence", "last_sequence",
)  # fmt: skip


def _csv(answer: Bill, line: BillLine) -> tuple[object, ...]:
    share = 100 * line.estimated_quantity // line.quantity if line.quantity else 0
    return (
        answer.tenant, answer.month, "yes" if answer.closed else "no", line.project, line.profile,
        line.pool, line.model, line.vendor, line.workload_class, unit_name(line.workload_class),
        Decimal(line.unit_hours), _card_hours(line.card_ms), line.price and Decimal(line.price),
        line.price_per, line.price_list,
        line.cost, line.amount, line.residue, line.currency, line.leases, line.slices,
        line.adjustments, share, " ".join(line.ratings), " ".join(map(str, line.revisions)),
        line.first_sequence, line.last_sequence,
    )  # fmt: skip


def quote(
    profile: Annotated[str, typer.Argument(help="A service profile; or give --class.")] = "",
    workload_class: Annotated[str | None, typer.Option("--class", help="A class.")] = None,
    cards: Annotated[int, typer.Option(min=1, help="How many cards.")] = 1,
    share: Annotated[int, typer.Option(min=1, max=100, help="Percent of each card.")] = 100,
    duration: Annotated[str, typer.Option("--for", help="How long, such as 90m or 24h.")] = "1h",
    model: Annotated[str, typer.Option(help="Only this model.")] = "",
    pool: Annotated[str, typer.Option(help="Only this pool.")] = "",
    precision: Annotated[str, typer.Option(help="Decides which rating applies.")] = "",
    from_: From = None,
    tenant: OfTenant = None,
) -> None:
    """Show what use would cost on each model of the fleet, the cheapest first."""
    if not profile and workload_class is None:
        raise typer.BadParameter("name a profile, or give --class")
    ask = QuoteAsk.model_validate(
        {
            "profile": profile, "class": workload_class, "cards": cards,
            "parts": share * PARTS // 100, "duration_ms": duration_ms(duration), "model": model,
            "pool": pool, "precision": precision, "from_ms": instant_ms(from_), "tenant": tenant,
        }
    )  # fmt: skip
    answer = session.ask(lambda client: client.quote(ask))
    columns = ("model", "pool", "vendor", "unit-hours>", "price>", "per", "cost>", "", "rating")
    footer = (
        f"{unit_name(answer.workload_class)}, {instant(answer.from_ms)} to "
        f"{instant(answer.to_ms)}, by catalog revision {answer.revision}"
    )
    render.show(answer, Table(columns, [_offer(one) for one in answer.offers], footer=footer))


def _offer(one: Offer) -> tuple[object, ...]:
    prices = sorted({Decimal(part.price) for part in one.parts if part.price is not None})
    unpriced = any(part.price is None for part in one.parts)
    return (
        one.model, one.pool, one.vendor, Decimal(one.unit_hours),
        None if unpriced else [render.number(price) for price in prices],
        "" if unpriced else one.parts[0].price_per.replace("_", "-"),
        None if unpriced else one.cost, one.currency, one.provenance,
    )  # fmt: skip


def rerate(
    from_: Annotated[str, typer.Option("--from", help="UTC; full hours from there on.")],
    to: To = None,
    revision: Annotated[
        int | None, typer.Option(min=1, help="The catalog revision; else the adopted one.")
    ] = None,
    what: Annotated[What, typer.Option(help="ratings, prices or both.")] = What.BOTH,
    tenant: OfTenant = None,
    model: Annotated[str, typer.Option(help="Only this model's.")] = "",
    why: Annotated[str, typer.Option("-m", "--why", help="Kept with the correction.")] = "",
    dry_run: Annotated[bool, typer.Option(help="Only say who changes by how much.")] = False,
) -> None:
    """Charge again what was charged, by today's ratings and prices: in new rows, nothing changes.

    Each slice that changes is reversed to the last digit and stands beside what replaces it.
    """
    ask = RerateAsk.model_validate(
        {
            "from_ms": instant_ms(from_), "to_ms": instant_ms(to), "revision": revision,
            "what": what.value, "tenant": tenant, "model": model, "why": why, "dry_run": dry_run,
        }
    )  # fmt: skip
    answer = session.ask(lambda client: client.rerate(ask), patience_s=RERATE_PATIENCE_S)
    columns = (
        "tenant", "unit", "slices>", "unit-hours before>", "after>", "cost before>", "after>",
        "difference>", "",
    )  # fmt: skip
    would = "would change" if answer.dry_run else f"changed by correction {answer.correction}"
    footer = (
        f"{answer.changed} of {answer.looked_at} slices {would}, "
        f"by catalog revision {answer.revision}"
    )
    if answer.unmatched:
        footer += f"; {answer.unmatched} left as they are: their rating is not found again"
    if not answer.rows:
        render.show(answer, line=footer)
        return
    render.show(answer, Table(columns, [_rerated(one) for one in answer.rows], footer=footer))


def _rerated(one: Rerated) -> tuple[object, ...]:
    return (
        one.tenant, unit_name(one.workload_class), one.slices, Decimal(one.unit_hours_before),
        Decimal(one.unit_hours_after), one.cost_before, one.cost_after, one.difference,
        one.currency,
    )  # fmt: skip


def dead_letters(
    retry: Annotated[bool, typer.Option("--retry", help="Try each once more.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 100,
) -> None:
    """Show what metering could not take in, and why; exit 1 if anything waits.

    A message of the ledger that can be read by now, as after an upgrade, is folded in its place:
    `--retry` then folds the whole archive again and writes new rows for what that changes.
    """
    ask = DeadLettersAsk(retry=retry, limit=limit)
    answer = session.ask(lambda client: client.dead_letters(ask), patience_s=RERATE_PATIENCE_S)
    columns = ("stream", "sequence>", "at", "code", "why", "outcome")
    said = f"{answer.waiting} wait"
    if retry:
        said += f", {answer.taken} were taken"
    tables = [Table(columns, [_letter(one) for one in answer.rows])] if answer.rows else []
    render.show(answer, *tables, line=said)
    if answer.waiting:
        raise typer.Exit(1)


def _letter(one: DeadLetterRow) -> tuple[object, ...]:
    return (one.stream, one.sequence, instant(one.at_ms), one.code, one.message, one.outcome)


COMMANDS: dict[str, Callable[..., None]] = {
    "bill": bill, "quote": quote, "rerate": rerate, "dead-letters": dead_letters,
}  # fmt: skip
