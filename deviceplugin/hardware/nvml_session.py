"""NVML between one opening and the next, as the NVML thread sees it: devices, events, samples.

In: an open `Nvml` and what was known before. Out: one `Discovery`, then a `GpuReport` as often as wanted: a `GpuSample`
for each GPU that answers, a `Fault` for each that does not, and a `GpuEvent` for each XID or what some drivers send
beside or instead of one. Not here: threads and time (`node`), what faults and events mean (`health`), and what follows
from a report (`node`). Invariants: every handle in here is of this session, and the session is used on the NVML thread
only; a GPU that is lost gives no sample and no exception, as only a driver that is gone altogether raises; an event
whose GPU is not known makes no GPU unhealthy.

A sample says how busy a GPU is, what uses its memory and who runs on it, and is its probe at the same time. The probe
is the memory alone: other values that cannot be read are 0. The driver keeps per-process readings for itself and hands
out those newer than a time stamp. It has none for a process that was idle, and none at all between two of its own
sampling points, so a reading stays good for a while.

Events are waited for no longer than a millisecond: the NVML thread serves everyone, and the driver queues events
between two readings.
"""

import enum
import time
from collections.abc import Callable, Collection, Mapping, Set
from pathlib import Path

import msgspec
import structlog

from deviceplugin.errors import NvmlCallError
from deviceplugin.hardware.device import Device, ProcessLoad, count, is_locked
from deviceplugin.hardware.discovery import Discovery, discover, topology_of
from deviceplugin.hardware.health import Condition
from deviceplugin.hardware.nvml import GONE, STALE, Answer, Nvml, Status
from deviceplugin.model.gpu import Gpu, GpuProcess, GpuSample, GpuUuid, Inventory
from deviceplugin.model.topology import Topology
from deviceplugin.structs import replace


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


class GpuEvent(msgspec.Struct, frozen=True):
    """`uuid` is None if the driver names no GPU; `xid` is None for the other kinds."""

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


_GOOD_FOR_US = 2_000_000  # twice the longest sampling period of any product
_AHEAD_US = 1_000_000


class Fault(msgspec.Struct, frozen=True):
    """Why a GPU did not answer; `for_certain` where NVML leaves no doubt that it can run nothing."""

    reason: str
    for_certain: bool


class Readings(msgspec.Struct, frozen=True):
    """What one pass over the GPUs gave; every GPU asked is in exactly one of the two."""

    samples: Mapping[GpuUuid, GpuSample]
    faults: Mapping[GpuUuid, Fault]


class Sampler:
    """Remembers, for each GPU, up to when the driver's per-process readings were taken."""

    def __init__(self, *, period_s: float, clock: Callable[[], float] = time.time) -> None:
        self._period_us = max(1, round(period_s * 1e6))
        self._clock = clock
        self._loads: dict[GpuUuid, _Loads] = {}

    def read(self, devices: Mapping[GpuUuid, Device]) -> Readings:
        samples: dict[GpuUuid, GpuSample] = {}
        faults: dict[GpuUuid, Fault] = {}
        for uuid, device in devices.items():
            try:
                samples[uuid] = self._sample(uuid, device)
            except NvmlCallError as error:
                if error.code in STALE:
                    raise
                faults[uuid] = Fault(error.said, for_certain=error.code in GONE)
                self._loads.pop(uuid, None)
        return Readings(samples, faults)

    def _sample(self, uuid: GpuUuid, device: Device) -> GpuSample:
        _total, used = device.memory()
        processes = device.processes()
        busy = self._busy(uuid, device) if processes else {}
        return GpuSample(
            utilization_percent=device.utilization(),
            memory_used_bytes=used,
            processes=tuple(GpuProcess(pid, held, busy.get(pid, 0)) for pid, held in sorted(processes.items())),
        )

    def _busy(self, uuid: GpuUuid, device: Device) -> Mapping[int, int]:
        now = round(self._clock() * 1e6)
        loads = self._loads.get(uuid)
        if loads is None or loads.newest_us > now + _AHEAD_US:  # the wall clock was set back
            loads = self._loads[uuid] = _Loads(newest_us=now - self._period_us)
        loads.add(device.process_loads(loads.newest_us))
        return loads.percent(now)


class _Loads:
    """The last reading of each process of one GPU."""

    def __init__(self, *, newest_us: int) -> None:
        self.newest_us = newest_us
        self._last: dict[int, tuple[int, int]] = {}

    def add(self, loads: tuple[ProcessLoad, ...]) -> None:
        fresh: dict[int, list[int]] = {}
        for load in loads:
            fresh.setdefault(load.pid, []).append(load.sm_percent)
            self.newest_us = max(self.newest_us, load.timestamp_us)
        for pid, percents in fresh.items():
            self._last[pid] = (self.newest_us, round(sum(percents) / len(percents)))

    def percent(self, now_us: int) -> dict[int, int]:
        self._last = {pid: at for pid, at in self._last.items() if now_us - at[0] <= _GOOD_FOR_US}
        return {pid: percent for pid, (_at, percent) in self._last.items()}


_log = structlog.get_logger("vcuda.hardware")
_EMPTY = Readings({}, {})


class GpuSurvey(msgspec.Struct, frozen=True):
    """What changes seldom: settings and condition of each GPU, how many GPUs NVML counts, and links."""

    gpus: Mapping[GpuUuid, Gpu]
    conditions: Mapping[GpuUuid, Condition]
    counted: int
    topology: Topology


class GpuReport(msgspec.Struct, frozen=True):
    """One reading of all GPUs; `deaf` says why events could not be read, empty if they could."""

    events: tuple[GpuEvent, ...] = ()
    deaf: str = ""
    readings: Readings = msgspec.field(default=_EMPTY)
    survey: GpuSurvey | None = None


class Session:
    """Made by `begin`; a driver that goes away makes its calls raise an NvmlCallError with a code in STALE."""

    def __init__(self, nvml: Nvml, discovery: Discovery, sampler: Sampler, *, heard: tuple[GpuEvent, ...] = ()) -> None:
        self.discovery = discovery
        self._nvml = nvml
        self._sampler = sampler
        self._devices: Mapping[GpuUuid, Device] = discovery.devices
        self._unheard: frozenset[GpuUuid] = frozenset()
        self._events = self._event_set(self._devices)
        self._heard = heard
        self._left_out: frozenset[GpuUuid] = frozenset()
        self._links = Inventory(gpus=discovery.gpus, topology=discovery.topology, driver=discovery.driver)

    @classmethod
    def begin(
        cls,
        nvml: Nvml,
        *,
        known: Inventory | None,
        sampler: Sampler,
        sys_root: Path,
        new_library: bool = False,
        hung: Collection[int] = (),
        previous: "Session | None" = None,
    ) -> "Session":
        """Opens NVML again, so that it lists what is there now, and discovers.

        While a question about a GPU hangs, a thread is inside NVML: it stays open then, and lists what it listed. The
        last events of the `previous` session are the first of this one.
        """
        heard = previous.end() if previous is not None else ()
        if not hung:
            if new_library:
                nvml.forget_library()
            nvml.close()
        nvml.open()
        return cls(nvml, discover(nvml, known=known, sys_root=sys_root, hung=hung), sampler, heard=heard)

    def end(self) -> tuple[GpuEvent, ...]:
        """The events that no report has had. Nothing is read any more."""
        try:
            events, _deaf = _drain(self._events)
        except NvmlCallError:
            events = ()  # the driver is gone
        self._events.close()
        return self._heard + events

    def read(self, *, listen: bool, sample: bool, survey: bool, hung: Collection[int] = ()) -> GpuReport:
        """An event is followed by a sample at once: it may be the first sign of a GPU that no longer answers.

        Events that were read stay here until a report has them: a question after them may hang.
        """
        devices = {uuid: device for uuid, device in self._devices.items() if device.index not in hung}
        events, deaf = _drain(self._events) if listen else ((), "")
        self._heard += events
        again = survey and self._events.may_hear_more
        readings = self._sampler.read(devices) if sample or self._heard or deaf or again else _EMPTY
        if deaf or again or self._left_out & readings.samples.keys():
            self._heard += self._listen_to(readings.samples.keys())
        report = GpuReport(self._heard, deaf, readings, self._survey(devices) if survey else None)
        self._heard = ()
        return report

    def _listen_to(self, answering: Set[GpuUuid]) -> tuple[GpuEvent, ...]:
        """Makes a new event set and returns the old one's last events: no event may get lost in between."""
        old = self._events
        self._events = self._event_set({uuid: self._devices[uuid] for uuid in self._devices if uuid in answering})
        self._left_out = frozenset(self._devices.keys() - answering)
        heard, _deaf = _drain(old)
        old.close()
        return heard

    def _event_set(self, devices: Mapping[GpuUuid, Device]) -> EventSet:
        """Says once of which GPUs nothing is heard."""
        events = EventSet(self._nvml, devices)
        for uuid, error in events.unheard.items():
            if uuid not in self._unheard:
                _log.warning("gpu_events_unavailable", gpu=uuid, error=error.message)
        self._unheard = frozenset(events.unheard)
        return events

    def _survey(self, devices: Mapping[GpuUuid, Device]) -> GpuSurvey:
        gpus: dict[GpuUuid, Gpu] = {}
        conditions: dict[GpuUuid, Condition] = {}
        locked = is_locked(self._nvml)
        for gpu in self.discovery.gpus:
            device = devices.get(gpu.uuid)
            if device is None:
                continue
            try:
                conditions[gpu.uuid] = replace(device.condition(), locked=locked)
                gpus[gpu.uuid] = replace(gpu, compute_mode=device.compute_mode(), mig_enabled=device.mig_enabled())
            except NvmlCallError as error:
                if error.code in STALE:
                    raise
        return GpuSurvey(gpus, conditions, count(self._nvml), self._topology(devices))

    def _topology(self, devices: Mapping[GpuUuid, Device]) -> Topology:
        gpus = self.discovery.gpus
        by_minor = {gpu.minor: devices[gpu.uuid] for gpu in gpus if gpu.uuid in devices}
        self._links = replace(self._links, topology=topology_of(gpus, by_minor, known=self._links))
        return self._links.topology


def _drain(events: EventSet) -> tuple[tuple[GpuEvent, ...], str]:
    """The events, or why there are none."""
    try:
        return events.drain(), ""
    except NvmlCallError as error:
        if error.code in STALE:
            raise
        return (), error.message
