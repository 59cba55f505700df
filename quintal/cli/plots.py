"""Plots as SVG text: bars over time, bars side by side, the scale and the names beside them. Pure.

Drawn by hand, since a page that opens from disk brings no library along and three forms are all it
needs. Amounts are exact until they become a place on the page; whatever is text is escaped. Colours
are classes (`s0`, `s1`, ...): the page says what they look like, by day and by night.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from html import escape

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 640, 66, 12, 10, 26
HEIGHT = 230
ROW, GAP, NAMES = 20, 14, 132
TICKS = 4
BAR_WIDTH_MAX = 64
_ROUND = tuple(map(Decimal, ("1", "1.2", "1.6", "2", "2.4", "3", "4", "5", "6", "8", "10")))
LABEL_WIDTH = 92
"""As much room as a time needs under its bar."""


@dataclass(frozen=True, slots=True)
class Series:
    """One colour: a name, and a value for each place along the axis; none is unknown."""

    name: str
    colour: str
    values: tuple[Decimal | None, ...]


def stacked(
    times: Sequence[str], series: Sequence[Series], unit: str, line: Series | None = None
) -> str:
    """Bars over time, one upon another; `line` is drawn across them as steps."""
    heights = [sum((_seen(s.values[n]) for s in series), Decimal(0)) for n in range(len(times))]
    over = [_seen(value) for value in line.values] if line else []
    top = ceiling(max([*heights, *over], default=Decimal(0)))
    step = (WIDTH - LEFT - RIGHT) / max(1, len(times))
    wide = min(step * 0.88, BAR_WIDTH_MAX)
    parts = [_scale(top, unit), *_time_axis(times, step)]
    for n, time in enumerate(times):
        base = Decimal(0)
        for one in series:
            value = one.values[n]
            if value is None or value <= 0:
                continue
            high, low = _y(base + value, top), _y(base, top)
            base += value
            parts.append(
                f'<rect class="{one.colour}" x="{LEFT + (n + 0.5) * step - wide / 2:.2f}" '
                f'y="{high:.2f}" width="{wide:.2f}" height="{max(low - high, 0.4):.2f}">'
                f"<title>{escape(f'{time}  {one.name}: {said(value)} {unit}')}</title></rect>"
            )
    if line:
        parts.append(_steps(line, step, top))
    return _svg(HEIGHT, parts, f"{unit} over time: {', '.join(s.name for s in series)}")


def side_by_side(rows: Sequence[tuple[str, Sequence[tuple[str, str, Decimal | None]]]]) -> str:
    """For each name its bars (name, colour, value) from the left; none is said to be unknown."""
    values = [value for _, bars in rows for _, _, value in bars if value is not None]
    top = ceiling(max(values, default=Decimal(0)))
    wide = WIDTH - NAMES - 70
    parts, y = [], 4
    for name, bars in rows:
        middle = y + ROW * len(bars) / 2 + 4
        parts.append(
            f'<text class="name" x="{NAMES - 8}" y="{middle:.1f}">{escape(_short(name))}'
            f"<title>{escape(name)}</title></text>"
        )
        for label, colour, value in bars:
            length = 0.0 if value is None or not top else float(value / top) * wide
            text = "unknown" if value is None else said(value)
            parts.append(
                f'<rect class="{colour}" x="{NAMES}" y="{y + 1}" width="{max(length, 0):.2f}" '
                f'height="{ROW - 3}" rx="2"><title>{escape(f"{name}, {label}: {text}")}</title>'
                f'</rect><text class="value" x="{NAMES + max(length, 0) + 6:.2f}" '
                f'y="{y + ROW - 5}">{escape(text)}</text>'
            )
            y += ROW
        y += GAP
    return _svg(y, parts, f"bars: {', '.join(name for name, _ in rows)}")


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """What each (colour, name) stands for."""
    keys = (f'<span><i class="{c}"></i>{escape(name)}</span>' for c, name in entries)
    return f'<p class="legend">{"".join(keys)}</p>'


def ceiling(value: Decimal) -> Decimal:
    """The least round number, one that four lines divide well, that is not below."""
    if value <= 0:
        return Decimal(1)
    power = Decimal(10) ** value.adjusted()
    return next(power * n for n in _ROUND if power * n >= value)


def said(value: Decimal) -> str:
    """A number for the eye: three digits that count, thousands apart, never 0 for what is not."""
    if not value:
        return "0"
    if abs(value) >= 1000:  # noqa: PLR2004 - thousands
        return f"{value:,.0f}"
    places = max(0, 2 - value.adjusted())
    text = f"{value:.{min(places, 9)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _tick(value: Decimal) -> str:
    """As `said`, in the room that a scale has: 250k, 1.5M, 2G."""
    for least, power, letter in ((9, 9, "G"), (6, 6, "M"), (5, 3, "k")):
        if value >= Decimal(10) ** least:
            return f"{said(value / Decimal(10) ** power)}{letter}"
    return said(value)


def _seen(value: Decimal | None) -> Decimal:
    return max(value or Decimal(0), Decimal(0))


def _y(value: Decimal, top: Decimal) -> float:
    return HEIGHT - BOTTOM - float(value / top) * (HEIGHT - BOTTOM - TOP)


def _scale(top: Decimal, unit: str) -> str:
    lines = []
    for n in range(TICKS + 1):
        value = top * n / TICKS
        y = _y(value, top)
        lines.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}">{_tick(value)}</text>'
        )
    middle = HEIGHT / 2
    return "".join(lines) + (
        f'<text class="unit" transform="rotate(-90 12 {middle})" x="12" y="{middle}">'
        f"{escape(unit)}</text>"
    )


def _time_axis(times: Sequence[str], step: float) -> Iterable[str]:
    every = max(1, -(-LABEL_WIDTH // max(1, int(step))))
    for n in range(0, len(times), every):
        x = LEFT + (n + 0.5) * step
        yield f'<text class="time" x="{x:.1f}" y="{HEIGHT - 7}">{escape(times[n])}</text>'


def _steps(line: Series, step: float, top: Decimal) -> str:
    path, pen = [], "M"
    for n, value in enumerate(line.values):
        if value is None:
            pen = "M"  # a gap is a gap
            continue
        y = _y(value, top)
        path.append(f"{pen}{LEFT + n * step:.2f} {y:.2f}H{LEFT + (n + 1) * step:.2f}")
        pen = "L"
    return f'<path class="line" d="{"".join(path)}"><title>{escape(line.name)}</title></path>'


def _short(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:17]}\u2026"  # noqa: PLR2004 - what fits


def _svg(height: int, parts: Iterable[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
