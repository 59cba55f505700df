"""The report as one page of HTML that opens from disk: no script, nothing fetched. Pure.

Every text that comes from outside is escaped here or in `plots`. Sums are exact; they become
rounded numbers only where they are printed. No plot adds up units of different classes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal
from html import escape
from typing import Final

from quintal.cli import plots
from quintal.cli.page_style import STYLE
from quintal.cli.plots import Series, said
from quintal.contracts.reports import FleetStretch, Report, UnitCost
from quintal.contracts.usage import UsageRow, UsageSummary
from quintal.units import PARTS, QUANTITY_PER_UNIT_HOUR, unit_name

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
BARS_MAX: Final = 96
"""Of one plot: more are drawn as sums of several stretches."""

COLOURS: Final = 7
"""Tenants with a colour of their own; the others are one."""

OTHERS: Final = "all others"
_WIDE: Final = Context(prec=60)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the page shows."""

    asker: str
    made_at_ms: int
    span: tuple[int, int]
    stretch_ms: int
    tenants: UsageSummary
    """Each tenant's whole span."""
    over_time: Mapping[str, UsageSummary]
    """By stretch (`hour` or `day`) of the `leading` tenants, in their order."""
    together: UsageSummary | None
    """By stretch of all tenants; none where all of them lead."""
    by_vendor: UsageSummary
    fleet: Report | None
    """None for a tenant: the whole fleet is not its to see."""


def page(facts: Facts) -> str:
    """All of it."""
    start, end = facts.span
    title = f"Use and cost, {instant(start)} to {instant(end)}"
    sections = [_tiles(facts), _tenants(facts), _fleet(facts), _vendors(facts)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<header><h1>Use and cost</h1><p>{_head(facts)}</p></header>"
        f"<main>{''.join(sections)}</main><footer>{_foot(facts)}</footer></body></html>\n"
    )


def instant(ms: int) -> str:
    """UTC, to the minute."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


# --- head and foot ----------------------------------------------------------------------------


def _head(facts: Facts) -> str:
    start, end = facts.span
    text = (
        f"{instant(start)} to {instant(end)} UTC, as {escape(facts.asker)} may see it; "
        f"known up to {instant(facts.tenants.watermark_ms)}, "
        f"ledger sequence {facts.tenants.sequence}"
    )
    if facts.tenants.restated:
        text += ' <b class="flag">some of it was restated by adjustments</b>'
    return text


def _foot(facts: Facts) -> str:
    return (
        f"Made {instant(facts.made_at_ms)} UTC. Units are those of each class and are never added "
        "over classes. A gap is unknown, not 0. What a bill rests on: <code>quintal slices</code>."
    )


def _tiles(facts: Facts) -> str:
    rows = facts.tenants.rows
    costs: dict[str, Decimal] = defaultdict(Decimal)
    units: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.currency:
            costs[row.currency] += row.cost
        units[row.workload_class] += row.quantity
    tiles = [(said(cost), f"{currency} charged") for currency, cost in sorted(costs.items())]
    cards = Decimal(sum(row.card_ms for row in rows)) / HOUR_MS
    tiles.append((said(cards), "card-hours leased"))
    tiles.append((str(len({row.group["tenant"] for row in rows})), "tenants with use"))
    tiles += [
        (said(unit_hours(quantity)), f"{unit_name(name)}-hours")
        for name, quantity in sorted(units.items(), key=lambda item: -item[1])
        if quantity
    ]
    inside = (f"<div><b>{escape(a)}</b><span>{escape(b)}</span></div>" for a, b in tiles)
    return f'<section class="tiles">{"".join(inside)}</section>'


# --- who used what ----------------------------------------------------------------------------


def _tenants(facts: Facts) -> str:
    times, at = _axis(facts)
    cards = []
    for name, rows in _classes(facts.tenants.rows):
        unit = f"{unit_name(name)}-hours"
        series = []
        for who, colour, sums in _by_stretch(facts, name):
            values = tuple(unit_hours(sum(sums[ms] for ms in bucket)) for bucket in at)
            series.append(Series(who, colour, values))
        keys = plots.legend((one.colour, one.name) for one in series)
        plot = plots.stacked(times, series, unit) + keys
        cards.append(_card(f"{unit} by tenant", name, plot, _tenant_table(rows, unit)))
    return _section(
        "Who used what",
        "Delivered, by tenant and class. Open leases count up to the watermark.",
        cards,
        "Nothing was used in this span.",
    )


def leading(tenants: UsageSummary) -> tuple[str, ...]:
    """Who gets a colour, the same in every plot: those who held cards for longest."""
    held: dict[str, int] = defaultdict(int)
    for row in tenants.rows:
        held[row.group["tenant"]] += row.card_ms
    return tuple(sorted(held, key=lambda name: (-held[name], name))[:COLOURS])


def _by_stretch(facts: Facts, workload_class: str) -> Iterator[tuple[str, str, dict[int, int]]]:
    """(name, colour, stretch -> quantity) of who used this class; the many are one, and last."""
    rest = _sums(facts.together, workload_class) if facts.together else defaultdict(int)
    for n, (who, usage) in enumerate(facts.over_time.items()):
        sums = _sums(usage, workload_class)
        for ms, quantity in sums.items():
            rest[ms] -= quantity
        if sums:
            yield who, f"s{n}", sums
    if facts.together and any(quantity > 0 for quantity in rest.values()):
        yield OTHERS, "others", rest


def _sums(usage: UsageSummary, workload_class: str) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for row in usage.rows:
        if row.workload_class == workload_class:
            found[_stretch_of(row)] += row.quantity
    return found


def _tenant_table(rows: Sequence[UsageRow], unit: str) -> str:
    found: dict[str, list[UsageRow]] = defaultdict(list)
    for row in rows:
        found[row.group["tenant"]].append(row)
    body = []
    for tenant, of in sorted(found.items()):
        quantity = sum(row.quantity for row in of)
        estimated = sum(row.estimated_quantity for row in of)
        body.append((
            tenant, said(unit_hours(quantity)), said(Decimal(sum(r.card_ms for r in of)) / HOUR_MS),
            _money(sum((r.cost for r in of), Decimal(0)), max(r.currency for r in of)),
            _percent(estimated, quantity),
        ))  # fmt: skip
    return _table(("tenant", f"{unit}>", "card-hours>", "charged>", "on estimates>"), body)


# --- the fleet --------------------------------------------------------------------------------

_BANDS: Final = (
    ("busy", "used", "granted and busy"),
    ("calm", "granted", "granted, not busy"),
    ("unseen", "unseen", "granted, no readings"),
    ("elsewhere", "other classes", "held by other classes"),
    ("gone", "unavailable", "unavailable"),
    ("free", "free", "free"),
)


def _fleet(facts: Facts) -> str:
    if facts.fleet is None:
        return ""
    cards = []
    found: dict[str, list[FleetStretch]] = defaultdict(list)
    for row in facts.fleet.fleet:
        found[row.workload_class].append(row)
    asked = {name: rows for name, rows in found.items() if any(row.granted for row in rows)}
    for name, rows in sorted(asked.items(), key=lambda item: -sum(r.granted for r in item[1])):
        cards.append(_class_of_fleet(facts, facts.fleet, name, rows))
    others = sorted(found.keys() - asked.keys())
    text = (
        "What every rated device could deliver at once, on the mean of each stretch of closed "
        "hours; what was granted of it, and how much of that was busy, where readings came."
    )
    if others and asked:
        text += f" Nothing was granted in {', '.join(map(unit_name, others))}."
    return _section("Capacity, granted, used", text, cards, "No hour of this span is closed yet.")


def _class_of_fleet(facts: Facts, report: Report, name: str, rows: Sequence[FleetStretch]) -> str:
    by_start = {row.at_ms: row for row in rows}
    times, at = _axis(facts, report.to_ms)
    bands: dict[str, list[Decimal | None]] = {colour: [] for colour, _, _ in _BANDS}
    capacity: list[Decimal | None] = []
    for bucket in at:
        these = [by_start[ms] for ms in bucket if ms in by_start]
        ms = sum(min(report.to_ms - start, facts.stretch_ms) for start in bucket)
        capacity.append(_at_once(sum(r.capacity for r in these), ms) if these else None)
        for colour, quantity in _split(these).items():
            bands[colour].append(_at_once(quantity, ms) if these else None)
    series = [Series(label, colour, tuple(bands[colour])) for colour, _, label in _BANDS]
    unit = unit_name(name)
    plot = plots.stacked(times, series, unit, Series("capacity", "line", tuple(capacity)))
    keys = plots.legend([*((one.colour, one.name) for one in series), ("lined", "capacity")])
    sums = _split(rows)
    body = [(said(unit_hours(sums[colour])), label) for colour, _, label in _BANDS]
    body.append((said(unit_hours(sum(row.capacity for row in rows))), "capacity"))
    return _card(f"{unit} at once", name, plot + keys, _table((f"{unit}-hours>", "were"), body))


def _split(rows: Sequence[FleetStretch]) -> dict[str, int]:
    capacity, leased = sum(r.capacity for r in rows), sum(r.leased for r in rows)
    gone, granted = sum(r.unavailable for r in rows), sum(r.granted for r in rows)
    covered, used = sum(r.covered for r in rows), sum(r.used for r in rows)
    return {
        "busy": used, "calm": covered - used, "unseen": granted - covered,
        "elsewhere": leased - granted, "gone": gone, "free": capacity - leased - gone,
    }  # fmt: skip


# --- what a unit costs ------------------------------------------------------------------------


def _vendors(facts: Facts) -> str:
    own: dict[tuple[str, str], list[UnitCost]] = defaultdict(list)
    for cost in facts.fleet.costs if facts.fleet else ():
        own[cost.workload_class, cost.vendor].append(cost)
    cards = []
    for name, rows in _classes(facts.by_vendor.rows):
        bars, body = [], []
        for row in sorted(rows, key=lambda row: row.group["vendor"]):
            vendor = row.group["vendor"]
            charged = _per_hour(row.cost, row.quantity) if row.currency else None
            full = _full(own.get((name, vendor), ()))
            lines = [("charged", "charged", charged)]
            if facts.fleet is not None:
                lines.append(("what it cost us", "spent", full))
            bars.append((vendor, lines))
            told = (vendor, said(unit_hours(row.quantity)), _rate(charged))
            body.append((*told, _rate(full)) if facts.fleet else told)
        unit = unit_name(name)
        currency = max((row.currency for row in rows), default="") or "no currency"
        entries = [("charged", "charged")]
        entries += [("spent", "what it cost us, idle time shared out")] if facts.fleet else []
        columns = ["vendor", f"{unit}-hours>", f"{currency} charged>"]
        columns += ["cost us>"] if facts.fleet else []
        cards.append(
            _card(f"{currency} per {unit}-hour", name, plots.side_by_side(bars)
                  + plots.legend(entries), _table(columns, body))
        )  # fmt: skip
    text = "What a delivered unit-hour was charged at"
    text += (
        ", and what it cost us by the cost price lists, closed hours, with its cards' share of the "
        "time in which they were idle or unavailable."
        if facts.fleet
        else "."
    )
    return _section("Cost of a unit by vendor", text, cards, "Nothing was used in this span.")


def _full(costs: Sequence[UnitCost]) -> Decimal | None:
    known = [cost.full_cost for cost in costs if cost.full_cost is not None]
    if not known or len(known) < len(costs):
        return None
    return _per_hour(sum(known, Decimal(0)), sum(cost.quantity for cost in costs))


# --- numbers ----------------------------------------------------------------------------------


def unit_hours(quantity: int) -> Decimal:
    """An undivided quantity as unit-hours, not rounded."""
    return _WIDE.divide(Decimal(quantity), Decimal(QUANTITY_PER_UNIT_HOUR))


def _at_once(quantity: int, ms: int) -> Decimal:
    return _WIDE.divide(Decimal(quantity), Decimal(PARTS * 1_000_000 * ms))


def _per_hour(amount: Decimal, quantity: int) -> Decimal | None:
    return _WIDE.divide(amount, unit_hours(quantity)) if quantity else None


def _percent(part: int, whole: int) -> str:
    return f"{100 * part // whole} %" if part and whole else ""


def _money(amount: Decimal, currency: str) -> str:
    return f"{said(amount)} {currency}" if currency else "no price"


def _rate(value: Decimal | None) -> str:
    return "unknown" if value is None else said(value)


# --- the axis ---------------------------------------------------------------------------------


def _axis(facts: Facts, end_ms: int | None = None) -> tuple[list[str], list[tuple[int, ...]]]:
    """The bars' names, and which stretches each is the sum of."""
    start, end = facts.span[0] - facts.span[0] % facts.stretch_ms, end_ms or facts.span[1]
    all_of_them = range(start, max(end, start + 1), facts.stretch_ms)
    size = max(1, -(-len(all_of_them) // BARS_MAX))
    buckets = [tuple(all_of_them[n : n + size]) for n in range(0, len(all_of_them), size)]
    form = "%d %b" if facts.stretch_ms >= DAY_MS else "%d %b %H:%M"
    names = [datetime.fromtimestamp(b[0] / 1000, UTC).strftime(form) for b in buckets]
    return names, buckets


def _stretch_of(row: UsageRow) -> int:
    text = row.group.get("hour") or row.group["day"]
    found = datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC)
    return int(found.timestamp()) * 1000


def _classes(rows: Sequence[UsageRow]) -> Sequence[tuple[str, list[UsageRow]]]:
    """By class, what most cards were held for first."""
    found: Mapping[str, list[UsageRow]] = defaultdict(list)
    for row in rows:
        found[row.workload_class].append(row)
    return sorted(found.items(), key=lambda item: -sum(row.card_ms for row in item[1]))


# --- HTML -------------------------------------------------------------------------------------


def _section(title: str, text: str, cards: Sequence[str], nothing: str) -> str:
    inside = "".join(cards) or f'<p class="nothing">{escape(nothing)}</p>'
    return (
        f"<section><h2>{escape(title)}</h2><p>{escape(text)}</p>"
        f'<div class="cards">{inside}</div></section>'
    )


def _card(title: str, workload_class: str, plot: str, table: str) -> str:
    return (
        f"<article><h3>{escape(title)} <small>{escape(workload_class)}</small></h3>{plot}"
        f"<details><summary>Numbers</summary>{table}</details></article>"
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    right = [column.endswith(">") for column in columns]

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if right[n] else ''}>{escape(value)}</{tag}>"
            for n, value in enumerate(values)
        )

    head = cells("th", [column.removesuffix(">") for column in columns])
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
