"""The node's leases as a pure state: what a bind, an end, a whole set does to it, or why not.

What protects a device is its fence: the newest fencing token it ever saw, kept for ever and over
reboots. A lease that takes a whole device must bring a newer one. Shares of one device come in
any order, so a share must only be newer than the last lease that had the device alone; what
keeps a delayed bind of an ended share out is that ended leases are remembered for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from quintal.contracts.message import Refusal
from quintal.contracts.nodes import (
    BoundDevice,
    BoundLease,
    DeviceHealth,
    RawDevice,
    lease_set_version,
)
from quintal.errors import Code, Owner
from quintal.units import PARTS

ENDED_MAX: Final = 256
"""So many ended leases are remembered; a bind older than that has long met its deadline."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The newest token a device saw, and the newest of a lease that had it alone."""

    newest: int = 0
    alone: int = 0


@dataclass(frozen=True, slots=True)
class LeaseSet:
    """Every lease that the node holds, every fence, and the leases that ended lately."""

    leases: Mapping[str, BoundLease] = field(default_factory=dict)
    fences: Mapping[str, Fence] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    outside: Mapping[str, BoundLease] = field(default_factory=dict)
    """Leases of an outside scheduler (`bind: none`): known of, so that what it runs is not taken
    for foreign use; neither bound nor acknowledged here, and not in the version."""

    @property
    def version(self) -> str:
        """What a heartbeat carries: equal at the placer and here, or the set is sent again."""
        return lease_set_version({name: lease.token for name, lease in self.leases.items()})

    @property
    def outside_version(self) -> str:
        """The same of the leases that the node only knows of."""
        return lease_set_version({name: lease.token for name, lease in self.outside.items()})

    @property
    def held(self) -> frozenset[str]:
        """The devices that some lease holds, wholly or in part."""
        everyone = (*self.leases.values(), *self.outside.values())
        return frozenset(device.uuid for lease in everyone for device in lease.devices)


@dataclass(frozen=True, slots=True)
class SetDone:
    """The set after a whole one came, and what the node let go of or would not take."""

    leases: LeaseSet
    released: tuple[str, ...]
    refused: tuple[str, ...]


def bind(
    state: LeaseSet, lease: BoundLease, devices: Mapping[str, RawDevice] | None
) -> LeaseSet | Refusal:
    """`state` with the lease in it, or why the node does not take it.

    `devices` is what the node has, None before its first look. A lease that is already held
    under this token gives `state` itself.
    """
    held = state.leases.get(lease.lease)
    if held is not None and held == lease:
        return _still_usable(state, lease, devices or {})
    if held is not None and held.token >= lease.token:
        return _refuse(
            Code.CONFLICT,
            f"lease {lease.lease} is held under token {held.token}, other than this bind",
            token=held.token,
        )
    if state.ended.get(lease.lease, -1) >= lease.token:
        return _refuse(Code.CONFLICT, f"lease {lease.lease} has ended here", ended=True)
    rest = _without(state, (lease.lease,))
    for device in lease.devices:
        refusal = _fits(rest, lease, device, devices)
        if refusal is not None:
            return refusal
    return _with(rest, lease)


def end(state: LeaseSet, lease: str, token: int) -> LeaseSet | Refusal:
    """`state` without the lease; one that is not held is done already."""
    held = state.leases.get(lease)
    if held is not None and held.token > token:
        return _refuse(
            Code.CONFLICT, f"lease {lease} was bound anew under token {held.token}",
            token=held.token,
        )  # fmt: skip
    if held is None and state.ended.get(lease, -1) >= token:
        return state
    return _remember(_without(state, (lease,)), {lease: token})


def replace_all(
    state: LeaseSet,
    leases: Iterable[BoundLease],
    ended: Iterable[str],
    fresh: frozenset[str] = frozenset(),
) -> SetDone:
    """The placer's whole set made ours.

    Missing leases are added without a look at the device: they are promised already. What is
    older than its device's fence, or ended here, comes from a placer that was deposed meanwhile.

    `fresh` are leases bound since the last set. A set and a bind travel side by side, so a set
    that does not name one of them may be older than it: such a lease is kept this once, where
    nothing in the set needs its device. What is dropped for not being named can be named again;
    only what the placer calls ended is remembered as ended.
    """
    named = {lease.lease: lease for lease in leases}
    wanted = {name: lease for name, lease in named.items() if lease.bind != "none"}
    outside = {name: lease for name, lease in named.items() if lease.bind == "none"}
    over = tuple(ended)
    extra = {n: lease for n, lease in state.leases.items() if n not in wanted and n not in over}
    tokens = {name: state.leases[name].token for name in over if name in state.leases}
    after = _remember(_without(state, (*extra, *over)), tokens)
    refused = []
    for name, lease in wanted.items():
        held = after.leases.get(name)
        if name in over or held == lease:
            continue
        if (held is not None and held.token > lease.token) or _is_past(after, lease):
            refused.append(name)
            continue
        after = _with(_without(after, (name,)), lease)
    for name, lease in extra.items():
        if name in fresh and not any(_rival(after, device) for device in lease.devices):
            after = _with(after, lease)
    dropped = tuple(name for name in extra if name not in after.leases)
    if outside != after.outside:
        after = replace(after, outside=outside)
    return SetDone(after, tuple(dict.fromkeys((*over, *dropped))), tuple(refused))


def after_boot(state: LeaseSet) -> LeaseSet:
    """A reboot ended everything that ran; fences stand."""
    tokens = {name: lease.token for name, lease in state.leases.items()}
    return _remember(replace(state, leases={}, outside={}), tokens)


def _still_usable(
    state: LeaseSet, lease: BoundLease, devices: Mapping[str, RawDevice]
) -> LeaseSet | Refusal:
    """A lease that came with a set before its bind did: the set looked at no device."""
    if not lease.adopted:
        for device in lease.devices:
            raw = devices.get(device.uuid)
            refusal = _usable(raw) if raw is not None else None
            if refusal is not None:
                return refusal
    return state


def _is_past(state: LeaseSet, lease: BoundLease) -> bool:
    if state.ended.get(lease.lease, -1) >= lease.token:
        return True
    return any(
        lease.token < (fence.newest if _alone(device) else fence.alone)
        for device in lease.devices
        if (fence := state.fences.get(device.uuid)) is not None
    )


def _fits(
    state: LeaseSet,
    lease: BoundLease,
    device: BoundDevice,
    devices: Mapping[str, RawDevice] | None,
) -> Refusal | None:
    if devices is None or device.uuid not in devices:
        words = "the node has not looked yet" if devices is None else "the node has no such device"
        return _refuse(Code.INVENTORY_MISSING, f"{words}: {device.uuid}", device=device.uuid)
    raw = devices[device.uuid]
    if device.partition is not None and device.partition not in {p.uuid for p in raw.partitions}:
        return _refuse(
            Code.INVENTORY_MISSING, f"{device.uuid} has no partition {device.partition}",
            device=device.uuid,
        )  # fmt: skip
    fence = state.fences.get(device.uuid, Fence())
    bar = fence.newest if _alone(device) else fence.alone
    if lease.token <= bar:
        return _refuse(
            Code.CONFLICT, f"{device.uuid} has seen token {bar}; {lease.token} is not newer",
            device=device.uuid, token=bar,
        )  # fmt: skip
    rival = _rival(state, device)
    if rival is not None:
        return _refuse(
            Code.CONFLICT, f"{device.uuid} is held by lease {rival}",
            device=device.uuid, lease=rival,
        )  # fmt: skip
    if lease.adopted:
        return None
    return _usable(raw)


def _usable(raw: RawDevice) -> Refusal | None:
    if raw.health is DeviceHealth.FAILED:
        return _refuse(
            Code.ADAPTER_ERROR, f"{raw.uuid} has failed: {raw.health_reason}", device=raw.uuid
        )
    if raw.foreign_bytes:
        free = None if raw.memory_bytes is None else max(0, raw.memory_bytes - raw.foreign_bytes)
        return _refuse(
            Code.FOREIGN_USE,
            f"processes of no lease hold {raw.foreign_bytes} bytes on {raw.uuid}",
            device=raw.uuid, foreign_bytes=raw.foreign_bytes, free_bytes=free,
        )  # fmt: skip
    return None


def _rival(state: LeaseSet, device: BoundDevice) -> str | None:
    """The lease that leaves no room: a whole and its parts never both, shares up to the whole."""
    taken = 0
    for lease in state.leases.values():
        for other in lease.devices:
            if other.uuid != device.uuid:
                continue
            if other.partition != device.partition:
                if other.partition is None or device.partition is None:
                    return lease.lease
                continue
            taken += other.parts
            if taken + device.parts > PARTS:
                return lease.lease
    return None


def _alone(device: BoundDevice) -> bool:
    return device.parts >= PARTS and device.partition is None


def _with(state: LeaseSet, lease: BoundLease) -> LeaseSet:
    fences = dict(state.fences)
    for device in lease.devices:
        fence = fences.get(device.uuid, Fence())
        alone = max(fence.alone, lease.token) if _alone(device) else fence.alone
        fences[device.uuid] = Fence(max(fence.newest, lease.token), alone)
    ended = {name: token for name, token in state.ended.items() if name != lease.lease}
    leases = {**state.leases, lease.lease: lease}
    return LeaseSet(leases, fences, ended, state.outside)


def _without(state: LeaseSet, names: Iterable[str]) -> LeaseSet:
    dropped = set(names)
    kept = {name: lease for name, lease in state.leases.items() if name not in dropped}
    return replace(state, leases=kept)


def _remember(state: LeaseSet, tokens: Mapping[str, int]) -> LeaseSet:
    ended = dict(state.ended)
    for name, token in tokens.items():
        ended[name] = max(token, ended.pop(name, -1))
    for name in list(ended)[: max(0, len(ended) - ENDED_MAX)]:
        del ended[name]
    return replace(state, ended=ended)


def _refuse(code: Code, message: str, **details: Any) -> Refusal:
    return Refusal(code=code, message=message, owner=Owner.INFRASTRUCTURE, details=details)
