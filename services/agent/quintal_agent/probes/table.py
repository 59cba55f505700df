"""Every probe, once: how to look for real, and how to read a captured output.

A vendor is a row here. Third parties add theirs through the entry-point group `quintal.probes`:
each entry point is a `Vendor`, or a callable that gives one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from quintal_agent.probes import captured
from quintal_agent.probes.probe import Observation, Probe, Trouble

log = logging.getLogger(__name__)

GROUP: Final = "quintal.probes"


@dataclass(frozen=True, slots=True)
class Vendor:
    """One vendor's entries: where its live probe and the readers of its captures stand."""

    name: str
    live: str | None = None
    """`module:class`; the class takes the options of `child.Options`."""
    captures: tuple[str, ...] = ()
    """Modules with `recognises(data)` and `parse(data)`."""
    aliases: tuple[str, ...] = ()
    """Other names that people call it by."""


def _in(name: str) -> str:
    return f"quintal_agent.probes.{name}"


def _room(*names: str) -> tuple[str, ...]:
    return tuple(_in(name) for name in names)


_OWN: Final = (
    Vendor("cpu", live=_in("host:HostProbe")),
    Vendor(
        "nvidia",
        live=_in("nvidia:NvidiaProbe"),
        captures=_room(
            "nvidia_xml",
            "nvidia_csv",
            "nvidia_table",
            "nvidia_text",
            "nvidia_monitor",
            "matrix",
            "runtime_json",
            "kernel_log",
            "bus",
        ),
    ),
    Vendor(
        "amd",
        live=_in("amd_sysfs:AmdProbe"),
        captures=_room("amd_smi", "amd_rocm", "amd_ttar", "matrix", "runtime_json", "bus"),
    ),
    Vendor("intel", live=_in("intel_sysfs:IntelProbe"), captures=_room("intel", "matrix", "bus")),
    Vendor("gaudi", live=_in("gaudi:live"), captures=_room("gaudi"), aliases=("habana",)),
    Vendor(
        "huawei",
        live=_in("ascend:AscendProbe"),
        captures=_room("ascend", "ascend_pages", "matrix", "runtime_json", "bus"),
        aliases=("ascend",),
    ),
    Vendor("aws", live=_in("neuron:NeuronProbe"), captures=_room("neuron"), aliases=("neuron",)),
    Vendor("google", live=_in("tpu:TpuProbe"), captures=_room("tpu"), aliases=("tpu",)),
    Vendor("cambricon", live=_in("cambricon:live"), captures=_room("cambricon")),
    Vendor("hygon", live=_in("amd_rocm:hygon"), captures=_room("amd_rocm", "runtime_json")),
    Vendor("metax", live=_in("metax:live"), captures=_room("metax", "runtime_json")),
    Vendor(
        "mthreads", live=_in("mthreads:live"), captures=_room("mthreads"), aliases=("moorethreads",)
    ),
    Vendor("iluvatar", live=_in("nvidia_table:iluvatar"), captures=_room("nvidia_table")),
    Vendor("kunlunxin", live=_in("kunlunxin:live"), captures=_room("kunlunxin")),
    Vendor("enflame", live=_in("enflame:live"), captures=_room("enflame")),
    Vendor("tenstorrent", live=_in("tenstorrent:live"), captures=_room("tenstorrent")),
    Vendor("thead", captures=_room("runtime_json")),
)

_FORMS: Final = _room(
    "nvidia_xml", "runtime_json", "tenstorrent", "neuron", "intel", "amd_smi", "amd_rocm",
    "ascend", "cambricon", "metax", "gaudi", "enflame", "mthreads", "kunlunxin", "tpu",
    "nvidia_table", "ascend_pages", "matrix", "nvidia_csv", "nvidia_text", "nvidia_monitor",
    "bus", "amd_ttar", "kernel_log",
)  # fmt: skip
"""In which order a text whose vendor nobody named is tried: the marks that only one tool prints
come first, those that several share last."""


def _entry(point: EntryPoint) -> Vendor:
    made = point.load()
    vendor = made() if callable(made) else made
    if not isinstance(vendor, Vendor):
        raise TypeError(f"{point.value} is no Vendor")
    return vendor


def _others() -> tuple[Vendor, ...]:
    """Third parties' rows; one that cannot be loaded takes nothing from the others."""
    found = []
    for point in entry_points(group=GROUP):
        try:
            found.append(_entry(point))
        except Exception as exc:
            log.warning("probe %s cannot be loaded: %s: %s", point.name, type(exc).__name__, exc)
    own = {vendor.name for vendor in _OWN}
    return tuple(vendor for vendor in found if vendor.name not in own)


VENDORS: Final = (*_OWN, *_others())

NAMES: Final = tuple(vendor.name for vendor in VENDORS if vendor.live is not None)
"""The vendors that an agent can look for by itself."""

READABLE: Final = tuple(vendor.name for vendor in VENDORS)
"""The vendors whose captured output is read: those, and T-Head, whose tool nobody showed us."""


def vendor_named(name: str) -> Vendor:
    """Raises ValueError that lists the vendors there are."""
    for vendor in VENDORS:
        if name == vendor.name or name in vendor.aliases:
            return vendor
    raise ValueError(f"no vendor {name!r}: there are {', '.join(READABLE)}")


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

    An output that is recognised and cannot be understood is an observation that says so and keeps
    its text. Raises ValueError where nobody knows the content.
    """
    forms = _FORMS if vendor is None else vendor_named(vendor).captures
    extra = tuple(form for other in VENDORS[len(_OWN) :] for form in other.captures)
    refusal: Observation | None = None
    for name in (*forms, *(extra if vendor is None else ())):
        seen = _read(name, data)
        if seen is None:
            continue
        if seen.devices or not any(t.code == "unparsed" for t in seen.troubles):
            return seen
        refusal = refusal or seen
    if refusal is not None:
        return refusal
    whose = f"no output of {vendor}'s tools" if vendor else "no vendor's output"
    raise ValueError(f"this is {whose} that Quintal can read")


def _read(name: str, data: bytes) -> Observation | None:
    """One reader's view; none where it does not know the text. A reader's own fault is told."""
    module = import_module(name)
    try:
        if not module.recognises(data):
            return None
        observation: Observation = module.parse(data)
    except Exception as exc:
        form = name.rpartition(".")[2]
        words = f"{form}: {exc}" if isinstance(exc, ValueError) else f"{form}: {type(exc).__name__}"
        raw = captured.text(data)[: captured.RAW_MAX]
        vendor = next((v.name for v in VENDORS if name in v.captures), "")
        return Observation(vendor, form, troubles=(Trouble("unparsed", words, raw=raw),))
    if not observation.devices and not observation.troubles and not _tells(observation):
        trouble = Trouble("no_device", f"{observation.tool} shows no device")
        return replace(observation, troubles=(trouble,))
    return observation


def _tells(seen: Observation) -> bool:
    return bool(seen.links or seen.events or seen.drivers or seen.runtimes or seen.firmware)
