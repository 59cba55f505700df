"""`quintal simulate`: the production engine over a described fleet and a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from time import thread_time_ns
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from quintal.cli.render import Table
    from quintal_placer.simulate.run import Outcome, Setup
    from quintal_placer.simulate.trace import NodeLine, RequestLine

NAMES: Final = (
    "tight", "fgd", "best-fit", "first-fit", "packing", "clustering", "dot-product", "random",
)  # fmt: skip
SEEDS_MAX: Final = 1_000


def simulate(
    nodes: Annotated[
        Path | None, typer.Option("--nodes", help="The fleet: the openb CSV, or JSON lines.")
    ] = None,
    requests: Annotated[
        Path | None, typer.Option("--requests", help="The requests: the openb CSV, or JSON lines.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help=f"{', '.join(NAMES)}, or all; more than one may be given."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=SEEDS_MAX, help="So many runs.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="The first of the seeds.")] = 1,
    load: Annotated[
        float | None,
        typer.Option(
            "--load",
            min=0.01,
            max=10,
            help="Demand over the cards: 1.3 for a fill-up, 1.0 with departures.",
        ),
    ] = None,
    departures: Annotated[
        bool, typer.Option("--departures", help="Poisson arrivals that leave again.")
    ] = False,
    compare: Annotated[
        tuple[str, str] | None, typer.Option("--compare", help="Two policies, seed by seed.")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if", help="'add 10 MODEL', 'drain POOL', 'profile NAME cards=2'; beside as is."
        ),
    ] = None,
    history: Annotated[
        str,
        typer.Option("--history", help="What tight knows at first: none, or the whole list."),
    ] = "none",
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a picture (PNG).")] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(help="Instead of a fleet: a saved snapshot; each request is decided on it."),
    ] = None,
) -> None:
    """Run the engine over a fleet and a trace, and say how much of the cards it places."""
    if requests is None:
        raise typer.BadParameter("give --requests FILE")
    if snapshot is not None:
        from quintal_placer import replayed

        replayed.show(snapshot, requests)
        return
    if nodes is None:
        raise typer.BadParameter("give --nodes FLEET, or --snapshot FILE")
    from quintal_placer.simulate import trace

    names = list(compare) if compare else _policies(policy)
    _checked(names)
    if history not in {"none", "list"}:
        raise typer.BadParameter("--history is none or list")
    fleet, lines = trace.nodes(nodes), trace.requests(requests)
    order = _Order(range(seed, seed + seeds), load, departures=departures, warm=history == "list")
    worlds = [("", fleet, lines), *_what_if(fleet, lines, what_if or [])]
    runs = {
        (name, world): order.runs(name, each, asked, world)
        for name in names
        for world, each, asked in worlds
    }
    _show(runs, nodes, requests, compared=bool(compare or what_if), plot=plot)


COMMANDS: Final = {"simulate": simulate}


class _Order:
    """What is run for each policy and world."""

    def __init__(self, seeds: range, load: float | None, *, departures: bool, warm: bool) -> None:
        self._seeds, self._departures, self._warm = seeds, departures, warm
        self._load = load or (1.0 if departures else 1.3)

    def runs(
        self, policy: str, nodes: Sequence[NodeLine], lines: Sequence[RequestLine], world: str
    ) -> list[Outcome]:
        """Every seed of one policy, told on stderr as it goes."""
        from quintal.cli import render
        from quintal_placer.simulate import policies
        from quintal_placer.simulate.run import Setup
        from quintal_placer.simulate.yard import shapes

        known = policies.list_target(shapes(nodes, lines))
        setup = Setup(nodes, known, thread_time_ns, self._warm)
        done = []
        for number, seed in enumerate(self._seeds, 1):
            done.append(self._run(setup, policy, lines, seed))
            told = f" ({world})" if world else ""
            render.complain(f"{policy}{told}: {number} of {len(self._seeds)}")
        return done

    def _run(self, setup: Setup, policy: str, lines: Sequence[RequestLine], seed: int) -> Outcome:
        from quintal.units import PARTS
        from quintal_placer.simulate import protocol, run

        chance = Random(seed)  # noqa: S311 - a simulation, not a secret
        capacity = sum(line.cards for line in setup.nodes) * PARTS
        if self._departures:
            shape = protocol.Churn(self._load)
            stream = protocol.churn(lines, capacity, shape, chance)
            return run.timed(setup, policy, seed, stream, (shape.from_ms, shape.until_ms))
        if all(line.at_ms is not None for line in lines):
            last = max((line.at_ms or 0) + (line.duration_ms or 0) for line in lines)
            return run.timed(setup, policy, seed, lines, (0, last))
        stream = protocol.fill(lines, capacity, self._load, chance)
        return run.fill_up(setup, policy, seed, stream)


def _policies(asked: Sequence[str] | None) -> list[str]:
    names = list(asked or ["tight"])
    if names == ["all"]:
        return list(NAMES)
    return names


def _checked(names: Sequence[str]) -> None:
    for name in names:
        if name not in NAMES:
            raise typer.BadParameter(f"policy {name}: there is {', '.join(NAMES)}, and all")


def _what_if(
    nodes: Sequence[NodeLine], lines: Sequence[RequestLine], changes: Sequence[str]
) -> Iterator[tuple[str, list[NodeLine], list[RequestLine]]]:
    """The world after all changes, one upon the other; none where nothing changes."""
    from quintal_placer.simulate.whatif import changed

    if not changes:
        return
    fleet, asked = list(nodes), list(lines)
    for change in changes:
        fleet, asked = changed(fleet, asked, change)
    yield "; ".join(changes), fleet, asked


def _show(
    runs: dict[tuple[str, str], list[Outcome]],
    nodes: Path,
    requests: Path,
    *,
    compared: bool,
    plot: Path | None,
) -> None:
    from quintal.cli import render
    from quintal_placer.simulate import summary
    from quintal_placer.simulate.plot import draw

    found = [
        {"name": f"{name}, {world}" if world else name, **summary.policy(outcomes)}
        for (name, world), outcomes in runs.items()
    ]
    answer: dict[str, Any] = {"nodes": nodes.name, "requests": requests.name, "policies": found}
    tables = [_table(found)]
    if compared:
        first, *rest = runs.values()
        answer["compared"] = [summary.compared(first, each) for each in rest]
        tables.append(_differences(found, answer["compared"]))
    render.show(answer, *tables)
    if plot is not None:
        if draw(found, f"{requests.stem} on {nodes.stem}", plot):
            render.complain(f"drawn: {plot}")
        else:
            render.complain("not drawn: matplotlib is missing (pip install 'quintal[simulate]')")


def _table(found: Sequence[dict[str, Any]]) -> Table:
    from quintal.cli.render import Table

    timed = "mean_allocation_percent" in found[0]
    points = [] if timed else list(found[0]["allocation_percent"])
    columns = ["policy", *(f"@{at} %>" for at in points)]
    columns += ["allocated %>", "lost %>", "wait p50>"] if timed else ["sd>"]
    rows = []
    for line in found:
        told = [line["allocation_percent"].get(at, {}) for at in points]
        cells = [f"{each['mean']:.2f}" if each else "-" for each in told]
        if timed:
            cells += [
                f"{line['mean_allocation_percent']['mean']:.2f}",
                f"{line['lost_percent']['mean']:.2f}", f"{line['wait_ms']['p50']} ms",
            ]  # fmt: skip
        else:
            cells.append(f"{told[-1]['sd']:.2f}" if told and told[-1] else "-")
        failed = ", ".join(f"{n:g} {code}" for code, n in line["failures"].items())
        cells += [
            f"{line['fragmentation_percent']['mean']:.2f}", f"{line['placed']['mean']:g}", failed,
            f"{line['decision_us']['p50']:g}", f"{line['decision_us']['p99']:g}",
        ]  # fmt: skip
        rows.append([line["name"], *cells])
    columns += ["fragmented %>", "placed>", "not placed", "p50 us>", "p99 us>"]
    seeds = [
        f"seed {each['seed']}: {each['arrivals']} arrivals, {each['demand_percent']} % demand"
        for each in found[0]["seeds"]
    ]
    return Table(columns, rows, footer="\n".join(seeds))


def _differences(found: Sequence[dict[str, Any]], compared: Sequence[dict[str, Any]]) -> Table:
    from quintal.cli.render import Table

    rows = [
        [line["name"], what, f"{by['mean']:+.2f}", f"{by['sd']:.2f}"]
        for line, each in zip(found[1:], compared, strict=True)
        for what, by in each["points"].items()
        if by
    ]
    return Table(("policy", "of", "points>", "sd>"), rows, title=f"\nagainst {found[0]['name']}")
