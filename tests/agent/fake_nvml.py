"""A library that speaks like pynvml, with state: devices that can be lost, calls that can fail.

It proves error paths and the order of calls; it proves nothing about a device.
"""

# ruff: noqa: N802, N815 - the names are the library's

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml

LOST = 15


class FakeNvml:
    """What a key of a device holds is what its call answers; an absent key is not supported."""

    nvmlMemory_v2 = pynvml.nvmlMemory_v2

    def __init__(self, *devices: dict[str, Any], init: int = 0) -> None:
        self.devices = list(devices)
        self.init = init
        self.withheld: set[str] = set()
        self.broken: dict[str, int] = {}

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "withheld"):
            raise AttributeError(name)
        broken = object.__getattribute__(self, "broken") if name.startswith("nvml") else {}
        if name in broken:
            return _failing(broken[name])
        try:
            return object.__getattribute__(self, name)
        except AttributeError:
            if not name.startswith("nvmlDeviceGet"):
                raise
            return lambda handle, *a, **k: _answer(handle, name.removeprefix("nvmlDeviceGet"))

    def nvmlInit(self) -> None:
        if self.init:
            raise pynvml.NVMLError(self.init)

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.133.20"

    def nvmlSystemGetNVMLVersion(self) -> str:
        return "12.570.133.20"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12080

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        device = self.devices[index]
        if device.get("lost"):
            raise pynvml.NVMLError(LOST)
        return device

    def nvmlDeviceGetMemoryInfo(self, handle: dict[str, Any], version: int | None = None) -> Any:
        return _answer(handle, "MemoryInfo" if version is None else "MemoryInfo_v2")

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: dict[str, Any], at: int) -> Any:
        parts = handle.get("migs", {})
        if at not in parts:
            raise pynvml.NVMLError(6)
        return parts[at]


def _failing(code: int) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise pynvml.NVMLError(code)

    return fail


def _answer(handle: dict[str, Any], key: str) -> Any:
    found = handle.get(key)
    if isinstance(found, Exception):
        raise found
    if found is None:
        raise pynvml.NVMLError(3)
    return found


def a_gpu(at: int = 0, **more: Any) -> dict[str, Any]:
    total, reserved, used = 85_520_809_984, 503_316_480, 0
    memory = SimpleNamespace(total=total, reserved=reserved, used=used)
    return {
        "UUID": f"GPU-{at}",
        "Name": "NVIDIA H100 80GB HBM3",
        "Serial": f"165{at}",
        "PciInfo": SimpleNamespace(
            busId=f"00000000:{0x1B + at:02X}:00.0",
            pciDeviceId=0x233010DE,
            pciSubSystemId=0x16C110DE,
        ),
        "MemoryInfo_v2": memory,
        "UtilizationRates": SimpleNamespace(gpu=12, memory=3),
        "PowerUsage": 68_180,
        "EnforcedPowerLimit": 700_000,
        "Temperature": 29,
        "TotalEnergyConsumption": 1_234_567,
        "ClockInfo": 1980,
        "ComputeRunningProcesses": [],
        "MigMode": [0, 0],
    } | more
