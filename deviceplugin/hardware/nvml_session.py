"""NVML between one opening and the next, as the NVML thread sees it: devices, events, samples.

In: an open `Nvml` and what was known before. Out: one `Discovery`, then a `GpuReport` as often as wanted. Not here:
threads, time, and what follows from a report (`node`). Invariant: every handle in here is of this session, and the
session is used on the NVML thread only.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from deviceplugin.errors import NvmlCallError
from deviceplugin.hardware.condition import Condition
from deviceplugin.hardware.device import Device, count, is_locked
from deviceplugin.hardware.discovery import Discovery, discover
from deviceplugin.hardware.links import topology_of
from deviceplugin.hardware.nvml import STALE, Nvml
from deviceplugin.hardware.nvml_events import EventSet, GpuEvent
from deviceplugin.hardware.sampling import Readings, Sampler
from deviceplugin.model.gpu import Gpu, GpuUuid, Inventory
from deviceplugin.model.topology import Topology

_log = structlog.get_logger("vcuda.hardware")
_EMPTY = Readings({}, {})


@dataclass(frozen=True, slots=True)
class GpuSurvey:
    """What changes seldom: settings and condition of each GPU, how many GPUs NVML counts, and links."""

    gpus: Mapping[GpuUuid, Gpu]
    conditions: Mapping[GpuUuid, Condition]
    counted: int
    topology: Topology


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One reading of all GPUs; `deaf` says why events could not be read, empty where they could."""

    events: tuple[GpuEvent, ...] = ()
    deaf: str = ""
    readings: Readings = field(default=_EMPTY)
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
