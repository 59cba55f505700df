"""What the placer reads from its environment, once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quintal.settings import Access, access


@dataclass(frozen=True, slots=True)
class Settings:
    """Beats and bounds; the defaults are the design's."""

    front: Access
    back: Access
    state_dir: Path
    suspect_ms: int = 15_000
    lost_ms: int = 60_000
    flap_ms: int = 15_000
    """A lost node must be heard this long before it is ready again."""
    bind_s: float = 2.0
    """Deadline of one bind."""
    binding_s: float = 10.0
    """Deadline of all binds of one lease together."""
    catalog_poll_s: float = 2.0
    tick_s: float = 4.0
    """Usage is known up to the last of them: with half a second from here to `quintal usage`, and a
    slow disk, it is to be no older than 5 s there."""
    beat_s: float = 0.2
    silence_s: float = 1.0
    """A standby that hears no beat for so long takes the lead."""
    sure_s: float = 0.7
    """A leader whose own beat has not come back for so long is not sure to lead."""
    snapshot_s: float = 300.0
    snapshot_records: int = 20_000
    purge_s: float = 600.0
    """How often the leader looks whether the ledger may be purged."""
    in_flight_max: int = 64
    """Requests of one tenant at once."""
    rate_per_s: float = 200.0
    """Requests of one tenant, sustained; a second's worth may come at once."""
    queued_max: int = 1_000
    """Waiting requests of one tenant."""
    payload_bytes_max: int = 65_536
    ledger_full_percent: int = 80
    metrics: str = ""
    """Where Prometheus may look, such as 127.0.0.1:9465; nowhere, unless it is set."""

    @property
    def writer(self) -> str:
        """This placer's name in the ledger."""
        return self.back.principal


def load(env: Mapping[str, str]) -> Settings:
    """From the environment; `QUINTAL_PLACER_<NAME>` overrides one."""
    state_dir = Path(env.get("QUINTAL_STATE", f"/tmp/quintal-placer-{os.getpid()}"))  # noqa: S108
    base = Settings(access(env, "_FRONT"), access(env, "_BACK"), state_dir)
    numbers: dict[str, float | int | str] = {}
    for name in base.__dataclass_fields__:
        text = env.get(f"QUINTAL_PLACER_{name.upper()}")
        if text is not None:
            numbers[name] = type(getattr(base, name))(text)
    return Settings(base.front, base.back, state_dir, **numbers)  # type: ignore[arg-type]
