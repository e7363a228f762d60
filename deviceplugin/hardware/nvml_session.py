"""NVML between one opening and the next, as the NVML thread sees it: devices, events, samples.

In: an open `Nvml` and what was known before. Out: one `Discovery`, then a `GpuReport` as often as wanted. Not here:
threads, time, and what follows from a report (`node`). Invariant: every handle in here is of this session, and the
session is used on the NVML thread only.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from deviceplugin.errors import NvmlCallError
from deviceplugin.hardware.device import Device, count
from deviceplugin.hardware.discovery import Discovery, discover
from deviceplugin.hardware.links import topology_of
from deviceplugin.hardware.nvml import STALE, Nvml
from deviceplugin.hardware.nvml_events import EventSet, GpuEvent
from deviceplugin.hardware.sampling import Readings, Sampler
from deviceplugin.model.gpu import Gpu, GpuUuid, Inventory
from deviceplugin.model.topology import Topology

_EMPTY = Readings({}, {})


@dataclass(frozen=True, slots=True)
class GpuSurvey:
    """What changes seldom: settings of each GPU, the driver's advice for it, how many GPUs NVML counts, and links."""

    gpus: Mapping[GpuUuid, Gpu]
    actions: Mapping[GpuUuid, int]
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

    def __init__(self, nvml: Nvml, discovery: Discovery, sampler: Sampler) -> None:
        self.discovery = discovery
        self._nvml = nvml
        self._sampler = sampler
        self._devices: Mapping[GpuUuid, Device] = discovery.devices
        self._events = EventSet(nvml, self._devices)
        self._left_out: frozenset[GpuUuid] = frozenset()
        self._links = Inventory(gpus=discovery.gpus, topology=discovery.topology, driver=discovery.driver)

    @classmethod
    def begin(
        cls, nvml: Nvml, *, known: Inventory | None, sampler: Sampler, sys_root: Path, new_library: bool = False
    ) -> "Session":
        """Opens NVML again, so that it lists what is there now, and discovers."""
        if new_library:
            nvml.forget_library()
        nvml.close()
        nvml.open()
        return cls(nvml, discover(nvml, known=known, sys_root=sys_root), sampler)

    def read(self, *, listen: bool, sample: bool, survey: bool) -> GpuReport:
        """An event is followed by a sample at once: it may be the first sign of a GPU that no longer answers."""
        events, deaf = _drain(self._events) if listen else ((), "")
        readings = self._sampler.read(self._devices) if sample or events or deaf else _EMPTY
        if deaf or self._left_out & readings.samples.keys():
            events += self._listen_to(readings.samples.keys())
        return GpuReport(events, deaf, readings, self._survey() if survey else None)

    def _listen_to(self, answering: Set[GpuUuid]) -> tuple[GpuEvent, ...]:
        """Makes a new event set and returns the old one's last events: no event may get lost in between."""
        old = self._events
        self._events = EventSet(self._nvml, {uuid: self._devices[uuid] for uuid in self._devices if uuid in answering})
        self._left_out = frozenset(self._devices.keys() - answering)
        heard, _deaf = _drain(old)
        old.close()
        return heard

    def _survey(self) -> GpuSurvey:
        gpus: dict[GpuUuid, Gpu] = {}
        actions: dict[GpuUuid, int] = {}
        for gpu in self.discovery.gpus:
            device = self._devices.get(gpu.uuid)
            if device is None:
                continue
            try:
                gpus[gpu.uuid] = replace(gpu, compute_mode=device.compute_mode(), mig_enabled=device.mig_enabled())
                actions[gpu.uuid] = device.recovery_action() or 0
            except NvmlCallError as error:
                if error.code in STALE:
                    raise
        return GpuSurvey(gpus, actions, count(self._nvml), self._topology())

    def _topology(self) -> Topology:
        gpus = self.discovery.gpus
        devices = {gpu.minor: self._devices[gpu.uuid] for gpu in gpus if gpu.uuid in self._devices}
        self._links = replace(self._links, topology=topology_of(gpus, devices, known=self._links))
        return self._links.topology


def _drain(events: EventSet) -> tuple[tuple[GpuEvent, ...], str]:
    """The events, or why there are none."""
    try:
        return events.drain(), ""
    except NvmlCallError as error:
        if error.code in STALE:
            raise
        return (), error.message
