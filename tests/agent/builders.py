"""Leases, devices and nodes for the agent's tests, each with defaults that a test may override."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quintal.contracts.nodes import BoundDevice, BoundLease, RawDevice
from quintal.settings import Access
from quintal_agent.probes.probe import Device, Observation, Value
from quintal_agent.report import Bounds, Sighting
from quintal_agent.settings import Beats, Settings

GPU = "GPU-a"
CPU = "cpu-n1"


def a_raw(uuid: str = GPU, **more: Any) -> RawDevice:
    body = {"index": 0, "vendor": "nvidia", "name": "NVIDIA H100 80GB HBM3"} | more
    return RawDevice(uuid=uuid, **body)


def a_device(uuid: str = GPU, **more: Any) -> Device:
    body = {"index": 0, "vendor": "nvidia", "name": "NVIDIA H100 80GB HBM3"} | more
    return Device(uuid=uuid, **body)


def a_lease(lease: str = "l-1", token: int = 1, *uuids: str, **more: Any) -> BoundLease:
    parts = more.pop("parts", 1_000_000)
    partition = more.pop("partition", None)
    devices = tuple(
        BoundDevice(
            uuid=uuid, index=at, vendor="nvidia", model="nvidia-h100-sxm5-80gb", parts=parts,
            partition=partition, memory_bytes=85_520_809_984, units_micro=1_000_000,
        )
        for at, uuid in enumerate(uuids or (GPU,))
    )  # fmt: skip
    body = {"tenant": "acme", "ttl_ms": 60_000, "devices": devices} | more
    return BoundLease(lease=lease, token=token, **body)


def seen(*devices: Device, vendor: str = "nvidia", **more: Any) -> Observation:
    return Observation(vendor, "test", devices, **more)


class Scripted:
    """A source that shows what the test last put into it."""

    vendor = "nvidia"

    def __init__(self, observation: Observation) -> None:
        self.observation = observation
        self.age_s = 0.0
        self.closed = False

    async def look(self) -> Sighting:
        return Sighting(self.observation, self.age_s)

    async def close(self) -> None:
        self.closed = True


def settings(access: Access, folder: Path, **beats: float) -> Settings:
    quick = {
        "heartbeat_s": 0.1, "telemetry_s": 0.1, "inventory_s": 60.0, "drain_spread_s": 0.5,
    } | beats  # fmt: skip
    return Settings(
        access=access,
        state=folder / "state",
        lease_dir=folder / "leases",
        cluster="north",
        location="ams-1",
        beats=Beats(**quick),
        bounds=Bounds(),
    )


def reading(value: float | None, quality: Any = "ok") -> Value:
    return Value(value, quality)
