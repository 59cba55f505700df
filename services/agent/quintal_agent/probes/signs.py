"""Where a vendor may be at work without showing on the PCI bus: device nodes and libraries.

A probe whose vendor gives no sign is not started: sixteen interpreters that find nothing cost more
than all the looking. A name means "maybe"; only the probe itself says what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from quintal_agent.probes.pci import VENDORS

SIGNS: Final[Mapping[str, tuple[str, ...]]] = {
    "amd": ("kfd",),
    "intel": ("dri/renderD*",),
    "huawei": ("davinci[0-9]*", "davinci_manager"),
    "gaudi": ("accel/accel[0-9]*", "hl[0-9]*"),
    "aws": ("neuron[0-9]*",),
    "google": ("accel[0-9]*", "vfio/[0-9]*"),
    "tenstorrent": ("tenstorrent/[0-9]*",),
}
"""Vendor -> names under /dev."""

_ALWAYS: Final = frozenset({"cpu", "nvidia"})
"""The processor is always there; NVIDIA's library is found on the loader's path, and where it is
not, its probe says so once and rests for minutes."""


def has_sign(vendor: str, dev: str = "/dev") -> bool:
    """Whether it is worth starting the vendor's probe although the bus shows nothing of it.

    Of a vendor that a third party added nothing is known here: its probe always looks itself.
    """
    if vendor in _ALWAYS or vendor not in VENDORS.keys() | SIGNS.keys():
        return True
    folder = Path(dev)
    return any(next(folder.glob(name), None) is not None for name in SIGNS.get(vendor, ()))
