"""What runs where: `portability`, `can-run`, and the part of `check` that asks for a place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from quintal.cli import render, session
from quintal.cli.render import Table
from quintal.contracts.boundaries import NodeStack
from quintal.contracts.catalog import SourceFile
from quintal.contracts.portability import CanRunAsk, Fit, FitAsk, FitRow, PortabilityAsk
from quintal.errors import Refused

REFUSED = 3

Work = Annotated[
    Path | None, typer.Option("--file", "-f", help="A file with one Workload; need not be applied.")
]


def check_place(files: list[Path], node: str | None, pool: str | None, stack: Path | None) -> None:
    """`quintal check -f WORKLOAD --node N | --pool P | --stack FILE`."""
    if sum(place is not None for place in (node, pool, stack)) != 1 or len(files) != 1:
        raise typer.BadParameter("give one workload with -f, and one of --node, --pool, --stack")
    given: dict[str, Any] = _stack(stack) if stack is not None else {"node": node, "pool": pool}
    ask = FitAsk(file=_file(files[0]), **given)
    answer: Fit = session.ask(lambda client: client.fit(ask), session.speaker())
    where = f"node {node}" if node else f"pool {pool}" if pool else str(stack)
    runs = "runs" if answer.runs else "does not run"
    line = f"{runs} on {where}; the lowest verdict that is accepted is {answer.accept}"
    render.show(answer, _fit_table(answer.rows), line=line)
    if not answer.runs:
        raise typer.Exit(REFUSED)


def _stack(path: Path) -> dict[str, Any]:
    """`drivers`, `runtimes`, `firmware` and, if given, `models`, as YAML."""
    import yaml
    from pydantic import ValidationError

    try:
        # Versions are text: without resolvers 12.10 stays what it is.
        found = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506
        if not isinstance(found, dict):
            raise typer.BadParameter(f"{path} holds no stack: write drivers: {{nvidia: 550.54.14}}")
        models = tuple(found.pop("models", ()))
        unknown = set(found) - {"drivers", "runtimes", "firmware"}
        if unknown:
            raise typer.BadParameter(f"{path}: no such field {', '.join(sorted(unknown))}")
        return {"stack": NodeStack.model_validate(found), "models": models}
    except (OSError, yaml.YAMLError, ValidationError) as exc:
        raise typer.BadParameter(f"{path} cannot be read as a stack: {exc}") from exc


def _file(path: Path) -> SourceFile:
    try:
        return SourceFile(path=str(path), text=path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as exc:
        raise typer.BadParameter(f"{path} cannot be read: {exc}") from exc


def portability(
    workload: Annotated[str | None, typer.Argument(help="A Workload of the catalog.")] = None,
    file: Work = None,
) -> None:
    """Say where a workload runs, after which conversion or why not, at what price; the lock-in."""
    if (workload is None) == (file is None):
        raise typer.BadParameter("give a workload's name, or a file with -f")
    ask = PortabilityAsk(workload=workload, file=_file(file) if file else None)
    answer = session.ask(lambda client: client.portability(ask), session.speaker())
    columns = (
        "outcome", "pool", "model", "devices>", "variant", "by", "units>", "per unit-hour>",
        "expected cost>", "verdict", "why", "would pass", "whose move",
    )  # fmt: skip
    rows = [
        (
            row.outcome, row.pool, row.model, row.devices, row.variant, row.toolchain,
            f"{row.units}{' est.' if row.estimated else ''}" if row.units else None,
            _money(row.price_per_unit_hour), _money(row.expected_cost), row.verdict,
            row.reason, row.passing, row.owner,
        )
        for row in answer.rows
    ]  # fmt: skip
    share = answer.open_percent if answer.open_percent is not None else "-"
    later = answer.open_after_conversion_percent or "-"
    footer = (
        f"open to it: {answer.units_open} of {answer.units} units of {answer.workload_class} "
        f"({share} %), {later} % after approved conversions; runs on "
        f"{', '.join(answer.ecosystems) or 'nothing here'}"
    )
    title = f"{answer.workload}, prices in {answer.currency or 'no currency'}"
    render.show(answer, Table(columns, rows, title=title, footer=footer))


def _money(amount: Any) -> str | None:
    return None if amount is None else render.number(amount)


def can_run(
    place: Annotated[str, typer.Argument(metavar="NODE|POOL", help="A pool, or else a node.")],
    node: Annotated[bool, typer.Option("--node", help="It is a node, whatever pools say.")] = False,
) -> None:
    """Say which workloads run on a node or pool, and what keeps the others out."""

    async def work(client: Any) -> Any:
        if not node:
            try:
                return await client.can_run(CanRunAsk(pool=place))
            except Refused as exc:
                if exc.code != "not_found":
                    raise
        return await client.can_run(CanRunAsk(node=place))

    answer = session.ask(work, session.speaker())
    render.show(answer, _fit_table(answer.rows))


def _fit_table(rows: tuple[FitRow, ...]) -> Table:
    columns = (
        "runs", "workload", "variant", "model", "pool", "software", "nodes>", "verdict",
        "why", "would pass", "whose move", "says",
    )  # fmt: skip
    told = [
        (
            "yes" if row.accepted else "no", row.workload, row.variant, row.model, row.pool,
            _software(row.software), row.count or None, row.verdict, row.bound, row.passing,
            row.owner, row.boundary,
        )
        for row in rows
    ]  # fmt: skip
    return Table(columns, told)


def _software(software: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in software.items())


COMMANDS: dict[str, Callable[..., None]] = {"portability": portability, "can-run": can_run}
