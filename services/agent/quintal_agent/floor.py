"""What the bus has, held against what the vendors' tools list: pure.

A device on the bus that no tool lists is told, and stands in the inventory under its address,
failed or unknown, with the reason: the driver may be missing, of another version, or have lost it.
"No devices" is only ever said where the bus has none either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from quintal_agent.probes.pci import Function, vendor_of
from quintal_agent.probes.probe import PCI_IDENTITY, Device, Observation, Trouble, sleeping

BLIND: Final = frozenset(
    {
        "no_library", "no_driver", "driver_mismatch", "no_permission", "probe_failed",
        "probe_timeout", "probe_crashed", "no_access", "too_old",
    }
)  # fmt: skip
"""Troubles under which 'no devices' means 'cannot see', not 'there are none'."""

_PASSED_THROUGH: Final = frozenset({"vfio-pci", "vfio", "xen-pciback"})


def accelerators(functions: Iterable[Function]) -> dict[str, tuple[Function, ...]]:
    """Vendor -> its accelerators on the bus; virtual functions belong to their physical one."""
    found: dict[str, list[Function]] = {}
    for function in functions:
        vendor = None if function.virtual else vendor_of(function)
        if vendor is not None:
            found.setdefault(vendor, []).append(function)
    return {vendor: tuple(those) for vendor, those in found.items()}


def notes(functions: Iterable[Function]) -> tuple[Trouble, ...]:
    """Functions that could be taken for accelerators and are none."""
    return tuple(
        Trouble(
            "not_an_accelerator",
            f"{function.address} ({function.pci_id}) is a management controller's display",
        )
        for function in functions
        if function.vendor_id == "19e5" and function.class_code.startswith("03")
    )


def laid(
    observations: Iterable[Observation], on_bus: Mapping[str, tuple[Function, ...]]
) -> tuple[Observation, ...]:
    """The observations, each with what its vendor has on the bus and the tool does not list."""
    seen = tuple(observations)
    looked = {observation.vendor for observation in seen}
    listed = {d.pci_address for o in seen for d in o.devices if d.pci_address}
    completed = [_completed(o, on_bus.get(o.vendor, ()), listed) for o in seen]
    for vendor, functions in on_bus.items():
        if vendor not in looked and not any(d.vendor == vendor for o in seen for d in o.devices):
            unseen = Observation(vendor, "pci", troubles=(_no_probe(vendor),))
            completed.append(_completed(unseen, functions, listed))
    return tuple(completed)


def put_to_sleep(observation: Observation) -> Observation:
    """The devices as they were last seen; they sleep, and nobody asked them anything."""
    return replace(observation, devices=tuple(map(sleeping, observation.devices)), troubles=())


def _no_probe(vendor: str) -> Trouble:
    return Trouble("no_probe", f"no probe of {vendor} runs here; the bus shows its devices")


def _completed(
    observation: Observation, functions: tuple[Function, ...], listed: set[str]
) -> Observation:
    missing = [f for f in functions if f.address not in listed]
    nameless = sum(1 for d in observation.devices if not d.pci_address)
    if nameless:  # the tool tells no addresses, so that only the numbers can be compared
        short = len(missing) - nameless
        if short <= 0:
            return observation
        text = f"{len(functions)} devices are on the PCI bus, {observation.tool} lists {nameless}"
        return _with(observation, (), (Trouble("missing_from_driver", text),))
    code = next((t.code for t in observation.troubles if t.code in BLIND | {"no_probe"}), None)
    devices, troubles = [], []
    for place, function in enumerate(missing):
        device = _bare(observation, function, len(observation.devices) + place, code)
        devices.append(device)
        if device.health_reason == "missing_from_driver":
            text = f"{function.address} ({function.pci_id}) is on the PCI bus, and not in the list"
            troubles.append(
                Trouble(device.health_reason, f"{text} of {observation.tool}", device.uuid)
            )
    return _with(observation, tuple(devices), tuple(troubles))


def _with(
    observation: Observation, devices: tuple[Device, ...], troubles: tuple[Trouble, ...]
) -> Observation:
    kept = observation.troubles
    if devices:  # the bus knows better
        kept = tuple(trouble for trouble in kept if trouble.code != "no_device")
    return replace(
        observation, devices=(*observation.devices, *devices), troubles=(*kept, *troubles)
    )


def _bare(observation: Observation, function: Function, index: int, code: str | None) -> Device:
    if function.suspended:
        health, reason = "unknown", "asleep"
    elif function.driver in _PASSED_THROUGH:
        health, reason = "unknown", f"passed_through: {function.driver}"
    elif code == "no_probe":
        health, reason = "unknown", code
    else:
        health, reason = "failed", code or "missing_from_driver"
    return Device(
        uuid=f"{PCI_IDENTITY}{function.address}",
        index=index,
        vendor=observation.vendor,
        name="",
        pci_address=function.address,
        pci_id=function.pci_id,
        pci_subsystem=function.subsystem,
        numa_node=function.numa_node,
        health=health,  # type: ignore[arg-type]
        health_reason=reason,
    )
