"""gpustack's `detect` and `topology`: one shape over many vendors, T-Head among them.

Its sizes are MiB by its own definition, its power watts.
"""

from __future__ import annotations

from typing import Any, Final

from quintal_agent.probes import captured, values
from quintal_agent.probes.captured import refused
from quintal_agent.probes.probe import Device, Health, Link, Observation, Part, Value

_VENDORS: Final = {"ascend": "huawei"}
_READINGS: Final = {
    "utilization_percent": ("cores_utilization", ""),
    "memory_used_bytes": ("memory_used", "MiB"),
    "memory_used_percent": ("memory_utilization", ""),
    "temperature_celsius": ("temperature", ""),
    "power_watts": ("power_used", ""),
    "power_limit_watts": ("power", ""),
}


def recognises(data: bytes) -> bool:
    """Whether its makers' key is there."""
    return '"manufacturer"' in captured.head(data)


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where it is no list."""
    said = captured.text(data)
    root = captured.json_in(said)
    entries = [entry for entry in root if isinstance(entry, dict)] if isinstance(root, list) else []
    if not entries:
        return refused("", "gpustack-runtime", "gpustack-runtime: an empty list", said)
    maker = str(entries[0].get("manufacturer"))
    vendor = _VENDORS.get(maker, maker)
    if "devices_distances" in entries[0]:
        return _topology(vendor, entries)
    devices = [_device(entry, place, vendor) for place, entry in enumerate(entries)]
    driver = captured.known(entries[0].get("driver_version"))
    runtime = captured.known(entries[0].get("runtime_version_original"))
    return captured.observed(
        vendor,
        "gpustack-runtime detect",
        devices,
        drivers={vendor: driver} if driver else {},
        runtimes={_RUNTIME.get(vendor, vendor): runtime} if runtime else {},
    )


_RUNTIME: Final = {"nvidia": "cuda", "amd": "rocm", "huawei": "cann", "metax": "maca"}


def _device(entry: dict[str, Any], place: int, vendor: str) -> Device:
    more = entry.get("appendix")
    more = more if isinstance(more, dict) else {}
    index = captured.whole(entry.get("index"))
    index = place if index is None else index
    at = captured.address(more.get("bdf"))
    memory = entry.get("memory")
    status = str(entry.get("memory_status") or "")
    health: tuple[Health, str] = ("ok", "")
    if status and status != "healthy":
        health = ("degraded", f"memory: {status}")
    readings: dict[str, Value] = {
        name: values.read_json(name, entry[key], unit)
        for name, (key, unit) in _READINGS.items()
        if key in entry
    }
    return Device(
        uuid=captured.identity(uuid=entry.get("uuid"), at=at, index=index),
        index=index,
        vendor=captured.known(
            _VENDORS.get(str(entry.get("manufacturer")), entry.get("manufacturer"))
        )
        or vendor,
        name=captured.known(entry.get("name")) or "",
        memory_bytes=values.size(None if memory is None else str(memory), "MiB"),
        pci_address=at,
        numa_node=captured.whole(more.get("numa")),
        cores=captured.whole(entry.get("cores")),
        architecture=captured.known(more.get("arch_family"))
        or captured.known(entry.get("compute_capability")),
        health=health[0],
        health_reason=health[1],
        readings=readings,
    )


def _topology(vendor: str, entries: list[dict[str, Any]]) -> Observation:
    """Distances between devices that have no other name here than their place.

    Two places without a distance are parts of one device.
    """
    devices: list[Device] = []
    links: list[Link] = []
    for entry in entries:
        rows = [row for row in entry.get("devices_distances") or [] if isinstance(row, list)]
        nodes = entry.get("devices_numa_affinities")
        nodes = nodes if isinstance(nodes, list) else []
        whole: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            same = [other for other in whole if other < len(row) and row[other] == 0]
            whole.setdefault(same[0] if same else place, []).append(place)
        for place, parts in whole.items():
            node = captured.whole(nodes[place]) if place < len(nodes) else None
            uuid = captured.identity(index=place)
            told = [Part(f"{uuid}/{n}", index=n) for n in parts] if len(parts) > 1 else []
            device = Device(uuid, place, vendor, "", numa_node=node, partitions=tuple(told))
            devices.append(device)
            links.extend(
                Link(f"{place}", f"{other}", f"distance {rows[place][other]}")
                for other in whole
                if other != place and other < len(rows[place])
            )
    return captured.observed(vendor, "gpustack-runtime topology", devices, links=links)
