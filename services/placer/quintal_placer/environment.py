"""What a process must have in its environment to see its devices and no others. Pure.

By uuid where the vendor's runtime takes it, since an index shifts after a reset; by index where
it takes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from quintal.contracts.placement import LeaseDevice

_BY_UUID: Final = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}

_BY_INDEX: Final = {
    "huawei": "ASCEND_RT_VISIBLE_DEVICES",
    "intel": "ZE_AFFINITY_MASK",
    "habana": "HABANA_VISIBLE_DEVICES",
    "google": "TPU_VISIBLE_CHIPS",
    "cambricon": "MLU_VISIBLE_DEVICES",
    "mthreads": "MUSA_VISIBLE_DEVICES",
    "metax": "CUDA_VISIBLE_DEVICES",
    "iluvatar": "CUDA_VISIBLE_DEVICES",
    "hygon": "HIP_VISIBLE_DEVICES",
    "kunlunxin": "XPU_VISIBLE_DEVICES",
    "enflame": "TOPS_VISIBLE_DEVICES",
    "tenstorrent": "TT_VISIBLE_DEVICES",
}

_CDI: Final = {
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "intel": "intel.com/gpu",
    "habana": "intel.com/gaudi",
    "huawei": "huawei.com/npu",
}
"""The kind under which the vendor's tool writes its CDI specification."""


def environment(devices: Iterable[LeaseDevice]) -> dict[str, dict[str, str]]:
    """Node -> variables. Neuron counts cores, not devices, and is left to the launcher."""
    found: dict[str, dict[str, list[str]]] = {}
    for device in devices:
        vendor = runtime_of(device)
        name = _BY_UUID.get(vendor) or _BY_INDEX.get(vendor)
        if name is None:
            continue
        found.setdefault(device.node, {}).setdefault(name, []).append(_shown_as(device, vendor))
    return {
        node: {name: ",".join(values) for name, values in names.items()}
        for node, names in found.items()
    }


def cdi(devices: Iterable[LeaseDevice]) -> tuple[str, ...]:
    """Fully qualified CDI device names, for a container runtime on the device's own node."""
    names = []
    for device in devices:
        kind = _CDI.get(runtime_of(device))
        if kind is not None:
            shown = _shown_as(device, "nvidia") if device.vendor == "nvidia" else str(device.index)
            names.append(f"{kind}={shown}")
    return tuple(names)


def _shown_as(device: LeaseDevice, vendor: str) -> str:
    """The uuid of what is held, a partition's before its card's, where the runtime takes it."""
    uuid = device.partition or device.uuid
    by_uuid = vendor in _BY_UUID and uuid.startswith(("GPU-", "MIG-"))
    return uuid if by_uuid else str(device.index)


def runtime_of(device: LeaseDevice) -> str:
    """The vendor, but for Gaudi: Intel's by name, Habana's by its software."""
    gaudi = device.vendor == "intel" and "gaudi" in device.model
    return "habana" if gaudi else device.vendor
