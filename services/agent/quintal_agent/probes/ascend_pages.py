"""`npu-smi info -t ...` and `-m`: pages of `key : value`, one block per chip; and version files.

On some pages `Chip ID` opens a chip's block, on others it closes it; which, is told by whether
values stand between the page's head and the first `Chip ID`. A block of the board's controller
(`Chip Name : mcu`) is no chip.
"""

from __future__ import annotations

import re
from typing import Final

from quintal_agent.probes import captured, values
from quintal_agent.probes.ascend import health_of
from quintal_agent.probes.captured import refused
from quintal_agent.probes.probe import Device, Health, Observation, Trouble

_READINGS: Final[dict[str, tuple[str, ...]]] = {
    "utilization_percent": ("Aicore Usage Rate(%)", "AICore Usage Rate(%)", "NPU Utilization(%)"),
    "power_watts": ("NPU Real-time Power(W)", "Power Dissipation(W)"),
    "temperature_celsius": ("Temperature(C)", "Temperature (C)"),
    "memory_used_percent": ("HBM Usage Rate(%)", "DDR Usage Rate(%)", "Memory Usage Rate(%)"),
    "sm_clock_hertz": ("Aicore curFreq(MHZ)",),
    "memory_clock_hertz": ("HBM Clock Speed(MHz)", "DDR Clock Speed(MHz)"),
    "ecc_uncorrected_count": ("HBM Double Bit Error Count", "DDR Double Bit Error Count"),
    "ecc_corrected_count": ("HBM Single Bit Error Count", "DDR Single Bit Error Count"),
}
_HEAD: Final = frozenset({"NPU ID", "Chip Count"})
_UNIT: Final = re.compile(r"\((MHZ|MHz)\)$")
_FIRMWARE_RANGE: Final = re.compile(r"\[([\d.]+),([\d.]+)\]")


def recognises(data: bytes) -> bool:
    """Whether it is such a page, a mapping or a version file."""
    said = captured.head(data)
    return (
        re.search(r"^\s*NPU ID\s*:\s*\d", said, re.MULTILINE) is not None
        or ("Chip Logic ID" in said and "NPU ID" in said)
        or re.search(
            r"^(ascendhal_version|compatible_version_fw|Innerversion)=", said, re.MULTILINE
        )
        is not None
        or ("arch=" in said and "Ascend" in said[:4096])
    )


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where it is none of the forms."""
    said = captured.text(data)
    if "=" in said and not re.search(r"^\s*NPU ID", said, re.MULTILINE):
        return _versions(said)
    if "Chip Logic ID" in said:
        return _mapping(said)
    lines = [(key, value) for _, key, value in captured.pairs(said)]
    told = dict(lines)
    if "PCI Vendor ID" in told or "Board ID" in told:
        return _board(told)
    devices: list[Device] = []
    for card, section in _cards(lines):
        for block in _blocks(section):
            devices.append(_device(block, card, len(devices)))
    return captured.observed("huawei", "npu-smi info -t", devices)


def _cards(lines: list[tuple[str, str]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """A page may tell of one card, or of several (`-l`)."""
    found: list[tuple[str, list[tuple[str, str]]]] = []
    for key, value in lines:
        if key == "NPU ID":
            found.append((value, []))
        elif found:
            found[-1][1].append((key, value))
    return found


def _blocks(lines: list[tuple[str, str]]) -> list[dict[str, str]]:
    """The chips' blocks, whichever side of `Chip ID` their values stand on."""
    body = [(key, value) for key, value in lines if key not in _HEAD]
    marks = [place for place, (key, _) in enumerate(body) if key in {"Chip ID", "Chip Name"}]
    if not marks:
        return [dict(body)]
    closes = marks[0] > 0
    blocks = []
    for number, mark in enumerate(marks):
        if closes:
            begin, end = (marks[number - 1] + 1 if number else 0), mark + 1
        else:
            begin, end = mark, marks[number + 1] if number + 1 < len(marks) else len(body)
        block = dict(body[begin:end])
        if "Chip ID" in block and block.get("Chip Name", "").casefold() != "mcu":
            blocks.append(block)
    return blocks


def _device(block: dict[str, str], card: str, place: int) -> Device:
    chip = captured.whole(block.get("Chip ID")) or 0
    high = values.size(block.get("HBM Capacity(MB)"), "MiB")
    readings = {}
    for name, keys in _READINGS.items():
        # Where there is HBM, what is said of the DDR is the control processor's.
        found = [key for key in keys if key in block and not (high and key.startswith("DDR"))]
        if found:
            unit = _UNIT.search(found[0])
            readings[name] = values.read(name, block[found[0]], "MHz" if unit else "")
    health, reason = _health(block)
    return Device(
        captured.identity(serial=f"npu-{card}-{chip}"),
        place,
        "huawei",
        captured.known(block.get("Chip Name") or block.get("Product Name")) or "",
        high or values.size(block.get("DDR Capacity(MB)"), "MiB"),
        cores=captured.whole(block.get("Aicore Count")),
        health=health,
        health_reason=reason,
        readings=readings,
    )


def _health(block: dict[str, str]) -> tuple[Health, str]:
    if "Health" in block:
        return health_of(block["Health"])
    pages = block.get("HBM Double Bit Isolated Pages Count", "0")
    if (captured.whole(pages) or 0) > 0:
        return "degraded", f"{pages} pages isolated"
    return "ok", ""


def _board(told: dict[str, str]) -> Observation:
    """A card's identity; how many chips it has, the chips' own pages say more of."""
    at = captured.address(told.get("PCIe Bus Info"))
    serial = captured.known(told.get("Serial Number")) or captured.known(told.get("VDie ID"))
    digits = [_hex(told.get(f"PCI {word} ID")) for word in ("Vendor", "Device")]
    fault = captured.whole(told.get("Chip Fault"))
    fit = told.get("Compatibility", "OK")
    health: tuple[Health, str] = ("ok", "")
    troubles = []
    if fit.casefold() not in {"ok", "na", ""}:
        words = f"driver and firmware do not fit: {fit}"
        health = ("degraded", words)
        troubles.append(Trouble("driver_mismatch", words))
    if fault:
        health = ("failed", f"chip fault {fault}")
    count = captured.whole(told.get("Chip Count")) or 1
    devices = [
        Device(
            captured.identity(at=at, serial=serial, die=str(chip) if chip else None, index=chip),
            chip,
            "huawei",
            captured.known(told.get("Product Name")) or "",
            pci_address=at,
            pci_id=":".join(d for d in digits if d) if all(digits) else None,
            serial=serial,
            health=health[0],
            health_reason=health[1],
        )
        for chip in range(min(count, 64))
    ]
    versions = {
        "drivers": captured.known(told.get("Software Version")),
        "firmware": captured.known(told.get("Firmware Version")),
    }
    return captured.observed(
        "huawei",
        "npu-smi info -t board",
        devices,
        troubles=troubles,
        drivers={"huawei": versions["drivers"]} if versions["drivers"] else {},
        firmware={"huawei": versions["firmware"]} if versions["firmware"] else {},
    )


def _hex(said: str | None) -> str | None:
    digits = re.fullmatch(r"0x([0-9a-fA-F]{4})", said or "")
    return digits[1].lower() if digits else None


def _mapping(said: str) -> Observation:
    """`-m`: four columns, or five from the 950 on; the controller's rows have no logical id."""
    head: list[str] = []
    devices = []
    for line in said.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if "Chip Logic ID" in cells:
            head = cells
            continue
        row = dict(zip(head, cells, strict=False))
        logical = captured.whole(row.get("Chip Logic ID"))
        if logical is not None and captured.known(row.get("Chip Name", "?")):
            serial = f"npu-{row.get('NPU ID') or row.get('Slot ID')}-{row.get('Chip ID')}"
            name = row.get("Chip Name", "")
            devices.append(Device(captured.identity(serial=serial), logical, "huawei", name))
    return captured.observed("huawei", "npu-smi info -m", devices)


def _versions(said: str) -> Observation:
    """A version file; the driver's names the firmware that it accepts."""
    told = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    version = captured.known(told.get("Version") or told.get("version"))
    if version is None:
        return refused("huawei", "version.info", "a version file without a version", said)
    if "ascendhal_version" in told or "compatible_version_fw" in told:
        accepts = _FIRMWARE_RANGE.search(told.get("compatible_version_fw", ""))
        firmware = {"huawei/accepted": f"{accepts[1]}-{accepts[2]}"} if accepts else {}
        return captured.observed(
            "huawei", "driver/version.info", drivers={"huawei": version}, firmware=firmware
        )
    if "package_name" in told or "arch" in told:
        return captured.observed(
            "huawei", "ascend_toolkit_install.info", runtimes={"cann": version}
        )
    return captured.observed("huawei", "firmware/version.info", firmware={"huawei": version})
