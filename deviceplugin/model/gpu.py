"""A physical GPU: its constant properties, its health, what is used of it, and the device IDs that stand for it.

In: what `hardware` discovered, what `container` and NVML measured. Out: values for placement, the ledger, the views and
kubelet. Not here: who holds it (`ledger`) and its place in the topology (`topology`). A GPU is identified by its UUID.
Its index may change with every boot, and its minor only names the device node.

Usage that is None was not measured for this kind of container, or is not known now. Its counters grow from the last
start of the container.

Device IDs are what kubelet handles: one for each core and each memory block, of at most 10 characters: `c` or `m`, a
6-character key of the GPU, and the number in base 36. They are short because kubelet 1.36 writes each one into the
status of the pod; unique over both resources because kubelet's reverse look-up ignores the resource name; derived from
the UUID so that they survive reboots. An ID only hints at the GPU of its holder. The ledger says who has what.
"""

import enum
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NewType

import msgspec
from msgspec.structs import force_setattr

from deviceplugin.errors import ParseError
from deviceplugin.model.topology import Topology
from deviceplugin.model.units import CORES_PER_GPU, Resource, blocks_in

GpuUuid = NewType("GpuUuid", str)


class ComputeMode(enum.Enum):
    """How many processes may use the GPU (nvmlComputeMode_t)."""

    DEFAULT = "default"
    EXCLUSIVE_PROCESS = "exclusive-process"
    PROHIBITED = "prohibited"


class Gpu(msgspec.Struct, frozen=True):
    """One GPU as NVML describes it; memory in bytes, `numa` is None if the platform does not tell.

    `blocks` are those that its memory has whole.
    """

    uuid: GpuUuid
    index: int
    minor: int
    model: str
    memory_bytes: int
    bus_id: str = ""
    numa: int | None = None
    compute_mode: ComputeMode = ComputeMode.DEFAULT
    mig_enabled: bool = False
    blocks: int = 0

    def __post_init__(self) -> None:
        force_setattr(self, "blocks", blocks_in(self.memory_bytes))

    @property
    def device_path(self) -> str:
        return f"/dev/nvidia{self.minor}"


class Health(msgspec.Struct, frozen=True):
    """Whether a GPU may get new pods; `reason` is a short phrase, empty if healthy."""

    healthy: bool = True
    reason: str = ""


NEWEST_CUDA = (13, 5)
"""The newest CUDA of whose functions vcuda's library knows all (docs/reference/driver-functions.md)."""


class Driver(msgspec.Struct, frozen=True):
    """Versions from NVML: driver `550.54.15`, CUDA as (major, minor)."""

    version: str
    cuda: tuple[int, int]

    @property
    def is_known(self) -> bool:
        """Whether no function of it can be newer than vcuda's library."""
        return self.cuda <= NEWEST_CUDA


class Inventory(msgspec.Struct, frozen=True):
    """All GPUs of this node in index order, their links and their health at one moment.

    `health` has an entry for each GPU that is not healthy. A GPU that disappears stays in the inventory as unhealthy
    while the agent runs, so that kubelet sees its device IDs as unhealthy and not as removed.
    """

    gpus: tuple[Gpu, ...]
    topology: Topology
    driver: Driver
    health: dict[GpuUuid, Health] = msgspec.field(default_factory=dict)

    def gpu(self, uuid: GpuUuid) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def health_of(self, uuid: GpuUuid) -> Health:
        return self.health.get(uuid, Health())

    def is_available(self, gpu: Gpu) -> bool:
        """Whether a container could be placed on the GPU now."""
        is_open = not gpu.mig_enabled and gpu.compute_mode is not ComputeMode.PROHIBITED
        return is_open and self.health_of(gpu.uuid).healthy


class GpuProcess(msgspec.Struct, frozen=True):
    """A process that NVML sees on a GPU; memory in bytes (0: unknown), SM percent of the sample period."""

    pid: int
    memory_bytes: int
    sm_percent: int = 0


class GpuSample(msgspec.Struct, frozen=True):
    """One reading of a GPU: utilisation in percent over the sample period, memory in bytes, and its processes."""

    utilization_percent: int
    memory_used_bytes: int
    processes: tuple[GpuProcess, ...] = ()


class Breach(enum.Enum):
    """How a container gets more than its grant, or could get it."""

    MEMORY = "memory"
    CORES = "cores"
    BYPASS = "bypass"  # one of its processes uses the GPU without the interposer
    STATE = "state"  # its shared state is corrupted


class Overrun(msgspec.Struct, frozen=True):
    """One lasting breach, with a sentence for users."""

    breach: Breach
    gpu: GpuUuid
    sentence: str


class GpuUse(msgspec.Struct, frozen=True):
    """One container on one GPU. Bytes; cores of 100, over the last sample period; seconds since its start.

    `overhead_bytes` is the part of `memory_bytes` that the driver uses beside allocations: contexts, modules. `pids`
    are those of the node, if the driver shows them.
    """

    uuid: GpuUuid
    memory_bytes: int | None = None
    overhead_bytes: int | None = None
    peak_bytes: int | None = None
    refusals: int | None = None
    cores: float | None = None
    cores_in_force: float | None = None
    gpu_seconds: float | None = None
    throttled_seconds: float | None = None
    throttled_launches: int | None = None
    pids: tuple[int, ...] = ()


class ContainerUse(msgspec.Struct, frozen=True):
    """One container; `processes` counts those that use a GPU, None while they cannot be found or counted.

    `over_seconds`: for how long each breach was seen, also if that was too short to be one of `overruns`.
    `unknown_functions`: how often its programs were given a function that vcuda's library is too old to limit.
    """

    gpus: tuple[GpuUse, ...]
    processes: int | None
    overruns: tuple[Overrun, ...] = ()
    over_seconds: Mapping[tuple[GpuUuid, Breach], float] = msgspec.field(default_factory=dict)
    unknown_functions: int | None = None


def use_of_whole(gpus: Sequence[GpuUuid], samples: Mapping[GpuUuid, GpuSample]) -> ContainerUse:
    """Everything on a GPU that has one holder belongs to that holder. What the driver did not show is not known."""
    known = [(uuid, samples[uuid]) for uuid in gpus if uuid in samples]
    uses = tuple(
        GpuUse(
            uuid=uuid,
            memory_bytes=sample.memory_used_bytes,
            cores=float(sample.utilization_percent),
            pids=tuple(process.pid for process in sample.processes),
        )
        for uuid, sample in known
    )
    pids = {pid for use in uses for pid in use.pids}
    return ContainerUse(uses, len(pids) if len(known) == len(gpus) else None)


DeviceId = NewType("DeviceId", str)
GpuKey = NewType("GpuKey", str)

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_KEY_LENGTH = 6
_PREFIX = {Resource.CORE: "c", Resource.MEMORY: "m"}
_SLOT_DIGITS = {Resource.CORE: 2, Resource.MEMORY: 3}  # 36**3 blocks are 11 TiB of one GPU


def gpu_keys(uuids: Iterable[GpuUuid]) -> dict[GpuUuid, GpuKey]:
    """A key for each GPU; if two hashes are equal, the later UUID is hashed again."""
    keys: dict[GpuUuid, GpuKey] = {}
    taken: set[GpuKey] = set()
    for uuid in sorted(set(uuids)):
        attempt = 0
        while (key := _hash(uuid, attempt)) in taken:
            attempt += 1
        taken.add(key)
        keys[uuid] = key
    return keys


def device_id(resource: Resource, key: GpuKey, number: int) -> DeviceId:
    return DeviceId(f"{_PREFIX[resource]}{key}{_base36(number, _SLOT_DIGITS[resource])}")


def device_ids(resource: Resource, gpu: Gpu, key: GpuKey) -> tuple[DeviceId, ...]:
    """All IDs of one GPU, by number."""
    count = CORES_PER_GPU if resource is Resource.CORE else gpu.blocks
    return tuple(device_id(resource, key, number) for number in range(count))


def key_of(text: str) -> GpuKey:
    """The key of an ID's GPU, without any check; an unknown text gives a key without a GPU."""
    return GpuKey(text[1 : 1 + _KEY_LENGTH])


def of_gpu(texts: Iterable[str], key: GpuKey) -> set[str]:
    """Those with this key; kubelet offers thousands at a time, so nothing is made of the others."""
    return {text for text in texts if text.startswith(key, 1)}


def _hash(uuid: str, attempt: int) -> GpuKey:
    digest = hashlib.sha256(f"{uuid}#{attempt}".encode() if attempt else uuid.encode()).digest()
    return GpuKey(_base36(int.from_bytes(digest[:8], "big") % 36**_KEY_LENGTH, _KEY_LENGTH))


def _base36(number: int, digits: int) -> str:
    out = ""
    for _ in range(digits):
        number, rest = divmod(number, 36)
        out = _ALPHABET[rest] + out
    if number:
        raise ParseError(f"slot does not fit into {digits} base-36 digits")
    return out
