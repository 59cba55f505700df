"""Xid events from NVML itself, asked without waiting at each look.

A device that cannot report events is as healthy as any other: it only has none to tell, and the
kernel's log may have them.
"""

from __future__ import annotations

from typing import Any, Final

from quintal_agent.probes.probe import Event

_XID: Final = 8
"""NVML's event type bit."""

_AT_ONCE: Final = 256
"""A burst is read in pieces: a look has a deadline."""


class XidEvents:
    """One event set over all devices; devices that came later are added to it."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._registered: dict[str, bool] = {}
        self._works = True

    @property
    def supported(self) -> bool:
        """Whether any device tells its events here."""
        return any(self._registered.values())

    def watch(self, uuid: str, handle: Any) -> None:
        """Hear of this device from now on, where it can be heard of."""
        if uuid in self._registered or not self._works:
            return
        try:
            if self._set is None:
                self._set = self._nvml.nvmlEventSetCreate()
            self._nvml.nvmlDeviceRegisterEvents(handle, _XID, self._set)
            self._registered[uuid] = True
        except Exception:
            self._registered[uuid] = False

    def take(self) -> tuple[Event, ...]:
        """What happened since it was last asked."""
        if self._set is None or not self.supported:
            return ()
        found = []
        for _ in range(_AT_ONCE):
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except Exception:  # a timeout is how it says that there is nothing more
                break
            if data.eventType & _XID:
                found.append(Event(f"xid:{int(data.eventData)}", self._uuid(data.device)))
        return tuple(found)

    def _uuid(self, handle: Any) -> str:
        try:
            uuid = self._nvml.nvmlDeviceGetUUID(handle)
        except Exception:
            try:  # a lost device still has a place on the bus
                bus = self._nvml.nvmlDeviceGetPciInfo(handle).busId
            except Exception:
                return ""
            text = bus.decode() if isinstance(bus, bytes) else str(bus)
            return text.lower()[4:]
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)
