"""Every probe, once: how to look for real, and how to read a captured output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from quintal_agent.probes.probe import Observation, Probe


@dataclass(frozen=True, slots=True)
class Vendor:
    """One vendor's entries: where its live probe and the readers of its captures stand."""

    name: str
    live: str | None = None
    """`module:class`; the class takes the options of `child.Options`."""
    captures: tuple[str, ...] = ()
    """Modules with `recognises(data)` and `parse(data)`."""


VENDORS: Final = (
    Vendor("cpu", live="quintal_agent.probes.host:HostProbe"),
    Vendor(
        "nvidia",
        live="quintal_agent.probes.nvidia:NvidiaProbe",
        captures=("quintal_agent.probes.nvidia_xml",),
    ),
)

NAMES: Final = tuple(vendor.name for vendor in VENDORS)


def vendor_named(name: str) -> Vendor:
    """Raises ValueError that lists the vendors there are."""
    for vendor in VENDORS:
        if vendor.name == name:
            return vendor
    raise ValueError(f"no vendor {name!r}: there are {', '.join(NAMES)}")


def live_probe(name: str, *, node: str, sys_root: str) -> Probe:
    """The vendor's live probe, its module loaded only now. Raises ValueError."""
    entry = vendor_named(name).live
    if entry is None:
        raise ValueError(f"{name} has no live probe")
    module, _, attribute = entry.partition(":")
    make: Callable[..., Probe] = getattr(import_module(module), attribute)
    return make(node=node, sys_root=sys_root)


def read_capture(data: bytes, vendor: str | None = None) -> Observation:
    """A captured output as an observation; its vendor found by content when none is named.

    Raises ValueError where nobody knows the content, or it cannot be read.
    """
    asked = VENDORS if vendor is None else (vendor_named(vendor),)
    for entry in asked:
        for name in entry.captures:
            module = import_module(name)
            if module.recognises(data):
                observation: Observation = module.parse(data)
                return observation
    whose = f"no output of {vendor}'s tools" if vendor else "no vendor's output"
    raise ValueError(f"this is {whose} that Quintal can read")
