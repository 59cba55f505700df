"""`version`: says so at once, without anything to import."""

from __future__ import annotations

from collections.abc import Callable

from quintal import __version__
from quintal.cli import render


def version() -> None:
    """Print the version."""
    render.show({"version": __version__}, line=f"quintal {__version__}")


COMMANDS: dict[str, Callable[..., None]] = {"version": version}
