"""What `nvidia-smi` prints without `-x`: `-q`, lists, link states, versions.

`-q` holds the same tree as `-q -x` under longer names, so it is made into that tree and read by
the same reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from xml.etree.ElementTree import Element, SubElement

from quintal_agent.probes import captured, nvidia_xml
from quintal_agent.probes.captured import refused
from quintal_agent.probes.probe import Device, Link, Observation, Part, Trouble

_LISTED: Final = re.compile(r"^GPU (\d+): (.+?) \(UUID: ([^)\s]+)\)", re.MULTILINE)
_MIG: Final = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: ([^)\s]+)\)")
_LINK: Final = re.compile(r"^\s+Link (\d+): (.+?)\s*$")
_GPU: Final = re.compile(r"^GPU ([0-9A-Fa-f:.]+)\s*$")
_NOTE: Final = re.compile(r"\s*\[.*$")

_TAGS: Final = {
    "gpu_uuid": "uuid",
    "serial_number": "serial",
    "pci/bus_id": "pci_bus_id",
    "pci/device_id": "pci_device_id",
    "pci/sub_system_id": "pci_sub_system_id",
    "utilization/gpu": "gpu_util",
    "utilization/memory": "memory_util",
    "clocks/sm": "sm_clock",
    "clocks/memory": "mem_clock",
    "gpu_current_temp": "gpu_temp",
    "memory_current_temp": "memory_temp",
    "instantaneous_power_draw": "instant_power_draw",
    "shared_fb_memory_usage": "fb_memory_usage",
}
"""The text's names, alone or under their parent, where the XML has another."""


def recognises(data: bytes) -> bool:
    """Whether one of these forms is there."""
    said = captured.head(data)
    if "<nvidia_smi_log" in said:
        return False
    return (
        "NVSMI LOG" in said
        or "NVIDIA-SMI version" in said
        or '--query-gpu"' in said
        or _LISTED.search(said) is not None
    )


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where it is none of the forms."""
    said = captured.text(data)
    if "NVSMI LOG" in said:
        return _query(said)
    if "NVIDIA-SMI version" in said:
        return _versions(said)
    if '--query-gpu"' in said:
        why = "nvidia-smi's list of the fields that may be asked: it says nothing of a device"
        return refused("nvidia", "nvidia-smi --help-query-gpu", why, said)
    return _listed(said)


def _versions(said: str) -> Observation:
    found = {key.casefold(): value for _, key, value in captured.pairs(said)}
    driver = found.get("kmd version") or found.get("driver version", "")
    cuda = found.get("cuda umd version") or found.get("cuda version", "")
    return captured.observed(
        "nvidia",
        "nvidia-smi --version",
        drivers={"nvidia": driver} if driver else {},
        runtimes={"cuda": cuda} if cuda else {},
    )


def _listed(said: str) -> Observation:
    """`-L` and `nvlink -s`: a line per device, and lines that belong to it."""
    devices: list[Device] = []
    links: list[Link] = []
    troubles: list[Trouble] = []
    heads = list(_LISTED.finditer(said))
    for number, head in enumerate(heads):
        end = heads[number + 1].start() if number + 1 < len(heads) else len(said)
        index, uuid = int(head[1][:9]), captured.identity(uuid=head[3], index=int(head[1][:9]))
        parts = []
        for line in said[head.end() : end].splitlines():
            if mig := _MIG.match(line):
                profile, place, name = mig.groups()
                parts.append(Part(name, profile, index=int(place[:9])))
            elif link := _LINK.match(line):
                links.append(Link(f"GPU{index}", f"link {link[1]}", link[2].strip("<>")))
            elif line.strip():
                troubles.append(Trouble("nvlink", line.strip(), uuid))
        devices.append(Device(uuid, index, "nvidia", head[2].strip(), partitions=tuple(parts)))
    tool = "nvidia-smi nvlink -s" if links or troubles else "nvidia-smi -L"
    return captured.observed("nvidia", tool, devices, troubles=troubles, links=links)


def _query(said: str) -> Observation:
    drivers: dict[str, str] = {}
    runtimes: dict[str, str] = {}
    attached = 0
    sections: list[Element] = []
    stack: list[tuple[int, Element]] = []
    for line in said.splitlines():
        head = _GPU.match(line)
        if head is not None:
            sections.append(Element("gpu", {"id": head[1]}))
            stack = [(0, sections[-1])]
        elif stack:
            _hang(stack, line)
        else:
            key, _, value = line.partition(":")
            word = _NOTE.sub("", value).strip()
            match key.strip():
                case "Driver Version" | "KMD Version" if captured.known(word):
                    drivers["nvidia"] = word
                case "CUDA Version" | "CUDA UMD Version" if captured.known(word):
                    runtimes["cuda"] = word
                case "Attached GPUs":
                    attached = captured.whole(word) or 0
                case _:
                    pass
    troubles = []
    if attached > len(sections):
        words = f"the driver counts {attached} devices, {attached - len(sections)} are not shown"
        troubles.append(Trouble("not_reported", words))
    devices = nvidia_xml.devices_of(sections)
    troubles.extend(nvidia_xml.lost_of(devices))
    return captured.observed(
        "nvidia", "nvidia-smi -q", devices, troubles=troubles, drivers=drivers, runtimes=runtimes
    )


def _hang(stack: list[tuple[int, Element]], line: str) -> None:
    """The line as an element, under the one that it is indented below."""
    key, _, value = line.partition(" :")
    name = re.sub(r"[^a-z0-9]+", "_", key.strip().casefold()).strip("_")
    if not name:
        return
    depth = len(line) - len(line.lstrip())
    while len(stack) > 1 and stack[-1][0] >= depth:
        stack.pop()
    parent = stack[-1][1]
    if name == "mig_device":
        holder = parent.find("mig_devices")
        parent = SubElement(parent, "mig_devices") if holder is None else holder
    tag = _TAGS.get(f"{parent.tag}/{name}") or _TAGS.get(name, name)
    element = SubElement(parent, tag)
    element.text = value.strip()
    stack.append((depth, element))


def lines_of(said: str) -> Iterator[str]:
    """The lines that are no legend."""
    for line in said.splitlines():
        if line.strip() in {"Legend:", "NIC Legend:"}:
            return
        yield line
