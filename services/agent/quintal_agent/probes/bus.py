"""What says which devices a machine has, and nothing of how they are: lspci, hwloc, trees of /sys.

A display of a board's management controller is no accelerator, whatever vendor id it bears.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from quintal_agent.probes import captured
from quintal_agent.probes.captured import refused
from quintal_agent.probes.pci import NEURON, VENDORS
from quintal_agent.probes.probe import Device, Link, Observation, Trouble

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_LSPCI: Final = re.compile(
    r"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([^\n]*?) \[([0-9a-f]{4})\]: "
    r"([^\n]*?) \[([0-9a-f]{4}):([0-9a-f]{4})\](?: \(rev \w+\))?",
    re.MULTILINE,
)
_MODEL: Final = re.compile(r"\[([^\]]+)\]\s*$")
_DISPLAY: Final = "03"
_MEMBERS_MAX: Final = 50_000
_MEMBER_BYTES_MAX: Final = 64 * 1024
_TAR_BYTES_MAX: Final = 128 * 2**20
_MAGIC: Final = (b"BZh", b"\x1f\x8b", b"\xfd7zXZ")


def recognises(data: bytes) -> bool:
    """Whether it is one of them."""
    if data.startswith(_MAGIC) or data[257:262] == b"ustar":
        return True
    said = captured.head(data)
    return _LSPCI.search(said) is not None or "<topology" in said[:2_000]


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where it can not be read."""
    if data.startswith(_MAGIC) or data[257:262] == b"ustar":
        return _tree(data)
    said = captured.text(data)
    if "<topology" in said[:2_000]:
        return _hwloc(data)
    return _lspci(said)


def vendor_of(vendor_id: str, device_id: str, class_code: str) -> str | None:
    """Whose accelerator such a function is; none where it is not one."""
    if vendor_id == "1d0f":
        return "aws" if device_id in NEURON else None
    for name, (own, classes) in VENDORS.items():
        if own == vendor_id and class_code in classes:
            return "intel" if name == "gaudi" else name
    return None


def _lspci(said: str) -> Observation:
    devices: list[Device] = []
    troubles: list[Trouble] = []
    for found in _LSPCI.finditer(said):
        at = captured.address(found[1])
        vendor = vendor_of(found[5], found[6], found[3])
        if vendor is not None:
            model = _MODEL.search(found[4])
            devices.append(
                Device(
                    captured.identity(at=at, index=len(devices)),
                    len(devices),
                    vendor,
                    model[1] if model else found[4],
                    pci_address=at,
                    pci_id=f"{found[5]}:{found[6]}",
                    health="unknown",
                    health_reason="only the bus was asked",
                )
            )
        elif found[3].startswith(_DISPLAY):
            words = f"{found[4]} is a display, no accelerator"
            troubles.append(Trouble("display_ignored", words, at or ""))
    vendors = {device.vendor for device in devices}
    return captured.observed(
        vendors.pop() if len(vendors) == 1 else "pci", "lspci -nn", devices, troubles=troubles
    )


def _hwloc(data: bytes) -> Observation:
    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import ParseError, fromstring

    try:
        root = fromstring(data, forbid_dtd=False, forbid_entities=True)
    except (ParseError, DefusedXmlException) as exc:
        raise ValueError(f"no readable XML: {exc}") from exc
    devices: list[Device] = []
    for function in root.iter("object"):
        if function.get("type") != "PCIDev":
            continue
        kind = re.match(
            r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", function.get("pci_type", "")
        )
        vendor = vendor_of(kind[2], kind[3], kind[1]) if kind else None
        if kind and vendor:
            devices.append(_described(function, vendor, f"{kind[2]}:{kind[3]}", len(devices)))
    links = [
        Link(first, second, f"{name} {number}") for name, first, second, number in _distances(root)
    ]
    vendors = {device.vendor for device in devices}
    vendor = vendors.pop() if len(vendors) == 1 else "pci"
    return captured.observed(vendor, "lstopo xml", devices, links=links)


def _described(function: Element, vendor: str, pci_id: str, index: int) -> Device:
    told = {
        info.get("name", ""): info.get("value", "")
        for child in function.iter("object")
        if child.get("type") == "OSDev"
        for info in child.iterfind("info")
    }
    at = captured.address(function.get("pci_busid"))
    return Device(
        captured.identity(uuid=told.get("NVIDIAUUID"), at=at, index=index),
        index,
        vendor,
        captured.known(told.get("GPUModel")) or "",
        pci_address=at,
        pci_id=pci_id,
        serial=captured.known(told.get("NVIDIASerial")),
        health="unknown",
        health_reason="only the bus was asked",
    )


def _distances(root: Element) -> Iterator[tuple[str, str, str, str]]:
    for table in root.iter("distances2hetero"):
        names = " ".join((entry.text or "") for entry in table.iterfind("indexes")).split()
        numbers = " ".join((entry.text or "") for entry in table.iterfind("u64values")).split()
        for place, number in enumerate(numbers[: len(names) ** 2]):
            first, second = divmod(place, len(names))
            if first != second and number != "0":
                yield table.get("name", ""), names[first], names[second], number


def _tree(data: bytes) -> Observation:
    """A packed /sys: the functions under bus/pci, or the machine's own name where it has none."""
    files: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:*") as packed:
            read = 0
            for number, member in enumerate(packed):
                read += member.size
                if number > _MEMBERS_MAX or read > _TAR_BYTES_MAX:
                    raise ValueError("a tree that is too large")
                wanted = re.search(
                    r"/(vendor|device|class|numa_node)$|dmi/id/(product_name|sys_vendor)$",
                    member.name,
                )
                if wanted and member.isfile() and member.size < _MEMBER_BYTES_MAX:
                    body = packed.extractfile(member)
                    files[member.name] = (
                        body.read().decode("utf-8", "replace").strip() if body else ""
                    )
    except (tarfile.TarError, OSError, EOFError) as exc:
        raise ValueError(f"no readable archive: {exc}") from exc
    devices = list(_functions(files))
    if not devices:
        name = next((said for path, said in files.items() if path.endswith("product_name")), "")
        why = f"a tree of /sys without an accelerator on its PCI bus ({name or 'no name'})"
        maker = next((said for path, said in files.items() if path.endswith("sys_vendor")), "")
        vendor = "nvidia" if "nvidia" in f"{maker} {name}".casefold() else "pci"
        return refused(vendor, "sysfs", why, "\n".join(sorted(files))[:2_000])
    return captured.observed(devices[0].vendor, "sysfs", devices)


def _functions(files: dict[str, str]) -> Iterator[Device]:
    index = 0
    for path, code in sorted(files.items()):
        folder, _, leaf = path.rpartition("/")
        at = captured.address(folder.rpartition("/")[2])
        if leaf != "class" or at is None:
            continue
        own = [
            files.get(f"{folder}/{name}", "").removeprefix("0x") for name in ("vendor", "device")
        ]
        vendor = vendor_of(own[0], own[1], code.removeprefix("0x")[:4])
        if vendor is not None:
            yield Device(
                captured.identity(at=at, index=index),
                index,
                vendor,
                "",
                pci_address=at,
                pci_id=":".join(own),
                numa_node=captured.whole(files.get(f"{folder}/numa_node")),
                health="unknown",
                health_reason="only the bus was asked",
            )
            index += 1
