"""What metering reads from its environment, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quintal.errors import SetupError
from quintal.settings import Access, access

FLUSH_S: Final = 1.0
"""At most one write of ledger rows in this time: a write costs about 100 ms, whatever it holds."""

OBSERVE_S: Final = 2.0
"""The same for telemetry, health and decisions, which nobody waits for."""

ROLLUP_S: Final = 10.0
"""How often touched minutes are recomputed."""

ROLLUP_PAUSES: Final = 4
"""... and at least so many times as long as the last one took: a large fleet's minutes are
recomputed seldomer, not without end."""

HOURS_S: Final = 300.0
"""How often hours are; the boards read minutes where an hour is not over."""

MINUTES_AT_ONCE: Final = 30
"""Recomputed in one statement: what an agent's spool brings back comes in portions."""

POSITION_S: Final = 5.0
"""How often the verified position is told (the bus's table of beats)."""

CHECKPOINT_S: Final = 60.0
"""A checkpoint is the whole state; between two, a restart folds the archive again."""

CHECKPOINT_S_PER_MIB: Final = 5.0
"""... and so much later the larger the last one was: one of 40 MiB takes a second to keep."""

CHECKPOINT_MESSAGES: Final = 5_000
"""... but never more than so many messages of it."""

BATCH_MESSAGES: Final = 2_000
"""Messages in one write: some 200,000 rows at worst, one block of the engine."""

RETRY_S: Final = 1.0
"""Between tries when the store or the bus does not answer; each try is logged."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where the store is: a folder for the embedded engine, or a server's URL."""

    path: Path
    url: str = ""
    database: str = "quintal"


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it."""

    front: Access
    back: Access
    where: Where
    state: Path
    principals: Path | None
    endpoint: bool = True
    """Whether the embedded engine is open to others on this machine."""


def settings(env: Mapping[str, str]) -> Settings:
    """From the environment. Raises SetupError that names what is missing."""
    folder = env.get("QUINTAL_STATE", "")
    if not folder:
        raise SetupError("QUINTAL_STATE is not set: name a folder for the store")
    state = Path(folder)
    principals = env.get("QUINTAL_PRINCIPALS", "")
    return Settings(
        front=access(env, "_FRONT"),
        back=access(env, "_BACK"),
        where=Where(
            state / "engine",
            env.get("QUINTAL_CLICKHOUSE_URL", ""),
            env.get("QUINTAL_CLICKHOUSE_DATABASE", "") or "quintal",
        ),
        state=state,
        principals=Path(principals) if principals else None,
        endpoint=env.get("QUINTAL_ENDPOINT", "on") != "off",
    )
