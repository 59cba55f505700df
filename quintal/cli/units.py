"""`rate`, `convert`: what a card is worth, and sums of cards in one class of units."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer

from quintal import conversion
from quintal.cli import render, session
from quintal.cli.render import Table
from quintal.contracts.catalog import RateAsk, Rated, RatingRow
from quintal.contracts.spec import WorkloadClass
from quintal.conversion import Term, Total
from quintal.errors import Code, Refused
from quintal.units import CLASSES, REFERENCE_PRECISIONS, UNIT_NAMES, from_micro, to_micro, unit_name

if TYPE_CHECKING:
    from quintal.client import Client

NOT_OFFICIAL = "these are not official MLPerf results, also where they rest on published ones"

Class = Annotated[str | None, typer.Option("--class", help="Only this class, or its unit (STU).")]
Precision = Annotated[
    str, typer.Option(help="What the work uses, such as fp4; empty: the class's reference.")
]


def rate(
    model: Annotated[str, typer.Argument(help="A model, or a name that its tool prints.")],
    class_: Class = None,
    precision: Precision = "",
    revision: Annotated[int | None, typer.Option(help="As of this revision, not the head.")] = None,
) -> None:
    """Show what a model is worth in each class, how sure that is, and what it rests on."""
    ask = RateAsk(
        model=model,
        workload_class=_class(class_) if class_ else None,
        precision=precision,
        revision=revision,
    )
    answer = session.ask(lambda client: client.rate(ask), session.speaker())
    columns = (
        "class", "precision", "value>", "80 % band", "by", "units/kW>", "version", "evidence",
    )  # fmt: skip
    title = f"{answer.model}: {answer.title}; {answer.reference} is 1 (revision {answer.revision})"
    tables = [
        Table(columns, [_rating(row) for row in answer.rows], title=title, footer=_foot(answer))
    ]
    if answer.proposals:
        tables.append(
            Table(
                columns,
                [_rating(row) for row in answer.proposals],
                title="\nnot in force: what the formula would say, until a document says so",
            )
        )
    render.show(answer, *tables)


def _rating(row: RatingRow) -> tuple[object, ...]:
    applies = row.applies or row.document == ""
    return (
        unit_name(row.workload_class),
        row.precision or f"any ({REFERENCE_PRECISIONS[row.workload_class]})",
        _value(row) if applies else f"({_value(row)})",
        _band(row),
        "OPERATOR OVERRIDE" if row.override else f"{row.provenance}{' ~' if row.estimated else ''}",
        _per_kilowatt(row),
        row.version,
        ", ".join(part for part in (row.evidence, row.date, _elsewhere(row)) if part),
    )


def _value(row: RatingRow) -> str:
    """An estimate never with more than two digits."""
    text = (
        conversion.two_digits(row.value)
        if row.provenance == "roofline"
        else render.number(row.value)
    )
    return f"{text} a thread" if row.per == "core" else text


def _band(row: RatingRow) -> str | None:
    if row.low80 is None or row.high80 is None:
        return None
    return f"{conversion.two_digits(row.low80)} - {conversion.two_digits(row.high80)}"


def _per_kilowatt(row: RatingRow) -> str | None:
    if row.units_per_watt is None:
        return None
    return conversion.two_digits(Decimal(row.units_per_watt) * 1000)


def _elsewhere(row: RatingRow) -> str:
    return row.document if row.document.startswith("Rating/") else ""


def _foot(answer: Rated) -> str:
    watts = next((row for row in answer.rows if row.watts is not None), None)
    parts = [NOT_OFFICIAL, "~ is an estimate; in brackets: what a better one stands before"]
    if watts is not None:
        parts.append(
            f"units/kW by {render.number(watts.watts or Decimal(0))} W, {watts.watts_from}"
        )
    if answer.unrated:
        parts.append(f"not granted for {', '.join(answer.unrated)}: unrated")
    return "; ".join(parts)


# --- convert ----------------------------------------------------------------------------------


def convert(
    what: Annotated[
        str, typer.Argument(help="Such as `16 nvidia-a100-sxm4-80gb + 8 nvidia-l4-24gb`.")
    ],
    to: Annotated[str, typer.Option("--to", help="STU, SIU, a class; or a model, with --class.")],
    class_: Class = None,
    precision: Precision = "",
) -> None:
    """Add cards up in units of one class; or say how many cards of a model that comes to."""
    terms = _terms(what)
    unit = conversion.class_of(to)
    if unit is None and class_ is None:
        raise typer.BadParameter(
            f"{to!r} is no unit: give STU, SIU or a class; for cards of a model add --class"
        )
    workload_class = _class(to if unit is not None else str(class_))
    for term in terms:
        if why := conversion.other_class(term, workload_class):
            raise Refused(Code.INVALID_REQUEST, why)
    models = sorted({term.name for term in terms if term.workload_class is None})
    wanted = [*models, *([] if unit is not None else [to])]
    answers = session.ask(lambda client: _ask(client, wanted, workload_class, precision))
    rows = {name: _applying(answer, workload_class) for name, answer in answers.items()}
    total, lines = _sum(terms, rows, workload_class)
    target = rows.get(to) if unit is None else None
    _show(total, lines, to, target)


async def _ask(
    client: Client, models: Iterable[str], workload_class: WorkloadClass, precision: str
) -> dict[str, Rated]:
    names = list(dict.fromkeys(models))
    asks = [
        RateAsk(model=name, workload_class=workload_class, precision=precision) for name in names
    ]
    answers = await asyncio.gather(*(client.rate(ask) for ask in asks))
    return dict(zip(names, answers, strict=True))


def _applying(answer: Rated, workload_class: WorkloadClass) -> RatingRow:
    row = next((row for row in answer.rows if row.applies), None)
    if row is None:
        raise Refused(
            Code.UNRATED,
            f"{answer.model} has no rating in {workload_class}: it is worth no "
            f"{unit_name(workload_class)} until a document says how many",
        )
    return row


def _sum(
    terms: Iterable[Term], rows: dict[str, RatingRow], workload_class: WorkloadClass
) -> tuple[Total, list[tuple[object, ...]]]:
    total = Total(workload_class)
    lines: list[tuple[object, ...]] = []
    for term in terms:
        if term.workload_class is not None:
            micro = conversion.units_of(term)
            total = total.plus(micro, micro, micro, estimated=False)
            lines.append((term.count, term.name, 1, None, "", from_micro(micro).normalize()))
            continue
        row, count = rows[term.name], int(term.count)
        value, low, high = (
            count * to_micro(value if value is not None else row.value)
            for value in (row.value, row.low80, row.high80)
        )
        total = total.plus(value, low, high, estimated=row.estimated)
        by = "OPERATOR OVERRIDE" if row.override else row.provenance
        lines.append((count, term.name, _value(row), _band(row), by, from_micro(value).normalize()))
    return total, lines


def _show(total: Total, lines: list[tuple[object, ...]], to: str, target: RatingRow | None) -> None:
    answer = {
        "class": total.workload_class,
        "unit": unit_name(total.workload_class),
        "units": format(from_micro(total.micro).normalize(), "f"),
        "low80": format(from_micro(total.low).normalize(), "f"),
        "high80": format(from_micro(total.high).normalize(), "f"),
        "estimated_percent": total.estimated_percent,
        "official": False,
    }
    said = total.words()
    if target is not None:
        cards = conversion.cards_in(total.micro, to_micro(target.value))
        answer |= {"model": to, "cards": cards}
        said = f"{cards} whole cards of {to} at {_value(target)} each: {said}"
    columns = ("count>", "of", "each>", "80 % band", "by", "units>")
    render.show(answer, Table(columns, lines, footer=f"{said}; {NOT_OFFICIAL}"))


def _terms(text: str) -> tuple[Term, ...]:
    try:
        return conversion.terms(text)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from exc


def _class(text: str) -> WorkloadClass:
    known: tuple[WorkloadClass, ...] = CLASSES
    found = conversion.class_of(text)
    for name in known:
        if name == found:
            return name
    units = ", ".join(UNIT_NAMES.values())
    raise typer.BadParameter(f"{text!r} is no class: there are {', '.join(known)} ({units})")


COMMANDS: dict[str, Callable[..., None]] = {"rate": rate, "convert": convert}
