"""How a node's devices lie to one another, to its network and to other nodes: pure.

Islands come from the links that a vendor's library or tool shows, distance on the bus from the
PCI bridges above each device, the nearest network interfaces from both. What nobody could tell is
none, not "flat": a virtual machine puts every device on one bus, and that says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from quintal.contracts.nodes import BusGroup, FabricDomain, Island, NearNics, Topology
from quintal_agent.probes.probe import Device, Link, Network, Observation

Bridges = Mapping[str, tuple[str, ...]]
"""PCI address -> the bridges above it, from the host's down."""

Distance = Literal["switch", "bridge", "numa"]

_ORDER: Final[tuple[Distance, ...]] = ("switch", "bridge", "numa")
_UUID_MAX: Final = 256
_TEXT_MAX: Final = 128

_KINDS: Final = (
    (re.compile(r"^NV(\d{1,3})S$"), "nvswitch"),
    (re.compile(r"^NV(\d{1,3})$"), "nvlink"),
    (re.compile(r"^(?:.*: )?XGMI$", re.IGNORECASE), "xgmi"),
    (re.compile(r"^(?:HCCS(?:_SW)?|SIO)$"), "hccs"),
    (re.compile(r"^(?:XL(\d{1,3})|XL\*|MDF)$"), "xelink"),
)
"""The vendors' names of links that are no PCIe -> ours. `NV18S` is our probe's own: 18 links to
a switch."""

_NUMBERED: Final = re.compile(r"^(?:GPU|NPU) ?(\d{1,6})(?:/\d{1,6})?$")


def topology(
    observations: Iterable[Observation], devices: Sequence[Device], bridges: Bridges
) -> Topology:
    """The node's. `devices` are those of the inventory, under their final identities."""
    seen = tuple(observations)
    listed = [d for d in devices if d.vendor != "cpu" and len(d.uuid) <= _UUID_MAX]
    above = {d.uuid: bridges.get(d.pci_address or "", ()) for d in listed}
    networks = next((o.host.networks for o in seen if o.host is not None), ())
    told = any(o.links_told or o.links for o in seen)
    return Topology(
        islands=_islands(seen, listed) if told else None,
        bus=_bus(above),
        nics=_nics(listed, above, networks),
        fabrics=_fabrics(listed),
    )


# --- islands --------------------------------------------------------------------------------------


def _islands(observations: Iterable[Observation], devices: Sequence[Device]) -> tuple[Island, ...]:
    found: list[Island] = []
    for observation in observations:
        known = _names(observation.vendor, devices)
        pairs: dict[str, dict[frozenset[str], str]] = {}
        for link in observation.links:
            kind, ends = kind_of(link), frozenset({known.get(link.a), known.get(link.b)} - {None})
            if kind is not None and len(ends) == 2:  # noqa: PLR2004 - a link has two ends
                pairs.setdefault(kind, {})[ends] = link.kind  # type: ignore[index]
        for kind, linked in sorted(pairs.items()):
            found += _joined(kind, linked, [d.uuid for d in devices])
    return tuple(found)


def kind_of(link: Link) -> str | None:
    """Our word for what the link is; none where it is PCIe or further."""
    return next((kind for form, kind in _KINDS if form.match(link.kind)), None)


def _names(vendor: str, devices: Iterable[Device]) -> dict[str, str]:
    """By what a link may name a device -> its identity."""
    found: dict[str, str] = {}
    for device in devices:
        if device.vendor != vendor:
            continue
        found[device.uuid] = device.uuid
        if device.pci_address:
            found[device.pci_address] = device.uuid
        for form in ("GPU{}", "NPU{}", "GPU {}", "GPU {}/0"):
            found.setdefault(form.format(device.index), device.uuid)
    return found


def _joined(kind: str, linked: Mapping[frozenset[str], str], order: Sequence[str]) -> list[Island]:
    """Devices that reach one another, in the order of the inventory."""
    left = [uuid for uuid in order if any(uuid in ends for ends in linked)]
    found: list[Island] = []
    while left:
        island = {left[0]}
        while more := {u for ends in linked if ends & island for u in ends} - island:
            island |= more
        members = tuple(uuid for uuid in order if uuid in island)
        left = [uuid for uuid in left if uuid not in island]
        grades = [grade for ends, grade in linked.items() if ends <= island]
        full = len(grades) == len(members) * (len(members) - 1) // 2
        found.append(
            Island(kind=kind, bandwidth=_least(grades) if full else "", full=full, devices=members)
        )
    return found


def _least(grades: Sequence[str]) -> str:
    """The lowest of the vendor's grades; empty where they are not of one sort."""
    numbers = {grade: re.search(r"(\d+)", grade) for grade in grades}
    if all(numbers.values()):
        least = min(grades, key=lambda grade: int(numbers[grade][1]))  # type: ignore[index]
        return least.removesuffix("S")[:_TEXT_MAX]
    plain = {grade.rpartition(": ")[2] for grade in grades}
    return plain.pop()[:_TEXT_MAX] if len(plain) == 1 else ""


# --- the bus --------------------------------------------------------------------------------------


def distance(one: Sequence[str], other: Sequence[str]) -> Distance | None:
    """How near two places on the bus are; none where the bus does not tell, or they are far."""
    if not _tells(one) or not _tells(other) or one[0] != other[0]:
        return None
    return "switch" if one[1] == other[1] else "bridge"


def _tells(bridges: Sequence[str]) -> bool:
    """A device directly on the host's bus is a virtual machine's: its place is made up."""
    return len(bridges) > 1


def _bus(above: Bridges) -> tuple[BusGroup, ...] | None:
    if not any(map(_tells, above.values())):
        return None
    groups: dict[tuple[Literal["switch", "bridge"], str], list[str]] = {}
    for uuid, bridges in above.items():
        if _tells(bridges):
            groups.setdefault(("switch", bridges[1]), []).append(uuid)
            groups.setdefault(("bridge", bridges[0]), []).append(uuid)
    return tuple(
        BusGroup(kind=kind, name=name[:_TEXT_MAX], devices=tuple(uuids))
        for (kind, name), uuids in sorted(groups.items())
        if len(uuids) > 1
    )


# --- network interfaces ---------------------------------------------------------------------------


def _nics(
    devices: Sequence[Device], above: Bridges, networks: Sequence[Network]
) -> tuple[NearNics, ...] | None:
    """Those that can RDMA, where any can: a cluster's traffic does not go over the others."""
    able = [network for network in networks if network.rdma] or [
        network for network in networks if network.pci_address
    ]
    known = [d for d in devices if d.numa_node is not None or _tells(above[d.uuid])]
    if not known or not any(n.numa_node is not None or _tells(n.bridges) for n in able):
        return None
    groups: dict[tuple[Distance, tuple[str, ...]], list[str]] = {}
    for device in known:
        far = {network.name: _to_nic(device, above[device.uuid], network) for network in able}
        before: tuple[str, ...] = ()
        for place, how in enumerate(_ORDER):
            names = tuple(sorted(n for n, d in far.items() if d in _ORDER[: place + 1]))[:64]
            if names != before:
                groups.setdefault((how, names), []).append(device.uuid)
            before = names
    return tuple(
        NearNics(distance=how, nics=names, devices=tuple(uuids))
        for (how, names), uuids in sorted(groups.items(), key=lambda g: (_ORDER.index(g[0][0]), g))
    )


def _to_nic(device: Device, bridges: Sequence[str], network: Network) -> Distance | None:
    near = distance(bridges, network.bridges)
    if near is not None:
        return near
    same = device.numa_node is not None and device.numa_node == network.numa_node
    return "numa" if same else None


# --- between nodes --------------------------------------------------------------------------------


def _fabrics(devices: Sequence[Device]) -> tuple[FabricDomain, ...] | None:
    told = [device for device in devices if device.fabric is not None]
    if not told:
        return None
    groups: dict[str, list[str]] = {}
    for device in told:
        if device.fabric:
            groups.setdefault(device.fabric, []).append(device.uuid)
    return tuple(
        FabricDomain(
            kind=fabric.partition(":")[0][:_TEXT_MAX],
            domain=fabric.partition(":")[2][:_TEXT_MAX],
            devices=tuple(uuids),
        )
        for fabric, uuids in sorted(groups.items())
    )
