"""What the placer asks of agents: bind, end, set; each answer is one of three."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from quintal.bus import Bus
from quintal.contracts import nodes, subjects
from quintal.contracts.message import Refusal
from quintal.errors import BusUnavailable, Code, Owner, ProtocolError, Unanswered
from quintal_placer import environment
from quintal_placer.engine.leases import LIVE
from quintal_placer.state import Lease, PlacerState


@dataclass(frozen=True, slots=True)
class Bound:
    """The agent holds it."""

    node: str


@dataclass(frozen=True, slots=True)
class NotBound:
    """The agent holds nothing of it, and says so (or there is no agent to be asked)."""

    node: str
    code: str
    message: str
    reached: bool
    """Whether an agent refused, rather than that none was there."""
    device: str = ""
    """The device that it is about, where it is about one."""
    retry_after_ms: int = 0
    """When to come again, where it said so."""


@dataclass(frozen=True, slots=True)
class Unclear:
    """No answer: the agent may hold it."""

    node: str


@dataclass(frozen=True, slots=True)
class Released:
    """Leases that the agent holds no more."""

    leases: tuple[str, ...] = ()
    uncleaned: Mapping[str, str] = field(default_factory=dict)
    """Of these: lease -> why the cleanup after it failed."""


class Agents:
    """The back connection, seen as agents."""

    def __init__(self, bus: Bus, deadline_s: float) -> None:
        self._bus = bus
        self._deadline_s = deadline_s

    async def bind(self, node: str, lease: nodes.BoundLease) -> Bound | NotBound | Unclear:
        """Hand the devices over. Never raises for what the world does."""
        try:
            answer = await self._bus.request(
                subjects.BIND, nodes.BindAsk(lease=lease), timeout_s=self._deadline_s, node=node
            )
        except Unanswered:
            return NotBound(node, "node_suspect", "no agent listens there", reached=False)
        except (BusUnavailable, ProtocolError):
            return Unclear(node)
        if isinstance(answer, Refusal):
            device = str(answer.details.get("device", ""))
            after = answer.details.get("retry_after_ms")
            return NotBound(
                node,
                answer.code,
                answer.message,
                reached=True,
                device=device,
                retry_after_ms=after if isinstance(after, int) else 0,
            )
        return Bound(node)

    async def end(self, node: str, lease: str, token: int, reason: str) -> Released | None:
        """The agent's word that the lease is over there; none where it did not give it."""
        ask = nodes.EndAsk(lease=lease, token=token, reason=reason)
        try:
            answer = await self._bus.request(
                subjects.END, ask, timeout_s=self._deadline_s, node=node
            )
        except (BusUnavailable, ProtocolError):
            return None
        return None if isinstance(answer, Refusal) else Released((lease,), answer.uncleaned)

    async def task(self, node: str, name: str, timeout_ms: int) -> nodes.TaskDone | Refusal | None:
        """Have an installed task run; none where nobody knows whether it did."""
        ask = nodes.TaskAsk(name=name, timeout_ms=timeout_ms)
        try:
            return await self._bus.request(
                subjects.TASK, ask, timeout_s=timeout_ms / 1000 + self._deadline_s, node=node
            )
        except Unanswered:
            return Refusal(
                code=Code.NODE_SUSPECT,
                message=f"no agent listens on {node}",
                owner=Owner.INFRASTRUCTURE,
            )
        except (BusUnavailable, ProtocolError):
            return None

    async def set(self, node: str, ask: nodes.SetAsk) -> Released | None:
        """The ended leases that the agent holds no more; none where it did not answer."""
        try:
            answer = await self._bus.request(
                subjects.SET, ask, timeout_s=self._deadline_s, node=node
            )
        except (BusUnavailable, ProtocolError):
            return None
        if isinstance(answer, Refusal):
            return None
        return Released(answer.released, answer.uncleaned)


def bound_lease(lease: Lease, node: str) -> nodes.BoundLease:
    """The part of a lease that one node's agent keeps."""
    granted = lease.granted
    assert granted is not None
    devices = [device for device in lease.devices if device.node == node]
    fence: Literal["keep", "strict"] = granted.fence
    return nodes.BoundLease(
        lease=lease.lease,
        token=lease.token,
        tenant=lease.tenant,
        project=granted.project,
        profile=granted.profile,
        workload_class=granted.workload_class,
        ttl_ms=lease.ttl_ms,
        fence=fence,
        bind="none" if lease.unbound else "wait",
        adopted=lease.adopted,
        devices=tuple(
            nodes.BoundDevice(
                uuid=device.uuid,
                index=device.index,
                vendor=device.vendor,
                model=device.model,
                memory_bytes=device.memory_bytes,
                parts=device.parts,
                partition=device.partition,
                units_micro=device.units_micro,
            )
            for device in devices
        ),
        environment=environment.environment(devices).get(node, {}),
        precision=granted.precision,
    )


def lease_set(state: PlacerState, node: str) -> list[Lease]:
    """The leases that the node's agent should hold."""
    return [lease for lease in _on(state, node) if lease.state in LIVE and not lease.unbound]


def expected_version(state: PlacerState, node: str) -> str:
    """What the agent's heartbeat should say of its lease set."""
    return nodes.lease_set_version({le.lease: le.token for le in lease_set(state, node)})


def outside(state: PlacerState, node: str) -> list[Lease]:
    """Leases that no agent is asked about; it is told of them, so that it knows whose they are."""
    return [lease for lease in _on(state, node) if lease.state in LIVE and lease.unbound]


def outside_version(state: PlacerState, node: str) -> str:
    """What the agent's heartbeat should say of the leases that it is only told of."""
    return nodes.lease_set_version({le.lease: le.token for le in outside(state, node)})


def set_ask(state: PlacerState, node: str, *, inventory_wanted: bool) -> nodes.SetAsk:
    """The node's lease set, whole; and what it may still hold and must not."""
    ended = [
        lease.lease
        for lease in _on(state, node)
        if lease.state not in LIVE and node in lease.waiting and not lease.unbound
    ]
    told = [*lease_set(state, node), *outside(state, node)]
    return nodes.SetAsk(
        leases=tuple(bound_lease(lease, node) for lease in told),
        ended=tuple(ended),
        inventory_wanted=inventory_wanted,
    )


def _on(state: PlacerState, node: str) -> Iterable[Lease]:
    return (state.leases[name] for name in sorted(state.on_node.get(node, ())))
