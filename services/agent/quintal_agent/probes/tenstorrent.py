"""`tt-smi -s`: Tenstorrent's snapshot. Numbers are texts with blanks before them.

An n300 has two chips under one board id, the right one without a bus id: two devices, one board.
An empty list is a tool that works and a machine without a device.
"""

from __future__ import annotations

from typing import Any, Final

from quintal_agent.probes import captured, tool, values
from quintal_agent.probes.probe import Device, Observation

_READINGS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "power_watts": (("power", ""), ("power_consumption", "")),
    "temperature_celsius": (("asic_temperature", ""), ("temperature", "")),
    "sm_clock_hertz": (("aiclk", "MHz"),),
}


def recognises(data: bytes) -> bool:
    """Whether its list of devices is there."""
    said = captured.text(data)
    return '"device_info"' in said[:65_536]


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where there is no such list."""
    root = captured.json_in(captured.text(data))
    if not isinstance(root, dict) or not isinstance(root.get("device_info"), list):
        raise ValueError("no list of devices")  # noqa: TRY004 - what is wrong is the text
    entries = [entry for entry in root["device_info"] if isinstance(entry, dict)]
    devices = [_device(entry, index) for index, entry in enumerate(entries)]
    host = root.get("host_info")
    driver = captured.known(host.get("Driver")) if isinstance(host, dict) else None
    return captured.observed(
        "tenstorrent",
        "tt-smi -s",
        devices,
        drivers={"tenstorrent": driver} if driver else {},
    )


def _part(entry: dict[str, Any], name: str) -> dict[str, Any]:
    found = entry.get(name)
    return found if isinstance(found, dict) else {}


def _device(entry: dict[str, Any], index: int) -> Device:
    board = _part(entry, "board_info")
    telemetry = _part(entry, "telemetry")
    at = captured.address(board.get("bus_id"))
    serial = captured.known(board.get("board_id"))
    name = captured.known(board.get("board_type")) or ""
    limit = _part(entry, "limits")
    readings = {}
    for reading, keys in _READINGS.items():
        found = [(telemetry[key], unit) for key, unit in keys if key in telemetry]
        if found:
            readings[reading] = values.read_json(reading, *found[0])
    told = limit.get("tdp_limit", limit.get("max_power"))
    if told is not None:
        readings["power_limit_watts"] = values.read_json("power_limit_watts", told)
    trained = board.get("dram_status")
    return Device(
        uuid=captured.identity(
            at=at, serial=serial, die=None if at else name.rpartition(" ")[2], index=index
        ),
        index=index,
        vendor="tenstorrent",
        name=name,
        pci_address=at,
        serial=serial,
        health="failed" if trained is False else "ok",
        health_reason="memory did not train" if trained is False else "",
        readings=readings,
    )


live = tool.probe("tenstorrent", parse, ("tt-smi", "-s", "--snapshot_no_tty"))
