"""From what the probes saw to what the agent says: pure, with time and numbers handed in.

The last good look of each probe stands until a better one comes, with its age: readings go
`stale`, then the devices' health `unknown`. A probe that suddenly sees nothing, and says why,
does not make its devices vanish: they stay, failed, under the identity they had.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from quintal.contracts.nodes import (
    DeviceHealth,
    Disk,
    HealthEvent,
    Inventory,
    Network,
    Problem,
    RawDevice,
    RawPartition,
    Stack,
)
from quintal_agent.floor import BLIND
from quintal_agent.probes.probe import PCI_IDENTITY, Device, Host, Observation, Trouble, Value

CLEAN_LOOKS: Final = 3
"""So many looks without a fault make a failed device healthy again; one fault is enough to fail."""


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
class Settled:
    """A device's health after hysteresis."""

    health: DeviceHealth
    reason: str = ""
    clean: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """From when on a look is old."""

    stale_s: float = 25.0
    unknown_s: float = 60.0
    foreign_bytes: int = 128 * 2**20
    """Less memory than this, held without a lease, is a driver's own."""


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
    """All devices, those without an identity of their vendor named within the node."""
    return tuple(
        replace(device, uuid=f"{node}-{device.uuid}")
        if device.uuid.startswith(PCI_IDENTITY)
        else device
        for observation in observations
        for device in observation.devices
    )


def settle_health(known: Mapping[str, Settled], devices: tuple[Device, ...]) -> dict[str, Settled]:
    """Each device's health after this look. Worse is believed at once, better after a while."""
    settled = {}
    for device in devices:
        now = DeviceHealth(device.health)
        before = known.get(device.uuid)
        if now is not DeviceHealth.OK or before is None or before.health is DeviceHealth.OK:
            settled[device.uuid] = Settled(now, device.health_reason)
        elif before.clean + 1 >= CLEAN_LOOKS:
            settled[device.uuid] = Settled(DeviceHealth.OK)
        else:
            settled[device.uuid] = replace(before, clean=before.clean + 1)
    return settled


def transitions(
    before: Mapping[str, Settled],
    now: Mapping[str, Settled],
    *,
    identity: Identity,
    at_ms: int,
) -> tuple[HealthEvent, ...]:
    """What changed between two looks. The first sight of a healthy device is no event."""
    events = []
    for uuid, state in now.items():
        old = before.get(uuid)
        if (old.health if old else DeviceHealth.OK) is state.health:
            continue
        events.append(_event(identity, at_ms, uuid, old, state))
    gone = Settled(DeviceHealth.UNKNOWN, "no longer there")
    events.extend(
        _event(identity, at_ms, uuid, old, gone) for uuid, old in before.items() if uuid not in now
    )
    return tuple(events)


def _event(
    identity: Identity, at_ms: int, uuid: str, old: Settled | None, new: Settled
) -> HealthEvent:
    return HealthEvent(
        node=identity.node,
        boot_id=identity.boot_id,
        at_ms=at_ms,
        device=uuid,
        before=old.health if old else None,
        after=new.health,
        code=new.reason.partition(":")[0],
        message=new.reason,
    )


def inventory(  # noqa: PLR0913 - what an inventory is made of
    identity: Identity,
    observations: Iterable[Observation],
    *,
    health: Mapping[str, Settled],
    held: frozenset[str],
    bounds: Bounds,
    troubles: tuple[Problem, ...] = (),
    sequence: int,
    at_ms: int,
) -> Inventory:
    """What the node has. `held` are the devices that some lease of ours holds."""
    seen = tuple(observations)
    host = next((o.host for o in seen if o.host is not None), Host())
    devices = tuple(
        raw_device(
            device,
            settled=health.get(device.uuid),
            foreign_bytes=foreign_bytes(device, held=held, bounds=bounds),
        )
        for device in devices_of(seen, identity.node)
    )
    problems = tuple(
        Problem(code=t.code, message=t.message, vendor=o.vendor, device=t.device)
        for o in seen
        for t in o.troubles
    )
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
            Network(name=network.name, speed_mbits=network.speed_mbits, mac=network.mac)
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
        problems=(*problems, *troubles),
        agent_version=identity.version,
    )


def foreign_bytes(device: Device, *, held: frozenset[str], bounds: Bounds) -> int:
    """Memory that processes of no lease hold: of a leased device, whatever runs is the lease's."""
    if device.uuid in held or device.busy_bytes is None:
        return 0
    return device.busy_bytes if device.busy_bytes >= bounds.foreign_bytes else 0


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
        cores=device.cores,
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
    body = inventory.model_dump(mode="json", exclude={"sequence", "at_ms"})
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
