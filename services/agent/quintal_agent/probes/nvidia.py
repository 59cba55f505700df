"""NVIDIA through NVML: the driver's own library, loaded when the first look is taken.

Every call may fail by itself. A call that the device, the driver or the binding does not know
makes one field unsupported; a lost device stays in the list under the identity it had, and its
neighbours are not touched. Where there is nothing to talk to, the observation says why, and the
child is started afresh later, so that a driver or library that came meanwhile is loaded anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from quintal_agent.probes import nvidia_links
from quintal_agent.probes.nvidia_events import XidEvents
from quintal_agent.probes.nvidia_gpm import MigSamples
from quintal_agent.probes.pci import scan
from quintal_agent.probes.probe import (
    PCI_IDENTITY,
    Device,
    Link,
    Observation,
    Part,
    Process,
    Trouble,
    Value,
    sleeping,
)
from quintal_agent.probes.values import checked

_MILLI: Final = 1_000
_MEGA: Final = 1_000_000
_ALL_ONES: Final = frozenset({2**32 - 1, 2**64 - 1})

_CANNOT: Final = frozenset({3, 13, 25, 26})
"""NVML's codes for not supported, no such function, another struct's version, deprecated."""

_LOST: Final = frozenset({15, 28})
_NEEDS_RESET: Final = 16

_INIT: Final = {
    12: ("no_library", "NVML (libnvidia-ml.so.1) is not installed"),
    9: ("no_driver", "the NVIDIA kernel driver is not loaded"),
    18: ("driver_mismatch", "the loaded kernel driver and NVML differ in version: reboot the node"),
    4: ("no_permission", "this user may not open the NVIDIA devices"),
    17: ("no_permission", "the system blocks access to the NVIDIA devices"),
    999: (
        "no_access",
        "NVML answers 'unknown': mostly a container that lost its devices; restart it",
    ),
}


class NvidiaProbe:
    """Holds NVML open over the looks. `library` is `pynvml`, or what speaks like it."""

    def __init__(
        self, *, node: str = "", sys_root: str = "/sys", library: Any = None, root: str = "/"
    ) -> None:
        self._node = node
        self._library = library
        self._sys = Path(sys_root)
        self._root = Path(root)
        self._open = False
        self._identities: dict[int, Device] = {}
        self._events: XidEvents | None = None
        self._pid_max = _number_in(self._root / "proc/sys/kernel/pid_max") or 2**22
        self._suspect = ""
        self._looks = 0
        self._handles: dict[str, Any] = {}
        """Those of this look, by the devices' addresses."""
        self._linked: tuple[frozenset[str], tuple[Link, ...] | None] = (frozenset(), None)
        """Of which devices the links were asked, and which there are."""
        self._fabrics: dict[str, str | None] = {}
        self._samples: MigSamples | None = None

    def observe(self) -> Observation:
        """Look once."""
        trouble = self._opened()
        if trouble is not None:
            return Observation("nvidia", "nvml", troubles=(trouble,), idle=True)
        nvml = self._library
        self._looks += 1
        try:
            count = nvml.nvmlDeviceGetCount()
        except Exception as exc:
            self._open = False
            return Observation("nvidia", "nvml", troubles=(self._trouble(exc),), idle=True)
        drivers, runtimes, tool = self._versions()
        if count == 0:
            trouble = Trouble("no_device", "the NVIDIA driver is loaded and shows no device")
            return Observation("nvidia", tool, (), (trouble,), drivers, runtimes, idle=True)
        devices: list[Device] = []
        troubles: list[Trouble] = []
        self._suspect = ""
        self._handles = {}
        for index in self._awake(count, devices):
            self._look_at(index, devices, troubles)
        links = self._links()
        devices = [replace(d, fabric=self._fabrics.get(d.pci_address or "")) for d in devices]
        if self._suspect:
            troubles.append(Trouble("abi_suspect", self._suspect))
        events = self._events.take() if self._events is not None else ()
        alive = {device.uuid for device in devices if device.health != "failed"}
        troubles = [replace(t, device="") if t.device in alive else t for t in troubles]
        return Observation(
            "nvidia", tool, tuple(_once(devices)), tuple(troubles), drivers, runtimes,
            events=events, links=links or (), links_told=links is not None,
        )  # fmt: skip

    def _links(self) -> tuple[Link, ...] | None:
        """How the devices are joined: asked now and then, and whenever there are others."""
        there = frozenset(self._handles)
        if there != self._linked[0] or self._looks % nvidia_links.EVERY == 0:
            told = nvidia_links.links(self._library, self._handles, _address)
            self._linked = (there, told)
            self._fabrics = {
                at: nvidia_links.fabric(self._library, handle)
                for at, handle in self._handles.items()
            }
        return self._linked[1]

    def _awake(self, count: int, devices: list[Device]) -> Iterable[int]:
        """The indices to look at: opening a device that sleeps would wake it.

        An index does not tell whose it is without opening it. So where a device sleeps, the
        others are asked for by their address; the sleeper stands as it was last seen.
        """
        functions = scan(self._sys, "10de")
        sleepers = {f.address for f in functions if f.suspended}
        if not sleepers:
            return range(count)
        known = {device.pci_address: device for device in self._identities.values()}
        devices.extend(sleeping(known[address]) for address in sleepers if address in known)
        found = []
        for function in functions:
            if function.address not in sleepers and function.class_code in {"0300", "0302"}:
                handle = _or_none(
                    self._library, "nvmlDeviceGetHandleByPciBusId", _bus_id(function.address)
                )
                index = _or_none(self._library, "nvmlDeviceGetIndex", handle) if handle else None
                if index is not None:
                    found.append(int(index))
        return found

    def _opened(self) -> Trouble | None:
        if self._open:
            return None
        try:
            if self._library is None:
                import pynvml

                self._library = pynvml
            self._library.nvmlInit()
        except ImportError as exc:
            return Trouble("no_library", f"nvidia-ml-py is not installed: {exc}")
        except Exception as exc:
            return self._trouble(exc)
        self._open = True
        return None

    def _trouble(self, exc: Exception) -> Trouble:
        code, words = _INIT.get(_code(exc), ("no_driver", "NVML does not start"))
        detail = ""
        if code == "driver_mismatch":
            loaded = _text_in(self._sys / "module/nvidia/version")
            detail = f" (loaded driver: {loaded})" if loaded else ""
        return Trouble(code, f"{words}{detail}: {exc}")

    def _versions(self) -> tuple[dict[str, str], dict[str, str], str]:
        nvml = self._library
        driver = _or_none(nvml, "nvmlSystemGetDriverVersion")
        cuda = _or_none(nvml, "nvmlSystemGetCudaDriverVersion_v2")
        version = _or_none(nvml, "nvmlSystemGetNVMLVersion")
        runtimes = {"cuda": f"{cuda // 1000}.{cuda % 1000 // 10}"} if cuda else {}
        drivers = {"nvidia": _string(driver)} if driver else {}
        return drivers, runtimes, f"nvml {_string(version)}" if version else "nvml"

    def _look_at(self, index: int, devices: list[Device], troubles: list[Trouble]) -> None:
        known = self._identities.get(index)
        try:
            handle = self._library.nvmlDeviceGetHandleByIndex(index)
            device = self._device(handle, index)
        except Exception as exc:
            code = _code(exc)
            reason = "lost" if code in _LOST else f"unreadable: {exc}"
            name = f"device {index}" + (f" ({known.name})" if known else "")
            uuid = known.uuid if known else ""
            troubles.append(Trouble("lost" if code in _LOST else "device_failed",
                                    f"{name} is {reason}", uuid))  # fmt: skip
            if known is not None:
                devices.append(_gone(known, reason))
            return
        self._identities[index] = device
        if device.pci_address is not None:
            self._handles[device.pci_address] = handle
        devices.append(device)
        if self._events is None:
            self._events = XidEvents(self._library)
        self._events.watch(device.uuid, handle)

    def _device(self, handle: Any, index: int) -> Device:
        nvml = self._library
        pci = _or_none(nvml, "nvmlDeviceGetPciInfo", handle)
        address = _address(_string(pci.busId)) if pci is not None else None
        try:
            uuid = _string(nvml.nvmlDeviceGetUUID(handle))
        except Exception as exc:
            if _code(exc) in _LOST or address is None:
                raise
            uuid = ""
        name = _or_none(nvml, "nvmlDeviceGetName", handle)
        serial = _or_none(nvml, "nvmlDeviceGetSerial", handle)
        total, readings, unified = self._memory(handle)
        readings |= self._readings(handle)
        health, reason = self._health(handle)
        busy_bytes, processes, process_count = self._use(handle, readings, total)
        slices: dict[int, int] = {}
        mig = tuple(self._mig(handle, slices))
        if mig or self._mig_on(handle):
            # With MIG on, the whole device has no utilization; its instances may be busy.
            readings["utilization_percent"] = self._mig_busy(handle, uuid, slices)
        return Device(
            uuid=uuid or f"{PCI_IDENTITY}{address}",
            index=index,
            vendor="nvidia",
            name=_string(name) if name else "",
            memory_bytes=total,
            memory_kind="unified" if unified else "device",
            pci_address=address,
            pci_id=_pci_id(pci.pciDeviceId) if pci is not None else None,
            pci_subsystem=_pci_id(pci.pciSubSystemId) if pci is not None else None,
            serial=_string(serial) if serial else None,
            numa_node=self._numa(address),
            health=health,
            health_reason=reason,
            busy_bytes=busy_bytes,
            process_count=process_count,
            processes=processes,
            partitions=mig,
            readings=readings,
        )

    def _memory(self, handle: Any) -> tuple[int | None, dict[str, Value], bool]:
        """Total, the readings, and whether the memory is the host's (unified)."""
        nvml = self._library
        info, quality = None, "unavailable"
        try:
            try:
                info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
            except Exception as exc:
                if _code(exc) not in _CANNOT:
                    raise
                info = nvml.nvmlDeviceGetMemoryInfo(handle)
        except Exception as exc:
            if _code(exc) in _LOST:
                raise
            quality = "unsupported" if _code(exc) in _CANNOT else "unavailable"
        host = _host_memory(self._root)
        integrated = "GB10" in _string(_or_none(nvml, "nvmlDeviceGetName", handle) or "")
        unified = quality == "unsupported" or (info is not None and (info.total == 0 or integrated))
        if info is None or unified:
            used = Value(quality="unsupported" if unified else "unavailable")
            return (host if unified else None), {"memory_used_bytes": used}, unified
        readings = {"memory_used_bytes": checked("memory_used_bytes", info.used)}
        reserved = getattr(info, "reserved", None)
        if reserved is not None:
            readings["memory_reserved_bytes"] = checked("memory_reserved_bytes", reserved)
        return info.total, readings, False

    def _readings(self, handle: Any) -> dict[str, Value]:
        nvml = self._library
        field = _Fields(nvml, handle)
        rates = field.call("nvmlDeviceGetUtilizationRates")
        first = self._looks == 1
        readings = {
            # Right after the driver loads, an idle device may claim 100 %.
            "utilization_percent": Value(quality="unavailable") if first and rates.found
            else rates.value("utilization_percent", lambda r: r.gpu),
            "memory_utilization_percent": rates.value(
                "memory_utilization_percent", lambda r: r.memory
            ),
            "power_watts": field.call("nvmlDeviceGetPowerUsage").value(
                "power_watts", lambda mw: mw / _MILLI
            ),
            "power_limit_watts": field.call("nvmlDeviceGetEnforcedPowerLimit").value(
                "power_limit_watts", lambda mw: mw / _MILLI
            ),
            "temperature_celsius": field.call("nvmlDeviceGetTemperature", 0).value(
                "temperature_celsius", lambda c: c
            ),
            "energy_joules": field.call("nvmlDeviceGetTotalEnergyConsumption").value(
                "energy_joules", lambda mj: mj / _MILLI
            ),
            "sm_clock_hertz": field.call("nvmlDeviceGetClockInfo", 1).value(
                "sm_clock_hertz", lambda mhz: mhz * _MEGA
            ),
            "memory_clock_hertz": field.call("nvmlDeviceGetClockInfo", 2).value(
                "memory_clock_hertz", lambda mhz: mhz * _MEGA
            ),
        }  # fmt: skip
        if field.lost:
            raise field.lost
        return readings

    def _health(self, handle: Any) -> tuple[Any, str]:
        nvml = self._library
        for name in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature"):
            arguments = (handle, 0) if name.endswith("Temperature") else (handle,)
            try:
                getattr(nvml, name)(*arguments)
            except Exception as exc:
                if _code(exc) == _NEEDS_RESET:
                    return "failed", "reset required"
        rows = _or_none(nvml, "nvmlDeviceGetRemappedRows", handle)
        if rows is not None:
            _, _, pending, failed = rows
            if failed:
                return "degraded", "row remapping failed"
            if pending:
                return "degraded", "row remapping pending"
        return "ok", ""

    def _use(
        self, handle: Any, readings: dict[str, Value], total: int | None
    ) -> tuple[int | None, tuple[Process, ...], int | None]:
        """Memory that processes hold, the processes, and how many; none where hidden.

        Processes may be hidden from a container; memory is not. A process id or size that cannot
        be comes from a struct of another layout than the library's: then the whole list is none.
        """
        listed = _or_none(self._library, "nvmlDeviceGetComputeRunningProcesses", handle)
        processes: list[Process] = []
        for process in listed or ():
            size = process.usedGpuMemory
            size = None if size is None or size in _ALL_ONES else int(size)
            if process.pid > self._pid_max or (size is not None and total and size > total):
                self._suspect = "NVML's list of processes has impossible numbers: it is not used"
                listed, processes = None, []
                break
            processes.append(Process(pid=int(process.pid), memory_bytes=size))
        held = sum(process.memory_bytes or 0 for process in processes)
        if "memory_reserved_bytes" in readings:  # the accounting that leaves the driver's share out
            held = max(held, int(readings["memory_used_bytes"].value or 0))
        known = listed is not None
        return (
            (held if known or held else None), tuple(processes), len(processes) if known else None
        )  # fmt: skip

    def _mig_on(self, handle: Any) -> bool:
        mode = _or_none(self._library, "nvmlDeviceGetMigMode", handle)
        return mode is not None and mode[0] == 1

    def _mig_busy(self, handle: Any, uuid: str, slices: Mapping[int, int]) -> Value:
        """What the instances come to together, where GPM tells."""
        if not slices:
            return Value(quality="unsupported")
        if self._samples is None:
            self._samples = MigSamples(self._library)
        most = _or_none(self._library, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        return self._samples.busy(handle, uuid, slices, max(most, sum(slices.values())))

    def _mig(self, handle: Any, slices: dict[int, int]) -> list[Part]:
        """Its instances; into `slices` goes how large each GPU instance is."""
        nvml = self._library
        if not self._mig_on(handle):
            return []
        parts, counted = [], set()
        for position in range(_or_none(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            mig = _or_none(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, position)
            if mig is None:  # a hole in the numbering, not its end
                continue
            uuid = _or_none(nvml, "nvmlDeviceGetUUID", mig)
            if uuid is None:
                continue
            instance = _or_none(nvml, "nvmlDeviceGetGpuInstanceId", mig)
            memory = _or_none(nvml, "nvmlDeviceGetMemoryInfo", mig)
            name = _string(_or_none(nvml, "nvmlDeviceGetName", mig) or "")
            first = instance is None or instance not in counted
            counted.add(instance)
            shape = _or_none(nvml, "nvmlDeviceGetAttributes_v2", mig)
            if instance is not None and shape is not None:
                slices[int(instance)] = int(shape.gpuInstanceSliceCount)
            parts.append(
                Part(
                    uuid=_string(uuid),
                    profile=name.rpartition("MIG ")[2],
                    memory_bytes=memory.total if memory is not None and first else None,
                    index=position,
                )
            )
        return parts

    def _numa(self, address: str | None) -> int | None:
        if address is None:
            return None
        text = _text_in(self._sys / "bus/pci/devices" / address / "numa_node")
        return int(text) if text.isdigit() else None


class _Fields:
    """Calls on one handle; remembers whether the device was lost in one of them."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self.lost: Exception | None = None

    def call(self, name: str, *arguments: Any) -> _Answer:
        try:
            return _Answer(getattr(self._nvml, name)(self._handle, *arguments))
        except Exception as exc:
            if _code(exc) in _LOST:
                self.lost = exc
            cannot = isinstance(exc, AttributeError) or _code(exc) in _CANNOT
            quality = "unsupported" if cannot else "unavailable"
            return _Answer(failure=Value(quality=quality, raw=str(exc)))  # type: ignore[arg-type]


class _Answer:
    def __init__(self, body: Any = None, failure: Value | None = None) -> None:
        self._body = body
        self._failure = failure

    @property
    def found(self) -> bool:
        return self._failure is None

    def value(self, name: str, pick: Callable[[Any], float]) -> Value:
        if self._failure is not None:
            return self._failure
        number = pick(self._body)
        if number in _ALL_ONES:
            return Value(quality="unsupported", raw=str(number))
        return checked(name, number)


def _once(devices: list[Device]) -> Iterator[Device]:
    """Indices shift when a device is taken out: what was last seen there may be seen elsewhere."""
    alive = {device.uuid for device in devices if device.health != "failed"}
    for device in devices:
        if device.health != "failed" or device.uuid not in alive:
            yield device


def _gone(known: Device, reason: str) -> Device:
    silent = {name: Value(quality="unavailable", raw=reason) for name in known.readings}
    return replace(known, health="failed", health_reason=reason, busy_bytes=None, readings=silent)


def _or_none(nvml: Any, name: str, *arguments: Any) -> Any:
    """The call's answer; none where it fails, unless the device is lost: that is raised."""
    try:
        return getattr(nvml, name)(*arguments)
    except Exception as exc:
        if _code(exc) in _LOST:
            raise
        return None


def _code(exc: Exception) -> int:
    return int(getattr(exc, "value", -1))


def _string(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def _address(text: str) -> str:
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0').zfill(4)}:{rest}"


def _bus_id(address: str) -> bytes:
    domain, _, rest = address.partition(":")
    return f"{domain.zfill(8)}:{rest}".upper().encode()


def _pci_id(number: int) -> str | None:
    """NVML packs the device above the vendor."""
    return f"{number & 0xFFFF:04x}:{number >> 16 & 0xFFFF:04x}" if number else None


def _text_in(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number_in(path: Path) -> int | None:
    text = _text_in(path)
    return int(text) if text.isdigit() else None


def _host_memory(root: Path) -> int | None:
    for line in _text_in(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None
