"""What `quintal probe` prints: an observation as a stable document. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quintal.contracts.nodes import RawDevice
from quintal_agent.probes.probe import Device, Observation, Value
from quintal_agent.readings import plausible
from quintal_agent.report import raw_device

Resolve = Callable[[RawDevice], str | None]


def document(observation: Observation, resolve: Resolve | None = None) -> dict[str, Any]:
    """The observation for people and programs; `model` is null where nobody can resolve it."""
    body: dict[str, Any] = {
        "vendor": observation.vendor,
        "tool": observation.tool,
        "drivers": dict(observation.drivers),
        "runtimes": dict(observation.runtimes),
        "devices": [_device(device, resolve) for device in observation.devices],
        "problems": [
            {"code": trouble.code, "message": trouble.message}
            | ({"device": trouble.device} if trouble.device else {})
            | ({"raw": trouble.raw} if trouble.raw else {})
            for trouble in observation.troubles
        ],
    }
    if observation.firmware:
        body["firmware"] = dict(observation.firmware)
    if observation.links:
        body["links"] = [{"a": k.a, "b": k.b, "kind": k.kind} for k in observation.links]
    if observation.events:
        body["events"] = [
            {"code": event.code, "device": event.device, "message": event.message}
            for event in observation.events
        ]
    return body


def _device(device: Device, resolve: Resolve | None) -> dict[str, Any]:
    readings = plausible(device.readings)
    return {
        "index": device.index,
        "uuid": device.uuid,
        "name": device.name,
        "model": resolve(raw_device(device)) if resolve else None,
        "memory_bytes": device.memory_bytes,
        "memory_kind": device.memory_kind,
        "health": device.health,
        "health_reason": device.health_reason,
        "architecture": device.architecture,
        "pci_address": device.pci_address,
        "pci_id": device.pci_id,
        "serial": device.serial,
        "partitions": [
            {
                "index": part.index,
                "uuid": part.uuid,
                "profile": part.profile,
                "memory_bytes": part.memory_bytes,
            }
            for part in device.partitions
        ],
        "numa_node": device.numa_node,
        "cores": device.cores,
        "processes": [
            {
                "pid": process.pid,
                "name": process.name,
                "memory_bytes": process.memory_bytes,
                "partition": process.part,
            }
            for process in device.processes
        ],
        "readings": {name: _reading(value) for name, value in sorted(readings.items())},
    }


def _reading(value: Value) -> dict[str, Any]:
    body: dict[str, Any] = {"value": value.value, "quality": value.quality}
    if value.raw is not None:
        body["raw"] = value.raw
    if value.derived:
        body["derived"] = True
    if value.source:
        body["source"] = value.source
    return body
