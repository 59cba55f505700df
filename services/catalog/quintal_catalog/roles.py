"""Which role a principal has, from the file that issues credentials; read anew when it changes."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from quintal.contracts.subjects import Role

log = logging.getLogger(__name__)


class Roles:
    """Principal -> role. Who is not listed, or listed with a role unknown here, is a tenant."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._roles: dict[str, str] = {}

    def of(self, principal: str) -> Role:
        """The role; the least one where it cannot be read."""
        self._refresh()
        try:
            return Role(self._roles.get(principal, Role.TENANT))
        except ValueError:
            return Role.TENANT

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            stat = self._path.stat()
            if self._seen == (stat.st_mtime_ns, stat.st_size):
                return
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as exc:
            log.warning("reading %s: %s", self._path, exc)
            return
        self._seen = (stat.st_mtime_ns, stat.st_size)
        self._roles = found if isinstance(found, dict) else {}
