"""The described fleet as values, and what each scripted node shows at a given time. Pure.

Readings depend on node, device and time alone, so that two runs at one instant agree; a device
works hard only while a lease holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import combinations
from typing import Any, Final
from uuid import NAMESPACE_DNS, uuid5

from quintal_agent.probes.probe import Device, Disk, Host, Link, Network, Observation, Value

_MIB: Final = 2**20
_GIB: Final = 2**30
_STEP_MS: Final = 30_000
"""How long one draw of chance lasts before it glides into the next."""

_TOOLS: Final = {
    "nvidia": "nvml",
    "amd": "amdsmi",
    "intel": "hl-smi",
    "huawei": "npu-smi",
    "google": "tpu-info",
    "aws": "neuron-ls",
    "cpu": "psutil",
}


@dataclass(frozen=True, slots=True)
class Described:
    """Devices of one sort in a node."""

    vendor: str
    name: str
    count: int
    memory_bytes: int
    buses: tuple[str, ...]
    pci_id: str | None = None
    pci_subsystem: str | None = None
    architecture: str | None = None
    watts: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Idle, full, limit."""
    clock_hertz: tuple[int, int] = (0, 0)
    lacks: frozenset[str] = frozenset()
    link: str = ""
    """How any two of them are joined, as the vendor's tool grades it; empty: not at all."""


@dataclass(frozen=True, slots=True)
class Node:
    """One described node."""

    name: str
    cluster: str
    location: str
    host: Host
    cpu: str
    labels: tuple[tuple[str, str], ...] = ()
    drivers: dict[str, str] = field(default_factory=dict)
    runtimes: dict[str, str] = field(default_factory=dict)
    devices: tuple[Described, ...] = ()


def nodes_in(body: dict[str, Any]) -> tuple[Node, ...]:
    """The nodes of a fleet file. Raises KeyError or TypeError where one is not complete."""
    return tuple(_node(node) for node in body["nodes"])


def boot_id(host_boot: str, node: str) -> str:
    """A demo node's boot id: it lives as long as the real machine's, not the process's."""
    return str(uuid5(NAMESPACE_DNS, f"{host_boot}.{node}.quintal-demo"))


def observe(node: Node, *, at_ms: int, held: frozenset[str]) -> Observation:
    """What the node's probes would see at `at_ms`."""
    devices = [_cpu(node, at_ms, held)]
    for described in node.devices:
        devices.extend(
            _device(node, described, index, at_ms, held) for index in range(described.count)
        )
    vendors = [described.vendor for described in node.devices] or ["cpu"]
    return Observation(
        vendor=vendors[0],
        tool=_TOOLS.get(vendors[0], vendors[0]),
        devices=tuple(devices),
        drivers=node.drivers,
        runtimes=node.runtimes,
        host=node.host,
        links=tuple(link for described in node.devices for link in _links(node, described)),
        links_told=True,
    )


def _node(body: dict[str, Any]) -> Node:
    host = body["host"]
    return Node(
        name=body["name"],
        cluster=body["cluster"],
        location=body["location"],
        labels=tuple(sorted(body.get("labels", {}).items())),
        cpu=host["cpu"],
        host=Host(
            hostname=f"{body['name']}.{body['location']}.example.net",
            cpu_milli=host["threads"] * 1000,
            memory_bytes=host["memory_mib"] * _MIB,
            os=host["os"],
            kernel=host["kernel"],
            architecture=host.get("architecture", "x86_64"),
            container_runtime=host["container_runtime"],
            disks=tuple(
                Disk(d["mount"], d["filesystem"], d["gib"] * _GIB, d["gib"] * _GIB * 2 // 3)
                for d in host["disks"]
            ),
            networks=tuple(
                Network(n["name"], n["speed_mbits"], _mac(body["name"], n["name"]))
                for n in host["networks"]
            ),
        ),
        drivers=dict(body.get("drivers", {})),
        runtimes=dict(body.get("runtimes", {})),
        devices=tuple(_described(entry["of"], entry["count"]) for entry in body["devices"]),
    )


def _described(body: dict[str, Any], count: int) -> Described:
    idle, full, limit = body["watts"]
    slow, fast = body.get("sm_mhz", (0, 0))
    return Described(
        vendor=body["vendor"],
        name=body["name"],
        count=count,
        memory_bytes=body["memory_mib"] * _MIB,
        buses=tuple(body["buses"]),
        pci_id=body.get("pci_id"),
        pci_subsystem=body.get("pci_subsystem"),
        architecture=body.get("architecture"),
        watts=(float(idle), float(full), float(limit)),
        clock_hertz=(slow * 1_000_000, fast * 1_000_000),
        lacks=frozenset(body.get("lacks", ())),
        link=body.get("link", ""),
    )


def _device(
    node: Node, described: Described, index: int, at_ms: int, held: frozenset[str]
) -> Device:
    seed = f"{node.name}/{described.vendor}/{index}"
    uuid = _uuid(described.vendor, seed)
    busy = uuid in held
    slot = index if described.buses[0] != described.buses[-1] else index + 4
    bus = described.buses[index]
    return Device(
        uuid=uuid,
        index=index,
        vendor=described.vendor,
        name=described.name,
        memory_bytes=described.memory_bytes,
        pci_address=f"0000:{bus}:{0 if bus != '00' else slot:02x}.0",
        pci_id=described.pci_id,
        pci_subsystem=described.pci_subsystem,
        serial=str(int(sha256(seed.encode()).hexdigest()[:10], 16)).zfill(13),
        numa_node=index * 2 // described.count,
        architecture=described.architecture,
        busy_bytes=0,
        readings={
            name: Value(quality="unsupported") if name in described.lacks else value
            for name, value in _readings(described, seed, at_ms, busy=busy).items()
        },
    )


def _links(node: Node, described: Described) -> Iterator[Link]:
    if described.link:
        uuids = [
            _uuid(described.vendor, f"{node.name}/{described.vendor}/{index}")
            for index in range(described.count)
        ]
        for a, b in combinations(uuids, 2):
            yield Link(a, b, described.link)


def _readings(described: Described, seed: str, at_ms: int, *, busy: bool) -> dict[str, Value]:
    wave = _glide(seed, at_ms)
    load = 0.78 + 0.2 * wave if busy else 0.0
    idle_w, full_w, limit_w = described.watts
    power = idle_w + (full_w - idle_w) * load * 0.92 + wave * idle_w * 0.03
    slow, fast = described.clock_hertz
    used = described.memory_bytes * (0.62 + 0.25 * _share(seed)) if busy else 0
    # What a device that never stopped idling would have drawn since 2024: only ever grows.
    energy = idle_w * (at_ms / 1000 - 1_704_067_200)
    return {
        "utilization_percent": Value(round(load * 100)),
        "memory_utilization_percent": Value(round(load * 55)),
        "memory_used_bytes": Value(int(used) // _MIB * _MIB),
        "power_watts": Value(round(power, 2)),
        "power_limit_watts": Value(limit_w),
        "temperature_celsius": Value(round(31 + 4 * _share(seed) + 34 * load + 2 * wave)),
        "energy_joules": Value(round(energy, 3)),
        "sm_clock_hertz": Value(fast if busy else slow),
    }


def _cpu(node: Node, at_ms: int, held: frozenset[str]) -> Device:
    uuid = f"cpu-{node.name}"
    wave = _glide(uuid, at_ms)
    working = bool(held)
    load = (0.55 + 0.3 * wave) if uuid in held else (0.12 if working else 0.01) + 0.02 * wave
    memory = node.host.memory_bytes
    return Device(
        uuid=uuid,
        index=0,
        vendor="cpu",
        name=node.cpu,
        memory_bytes=memory,
        memory_kind="host",
        cores=node.host.cpu_milli // 1000,
        architecture=node.host.architecture,
        readings={
            "utilization_percent": Value(round(load * 100, 1)),
            "memory_used_bytes": Value(int(memory * (0.04 + 0.3 * load)) // _MIB * _MIB),
        },
    )


def _uuid(vendor: str, seed: str) -> str:
    """In the form that the vendor's tool prints."""
    plain = uuid5(NAMESPACE_DNS, f"{seed}.quintal-demo")
    match vendor:
        case "nvidia":
            return f"GPU-{plain}"
        case "intel":
            digits = plain.hex.upper()
            return f"01P0-HL2080A0-15-{digits[:6]}-{digits[6:8]}-07-{digits[8:10]}"
        case "huawei":
            digits = plain.hex.upper()
            return "-".join(digits[at : at + 8] for at in range(0, 32, 8))
        case _:
            return str(plain)


def _share(seed: str) -> float:
    """A number in [0, 1) that belongs to `seed`."""
    return int.from_bytes(sha256(seed.encode()).digest()[:4], "big") / 2**32


def _glide(seed: str, at_ms: int) -> float:
    """A number in [0, 1) that moves smoothly with time."""
    step, rest = divmod(at_ms, _STEP_MS)
    before, after = _share(f"{seed}@{step}"), _share(f"{seed}@{step + 1}")
    return before + (after - before) * rest / _STEP_MS


def _mac(node: str, network: str) -> str:
    digits = sha256(f"{node}/{network}".encode()).hexdigest()
    return "02:" + ":".join(digits[at : at + 2] for at in range(0, 10, 2))
