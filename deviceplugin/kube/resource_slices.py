"""ResourceSlices of resource.k8s.io: what a driver offers on one node.

In: devices as values. Out: the JSON of a slice; the slices of one driver and node; those of all nodes as the GPUs that
they offer. A pool is one slice here, so every change is atomic. Not here: when to write (`dra`).
"""

import sys
from collections.abc import Mapping, Sequence

import msgspec

from deviceplugin.errors import ParseError
from deviceplugin.kube.collection import Collection, ObjectKind
from deviceplugin.kube.structs import Json, Object, exact_quantity, without
from deviceplugin.model.claims import AttributeValue, NodeOffer, OfferedGpu, PublishedDevice, Taint
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid
from deviceplugin.model.node import ClusterNode
from deviceplugin.model.units import BLOCK_BYTES, BLOCK_MIB, CORES_PER_GPU

GROUP = "resource.k8s.io/v1"
_MOST_BLOCKS = 1 << 16  # 16 TiB: root on a node can write what it likes
_IGNORED = "None"  # a taint's effect without effect


class NodeSlice(msgspec.Struct, frozen=True):
    """One slice that exists. `spec` is what it offers, as JSON that two equal offers have in common."""

    name: str
    uid: str
    version: str
    generation: int
    spec: Mapping[str, object]


class _Pool(Json):
    """spec.pool."""

    name: str = ""
    generation: int = 0


class _Spec(Json):
    """spec, as far as it must be told apart from another driver's or node's."""

    driver: str = ""
    node_name: str | None = None
    pool: _Pool | None = None


class _ResourceSlice(Object):
    """A ResourceSlice."""

    spec: dict[str, object]


def slices_of(driver: str, node: str) -> Collection[str, NodeSlice]:
    """By name. The API server accepts no other field selectors, and RBAC none at all."""
    query = {"fieldSelector": f"spec.driver={driver},spec.nodeName={node}"}
    return SLICES.collection(f"the ResourceSlices of {driver} on {node}", key=lambda each: each.name, query=query)


class _Attribute(Json):
    """The one field that is there says the type."""

    string: str | None = None
    int_: int | None = msgspec.field(default=None, name="int")
    version: str | None = None


class _Amount(Json):
    """A capacity."""

    value: str | int = 0


class _Taint(Json):
    """A taint of a device."""

    key: str = ""
    value: str | None = None
    effect: str = ""


class _Device(Json):
    """An entry of spec.devices."""

    name: str = ""
    attributes: dict[str, _Attribute] | None = None
    capacity: dict[str, _Amount] | None = None
    taints: list[_Taint] | None = None


class _OfferSpec(_Spec):
    """spec with its devices."""

    devices: list[_Device] | None = None


class AnyOffer(Object):
    """A ResourceSlice of any driver, with what vcuda reads of it."""

    spec: _OfferSpec

    @property
    def driver(self) -> str:
        return self.spec.driver

    @property
    def texts(self) -> set[str]:
        """All attributes of all devices: of NVIDIA's driver `uuid` is a GPU's or, for a part, `parentUUID`."""
        said = [one for device in self.spec.devices or () for one in (device.attributes or {}).values()]
        return {one.string for one in said if one.string}


def offers_of(driver: str) -> Collection[str, NodeOffer]:
    """What the driver offers, by node. Of two slices of a node that of the higher generation counts: a node may write
    any number of them, and one is kept."""
    kind = ObjectKind(*_RESOURCE, AnyOffer, _node_offer, lambda each: each.uid)
    return kind.collection(
        f"the ResourceSlices of {driver}",
        key=lambda each: each.node,
        rank=lambda each: each.generation,
        query={"fieldSelector": f"spec.driver={driver}"},
    )


def slice_spec(driver: str, node: str, devices: Sequence[PublishedDevice], generation: int) -> dict[str, object]:
    """The pool has the node's name."""
    return {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
        "devices": [_device(each) for each in devices],
    }


def offer(spec: object) -> object:
    """What two specs that offer the same have in common: no generation, and no time at which a taint was first seen."""
    return without(spec, "generation", "timeAdded")


def owned_slice(node: ClusterNode, spec: Mapping[str, object]) -> dict[str, object]:
    """A new slice, owned by the node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid, "controller": True}
    return {"metadata": {"generateName": f"{node.name}-vcuda-", "ownerReferences": [owner]}, "spec": spec}


def _value(found: _ResourceSlice) -> NodeSlice:
    spec = msgspec.convert(found.spec, _Spec)
    generation = spec.pool.generation if spec.pool is not None else 0
    meta = found.metadata
    return NodeSlice(meta.name, meta.uid, meta.resource_version, generation, found.spec)


_RESOURCE = (GROUP, "resourceslices", "ResourceSlice", "ResourceSlice")
SLICES = ObjectKind(*_RESOURCE, _ResourceSlice, _value, lambda each: each.uid)
ANY_OFFERS = ObjectKind(*_RESOURCE, AnyOffer, lambda found: found)


def _device(device: PublishedDevice) -> dict[str, object]:
    found: dict[str, object] = {
        "name": device.name,
        "allowMultipleAllocations": True,
        "attributes": {name: _attribute(value) for name, value in device.attributes.items()},
        "capacity": {
            "cores": _capacity(str(device.cores), "1"),
            "memory": _capacity(_memory(device.blocks), _memory(1)),
        },
    }
    if device.taints:
        found["taints"] = [
            {"key": each.key, "effect": "NoSchedule"} | ({"value": each.value} if each.value else {})
            for each in device.taints
        ]
    return found


def _capacity(value: str, step: str) -> dict[str, object]:
    """What a request leaves out is all of it: the default. Requests are rounded up to a whole step."""
    return {
        "value": value,
        "requestPolicy": {"default": value, "validRange": {"min": step, "max": value, "step": step}},
    }


def _memory(blocks: int) -> str:
    """As the API server writes it back: with the largest unit of which it is a whole number."""
    mib = blocks * BLOCK_MIB
    for unit, size in (("Ti", 1 << 20), ("Gi", 1 << 10)):
        if mib % size == 0:
            return f"{mib // size}{unit}"
    return f"{mib}Mi"


def _attribute(value: AttributeValue) -> dict[str, object]:
    """The one key that says the type."""
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, tuple):
        return {"version": ".".join(map(str, value))}
    return {"string": value}


def _node_offer(found: AnyOffer) -> NodeOffer:
    """A device that is no GPU of vcuda's is left out: an unreadable one must not hide those of other nodes."""
    meta, spec = found.metadata, found.spec
    gpus: dict[GpuUuid, OfferedGpu] = {}
    for device in spec.devices or ():
        if (offered := _offered(device)) is not None:
            gpus.setdefault(offered.gpu.uuid, offered)
    first = next(iter(spec.devices or ()), _Device())
    return NodeOffer(
        slice=meta.name,
        uid=meta.uid,
        node=spec.node_name or "",
        generation=spec.pool.generation if spec.pool is not None else 0,
        driver=_driver(first.attributes or {}),
        gpus=tuple(gpus.values()),
    )


def _offered(device: _Device) -> OfferedGpu | None:
    said, capacity = device.attributes or {}, device.capacity or {}
    uuid, minor, numa = _text(said, "uuid"), _number(said, "minor"), _number(said, "numaNode")
    blocks = min(_whole(capacity.get("memory"), BLOCK_BYTES), _MOST_BLOCKS)
    if not uuid or minor is None or not 0 <= minor < 1 << 31:
        return None
    gpu = Gpu(
        uuid=GpuUuid(uuid),
        index=minor,
        minor=minor,
        model=sys.intern(_text(said, "productName")),
        memory_bytes=blocks * BLOCK_BYTES,
        numa=numa if numa is not None and 0 <= numa < 1 << 31 else None,
    )
    cores = min(_whole(capacity.get("cores"), 1), CORES_PER_GPU)
    taints = (Taint(each.key, each.value or "") for each in device.taints or () if each.effect != _IGNORED)
    return OfferedGpu(sys.intern(device.name), gpu, cores, blocks, tuple(taints))


def _driver(said: Mapping[str, _Attribute]) -> Driver:
    numbers = {name: said[name].version or "" if name in said else "" for name in ("driverVersion", "cudaVersion")}
    parts = [*numbers["cudaVersion"].split("."), "0", "0"]
    major, minor = (int(part) if part.isdecimal() and len(part) < 6 else 0 for part in parts[:2])
    return Driver(numbers["driverVersion"], (major, minor))


def _text(said: Mapping[str, _Attribute], name: str) -> str:
    return (said[name].string or "") if name in said else ""


def _number(said: Mapping[str, _Attribute], name: str) -> int | None:
    return said[name].int_ if name in said else None


def _whole(amount: _Amount | None, unit: int) -> int:
    """What cannot be read counts as nothing."""
    try:
        return 0 if amount is None else max(0, int(exact_quantity(amount.value) // unit))
    except ParseError:
        return 0
