"""The allocation along the load, as a picture. Where matplotlib is missing, it says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

COLOURS: Final = {
    "tight": "#c0392b", "fgd": "#2c3e50", "best-fit": "#2980b9", "first-fit": "#16a085",
    "packing": "#8e44ad", "clustering": "#b7950b", "dot-product": "#7f8c8d", "random": "#bdc3c7",
}  # fmt: skip

FROM_PERCENT: Final = 80
"""Below it all policies place all that arrives."""


def draw(found: Sequence[Mapping[str, Any]], title: str, path: Path) -> bool:
    """Write the picture; false where there is nothing to draw with."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    named = [(line.get("name") or line["policy"], line) for line in found]
    named.sort(key=lambda item: -_last(item[1]))
    for name, line in named:
        curve = {int(at): value for at, value in line["curve"].items()}
        points = [at for at in sorted(curve) if at >= FROM_PERCENT]
        axes.plot(
            points,
            [curve[at] for at in points],
            label=f"{name}  {_last(line):.2f}",
            color=COLOURS.get(name),
            linewidth=2.4 if name == "tight" else 1.4,
        )
    axes.set_xlabel("arrived demand, % of the cards")
    axes.set_ylabel("allocated, % of the cards")
    axes.set_title(title)
    axes.set_ylim(top=100)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(title="policy, at the end", loc="lower right", frameon=False)
    figure.savefig(path, dpi=130)
    return True


def _last(line: Mapping[str, Any]) -> float:
    curve = line["curve"]
    return float(curve[max(curve, key=int)]) if curve else 0.0
