"""Intel: `xpu-smi` (discovery, stats, dump) and `intel_gpu_top -J`.

Only the metrics that a device has are printed: one that is absent is unsupported. The UUID is
made of the PCI address, so it moves with the slot: the address is the identity. `device_id` is
neither the order of the cards nor their DRM number.
"""

from __future__ import annotations

import csv
import re
from typing import Any, Final

from quintal_agent.probes import captured, values
from quintal_agent.probes.captured import refused
from quintal_agent.probes.probe import Device, Observation, Value

_METRICS: Final = {
    "XPUM_STATS_GPU_UTILIZATION": ("utilization_percent", ""),
    "XPUM_STATS_POWER": ("power_watts", ""),
    "XPUM_STATS_ENERGY": ("energy_joules", ""),
    "XPUM_STATS_GPU_CORE_TEMPERATURE": ("temperature_celsius", ""),
    "XPUM_STATS_MEMORY_TEMPERATURE": ("memory_temperature_celsius", ""),
    "XPUM_STATS_MEMORY_USED": ("memory_used_bytes", "MiB"),
    "XPUM_STATS_MEMORY_UTILIZATION": ("memory_used_percent", ""),
    "XPUM_STATS_GPU_FREQUENCY": ("sm_clock_hertz", "MHz"),
}
_DUMP: Final = {
    "GPU Utilization (%)": ("utilization_percent", ""),
    "GPU Power (W)": ("power_watts", ""),
    "GPU Frequency (MHz)": ("sm_clock_hertz", "MHz"),
    "GPU Core Temperature (Celsius Degree)": ("temperature_celsius", ""),
    "GPU Memory Temperature (Celsius Degree)": ("memory_temperature_celsius", ""),
    "GPU Memory Utilization (%)": ("memory_used_percent", ""),
    "GPU Memory Used (MiB)": ("memory_used_bytes", "MiB"),
    "GPU Energy Consumed (J)": ("energy_joules", ""),
}


def recognises(data: bytes) -> bool:
    """Whether Intel's tools printed it: Kunlunxin's tool of the same name prints a table."""
    said = captured.head(data)
    return (
        ('"device_list"' in said and ("Intel" in said or '"pci_bdf_address"' in said))
        or "XPUM_STATS_" in said
        or ('"rc6"' in said and '"engines"' in said)
        or re.search(r"^Timestamp, *DeviceId,", said, re.MULTILINE) is not None
        or re.search(r"XPU-SMI|xpu-smi v?2", said) is not None
    )


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where it is none of the forms."""
    said = captured.text(data)
    if re.search(r"^Timestamp, *DeviceId,", said, re.MULTILINE):
        return _dump(said)
    if not re.search(r"^\s*[\[{]", said, re.MULTILINE):
        why = "xpu-smi's table: its JSON is read instead"
        return refused("intel", "xpu-smi", why, said)
    root = captured.json_in(said)
    if isinstance(root, dict) and isinstance(root.get("device_list"), list):
        devices = [
            _found(entry, place)
            for place, entry in enumerate(root["device_list"])
            if isinstance(entry, dict)
        ]
        return captured.observed("intel", "xpu-smi discovery", devices)
    if isinstance(root, dict) and "device_level" in root:
        return captured.observed("intel", "xpu-smi stats", [_stats(root)])
    if isinstance(root, dict):
        root = [root]
    samples = [entry for entry in root if isinstance(entry, dict)]
    if samples and "engines" in samples[-1]:
        return captured.observed("intel", "intel_gpu_top", [_top(samples[-1])])
    return refused("intel", "xpu-smi", "xpu-smi: JSON of a shape nobody knows", said)


def _found(entry: dict[str, Any], place: int) -> Device:
    index = captured.whole(entry.get("device_id"))
    index = place if index is None else index
    at = captured.address(entry.get("pci_bdf_address"))
    device = re.fullmatch(r"0x([0-9a-fA-F]{1,4})", str(entry.get("pci_device_id")))
    memory = entry.get("memory_physical_size_byte")
    return Device(
        uuid=captured.identity(
            at=at, serial=captured.known(entry.get("serial_number")), index=index
        ),
        index=index,
        vendor="intel",
        name=captured.known(entry.get("device_name")) or "",
        memory_bytes=values.size(None if memory is None else str(memory)),
        pci_address=at,
        pci_id=f"8086:{device[1].lower():0>4}" if device else None,
        serial=captured.known(entry.get("serial_number")),
    )


def _stats(root: dict[str, Any]) -> Device:
    index = captured.whole(root.get("device_id")) or 0
    readings: dict[str, Value] = {}
    listed = root.get("device_level")
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and str(entry.get("metrics_type")) in _METRICS:
            name, unit = _METRICS[str(entry["metrics_type"])]
            readings[name] = values.read_json(name, entry.get("value"), unit)
    return Device(captured.identity(index=index), index, "intel", "", readings=readings)


def _dump(said: str) -> Observation:
    """CSV with blanks after its commas: the last row of each device is the newest."""
    lines = said.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("Timestamp"))
    rows: dict[int, dict[str, str]] = {}
    names = [cell.strip() for cell in lines[start].split(",")]
    for cells in csv.reader(lines[start + 1 :], skipinitialspace=True):
        row = dict(zip(names, (cell.strip() for cell in cells), strict=False))
        index = captured.whole(row.get("DeviceId"))
        if index is not None:
            rows[index] = row
    devices = [
        Device(
            captured.identity(index=index),
            index,
            "intel",
            "",
            readings={
                name: _dumped(name, row[head], unit)
                for head, (name, unit) in _DUMP.items()
                if head in row
            },
        )
        for index, row in rows.items()
    ]
    return captured.observed("intel", "xpu-smi dump", devices)


def _dumped(name: str, cell: str, unit: str) -> Value:
    """`N/A` is what the first sample has, and what one without the rights gets: never 0."""
    value = values.read(name, cell, unit)
    if value.quality == "unsupported":
        return Value(quality="unavailable", raw=cell)
    return value


def _top(sample: dict[str, Any]) -> Device:
    engines = sample.get("engines")
    busy = [
        engine.get("busy")
        for name, engine in (engines.items() if isinstance(engines, dict) else ())
        if isinstance(engine, dict) and name.startswith(("Render", "Compute"))
    ]
    power = sample.get("power")
    clock = sample.get("frequency")
    readings = {
        "utilization_percent": values.read_json("utilization_percent", busy[0] if busy else None),
        "power_watts": values.read_json(
            "power_watts", power.get("GPU") if isinstance(power, dict) else None
        ),
        "sm_clock_hertz": values.read_json(
            "sm_clock_hertz", clock.get("actual") if isinstance(clock, dict) else None, "MHz"
        ),
    }
    return Device(captured.identity(), 0, "intel", "", readings=readings)
