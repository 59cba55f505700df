"""From what the probes saw to what the agent says: pure, with time and numbers handed in.

The last good look of each probe stands until a better one comes, with its age: readings go
`stale`, then the devices' health `unknown`. A probe that suddenly sees nothing, and says why,
does not make its devices vanish: they stay, failed, under the identity they had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from quintal.contracts.nodes import (
    CORES_MAX,
    DeviceHealth,
    Disk,
    Inventory,
    Network,
    ProbeReport,
    Problem,
    RawDevice,
    RawPartition,
    Stack,
)
from quintal_agent.floor import BLIND
from quintal_agent.health import Settled
from quintal_agent.holding import FOREIGN_BYTES, foreign_bytes
from quintal_agent.probes.probe import PCI_IDENTITY, Device, Host, Observation, Trouble, Value
from quintal_agent.topology import Bridges, topology


@dataclass(frozen=True, slots=True)
class Identity:
    """What an agent says about its node in every inventory."""

    node: str
    boot_id: str
    cluster: str = "default"
    location: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    version: str = ""


@dataclass(frozen=True, slots=True)
class ProbeState:
    """How a probe itself is doing."""

    vendor: str
    tool: str = ""
    duration_s: float | None = None
    failures: int = 0
    last_good_s: float | None = None
    """How long ago it last saw what there is; none where it never did."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A probe's newest observation, and how old it is when it is used."""

    observation: Observation
    age_s: float = 0.0
    fresh: bool = True
    """Taken by this look; an older one must not pass for a new sample."""
    probe: ProbeState | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """From when on a look is old."""

    stale_s: float = 25.0
    unknown_s: float = 60.0
    foreign_bytes: int = FOREIGN_BYTES
    """Less memory than this, held without a lease, is a driver's own."""
    idle_s: float = 600.0
    """A device that a lease holds for so long without a process is told as held idle."""


def keep_known(before: Observation | None, now: Observation) -> Observation:
    """`now`, with the devices of `before` where the probe has gone blind."""
    code = next((t.code for t in now.troubles if t.code in BLIND), None)
    if before is None or now.devices or not before.devices or code is None:
        return now
    devices = tuple(
        replace(
            device,
            health="failed",
            health_reason=code,
            busy_bytes=None,
            readings={name: Value(quality="unavailable", raw=code) for name in device.readings},
        )
        for device in before.devices
    )
    return replace(
        now, devices=devices, host=before.host, drivers=before.drivers, runtimes=before.runtimes
    )


def aged(sighting: Sighting, bounds: Bounds) -> Observation:
    """The observation as it may be used now: old readings are stale, old health is unknown."""
    seen, age_s = sighting.observation, sighting.age_s
    if age_s <= bounds.stale_s:
        if sighting.fresh:
            return seen
        return replace(seen, devices=tuple(_aged(d, "", old=False) for d in seen.devices))
    why = f"last seen {int(age_s)} s ago"
    devices = tuple(_aged(device, why, old=age_s > bounds.unknown_s) for device in seen.devices)
    trouble = Trouble("probe_stale", f"the {seen.vendor} probe does not answer; {why}")
    return replace(seen, devices=devices, troubles=(*seen.troubles, trouble))


def _aged(device: Device, why: str, *, old: bool) -> Device:
    readings = {
        name: replace(value, quality="stale") if value.quality == "ok" else value
        for name, value in device.readings.items()
    }
    if not old or device.health == "failed":
        return replace(device, readings=readings)
    return replace(device, readings=readings, health="unknown", health_reason=why)


def devices_of(observations: Iterable[Observation], node: str) -> tuple[Device, ...]:
    """All devices, each under an identity of its own.

    Those without one of their vendor are named by address within the node; so are those that
    share one, since what two devices call themselves by is the identity of neither.
    """
    devices = [device for observation in observations for device in observation.devices]
    shared = {uuid for uuid, times in Counter(d.uuid for d in devices).items() if times > 1}
    named: dict[str, Device] = {}
    for device in devices:
        uuid = device.uuid
        if uuid in shared and device.pci_address:
            uuid = f"{PCI_IDENTITY}{device.pci_address}"
        if uuid.startswith(PCI_IDENTITY):
            uuid = f"{node}-{uuid}"
        named.setdefault(uuid, replace(device, uuid=uuid))
    return tuple(named.values())


def duplicates(observations: Iterable[Observation]) -> tuple[Problem, ...]:
    """Identities that several devices of this node give as their own."""
    counts = Counter(d.uuid for o in observations for d in o.devices)
    return tuple(
        Problem(
            code="duplicate_device",
            message=f"{times} devices say that they are {uuid}; each is named by its address",
            device=uuid,
        )
        for uuid, times in counts.items()
        if times > 1
    )


def inventory(  # noqa: PLR0913 - what an inventory is made of
    identity: Identity,
    observations: Iterable[Observation],
    *,
    health: Mapping[str, Settled],
    held: frozenset[str],
    bounds: Bounds,
    troubles: tuple[Problem, ...] = (),
    probes: tuple[ProbeState, ...] = (),
    tasks: tuple[str, ...] | None = None,
    bridges: Bridges | None = None,
    sequence: int,
    at_ms: int,
) -> Inventory:
    """What the node has. `held` are the devices that some lease of ours holds."""
    seen = tuple(observations)
    host = next((o.host for o in seen if o.host is not None), Host())
    named = devices_of(seen, identity.node)
    devices = tuple(
        raw_device(
            device,
            settled=health.get(device.uuid),
            foreign_bytes=foreign_bytes(device, held=held, least=bounds.foreign_bytes),
        )
        for device in named
    )
    problems = tuple(
        Problem(code=t.code, message=t.message, vendor=o.vendor, device=t.device)
        for o in seen
        for t in o.troubles
    )
    doubles = duplicates(seen)
    return Inventory(
        node=identity.node,
        boot_id=identity.boot_id,
        sequence=sequence,
        at_ms=at_ms,
        hostname=host.hostname,
        cluster=identity.cluster,
        location=identity.location,
        labels=dict(identity.labels),
        cpu_milli=host.cpu_milli,
        memory_bytes=host.memory_bytes,
        disks=tuple(
            Disk(
                mount=disk.mount,
                filesystem=disk.filesystem,
                total_bytes=disk.total_bytes,
                free_bytes=disk.free_bytes,
            )
            for disk in host.disks
        ),
        networks=tuple(
            Network(
                name=network.name,
                speed_mbits=network.speed_mbits,
                mac=network.mac,
                pci_address=network.pci_address,
                numa_node=network.numa_node,
                rdma=network.rdma,
            )
            for network in host.networks
        ),
        stack=Stack(
            os=host.os,
            kernel=host.kernel,
            architecture=host.architecture,
            container_runtime=host.container_runtime,
            drivers=_joined(o.drivers for o in seen),
            runtimes=_joined(o.runtimes for o in seen),
            firmware=_joined(o.firmware for o in seen),
        ),
        devices=devices,
        topology=topology(seen, named, bridges or {}),
        problems=(*problems, *doubles, *troubles),
        probes=tuple(map(probe_report, probes)),
        tasks=tasks,
        agent_version=identity.version,
    )


def probe_report(state: ProbeState) -> ProbeReport:
    """How a probe is doing, as the wire has it."""
    duration_s, good_s = state.duration_s, state.last_good_s
    return ProbeReport(
        vendor=state.vendor,
        tool=state.tool,
        duration_ms=None if duration_s is None else int(duration_s * 1000),
        failures=state.failures,
        last_good_age_ms=None if good_s is None else int(good_s * 1000),
    )


def raw_device(
    device: Device, *, settled: Settled | None = None, foreign_bytes: int = 0
) -> RawDevice:
    """The device as the wire has it."""
    return RawDevice(
        uuid=device.uuid,
        index=device.index,
        vendor=device.vendor,
        name=device.name,
        memory_bytes=device.memory_bytes,
        memory_kind=device.memory_kind,
        pci_address=device.pci_address,
        pci_id=device.pci_id,
        pci_subsystem=device.pci_subsystem,
        serial=device.serial,
        numa_node=device.numa_node,
        cores=device.cores if 0 <= (device.cores or 0) <= CORES_MAX else None,
        architecture=device.architecture,
        health=settled.health if settled else DeviceHealth(device.health),
        health_reason=settled.reason if settled else device.health_reason,
        foreign_bytes=foreign_bytes,
        partitions=tuple(
            RawPartition(
                uuid=part.uuid,
                profile=part.profile,
                memory_bytes=part.memory_bytes,
                index=part.index,
            )
            for part in device.partitions
        ),
    )


def fingerprint(inventory: Inventory) -> str:
    """The same for two inventories that say the same: what moves all the time is left out.

    Free disk space moves, and so does the number in a problem's words and how much a foreign
    process holds; that one does, or that a problem is there, does not.
    """
    body = inventory.model_dump(mode="json", exclude={"sequence", "at_ms", "probes"})
    for disk in body["disks"]:
        del disk["free_bytes"]
    for device in body["devices"]:
        device["foreign_bytes"] = bool(device["foreign_bytes"])
        if device["health"] == "unknown":
            device["health_reason"] = ""
    for problem in body["problems"]:
        del problem["message"]
    return sha256(repr(body).encode()).hexdigest()


def _joined(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {key: value for part in parts for key, value in part.items()}
