"""`quintal probe`: what an agent sees here, or in a captured output of a vendor's tool."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

if TYPE_CHECKING:
    from quintal.contracts.documents import AcceleratorModelSpec
    from quintal_agent.document import Resolve
    from quintal_agent.probes.probe import Observation

CAPTURE_BYTES_MAX: Final = 64 * 2**20


class Output(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def probe(
    vendor: Annotated[
        str | None, typer.Option("--vendor", help="Look only through this vendor's probe.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="A captured output of a vendor's tool; - reads stdin."),
    ] = None,
    catalog: Annotated[
        Path | None,
        typer.Option("--catalog", help="YAML file or folder that names accelerator models."),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = Output.TABLE,
) -> None:
    """Show the devices of this machine, or of a captured output, as an agent sees them."""
    resolve = _resolver(catalog)
    if source is not None:
        documents: Any = _documents([_captured(source, vendor)], resolve)[0]
    else:
        documents = _documents(_live(vendor), resolve)
        if vendor is not None:
            documents = documents[0]
    _print(documents, output)


COMMANDS: Final[dict[str, Callable[..., None]]] = {"probe": probe}


def _fail(message: str, status: int = 1) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(status)


def _captured(source: Path, vendor: str | None) -> Observation:
    from quintal_agent.probes.table import read_capture, vendor_named

    if vendor is not None:
        try:
            vendor_named(vendor)
        except ValueError as exc:
            _fail(str(exc), 2)
    try:
        if str(source) == "-":
            data = sys.stdin.buffer.read(CAPTURE_BYTES_MAX + 1)
        else:
            with source.open("rb") as file:
                data = file.read(CAPTURE_BYTES_MAX + 1)
    except OSError as exc:
        _fail(f"{source}: {exc.strerror or exc}")
    if len(data) > CAPTURE_BYTES_MAX:
        _fail(f"{source}: more than {CAPTURE_BYTES_MAX // 2**20} MiB")
    try:
        return read_capture(data, vendor)
    except ValueError as exc:
        _fail(f"{source}: {exc}")


def _live(vendor: str | None) -> list[Observation]:
    import asyncio

    from quintal.clock import SystemClock
    from quintal.settings import environment
    from quintal_agent.floor import accelerators, laid
    from quintal_agent.probes.pci import scan
    from quintal_agent.probes.table import NAMES, vendor_named
    from quintal_agent.sources import ChildSettings, ChildSource

    if vendor is not None:
        try:
            vendor = vendor_named(vendor).name
        except ValueError as exc:
            _fail(str(exc), 2)
        if vendor not in NAMES:
            _fail(f"{vendor} has no live probe: only its captured output can be read (--from)", 2)

    async def look(name: str) -> Observation:
        settings = ChildSettings(node="here", environment=environment())
        child = ChildSource(name, settings, SystemClock())
        try:
            seen = (await child.look()).observation
            if not seen.idle and seen.devices:
                # Some readings are measured between two looks.
                await asyncio.sleep(0.5)
                seen = (await child.look()).observation
            return seen
        finally:
            await child.close()

    async def all_of_them() -> list[Observation]:
        names = _to_ask(NAMES) if vendor is None else (vendor,)
        return list(await asyncio.gather(*(look(name) for name in names)))

    seen = asyncio.run(all_of_them())
    there = accelerators(scan())
    if vendor is not None:  # what others have on the bus was not asked for
        there = {name: functions for name, functions in there.items() if name == vendor}
    return list(laid(seen, there))


def _to_ask(names: tuple[str, ...]) -> tuple[str, ...]:
    """The CPU, NVIDIA, and whoever has an accelerator on the bus: a child each is not for free."""
    from quintal_agent.probes import pci

    there = {pci.vendor_of(function) for function in pci.scan()}
    return tuple(name for name in names if name in {"cpu", "nvidia"} | there)


def _documents(observations: list[Observation], resolve: Resolve | None) -> list[dict[str, Any]]:
    from quintal_agent.document import document

    return [document(observation, resolve) for observation in observations]


def _resolver(catalog: Path | None) -> Resolve | None:
    """From a file that was named, else from the running catalog, else nothing."""
    models = _models_in(catalog) if catalog is not None else _models_running()
    if not models:
        return None
    from quintal.identity import resolve

    return lambda raw: resolve(raw, models)


def _models_in(path: Path) -> dict[str, AcceleratorModelSpec]:
    import yaml
    from pydantic import ValidationError

    from quintal.contracts.documents import Document

    files = sorted(path.rglob("*.y*ml")) if path.is_dir() else [path]
    models: dict[str, AcceleratorModelSpec] = {}
    for file in files:
        try:
            for body in yaml.safe_load_all(file.read_text()):
                if isinstance(body, dict) and body.get("kind") == "AcceleratorModel":
                    document = Document.model_validate(body)
                    models[document.metadata.name] = document.spec
        except (OSError, yaml.YAMLError, ValidationError, UnicodeDecodeError) as exc:
            _fail(f"{file}: {str(exc).splitlines()[0]}")
    return models


def _models_running() -> dict[str, AcceleratorModelSpec]:
    """The running catalog's models; none where no catalog can be reached."""
    import asyncio

    from quintal.errors import QuintalError
    from quintal.settings import access, environment

    env = environment()
    if not env.get("QUINTAL_URL") or not env.get("QUINTAL_CREDENTIALS"):
        return {}

    async def ask() -> dict[str, AcceleratorModelSpec]:
        from quintal.bus import Bus
        from quintal.contracts.catalog import DocumentsAsk
        from quintal.contracts.subjects import DOCUMENTS

        async with await Bus.connect(access(env), wait_s=2) as bus:
            found = await bus.ask(DOCUMENTS, DocumentsAsk(kind="AcceleratorModel"), timeout_s=3)
            return {document.metadata.name: document.spec for document in found.documents}

    try:
        return asyncio.run(ask())
    except QuintalError:
        return {}


def _print(documents: Any, output: Output) -> None:
    match output:
        case Output.JSON:
            print(json.dumps(documents, indent=2))
        case Output.YAML:
            import yaml

            print(yaml.safe_dump(documents, sort_keys=False), end="")
        case Output.TABLE:
            _table(documents if isinstance(documents, list) else [documents])


def _table(documents: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("VENDOR", "INDEX", "NAME", "MODEL", "MEMORY", "HEALTH", "BUSY", "POWER", "TEMP"):
        table.add_column(title, overflow="fold")
    for body in documents:
        for device in body["devices"]:
            memory = device["memory_bytes"]
            table.add_row(
                body["vendor"],
                str(device["index"]),
                device["name"],
                device["model"] or "-",
                "-" if memory is None else f"{memory / 2**30:.1f} GiB",
                device["health"],
                *(
                    _cell(device["readings"].get(name), unit)
                    for name, unit in (
                        ("utilization_percent", "%"),
                        ("power_watts", "W"),
                        ("temperature_celsius", "C"),
                    )
                ),
            )
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if table.row_count:
        console.print(table)
    else:
        console.print("no devices")
    for body in documents:
        for event in body.get("events", ()):
            console.print(f"{body['vendor']}: {event['code']} of {event['device']}")
        if body.get("links"):
            console.print(f"{body['vendor']}: {len(body['links'])} links (-o json lists them)")
        for problem in body["problems"]:
            console.print(f"{body['vendor']}: {problem['code']}: {problem['message']}")


def _cell(reading: dict[str, Any] | None, unit: str) -> str:
    if reading is None or reading["value"] is None:
        return "-" if reading is None else str(reading["quality"])
    mark = "" if reading["quality"] == "ok" else f" ({reading['quality']})"
    return f"{reading['value']:g} {unit}{mark}"
