"""What a rule finds wrong, before anyone knows in which file and line it stands."""

from __future__ import annotations

from dataclasses import dataclass

from quintal_catalog.sources import Path


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong in the set."""

    key: tuple[str, str]
    path: Path
    message: str
    warning: bool = False
