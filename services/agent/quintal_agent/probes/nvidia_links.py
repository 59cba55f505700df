"""NVLink as NVML shows it: which devices each link leads to, and the domain beyond the node.

It costs some hundred calls and changes seldom, so that it is asked now and then and not at every
look. A link that leads to a switch leads to every other device that has one there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from quintal_agent.probes.probe import Link

EVERY: Final = 60
"""Looks between two askings."""

LINKS_MAX: Final = 36
"""Of one device; the library says INVALID_ARGUMENT for one that the device has not."""

_SWITCH: Final = 2
_NO_LINK: Final = frozenset({2, 3})
"""NVML's codes for no such link, and for a device without any."""
_COMPLETED: Final = 3
_BLANK: Final = "00000000-0000-0000-0000-000000000000"


def links(
    library: Any, handles: Mapping[str, Any], address: Callable[[str], str]
) -> tuple[Link, ...] | None:
    """Every pair of devices that NVLink joins; none where some device does not tell.

    `handles` are by the devices' PCI addresses.
    """
    direct: Counter[tuple[str, str]] = Counter()
    switched: Counter[str] = Counter()
    try:
        for at, handle in handles.items():
            for number in _active(library, handle):
                if library.nvmlDeviceGetNvLinkRemoteDeviceType(handle, number) == _SWITCH:
                    switched[at] += 1
                    continue
                remote = library.nvmlDeviceGetNvLinkRemotePciInfo(handle, number)
                other = address(_text(remote.busId))
                if other in handles and other != at:
                    direct[at, other] += 1
    except Exception:  # lost meanwhile, no permission, an older library: nobody knows
        return None
    found = [Link(a, b, f"NV{count}") for (a, b), count in direct.items() if a < b]
    names = sorted(switched)
    found += [
        Link(a, b, f"NV{min(switched[a], switched[b])}S")
        for place, a in enumerate(names)
        for b in names[place + 1 :]
    ]
    return tuple(found)


def _active(library: Any, handle: Any) -> Iterator[int]:
    for number in range(LINKS_MAX):
        try:
            state = library.nvmlDeviceGetNvLinkState(handle, number)
        except Exception as exc:
            if getattr(exc, "value", -1) in _NO_LINK:
                return
            raise
        if state:
            yield number


def fabric(library: Any, handle: Any) -> str | None:
    """`nvlink:CLUSTER/CLIQUE`; empty where the device says that it is in none, none if it does not.

    A box of its own is completed too, with a cluster of zeros: no domain between nodes.
    """
    try:
        from ctypes import byref

        info = library.c_nvmlGpuFabricInfoV_t()
        library.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
        if info.state != _COMPLETED or info.status:
            return None
        digits = bytes(info.clusterUuid).hex()
    except Exception:  # an older library, driver or device: nobody knows
        return None
    cuts = (0, 8, 12, 16, 20, 32)
    cluster = "-".join(digits[a:b] for a, b in pairwise(cuts))
    return "" if cluster == _BLANK else f"nvlink:{cluster}/{int(info.cliqueId)}"


def _text(told: str | bytes) -> str:
    return told.decode(errors="replace") if isinstance(told, bytes) else str(told)
