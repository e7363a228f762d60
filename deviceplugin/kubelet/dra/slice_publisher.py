"""This node's ResourceSlice: its GPUs as devices that kube-scheduler chooses from, equal to what the driver offers.

In: the inventory, what is held, which GPUs are cordoned; the slices as the API server has them, and when kubelet knows
the driver. Out: one slice, with one `PublishedDevice` for each GPU in the order of their minors.

The order never follows use: kube-scheduler takes the first device that fits, so a fixed order packs as well as the best
fit, and an order that is late packs worse. Every device has every attribute, always of one type: an expression that
reads a missing one stops the whole claim.

A device has its first name, `gpu-N`, for as long as the node has the GPU. A claim is allocated by a device's name and
may outlive a boot, while the minor number, of which the name is made, may change with it: a name that followed the
minor would turn a claim's GPU into another one. So a new GPU takes the name of its minor, or the lowest that is free,
and keeps it in a file. Where the file is lost, names are made again; `prepare` refuses claims whose GPU they do not
fit.

Kubelet deletes all slices of its node when it starts, so a slice that vanishes is made again. It is published only
after kubelet has registered the driver: a pod that is bound earlier waits for a minute. Each write makes kube-scheduler
try every waiting pod of the cluster, so nothing is written that says the same, and one second lies between two writes.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

from deviceplugin.backoff import Backoff
from deviceplugin.errors import VcudaError
from deviceplugin.hardware.pci import kernel_name
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.collection import EventKind
from deviceplugin.kube.node_publisher import label_value
from deviceplugin.kube.reflector import Reflector, StoreChange
from deviceplugin.kube.resource_slices import NodeSlice, offer, slice_spec
from deviceplugin.ledger.durable_files import replace_file
from deviceplugin.model.claims import ClaimNames, PublishedDevice, Taint
from deviceplugin.model.gpu import Gpu, GpuUuid, Inventory
from deviceplugin.model.node import ClusterNode
from deviceplugin.model.topology import Level, Topology
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.fit import NOTHING, GpuAmount

log = structlog.get_logger("vcuda.dra")


class SliceTiming(msgspec.Struct, frozen=True):
    """Seconds: between two writes, between checks, and the bounds of the back-off."""

    apart: float = 1.0
    check: float = 300.0
    first_wait: float = 0.5
    most_wait: float = 30.0


DEFAULT_SLICE_TIMING = SliceTiming()


class SlicePublisher:
    """`run` until it is cancelled. `slices` is run by the caller and shows the driver's slices of this node alone."""

    def __init__(
        self,
        client: KubeClient,
        slices: Reflector[str, NodeSlice],
        *,
        driver: str,
        node: Callable[[], ClusterNode | None],
        devices: Callable[[], Sequence[PublishedDevice]],
        pace: SliceTiming = DEFAULT_SLICE_TIMING,
    ) -> None:
        self._client = client
        self._slices = slices
        self._driver = driver
        self._node = node
        self._devices = devices
        self._pace = pace
        self._registered = asyncio.Event()
        self._due = asyncio.Event()
        self._written: NodeSlice | None = None
        slices.subscribe(self._changed)

    def registered(self) -> None:
        """Kubelet knows the driver, and may have deleted the slice."""
        self._registered.set()
        self._due.set()

    def soon(self) -> None:
        """A device may have changed."""
        self._due.set()

    async def run(self) -> None:
        await self._registered.wait()
        await self._slices.synced.wait()
        backoff = Backoff(first=self._pace.first_wait, most=self._pace.most_wait)
        while True:
            self._due.clear()  # before the look, so that no change after it is missed
            try:
                await self._sync()
            except VcudaError as error:
                wait = backoff.next()
                log.warning("slice_not_published", error=error.message, retry_in_s=round(wait, 2))
                await asyncio.sleep(wait)
                continue
            backoff.reset()
            await asyncio.sleep(self._pace.apart)
            await self._wait_due()

    async def _wait_due(self) -> None:
        try:
            async with asyncio.timeout(self._pace.check):
                await self._due.wait()
        except TimeoutError:
            pass  # others may have changed the slice in a way that no event told

    async def _sync(self) -> None:
        node = self._node()
        if node is None:
            self._due.set()  # else the next look is after `check` seconds
            return  # its watch has not come so far
        slices = self._known()
        kept = slices[-1] if slices else None
        spec = slice_spec(self._driver, node.name, self._devices(), 1 if kept is None else kept.generation + 1)
        if kept is None:
            self._written = await self._client.create_slice(node, spec)
            log.info("slice_created", slice=self._written.name)
        elif offer(kept.spec) != offer(spec):
            self._written = await self._client.replace_slice(kept, spec)
            log.info("slice_changed", slice=kept.name, generation=self._written.generation)
        for other in slices[:-1]:
            await self._client.delete_slice(other)

    def _known(self) -> list[NodeSlice]:
        """The newest last; what was written counts until the watch shows it."""
        found = dict(self._slices.items)
        if self._written is not None:
            found[self._written.name] = self._written
        return sorted(found.values(), key=lambda each: (each.generation, each.name))

    def _changed(self, change: StoreChange[NodeSlice]) -> None:
        written, item = self._written, change.item
        is_over = change.kind is EventKind.DELETED or (written is not None and item.generation >= written.generation)
        if written is not None and item.uid == written.uid and is_over:
            self._written = None
        self._due.set()


_LONGEST_VALUE = 64  # of an attribute (resource.k8s.io/v1)
_UNKNOWN = -1
_FEWEST_STEPS = 2
_VERSION = re.compile(r"(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?")


def device_name(gpu: Gpu) -> str:
    """The name that a GPU gets first (`DeviceNames`)."""
    return f"gpu-{gpu.minor}"


def published_devices(
    inventory: Inventory,
    names: ClaimNames,
    *,
    used: Collection[GpuUuid] = (),
    cordoned: Collection[GpuUuid] = (),
    pcie_roots: Mapping[GpuUuid, str] = {},
    others: Mapping[GpuUuid, GpuAmount] = {},
    name: Callable[[Gpu], str] = device_name,
) -> tuple[PublishedDevice, ...]:
    """GPUs in MIG mode are left out: their memory belongs to their instances. `used`: something holds a part.

    `others`: what is held otherwise than by claims, and so is not offered. The API server accepts no capacity of less
    than two steps, so such a GPU is left out.
    """
    domains = nvlink_domains(inventory.topology)
    found = (
        PublishedDevice(
            name=name(gpu),
            attributes={
                "uuid": gpu.uuid[:_LONGEST_VALUE],
                "productName": gpu.model[:_LONGEST_VALUE],
                "minor": gpu.minor,
                "driverVersion": version_of(inventory.driver.version),
                "cudaVersion": (*inventory.driver.cuda, 0),
                "numaNode": _UNKNOWN if gpu.numa is None else gpu.numa,
                "nvlinkDomain": domains.get(gpu.minor, ""),
                "inUse": gpu.uuid in used,
                "resource.kubernetes.io/pcieRoot": pcie_roots.get(gpu.uuid, ""),
                "resource.kubernetes.io/pciBusID": kernel_name(gpu.bus_id),
            },
            cores=CORES_PER_GPU - others.get(gpu.uuid, NOTHING).cores,
            blocks=gpu.blocks - others.get(gpu.uuid, NOTHING).blocks,
            taints=_taints(gpu, inventory, names, cordoned),
        )
        for gpu in sorted(inventory.gpus, key=lambda each: each.minor)
        if not gpu.mig_enabled
    )
    return tuple(each for each in found if min(each.cores, each.blocks) >= _FEWEST_STEPS)


def nvlink_domains(topology: Topology) -> dict[int, str]:
    """GPUs that NVLinks join, directly or over others, by minor: `nvlink-` and the lowest minor. Others have none."""
    joined = (node.minors for node in topology.tree.walk() if node.level is Level.NVLINK)
    return {minor: f"nvlink-{min(minors)}" for minors in joined for minor in minors}


def version_of(text: str) -> tuple[int, int, int]:
    """`550.54.05` as a semantic version, which has three numbers and none with leading zeros; 0.0.0 if it is none."""
    found = _VERSION.match(text)
    if found is None:
        return (0, 0, 0)
    major, minor, patch = (int(part or 0) for part in found.groups())
    return (major, minor, patch)


def _taints(gpu: Gpu, inventory: Inventory, names: ClaimNames, cordoned: Collection[GpuUuid]) -> tuple[Taint, ...]:
    taints = []
    if not inventory.is_available(gpu):
        reason = inventory.health_of(gpu.uuid).reason or f"compute mode {gpu.compute_mode.value}"
        taints.append(Taint(names.unhealthy, label_value(reason)))
    if gpu.uuid in cordoned:
        taints.append(Taint(names.cordoned, ""))
    return tuple(taints)


_FILE = "device-names.json"
_MOST = 1 << 16


class DeviceNames:
    """Of one node; `folder` is where the agent keeps what it must not forget."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._names = self._read()

    def name(self, gpu: Gpu) -> str:
        if (known := self._names.get(gpu.uuid)) is not None:
            return known
        taken = set(self._names.values())
        free = (f"gpu-{number}" for number in range(len(taken) + 1))
        name = own if (own := device_name(gpu)) not in taken else next(each for each in free if each not in taken)
        self._names[gpu.uuid] = name
        self._write()
        return name

    def forget_all_but(self, uuids: Collection[GpuUuid]) -> None:
        """Others are not on this node any more, and no claim has them."""
        kept = {uuid: name for uuid, name in self._names.items() if uuid in uuids}
        if kept != self._names:
            self._names = kept
            self._write()

    def _read(self) -> dict[GpuUuid, str]:
        try:
            with self._path.open("rb") as file:
                found = msgspec.json.decode(file.read(_MOST), type=dict[GpuUuid, str])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("device_names_lost", path=str(self._path), error=str(error))
            return {}
        return found if len(set(found.values())) == len(found) else {}  # two GPUs with one name: somebody wrote it

    def _write(self) -> None:
        try:
            replace_file(self._path, msgspec.json.encode(self._names))
        except OSError as error:
            log.warning("device_names_not_kept", path=str(self._path), error=str(error))
