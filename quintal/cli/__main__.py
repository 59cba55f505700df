"""`quintal`: one table of commands, each loaded when it is called.

A module of this package has a table `COMMANDS` of plain functions whose parameters are typer's;
every command gets `-o`, `--data` and `--as` beside its own. Nothing heavy is imported before the
command is known: `quintal --help` knows the words below and no module.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from quintal import __version__
from quintal.cli import render
from quintal.cli.choices import Output, chosen
from quintal.errors import QuintalError, Refused

FAILED, USAGE, REFUSED = 1, 2, 3

OutputOption = Annotated[
    Output | None, typer.Option("-o", "--output", help="How to print the answer.")
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="The installation's folder [QUINTAL_DATA, ./quintal-data]"),
]
AsOption = Annotated[str | None, typer.Option("--as", help="Speak as this principal [QUINTAL_AS]")]

TABLE: Final[dict[str, tuple[str, str]]] = {
    "up": ("installation", "Run a whole system on this machine."),
    "demo": ("demo", "Do the main job on a demo fleet, from request to bill."),
    "doctor": ("installation", "Say what of an installation is well and what is not."),
    "auth": ("auth", "Issue and list credentials."),
    "apply": ("catalog", "Make files part of the catalog: all or none."),
    "check": ("catalog", "Say what apply would say; or whether a workload runs at a place."),
    "get": ("catalog", "Print documents of the catalog."),
    "list": ("catalog", "List the documents of the catalog."),
    "diff": ("catalog", "Show what differs between two revisions."),
    "history": ("catalog", "Show who changed the catalog, why, when."),
    "rollback": ("catalog", "Apply an older revision again."),
    "schema": ("catalog", "Print the schema of a kind of document."),
    "nodes": ("fleet", "List the nodes."),
    "devices": ("fleet", "List the devices and what became of each."),
    "capacity": ("fleet", "Show the fleet in standard units."),
    "quota": ("fleet", "Show caps and what is held under them."),
    "place": ("placement", "Ask for devices."),
    "renew": ("placement", "Hold a lease for one ttl more."),
    "release": ("placement", "Give a lease's devices back."),
    "cancel": ("placement", "Take a queued request back."),
    "leases": ("placement", "List leases, or show one."),
    "queue": ("queue", "Show what waits, in order."),
    "explain": ("placement", "Say why a request got what it got."),
    "events": ("events", "Show what happened to leases and nodes, and what happens."),
    "adopt": ("operations", "Open a lease on devices that an outside scheduler gave away."),
    "end": ("operations", "End an adopted lease."),
    "cordon": ("operations", "Stop new grants on nodes."),
    "drain": ("operations", "Cordon nodes and wait until nothing runs there."),
    "uncordon": ("operations", "Take a cordon back."),
    "taint": ("operations", "Keep nodes for requests that tolerate a taint."),
    "retire": ("operations", "Declare nodes gone for good."),
    "clear-dispute": ("operations", "Say that a disputed device was looked at."),
    "partition": ("operations", "Cut a card that no lease holds, by the node's own task."),
    "snapshot": ("operations", "Append a census and write a snapshot now."),
    "usage": ("usage", "Show usage and cost."),
    "slices": ("usage", "Show the rows beneath a usage line."),
    "verify": ("usage", "Hold the ledger, the store and the census against each other."),
    "bill": ("bills", "Show a tenant's bill of a month."),
    "quote": ("bills", "Show what use would cost."),
    "rerate": ("bills", "Charge again what was charged, in new rows."),
    "dead-letters": ("bills", "Show what metering could not take in."),
    "portability": ("fit", "Show where a workload runs, at what price, and the lock-in."),
    "can-run": ("fit", "Show which workloads run on a node or pool."),
    "rate": ("units", "Show what a model is worth, and what that rests on."),
    "convert": ("units", "Add cards up in standard units."),
    "calibrate": ("", "Measure a device here, and propose its rating."),
    "report": ("report", "Write use and cost as a page; show cost by generation."),
    "probe": ("", "Show what an agent sees here, or in a captured output."),
    "simulate": ("", "Run the engine over a described fleet and a trace."),
    "version": ("about", "Print the version."),
}
"""Command -> the module of this package that has it (empty: a service brings it), its line."""


def main() -> NoReturn:
    """Run the command and exit: 0 done, 1 failed, 2 wrong usage, 3 refused."""
    # What the bus says of a lost connection is for a service's log; a command's errors say it too.
    logging.basicConfig(level=os.environ.get("QUINTAL_LOG", "CRITICAL").upper())
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """The exit status of one command line."""
    chosen.forget()
    try:
        _application(argv)(args=argv, prog_name="quintal")
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else FAILED
    except Refused as exc:
        _refused(exc)
        return REFUSED
    except QuintalError as exc:
        from quintal.process import chain

        render.complain(f"quintal: {chain(exc)}")
        return FAILED
    except BrokenPipeError:
        # Whoever reads has seen enough; the interpreter must not complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _refused(exc: Refused) -> None:
    from pydantic import ValidationError

    from quintal.contracts.message import Refusal

    try:
        said = Refusal.model_validate(exc.details)
    except ValidationError:
        said = Refusal(code=exc.code, message=str(exc), owner=exc.owner, details=exc.details)
    render.refusal(said)


def _application(argv: list[str]) -> typer.Typer:
    """All commands by name and line; the one that is called, for real."""
    called = _called(argv)
    app = typer.Typer(
        rich_markup_mode=None, add_completion=False, no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Request, schedule, meter and bill unlike accelerators by one standard unit.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip
    app.callback()(_options)
    for name, (module, line) in TABLE.items():
        found = _load(name, module) if name == called else _stub
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        elif found is not None:
            app.command(name, help=inspect.getdoc(found) if name == called else line)(found)
    return app


def _called(argv: list[str]) -> str:
    """The command: the first word that is neither an option nor the value of one before it."""
    words = iter(argv)
    for word in words:
        if word in {"-o", "--output", "--data", "--as"}:
            next(words, "")
        elif not word.startswith("-"):
            return word
    return ""


def _version(wanted: bool) -> None:
    if wanted:
        render.say(f"quintal {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[  # noqa: ARG001 - its callback has said it
        bool,
        # Eager: said before a command is missed.
        typer.Option("--version", is_eager=True, callback=_version, help="Print the version."),
    ] = False,
    output: OutputOption = None,
    data: DataOption = None,
    as_: AsOption = None,
) -> None:
    """What may stand before the command; what stands after it counts more."""
    _choose({"output": output, "data": data, "as_": as_})


def _stub() -> None:
    """Stands for a command that was not called."""


def _load(name: str, module: str) -> Callable[..., Any] | typer.Typer | None:
    if not module:
        return _from_service(name)
    found = import_module(f"quintal.cli.{module}").COMMANDS[name]
    if isinstance(found, typer.Typer):
        for info in found.registered_commands:
            assert info.callback is not None, "typer registers functions"
            info.callback = with_options(info.callback)
        group = found.registered_callback
        if group and group.callback and group.invoke_without_command is True:
            group.callback = with_options(group.callback)
        return found
    return with_options(found)


def _from_service(name: str) -> Callable[..., Any]:
    """A command that lives in a service's package, if that package is installed."""
    from importlib.metadata import entry_points

    for entry in entry_points(group="quintal.commands", name=name):
        try:
            return with_options(entry.load())
        except ImportError as exc:
            from quintal.errors import SetupError

            raise SetupError(
                f"{name} needs {exc.name}, which is not installed: pip install 'quintal[all]'"
            ) from exc
    from quintal.errors import SetupError

    raise SetupError(f"{name} is not installed: pip install 'quintal[all]'")


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with `-o`, `--data` and `--as` added, where it has none of that name itself."""
    signature = inspect.signature(function, eval_str=True)
    extra = [option for option in _SHARED if option.name not in signature.parameters]

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        _choose({option.name: given.pop(option.name) for option in extra})
        return function(**given)

    parameters = [
        *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature.parameters.values()),
        *extra,
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


_KEPT_AS: Final = {"output": "output", "data": "data", "as_": "principal"}


def _choose(given: dict[str, Any]) -> None:
    """Keep what was given of the options that every command has."""
    for name, value in given.items():
        if value is not None:
            setattr(chosen, _KEPT_AS[name], value)


def _option(name: str, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=annotation)


_SHARED: Final = (
    _option("output", OutputOption),
    _option("data", DataOption),
    _option("as_", AsOption),
)


if __name__ == "__main__":
    main()
