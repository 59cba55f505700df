"""How busy a device under MIG is: NVML's GPM samples, where the usual field has no value.

With MIG on, the whole device has no utilization; its instances have, from Hopper on, as the
difference of two samples. The device's is their mean by slices, and marked as derived: what no
instance owns is idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from quintal_agent.probes.probe import Value
from quintal_agent.probes.values import checked

GRAPHICS_BUSY: Final = 1
"""GPM's metric: percent of the time in which the instance was busy."""

_VERSION: Final = 1


class MigSamples:
    """Keeps each instance's last sample. A library or device without GPM costs one failed call."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._last: dict[tuple[str, int], Any] = {}

    def busy(self, handle: Any, uuid: str, instances: Mapping[int, int], slices: int) -> Value:
        """Percent of a device; `instances` are (GPU instance -> its slices), of `slices` in all.

        Unsupported where GPM is; unavailable at the first look, which has nothing to compare.
        """
        total, first = 0.0, False
        for instance, size in instances.items():
            try:
                percent = self._percent(handle, (uuid, instance))
            except Exception:  # not this device, driver, binding or right: as without GPM
                self._forget(uuid)
                return Value(quality="unsupported")
            if percent is None:
                first = True
            else:
                total += percent * size
        if first or not slices:
            return Value(quality="unavailable")
        value = checked("utilization_percent", round(total / slices, 1))
        return Value(value.value, value.quality, value.raw, derived=True, source="gpm")

    def _percent(self, handle: Any, key: tuple[str, int]) -> float | None:
        nvml = self._library
        sample = nvml.nvmlGpmSampleAlloc()
        try:
            nvml.nvmlGpmMigSampleGet(handle, key[1], sample)
        except Exception:
            nvml.nvmlGpmSampleFree(sample)
            raise
        before = self._last.get(key)
        self._last[key] = sample
        if before is None:
            return None
        try:
            asked = nvml.c_nvmlGpmMetricsGet_t()
            asked.version, asked.numMetrics = _VERSION, 1
            asked.sample1, asked.sample2 = before, sample
            asked.metrics[0].metricId = GRAPHICS_BUSY
            nvml.nvmlGpmMetricsGet(asked)
            metric = asked.metrics[0]
            if metric.nvmlReturn:
                raise OSError(f"GPM metric {GRAPHICS_BUSY}: {metric.nvmlReturn}")
            return float(metric.value)
        finally:
            nvml.nvmlGpmSampleFree(before)

    def _forget(self, uuid: str) -> None:
        for key in [key for key in self._last if key[0] == uuid]:
            self._library.nvmlGpmSampleFree(self._last.pop(key))
