"""What the catalog reads from its environment, once.

QUINTAL_URL, QUINTAL_CREDENTIALS_FRONT, QUINTAL_CREDENTIALS_BACK    the bus, twice
QUINTAL_PRINCIPALS    file with {principal: role}; who is not in it is treated as a tenant
QUINTAL_STARTER       0: do not apply the starter catalog where there is none yet
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quintal.settings import Access, access

APPLY_TRIES: Final = 20
"""How often an apply without a base is judged anew when another service moved the head meanwhile:
each failed try is another's success, so that more than a few means a storm."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The service's settings."""

    front: Access
    back: Access
    principals: Path | None = None
    starter: bool = True


def read(env: Mapping[str, str]) -> Settings:
    """The settings. Raises SetupError that names the variable that is missing."""
    principals = env.get("QUINTAL_PRINCIPALS", "")
    return Settings(
        front=access(env, "_FRONT"),
        back=access(env, "_BACK"),
        principals=Path(principals) if principals else None,
        starter=env.get("QUINTAL_STARTER", "1") != "0",
    )
