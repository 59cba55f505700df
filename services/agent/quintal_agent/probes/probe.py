"""What every probe gives back: plain values that fit through a pipe.

Dataclasses and not the wire's models, because a probe runs in a child process of its own, and a
child that loads no pydantic costs a fifth of the memory.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, Protocol

Quality = Literal[
    "ok", "unsupported", "unavailable", "stale", "out_of_range", "implausible", "clock"
]
"""The wire's qualities by their text; a test holds the two lists against each other."""

Health = Literal["ok", "degraded", "failed", "unknown"]

PCI_IDENTITY: Final = "pci-"
"""Begins the identity of a device whose vendor gives it none; the node's name is put in later."""


@dataclass(frozen=True, slots=True)
class Value:
    """A number or none, and how far it can be trusted."""

    value: float | int | None = None
    quality: Quality = "ok"
    raw: str | None = None
    derived: bool = False
    source: str = ""
    """Where it comes from, where that is not the observation's tool."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a device that the tool shows as a device of its own."""

    uuid: str
    profile: str = ""
    memory_bytes: int | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A process that the tool shows on a device; a name or size that it does not show is none."""

    pid: int
    name: str = ""
    memory_bytes: int | None = None
    part: str = ""
    """The partition that it runs in, as the tool names it."""


@dataclass(frozen=True, slots=True)
class Link:
    """How two devices, or a device and a network card, reach one another; both as printed."""

    a: str
    b: str
    kind: str


@dataclass(frozen=True, slots=True)
class Device:
    """One device as its tool names it, with its readings."""

    uuid: str
    index: int
    vendor: str
    name: str
    memory_bytes: int | None = None
    memory_kind: Literal["device", "unified", "host"] = "device"
    pci_address: str | None = None
    pci_id: str | None = None
    pci_subsystem: str | None = None
    serial: str | None = None
    numa_node: int | None = None
    fabric: str | None = None
    """`kind:domain` of a network domain between nodes; empty where it is told to be in none."""
    cores: int | None = None
    architecture: str | None = None
    health: Health = "ok"
    health_reason: str = ""
    busy_bytes: int | None = None
    """Memory that some process holds; whose it is, the lease set says."""
    process_count: int | None = None
    """How many processes use it; none where the tool does not tell."""
    partitions: tuple[Part, ...] = ()
    processes: tuple[Process, ...] = ()
    readings: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that a probe could not do; `code` is stable, `message` is for people."""

    code: str
    message: str
    device: str = ""
    raw: str = ""
    """The tool's own text, where it could not be understood."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a device once, as its vendor numbers it (Xid, RAS)."""

    code: str
    """`xid:79`, `ras:uncorrectable`: the vendor's kind of event and its number or name."""
    device: str
    """The device's uuid or, where the event names only that, its PCI address."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Disk:
    """A mounted file system."""

    mount: str
    filesystem: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Network:
    """A network interface that is up, or an RDMA device without one."""

    name: str
    speed_mbits: int | None = None
    mac: str = ""
    pci_address: str | None = None
    numa_node: int | None = None
    rdma: str | None = None
    bridges: tuple[str, ...] = ()
    """The PCI bridges above it, from the host's down; empty where it lies on no PCI bus."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine around the devices."""

    hostname: str = ""
    cpu_milli: int = 0
    memory_bytes: int = 0
    os: str = ""
    kernel: str = ""
    architecture: str = ""
    container_runtime: str = ""
    disks: tuple[Disk, ...] = ()
    networks: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """All that one look of one probe saw."""

    vendor: str
    tool: str
    devices: tuple[Device, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    drivers: dict[str, str] = field(default_factory=dict)
    runtimes: dict[str, str] = field(default_factory=dict)
    firmware: dict[str, str] = field(default_factory=dict)
    host: Host | None = None
    events: tuple[Event, ...] = ()
    """What happened since the look before."""
    links: tuple[Link, ...] = ()
    links_told: bool = False
    """Whether the links, or that there are none, are all there is; else nobody was asked."""
    idle: bool = False
    """Nothing here to look at: end the child, and start a fresh one after a while. A fresh one
    loads the vendor's library anew, which is what a driver that came later needs."""


def sleeping(device: Device) -> Device:
    """The device as it was last seen, asleep: nobody asked it anything, which would wake it."""
    silent = {name: Value(quality="unavailable", raw="asleep") for name in device.readings}
    return replace(
        device, health="ok", health_reason="asleep", readings=silent, busy_bytes=None,
        process_count=None, processes=(),
    )  # fmt: skip


class Probe(Protocol):
    """One vendor's way to look. May block; runs in a child process that can be abandoned."""

    def observe(self) -> Observation:
        """Look once. A broken device or field is told in the observation, never raised."""


def encode(observation: Observation) -> bytes:
    """One line of JSON."""
    return json.dumps(asdict(observation), separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Observation:
    """The observation of one line. Raises ValueError where it is none."""
    try:
        body: dict[str, Any] = json.loads(line)
        host = body.pop("host")
        return Observation(
            vendor=body["vendor"],
            tool=body["tool"],
            devices=tuple(_device(device) for device in body["devices"]),
            troubles=tuple(Trouble(**trouble) for trouble in body["troubles"]),
            drivers=body["drivers"],
            runtimes=body["runtimes"],
            firmware=body["firmware"],
            links=tuple(Link(**link) for link in body.get("links", ())),
            links_told=body.get("links_told", False),
            host=_host(host) if host else None,
            events=tuple(Event(**event) for event in body["events"]),
            idle=body["idle"],
        )
    except (TypeError, KeyError, AttributeError) as exc:
        raise ValueError("a probe's line that is no observation") from exc


def _device(body: dict[str, Any]) -> Device:
    parts = tuple(Part(**part) for part in body.pop("partitions"))
    processes = tuple(Process(**process) for process in body.pop("processes", ()))
    readings = {name: Value(**value) for name, value in body.pop("readings").items()}
    return Device(**body, partitions=parts, processes=processes, readings=readings)


def _host(body: dict[str, Any]) -> Host:
    disks = tuple(Disk(**disk) for disk in body.pop("disks"))
    networks = tuple(
        Network(**(network | {"bridges": tuple(network.get("bridges", ()))}))
        for network in body.pop("networks")
    )
    return Host(**body, disks=disks, networks=networks)
