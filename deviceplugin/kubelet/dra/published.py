"""The GPUs of the node as devices that kube-scheduler chooses from.

In: the inventory, what is held, which GPUs are cordoned. Out: one `PublishedDevice` for each GPU, in the order of their
minors. Pure. The order never follows use: kube-scheduler takes the first device that fits, so a fixed order packs as
well as the best fit, and an order that is late packs worse. Every device has every attribute, always of one type: an
expression that reads a missing one stops the whole claim.
"""

import re
from collections.abc import Callable, Collection, Mapping

from deviceplugin.hardware.pci import kernel_name
from deviceplugin.kube.node_publisher import label_value
from deviceplugin.model.claims import ClaimNames, PublishedDevice, Taint
from deviceplugin.model.gpu import Gpu, GpuUuid, Inventory
from deviceplugin.model.topology import Level, Topology
from deviceplugin.model.units import CORES_PER_GPU
from deviceplugin.placement.fit import NOTHING, GpuAmount

_LONGEST_VALUE = 64  # of an attribute (resource.k8s.io/v1)
_UNKNOWN = -1
_FEWEST_STEPS = 2
_VERSION = re.compile(r"(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?")


def device_name(gpu: Gpu) -> str:
    """The name that a GPU gets first (`device_names`)."""
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
    if not inventory.is_usable(gpu):
        reason = inventory.health_of(gpu.uuid).reason or f"compute mode {gpu.compute_mode.value}"
        taints.append(Taint(names.unhealthy, label_value(reason)))
    if gpu.uuid in cordoned:
        taints.append(Taint(names.cordoned, ""))
    return tuple(taints)
