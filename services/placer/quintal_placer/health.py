"""What a failed device does to the leases on it: their profile's word. Pure.

    on_unhealthy   what follows when a device of a bound lease has failed
    none           nothing: it is shown on the lease, and whoever holds it decides
    drain          notice: renewals are refused, the lease ends at its standing deadline;
                   a device that recovers before then withdraws the notice
    evict          the lease is revoked, as of the record that says so

The profile's word is frozen in the grant. A device of which nobody can say how it is (`unknown`)
has not failed. Leases of outside schedulers are shown and nothing more: their work is not ours to
end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quintal.contracts import ledger
from quintal_placer.engine.leases import State
from quintal_placer.state import Lease, PlacerState


def failed(state: PlacerState, lease: Lease) -> tuple[str, ...]:
    """The devices of a lease that have failed, as `node/uuid`."""
    if not state.failed:
        return ()
    keys = dict.fromkeys((device.node, device.uuid) for device in lease.devices)
    return tuple(ledger.device_key(*key) for key in keys if key in state.failed)


def told(devices: tuple[str, ...]) -> str:
    """What is said of them on the lease; the agent's own words are for operators."""
    return f"{', '.join(devices)} failed" if devices else ""


def policy_records(
    state: PlacerState, nodes: Iterable[str], at_ms: int
) -> Iterator[ledger.AnyRecord]:
    """What the leases on these nodes have coming; nothing where it was said before."""
    names = {name for node in nodes for name in state.on_node.get(node, ())}
    for name in sorted(names):
        lease = state.live.get(name)
        if lease is not None and lease.state is State.BOUND and not lease.unbound:
            yield from _of_lease(state, lease, at_ms)


def _of_lease(state: PlacerState, lease: Lease, at_ms: int) -> Iterator[ledger.AnyRecord]:
    assert lease.granted is not None
    policy = lease.granted.on_unhealthy
    bad = failed(state, lease) if policy != "none" else ()
    if policy == "evict" and bad:
        yield ledger.LeaseEnding(
            at_ms=at_ms,
            lease=lease.lease,
            reason="revoked",
            effective_ms=at_ms,
            message=f"revoked: {told(bad)}",
        )
    elif policy == "drain" and bool(bad) != bool(lease.notice):
        yield ledger.LeaseNoticed(
            at_ms=at_ms,
            lease=lease.lease,
            until_ms=lease.deadline_ms if bad else None,
            message=f"{told(bad)}: it is not renewed and ends at its deadline" if bad else "",
        )
