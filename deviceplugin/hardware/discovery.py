"""Which GPUs this node has: one pass over NVML.

In: an open `Nvml`, the inventory known from before (the cache, or the last pass), sysfs. Out: a `Discovery`: the GPUs,
their links, the devices to ask further, and why some are unhealthy. Not here: their health from now on (`health`).
Invariant: one GPU that fails never affects the others. Where its identity is known it stays, unhealthy; else it is left
out, with a note.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.errors import NvmlCallError
from deviceplugin.hardware import pci
from deviceplugin.hardware.device import Device, count, driver_of
from deviceplugin.hardware.health import GPU_HUNG
from deviceplugin.hardware.links import topology_of
from deviceplugin.hardware.nvml import STALE, Nvml, Status, Subject
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid, Inventory
from deviceplugin.model.topology import Topology

VANISHED = "NVML no longer lists it"


@dataclass(frozen=True, slots=True)
class Discovery:
    """One pass: `failed` has the reason for each GPU that is known and does not answer, `notes` are for the log."""

    gpus: tuple[Gpu, ...]
    topology: Topology
    driver: Driver
    devices: Mapping[GpuUuid, Device]
    failed: Mapping[GpuUuid, str]
    counted: int
    notes: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every GPU answered: those that NVML counts, and those that were known before."""
        return not self.failed and len(self.devices) == self.counted


def discover(
    nvml: Nvml, *, known: Inventory | None = None, sys_root: Path = Path("/sys"), hung: Collection[int] = ()
) -> Discovery:
    """Runs on the NVML thread; only a driver that is gone altogether raises. GPUs that hang are not asked."""
    driver = driver_of(nvml)
    found: dict[GpuUuid, tuple[Gpu, Device]] = {}
    silent: dict[int, NvmlCallError] = {}
    counted = count(nvml)
    for index in range(counted):
        if index in hung:
            silent[index] = _hang(index)
            continue
        try:
            device = Device.at(nvml, index)
            gpu = _describe(device, sys_root)
        except NvmlCallError as error:
            if error.code in STALE:
                raise
            silent[index] = error
        else:
            found[gpu.uuid] = (gpu, device)
    present = tuple(gpu for gpu, _device in found.values())
    missing, notes = absent_gpus(present, silent, known.gpus if known is not None else ())
    gpus = tuple(sorted((*present, *missing), key=lambda gpu: (gpu.index, gpu.uuid)))
    by_minor = {gpu.minor: device for gpu, device in found.values()}
    return Discovery(
        gpus=gpus,
        topology=topology_of(gpus, by_minor, known=known),
        driver=driver,
        devices={uuid: device for uuid, (_gpu, device) in found.items()},
        failed={gpu.uuid: reason for gpu, reason in missing.items()},
        counted=counted,
        notes=notes,
    )


def _hang(index: int) -> NvmlCallError:
    sentence = f"{GPU_HUNG}; see the kernel log (dmesg) for NVRM and reset the GPU or reboot the node"
    return NvmlCallError(f"{Subject(index)}: {sentence}", code=Status.TIMEOUT, said=GPU_HUNG)


def _describe(device: Device, sys_root: Path) -> Gpu:
    uuid = device.uuid()
    bus_id = device.bus_id()
    return Gpu(
        uuid=uuid,
        index=device.index,
        minor=device.minor(),
        model=device.name(),
        memory_bytes=device.memory()[0],
        bus_id=bus_id,
        numa=_numa(device, sys_root, bus_id),
        compute_mode=device.compute_mode(),
        mig_enabled=device.mig_enabled(),
    )


def _numa(device: Device, sys_root: Path, bus_id: str) -> int | None:
    """The slot's node first: where GPU memory is a separate node (Grace), NVML returns that one, which has no CPUs."""
    node = pci.numa_node(sys_root, bus_id)
    if node is None:
        node = device.memory_affinity()
    return device.numa_node() if node is None else node


def absent_gpus(
    present: Sequence[Gpu], silent: Mapping[int, NvmlCallError], known: Sequence[Gpu]
) -> tuple[dict[Gpu, str], tuple[str, ...]]:
    """GPUs that are known and did not answer, each with the reason, and notes about those that are dropped.

    `silent` by index: the error for a GPU that NVML counts and that did not answer.
    """
    here = {gpu.uuid for gpu in present}
    unseen = [gpu for gpu in known if gpu.uuid not in here]
    elsewhere = not silent and here and len(unseen) == len(known)
    gone = unseen if elsewhere else [gpu for gpu in unseen if _has_successor(gpu, present)]
    missing = {gpu: silent[gpu.index].said if gpu.index in silent else VANISHED for gpu in unseen if gpu not in gone}
    remembered = {gpu.index for gpu in missing}
    notes = [f"left out: {error.message}" for index, error in silent.items() if index not in remembered]
    why = "no GPU that was known is here any more" if elsewhere else "another GPU has its place now"
    notes += [f"forgot {gpu.uuid}: {why}" for gpu in gone]
    return missing, tuple(notes)


def _has_successor(gpu: Gpu, present: Sequence[Gpu]) -> bool:
    return any(gpu.minor == other.minor or (gpu.bus_id and gpu.bus_id == other.bus_id) for other in present)
