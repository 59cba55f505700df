"""What every part reads from its environment, once, at its start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quintal.errors import SetupError


@dataclass(frozen=True, slots=True)
class Access:
    """How one principal reaches the bus: the server, its credentials file, its name."""

    url: str
    credentials: Path
    principal: str
    """Also the name in the credentials, and the owner of the inbox `_INBOX.<principal>`."""


def environment() -> Mapping[str, str]:
    """The process's environment; the one place that reads it."""
    return os.environ


def access(env: Mapping[str, str], suffix: str = "") -> Access:
    """`QUINTAL_URL`, `QUINTAL_CREDENTIALS<suffix>`, `QUINTAL_PRINCIPAL<suffix>`.

    Without a principal, the credentials file's own name (less `.creds`) is it. Raises SetupError
    that names what is missing.
    """
    url = env.get("QUINTAL_URL", "")
    path = env.get(f"QUINTAL_CREDENTIALS{suffix}", "")
    if not url or not path:
        missing = "QUINTAL_URL" if not url else f"QUINTAL_CREDENTIALS{suffix}"
        raise SetupError(f"{missing} is not set: name the server and a credentials file")
    file = Path(path)
    if not file.is_file():
        raise SetupError(f"QUINTAL_CREDENTIALS{suffix} names {file}, which is not there")
    return Access(url, file, env.get(f"QUINTAL_PRINCIPAL{suffix}", "") or file.stem)
