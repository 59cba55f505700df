"""Files of /sys: a number, a text, a link, or the reason why not.

Not there is unsupported: the driver has no such thing. There and refusing is unavailable: the
device sleeps, resets, or may not be asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quintal_agent.probes.probe import Value
from quintal_agent.probes.values import checked


def text(path: Path) -> str | None:
    """The file's text; none where there is none, or none may be read."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def link(path: Path) -> str | None:
    """The name of what a link leads to."""
    try:
        return path.readlink().name
    except OSError:
        return None


def number(path: Path) -> Value:
    """The file's number."""
    try:
        said = path.read_text(errors="replace").strip()
    except FileNotFoundError:
        return Value(quality="unsupported")
    except OSError as exc:
        return Value(quality="unavailable", raw=exc.strerror or str(exc))
    try:
        return Value(int(said))
    except ValueError:
        return Value(quality="unavailable", raw=said[:200])


def scaled(name: str, path: Path, factor: float) -> Value:
    """The file's number as the reading `name`, from the driver's unit into ours."""
    value = number(path)
    if value.value is None:
        return value
    told = value.value if factor == 1 else round(value.value * factor, 6)
    return checked(name, told, str(value.value))


def cards(root: Path, *drivers: str) -> Iterator[Path]:
    """The device folders of the cards that one of the drivers has; connectors are passed over."""
    found = (path for path in (root / "class/drm").glob("card*") if path.name[4:].isdigit())
    for card in sorted(found, key=lambda path: int(path.name[4:])):
        if link(card / "device/driver") in drivers:
            yield card / "device"
