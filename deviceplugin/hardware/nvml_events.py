"""NVML's events: XIDs, and what some drivers send beside or instead of them.

In: the devices that answer. Out: `GpuEvent` values, each with its GPU where NVML says which. Not here: what they mean
(`xid`, `health`). The wait is a millisecond: the NVML thread serves everyone, and the driver queues events between two
readings. Invariant: an event whose GPU is not known makes no GPU unhealthy.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from deviceplugin.errors import NvmlCallError
from deviceplugin.hardware.device import Device
from deviceplugin.hardware.nvml import STALE, Answer, Nvml, Status
from deviceplugin.model.gpu import GpuUuid

_log = structlog.get_logger("vcuda.hardware")


class EventKind(enum.IntEnum):
    """The values of nvmlEventType that count."""

    DOUBLE_BIT_ECC = 0x2
    XID = 0x8
    UNAVAILABLE = 0x4000
    RECOVERY_ACTION = 0x8000


_ALL = sum(EventKind)
_WITHOUT_ECC = _ALL & ~EventKind.DOUBLE_BIT_ECC
_OLD = EventKind.XID | EventKind.DOUBLE_BIT_ECC  # of a driver that does not say what it supports
_WAIT_MS = 1
_MOST_AT_ONCE = 256  # a GPU in a fault storm must not keep the thread from its other work


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """`uuid` is None where the driver names no GPU; `xid` is None for the other kinds."""

    uuid: GpuUuid | None
    xid: int | None = None
    kind: EventKind = EventKind.XID


class EventSet:
    """One nvmlEventSet_t. A GPU that fell off the bus can fail every wait on its set: make a new one without it.

    `unheard`: the GPUs whose events cannot be had, and why.
    """

    def __init__(self, nvml: Nvml, devices: Mapping[GpuUuid, Device]) -> None:
        self.unheard: dict[GpuUuid, NvmlCallError] = {}
        self._nvml = nvml
        self._generation = nvml.generation
        self._by_address: dict[int, GpuUuid] = {}
        self._set: Answer = None
        self._failure: NvmlCallError | None = None
        wanted = dict(devices)
        while self._create() and (spoiler := self._register_all(wanted)) is not None:
            del wanted[spoiler]
            self.close()

    @property
    def may_hear_more(self) -> bool:
        """Whether some GPU's events may be had later: it has them, and did not give them."""
        return any(error.code != Status.NOT_SUPPORTED for error in self.unheard.values())

    def drain(self) -> tuple[GpuEvent, ...]:
        """Every event since the last reading; NvmlCallError if the set could not be made or waiting itself fails."""
        if self._failure is not None:
            raise self._failure
        events: list[GpuEvent] = []
        while self._by_address and len(events) < _MOST_AT_ONCE:
            try:
                data = self._nvml.required("nvmlEventSetWait", self._set, _WAIT_MS)
            except NvmlCallError as error:
                if error.code == Status.TIMEOUT:
                    break
                if events:
                    break  # what was already heard must not be lost; the error will come again
                raise
            if (event := self._read(data)) is not None:
                events.append(event)
        return tuple(events)

    def close(self) -> None:
        if self._set is not None and self._generation == self._nvml.generation:
            try:
                self._nvml.required("nvmlEventSetFree", self._set)
            except NvmlCallError as error:
                _log.debug("event_set_free_failed", error=error.message)
        self._set = None
        self._by_address.clear()
        if self.close in self._nvml.before_close:
            self._nvml.before_close.remove(self.close)

    def _create(self) -> bool:
        try:
            self._set = self._nvml.optional("nvmlEventSetCreate")
        except NvmlCallError as error:
            if error.code in STALE:
                raise
            self._failure = error
        if self._set is None:
            return False
        self._nvml.before_close.append(self.close)
        return True

    def _register_all(self, devices: Mapping[GpuUuid, Device]) -> GpuUuid | None:
        """The GPU that left the set in an undefined state, as NVML's documentation says of the error UNKNOWN."""
        for uuid, device in devices.items():
            try:
                self._register(uuid, device)
            except NvmlCallError as error:
                if error.code in STALE:
                    raise
                self.unheard[uuid] = error
                if error.code == Status.UNKNOWN:
                    return uuid
        return None

    def _register(self, uuid: GpuUuid, device: Device) -> None:
        supported = self._nvml.optional("nvmlDeviceGetSupportedEventTypes", device.handle, about=device.about)
        wanted = _wanted(_OLD if supported is None else int(supported))
        if wanted:
            self._nvml.required("nvmlDeviceRegisterEvents", device.handle, wanted, self._set, about=device.about)
            self._by_address[device.address] = uuid

    def _read(self, data: Answer) -> GpuEvent | None:
        kind = next((kind for kind in EventKind if int(data.eventType) & kind), None)
        if kind is None:
            return None
        handle = Device(self._nvml, data.device, -1)
        uuid = self._by_address.get(handle.address)
        if uuid is None and handle.address:
            uuid = _uuid_of(handle)
        return GpuEvent(uuid=uuid, xid=int(data.eventData) if kind is EventKind.XID else None, kind=kind)


def _wanted(supported: int) -> int:
    """A double-bit ECC error comes with an XID, which also tells whether it was contained (48, 94, 95)."""
    return supported & (_WITHOUT_ECC if supported & EventKind.XID else _ALL)


def _uuid_of(handle: Device) -> GpuUuid | None:
    try:
        return handle.uuid()
    except NvmlCallError:
        return None
