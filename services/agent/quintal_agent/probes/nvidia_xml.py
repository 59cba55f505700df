"""What `nvidia-smi -q -x` prints, of any driver.

The schema's number in the DOCTYPE decides nothing: drivers move elements without raising it, so
each field is looked up by full path under every name it has had, and what is absent is
unsupported. The DTD is never fetched and entities are refused. A document that breaks off still
gives the devices that came whole.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import Element, ParseError

from quintal_agent.probes import values
from quintal_agent.probes.probe import (
    PCI_IDENTITY,
    Device,
    Health,
    Observation,
    Part,
    Process,
    Trouble,
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

TOOL: Final = "nvidia-smi -q -x"

_READINGS: Final[dict[str, tuple[str, ...]]] = {
    "utilization_percent": ("utilization/gpu_util",),
    "memory_utilization_percent": ("utilization/memory_util",),
    "memory_used_bytes": ("fb_memory_usage/used",),
    "memory_reserved_bytes": ("fb_memory_usage/reserved",),
    "power_watts": (
        "gpu_power_readings/power_draw",
        "gpu_power_readings/average_power_draw",
        "gpu_power_readings/instant_power_draw",
        "power_readings/power_draw",
    ),
    "power_limit_watts": (
        "gpu_power_readings/current_power_limit",
        "gpu_power_readings/gpu_ceiling_power_limit/current_power_limit",
        "power_readings/enforced_power_limit",
        "power_readings/power_limit",
    ),
    "temperature_celsius": ("temperature/gpu_temp",),
    "memory_temperature_celsius": ("temperature/memory_temp",),
    "energy_joules": (),
    "sm_clock_hertz": ("clocks/sm_clock",),
    "memory_clock_hertz": ("clocks/mem_clock",),
}
"""Reading -> the paths it has stood under; the first that holds a number wins.

`memory_utilization_percent` is how busy the memory controller is, not how full the memory is.
`gpu_temp_tlimit` is missing on purpose: it is the margin to the limit, and falls when the device
gets hotter. Module power covers several devices and is not theirs."""

_BUS_ID: Final = re.compile(
    r"^([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$", re.IGNORECASE
)
_PID_DIGITS: Final = 11
_SILENT: Final = frozenset({"none", "no", "n/a", ""})


def recognises(data: bytes) -> bool:
    """Whether this is such a document, or the beginning of one."""
    return b"<nvidia_smi_log" in data[:65_536]


def parse(data: bytes) -> Observation:
    """The document as an observation. Raises ValueError where not even its head can be read."""
    drivers: dict[str, str] = {}
    runtimes: dict[str, str] = {}
    gpus: list[Element] = []
    attached: int | None = None
    troubles: list[Trouble] = []
    try:
        for element in _children(data):
            text = (element.text or "").strip()
            if element.tag == "gpu":
                gpus.append(element)
            elif element.tag == "driver_version" and values.quality_of(text) is None:
                drivers["nvidia"] = text
            elif element.tag == "cuda_version" and values.quality_of(text) is None:
                runtimes["cuda"] = text
            elif element.tag == "attached_gpus" and text.isdigit():
                attached = int(text)
    except ParseError as exc:
        if not gpus and not drivers:
            raise ValueError(f"no readable XML: {exc}") from exc
        troubles.append(Trouble("truncated", f"the document breaks off: {exc}"))
    if attached is not None and attached > len(gpus):
        missing = attached - len(gpus)
        troubles.append(
            Trouble(
                "not_reported",
                f"the driver counts {attached} devices, {missing} of them are not described",
            )
        )
    devices = devices_of(gpus)
    troubles.extend(lost_of(devices))
    if not devices and not troubles:
        troubles.append(Trouble("no_device", "the driver shows no device"))
    return Observation("nvidia", TOOL, devices, tuple(troubles), drivers, runtimes)


def devices_of(gpus: Sequence[Element]) -> tuple[Device, ...]:
    """The devices of their elements; a UUID that two of them bear names neither."""
    shared = {
        uuid for uuid, count in Counter(map(_uuid, gpus)).items() if uuid is not None and count > 1
    }
    return tuple(_device(gpu, index, shared) for index, gpu in enumerate(gpus))


def lost_of(devices: Iterable[Device]) -> tuple[Trouble, ...]:
    """What to say of the devices that are lost."""
    return tuple(
        Trouble("lost", f"device {device.index} ({device.name}) is lost", device.uuid)
        for device in devices
        if device.health_reason == "lost"
    )


def _children(data: bytes) -> Iterator[Element]:
    """The elements right below the root, each when it is complete. Raises ParseError."""
    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import iterparse

    # Some set-ups print a warning before the document.
    begin = re.search(rb"<\?xml|<!DOCTYPE|<nvidia_smi_log", data)
    start = begin.start() if begin else 0
    depth = 0
    try:
        for event, element in iterparse(io.BytesIO(data[start:]), ("start", "end")):
            depth += 1 if event == "start" else -1
            if event == "end" and depth == 1:
                yield element
    except DefusedXmlException as exc:
        raise ValueError(f"refused: {type(exc).__name__}") from exc


def _text(element: Element, path: str) -> str | None:
    found = element.find(path)
    return None if found is None else (found.text or "").strip()


def _known(element: Element, path: str) -> str | None:
    """The text, where it is one: not absent and none of the words for 'no value'."""
    text = _text(element, path)
    return None if text is None or values.quality_of(text) is not None else text


def _uuid(gpu: Element) -> str | None:
    return _known(gpu, "uuid")


def _device(gpu: Element, index: int, shared: set[str]) -> Device:
    health, reason = _health(gpu)
    lost = reason == "lost"
    address = _address(_known(gpu, "pci/pci_bus_id") or gpu.get("id") or "")
    serial = _known(gpu, "serial")
    uuid = _uuid(gpu)
    if uuid is None or uuid in shared or not re.search(r"[1-9a-f]", uuid.casefold()[4:]):
        # A serial may be shared by two devices of one board, an address by none.
        uuid = f"{PCI_IDENTITY}{address or index}"
    total = _text(gpu, "fb_memory_usage/total")
    unified = total is not None and values.quality_of(total) == "unsupported"
    readings = {name: _reading(gpu, name, paths, lost=lost) for name, paths in _READINGS.items()}
    return Device(
        uuid=uuid,
        index=index,
        vendor="nvidia",
        name=_known(gpu, "product_name") or "",
        memory_bytes=values.size(total),
        memory_kind="unified" if unified else "device",
        pci_address=address,
        pci_id=_pci_id(_known(gpu, "pci/pci_device_id")),
        pci_subsystem=_pci_id(_known(gpu, "pci/pci_sub_system_id")),
        serial=serial,
        architecture=_known(gpu, "product_architecture"),
        health=health,
        health_reason=reason,
        partitions=tuple(_partitions(gpu, uuid)),
        processes=tuple(_processes(gpu)),
        readings=readings,
    )


def _reading(gpu: Element, name: str, paths: tuple[str, ...], *, lost: bool) -> Value:
    tried = [values.read(name, text) for path in paths if (text := _text(gpu, path)) is not None]
    for value in tried:
        if value.quality == "ok":
            # A lost device keeps elements that the driver remembers; none of them is a reading.
            return Value(quality="unavailable", raw="GPU is lost") if lost else value
    if lost:
        return Value(quality="unavailable", raw="GPU is lost")
    # Of several words the one that says more: a refusal tells more than 'not supported'.
    tried.sort(key=lambda value: value.quality == "unsupported")
    return tried[0] if tried else Value(quality="unsupported")


def _health(gpu: Element) -> tuple[Health, str]:
    dynamic = ("fb_memory_usage/used", "utilization/gpu_util", "temperature/gpu_temp")
    if any(values.is_lost(_text(gpu, path)) for path in dynamic):
        return "failed", "lost"
    action = _known(gpu, "gpu_recovery_action")
    if action is not None and action.casefold() not in _SILENT:
        return ("degraded" if "drain" in action.casefold() else "failed"), f"recovery: {action}"
    if _says_yes(gpu, "gpu_reset_status/reset_required"):
        return "failed", "reset required"
    if _says_yes(gpu, "remapped_rows/remapped_row_failure"):
        return "degraded", "row remapping failed"
    degraded = {
        "gpu_reset_status/drain_and_reset_recommended": "drain and reset recommended",
        "remapped_rows/remapped_row_pending": "row remapping pending",
        "retired_pages/pending_retirement": "page retirement pending",
        "fabric/health/route_unhealthy": "fabric route unhealthy",
        "fabric/health/access_timeout_recovery": "fabric access recovers from a timeout",
    }
    for path, words in degraded.items():
        if _says_yes(gpu, path):
            return "degraded", words
    if (_known(gpu, "fabric/health/summary") or "").casefold() == "unhealthy":
        return "degraded", "fabric unhealthy"
    return "ok", ""


def _says_yes(gpu: Element, path: str) -> bool:
    return (_text(gpu, path) or "").casefold() in {"yes", "true"}


def _partitions(gpu: Element, parent: str) -> Iterator[Part]:
    """MIG devices. Instances that share one memory repeat its size: it is counted once."""
    counted: set[str] = set()
    for position, mig in enumerate(gpu.iterfind("mig_devices/mig_device")):
        instance = _known(mig, "gpu_instance_id") or str(position)
        compute = _known(mig, "compute_instance_id") or "0"
        index = _known(mig, "index")
        memory = None
        if instance not in counted:
            memory = values.size(_text(mig, "fb_memory_usage/total"))
        counted.add(instance)
        yield Part(
            uuid=_known(mig, "uuid") or f"MIG-{parent}/{instance}/{compute}",
            profile=_known(mig, "profile") or _known(mig, "name") or "",
            memory_bytes=memory,
            index=int(index) if index is not None and index.isdigit() else position,
        )


def _processes(gpu: Element) -> Iterator[Process]:
    """Who uses it. Windows' driver shows no names and no sizes: they stay unknown."""
    for entry in gpu.iterfind("processes/process_info"):
        pid = _known(entry, "pid")
        if pid is not None and pid.isdigit() and len(pid) < _PID_DIGITS:
            yield Process(
                pid=int(pid),
                name=_known(entry, "process_name") or "",
                memory_bytes=values.size(_text(entry, "used_memory")),
                part=_known(entry, "gpu_instance_id") or "",
            )


def _address(text: str) -> str | None:
    """`00000000:30:00.0` as the kernel writes it: four digits of domain, lower case."""
    match = _BUS_ID.match(text.strip())
    if match is None:
        return None
    domain, bus, slot, function = (part.lower() for part in match.groups())
    return f"{domain.lstrip('0').zfill(4)}:{bus}:{slot}.{function}"


def _pci_id(text: str | None) -> str | None:
    """`26B910DE`, device before vendor, as `10de:26b9`."""
    if text is None or not re.fullmatch(r"(0x)?[0-9A-Fa-f]{8}", text):
        return None
    digits = text[-8:].lower()
    return f"{digits[4:]}:{digits[:4]}"
