"""What stands on the PCI bus, from /sys: the floor under every vendor's tool.

A tool may be missing, hang, or leave a device out; the bus still has it. Only attributes that the
kernel answers from memory are read: none of them touches the device, so none wakes one that sleeps
or hangs on one that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_DISPLAY: Final = ("0300", "0302", "0380")
_COMPUTE: Final = ("1200", "0b40")

VENDORS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "nvidia": ("10de", ("0300", "0302")),
    "amd": ("1002", (*_DISPLAY, *_COMPUTE)),
    "intel": ("8086", _DISPLAY),
    "huawei": ("19e5", _COMPUTE),
    "gaudi": ("1da3", _COMPUTE),
    "google": ("1ae0", _COMPUTE),
    "cambricon": ("cabc", (*_DISPLAY, *_COMPUTE)),
    "hygon": ("1d94", ("0380", "1200")),
    "metax": ("9999", (*_DISPLAY, *_COMPUTE)),
    "mthreads": ("1ed5", (*_DISPLAY, *_COMPUTE)),
    "iluvatar": ("1e3e", (*_DISPLAY, *_COMPUTE)),
    "kunlunxin": ("1d22", (*_DISPLAY, *_COMPUTE)),
    "enflame": ("1e36", (*_DISPLAY, *_COMPUTE)),
    "tenstorrent": ("1e52", _COMPUTE),
    "thead": ("1ded", (*_DISPLAY, *_COMPUTE)),
}
"""Vendor -> its PCI vendor id, and the classes under which it has accelerators. The class decides
too: Huawei's management controller has a display function under the id of its NPUs."""

NEURON: Final = frozenset({"7064", "7164", "7264", "7364"})
"""AWS gives its accelerators no class of their own; these are their device ids (vendor 1d0f)."""

_VENDOR_IDS: Final = frozenset({"1d0f", *(vendor_id for vendor_id, _ in VENDORS.values())})
_CLASSES: Final = frozenset({"03", "12", "0b", "08", "00"})

_OWN_PICTURE: Final = frozenset({"amd", "intel"})
"""Vendors whose processors bring a display of their own, which is no accelerator."""


@dataclass(frozen=True, slots=True)
class Function:
    """One PCI function, as the kernel remembers it."""

    address: str
    vendor_id: str
    device_id: str
    class_code: str
    """Four digits: class and subclass."""
    driver: str | None = None
    subsystem: str | None = None
    numa_node: int | None = None
    suspended: bool = False
    first_display: bool = False
    """The firmware shows its picture there."""
    virtual: bool = False
    """A virtual function of another one."""
    bridges: tuple[str, ...] = ()
    """What is above it, from the host's bridge down."""

    @property
    def pci_id(self) -> str:
        """vendor:device."""
        return f"{self.vendor_id}:{self.device_id}"


def scan(sys_root: str | Path = "/sys", vendor_id: str | None = None) -> tuple[Function, ...]:
    """The functions of vendors that build accelerators, by address; none where there is no PCI.

    A big server has hundreds of functions: of the others no more than their vendor is read.
    """
    folder = Path(sys_root) / "bus/pci/devices"
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return ()
    wanted = _VENDOR_IDS if vendor_id is None else frozenset({vendor_id})
    return tuple(
        _function(folder / name)
        for name in names
        if _text(folder / name / "vendor")[2:].lower() in wanted
        and (vendor_id is not None or _text(folder / name / "class")[2:4] in _CLASSES)
    )


def asleep(address: str | None, sys_root: str | Path = "/sys") -> bool:
    """Whether the kernel has put the device to sleep: opening it would wake it."""
    if not address:
        return False
    path = Path(sys_root) / "bus/pci/devices" / address / "power/runtime_status"
    return _text(path) == "suspended"


def vendor_of(function: Function) -> str | None:
    """Whose accelerator it is; none where it is no accelerator."""
    if function.vendor_id == "1d0f":
        return "aws" if function.device_id in NEURON else None
    for name, (vendor_id, classes) in VENDORS.items():
        if function.vendor_id == vendor_id:
            if function.class_code not in classes or _is_own_picture(name, function):
                return None
            return name
    return None


def _is_own_picture(vendor: str, function: Function) -> bool:
    if vendor not in _OWN_PICTURE or function.class_code != "0300":
        return False
    on_the_root_bus = function.address.split(":")[1:2] == ["00"]
    return function.first_display or on_the_root_bus


def _function(folder: Path) -> Function:
    numa = _text(folder / "numa_node")
    vendor, device = _text(folder / "subsystem_vendor"), _text(folder / "subsystem_device")
    return Function(
        address=folder.name,
        vendor_id=_text(folder / "vendor")[2:].lower(),
        device_id=_text(folder / "device")[2:].lower(),
        class_code=_text(folder / "class")[2:6].lower(),
        driver=_link(folder / "driver"),
        subsystem=f"{vendor[2:]}:{device[2:]}".lower() if vendor and device else None,
        numa_node=int(numa) if numa.isdigit() else None,
        suspended=_text(folder / "power/runtime_status") == "suspended",
        first_display=_text(folder / "boot_vga") == "1",
        virtual=(folder / "physfn").exists(),
        bridges=bridges(folder),
    )


def bridges(folder: Path) -> tuple[str, ...]:
    """The PCI bridges above a device's folder, from the host's down; empty where none is shown.

    The kernel's folders lie in one another as the bridges do: only the link is read.
    """
    try:
        above = folder.resolve().parts[:-1]
    except (OSError, RuntimeError):
        return ()
    first = next((place for place, part in enumerate(above) if part.startswith("pci")), None)
    return () if first is None else above[first:]


def _link(path: Path) -> str | None:
    try:
        return path.readlink().name
    except OSError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
