"""`quintal calibrate`: measure a device here, and propose a rating that `quintal apply` takes."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from quintal.cli import render
from quintal.cli.choices import Output, chosen
from quintal.cli.render import Table
from quintal.clock import SystemClock
from quintal.errors import SetupError
from quintal_agent.calibration import arithmetic
from quintal_agent.calibration.arithmetic import Measured
from quintal_agent.calibration.backends import Backend, backend
from quintal_agent.calibration.measuring import timed

REPEATS: Final = 7


def calibrate(
    model: Annotated[
        str, typer.Option("--model", help="The AcceleratorModel that this device is.")
    ],
    device: Annotated[int, typer.Option(min=0, help="Its number, as the library counts.")] = 0,
    library: Annotated[
        str | None, typer.Option(help="torch, cupy or numpy; else the first that is here.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=3, max=1_000, help="Timed runs of each.")] = REPEATS,
    reference: Annotated[
        Path | None,
        typer.Option(help="What `calibrate -o json` printed on the reference card."),
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write the document there, for apply -f.")
    ] = None,
) -> None:
    """Measure how fast matrices multiply and memory moves, and propose ratings.

    With -o yaml it prints the document alone; with -o json all that was measured.
    """
    base = None if reference is None else _reference(reference)
    found = _measure(backend(library, device), repeats)
    ratings = arithmetic.ratings(found, base)
    if not ratings:
        raise SetupError("nothing was measured that a class rests on: no rating to propose")
    document = _plain(arithmetic.document(model, ratings))
    if write is not None:
        _write(write, document)
    if chosen.output is Output.YAML:
        render.show(document)
        return
    rates = [
        (
            each.name,
            f"{each.value:.4g}",
            "GB/s" if each.name == "bandwidth" else "TFLOPS",
            f"{each.spread * 100:.1f} %",
            each.repeats,
        )
        for each in found.rates
    ]
    proposed = [
        (
            each["class"], render.number(each["value"]),
            f"{each['low80']:f} - {each['high80']:f}", each.get("per", "device"),
        )
        for each in ratings
    ]  # fmt: skip
    clocks = ", ".join(f"{name} {mhz} MHz" for name, mhz in found.clocks.items())
    title = f"{found.device} with {found.computed_by}" + (f" ({clocks})" if clocks else "")
    way = f"quintal apply -f {write}" if write else "--write FILE, then quintal apply -f FILE"
    render.show(
        {**arithmetic.plain(found), "document": document},
        Table(("what", "median>", "", "spread>", "runs>"), rates, title=title),
        Table(
            ("class", "value>", "80 % band", "per"), proposed,
            title=f"\nproposed for {model}, not in force yet", footer=way,
        ),
    )  # fmt: skip


def _measure(device: Backend, repeats: int) -> Measured:
    clock = SystemClock()
    rates = tuple(
        arithmetic.rate(each)
        for each in timed(device, clock, repeats, lambda text: render.complain(f"measuring {text}"))
    )
    at = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
    return Measured(
        device=_processor() if device.cpu else device.device,
        computed_by=device.name,
        threads=len(os.sched_getaffinity(0)) if device.cpu else 1,
        rates=rates,
        clocks=_clocks(device),
        date=at.date().isoformat(),
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "this processor"


def _clocks(device: Backend) -> Mapping[str, int]:
    """What the host says of its clocks right after the runs; nothing where it does not."""
    if not device.cpu:
        return {}
    try:
        import psutil

        current = getattr(psutil.cpu_freq(), "current", None)
    except (ImportError, OSError, RuntimeError):  # psutil knows no such file on some kernels
        return {}
    return {"cpu": round(current)} if current else {}


def _reference(path: Path) -> Measured:
    try:
        return arithmetic.read(json.loads(path.read_text(encoding="utf-8")))
    except OSError as exc:
        raise typer.BadParameter(f"{path} cannot be read: {exc}") from exc
    except (ValueError, KeyError, TypeError, ArithmeticError) as exc:
        raise typer.BadParameter(f"{path} is not what `calibrate -o json` prints") from exc


def _write(path: Path, document: dict[str, Any]) -> None:
    import yaml

    try:
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    except OSError as exc:
        raise SetupError(f"writing {path}: {exc.strerror}") from exc


def _plain(value: Any) -> Any:
    """Decimals as text: exact in YAML and JSON alike."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if hasattr(value, "quantize") else value
