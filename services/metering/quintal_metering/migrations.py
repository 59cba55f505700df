"""The store's tables: numbered files, applied once each, forward only, held by their checksum.

A step is `CREATE ... IF NOT EXISTS` and the like, so that one that a crash cut short can be done
again. A file that was applied may never change: write the next number instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any

from quintal.errors import SetupError

_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (name String, checksum String)
ENGINE = MergeTree ORDER BY name SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    name: str
    text: str

    @property
    def checksum(self) -> str:
        """What the file must go on being."""
        return sha256(self.text.encode()).hexdigest()

    def steps(self) -> Iterator[str]:
        """Its statements, in order, without comment lines."""
        lines = [line for line in self.text.splitlines() if not line.lstrip().startswith("--")]
        for step in "\n".join(lines).split(";"):
            if step.strip():
                yield step.strip()


def migrations() -> list[Migration]:
    """All of them, by number."""
    folder = files("quintal_metering") / "ddl"
    found = [Migration(file.name, file.read_text()) for file in folder.iterdir()]
    return sorted((m for m in found if m.name.endswith(".sql")), key=lambda m: m.name)


def migrate(client: Any) -> None:
    """Bring the database up. Raises SetupError where an applied file is not what it was."""
    client.command(_TABLE)
    rows = client.query("SELECT DISTINCT name, checksum FROM schema_migrations").result_rows
    applied = dict(rows)
    known = migrations()
    for name in applied.keys() - {migration.name for migration in known}:
        raise SetupError(f"the store was made by a newer version: it has {name}")
    for migration in known:
        checksum = applied.get(migration.name)
        if checksum == migration.checksum:
            continue
        if checksum is not None:
            raise SetupError(f"{migration.name} was applied with other content: restore the file")
        for step in migration.steps():
            client.command(step)
        client.insert(
            "schema_migrations",
            [[migration.name], [migration.checksum]],
            column_names=["name", "checksum"],
            column_oriented=True,
        )
