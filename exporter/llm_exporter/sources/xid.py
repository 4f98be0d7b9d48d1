"""XID errors: what a driver reports about a GPU that misbehaves, counted from NVML's event set.

`sources/nvml.py` collects them once a second without waiting. Counts belong to this program's life and survive a new
initialisation of NVML; events that happen between shutdown and initialisation are missed.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections.abc import Callable, Mapping
from typing import Any

from llm_exporter.sources.nvml_errors import Scope, classified

log = logging.getLogger(__name__)

_XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
_EVENTS_PER_TICK = 64


class XidLog:
    """Counts by device and XID.

    Args:
        wall: unix time, for the moment an event was seen.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._library: Any = None
        self._events: Any = None
        self._handles: Mapping[str, Any] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._last_at: dict[str, dict[int, float]] = {}

    def watch(self, library: Any, handles: Mapping[str, Any]) -> None:
        """Register these devices (UUID → handle) with a new event set; quietly does nothing where there are none."""
        self._library, self._handles = library, dict(handles)
        try:
            self._events = library.nvmlEventSetCreate()
        except Exception as error:  # noqa: BLE001  no events on this driver, or in a vGPU guest
            log.debug("source=nvml events=off reason=%s", classified(error))
            return
        for uuid, handle in handles.items():
            try:
                library.nvmlDeviceRegisterEvents(handle, _XID_EVENT, self._events)
            except Exception as error:  # noqa: BLE001  the others can still be watched
                log.debug("source=nvml uuid=%s events=off reason=%s", uuid, classified(error))

    def collect(self) -> None:
        """Take what happened since the last call; never waits.

        Raises:
            Exception: an error of the binding that ends the session.
        """
        if self._events is None:
            return
        wait = getattr(self._library, "nvmlEventSetWait_v2", None) or self._library.nvmlEventSetWait
        for _ in range(_EVENTS_PER_TICK):
            try:
                event = wait(self._events, 0)
            except Exception as error:  # a time-out is the normal answer: nothing happened
                if classified(error).scope is Scope.SESSION:
                    raise
                return
            uuid = self._uuid_of(event.device)
            if event.eventType == _XID_EVENT and uuid:
                xid = int(event.eventData)
                counts = self._counts.setdefault(uuid, {})
                counts[xid] = counts.get(xid, 0) + 1
                self._last_at.setdefault(uuid, {})[xid] = self._wall()
                log.warning("XID %d on GPU %s", xid, uuid, extra={"source": "nvml"})

    def counts(self, uuid: str) -> Mapping[int, int]:
        """XID → events seen."""
        return dict(self._counts.get(uuid, {}))

    def last_at(self, uuid: str) -> Mapping[int, float]:
        """XID → unix time of the last event."""
        return dict(self._last_at.get(uuid, {}))

    def close(self) -> None:
        """Free the event set; the counts stay."""
        events, self._events = self._events, None
        if events is not None:
            with contextlib.suppress(Exception):
                self._library.nvmlEventSetFree(events)

    def _uuid_of(self, handle: Any) -> str:
        """UUID of an event's device, also of one that answers no call any more."""
        address = _address(handle)
        for uuid, known in self._handles.items():
            if _address(known) == address:
                return uuid
        with contextlib.suppress(Exception):
            uuid = text_of(self._library.nvmlDeviceGetUUID(handle))
            return uuid if uuid in self._handles else ""
        return ""


def text_of(value: Any) -> str:
    """A string of the binding (older ones give bytes)."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _address(handle: Any) -> int:
    """What identifies a handle: the address that a C pointer holds, else the object."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value or 0
    except (ctypes.ArgumentError, TypeError):
        return id(handle)
