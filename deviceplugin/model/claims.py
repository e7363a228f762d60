"""ResourceClaims of Dynamic Resource Allocation, as values: what a driver published, what a claim was given of it, and
the template that stands for the request of a container that was written for the device plugin.

In: nothing but requests. Out: values for `kube`, which reads and writes them, and for `dra`, which decides. A claim is
identified by its UID: a later claim may have its name. Amounts are exact fractions until `dra.claim_grants` has checked
them.

A template's name says all of its content. A request that Kubernetes would refuse is a RequestError, so that the webhook
says so before anything waits for it. Two programs use it: the webhook refers pods to a name, and the scheduler makes
what the name says. Neither needs the other: a template is the same for every pod, and either may make it.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import NewType

import msgspec

from deviceplugin.errors import ParseError, RequestError
from deviceplugin.model.gpu import Driver, Gpu, GpuUuid
from deviceplugin.model.preferences import ANY_GPU, GpuFilter
from deviceplugin.model.request import Request
from deviceplugin.model.units import BLOCK_MIB, CORES_PER_GPU

ClaimUid = NewType("ClaimUid", str)
ClaimKey = tuple[str, str]
"""Namespace and name: what pods name a claim by."""
MOST_CLAIMS, MOST_MENTIONS = 256, 1024
"""That are read of a pod: its claims, and how often its containers name them; the API server has no bound."""
AttributeValue = str | int | bool | tuple[int, int, int]
"""A tuple is a version. Its type must never change: an expression that reads it would fail."""


class ClaimNames(msgspec.Struct, frozen=True):
    """What the driver, its classes and its taints are called under a domain."""

    domain: str

    @property
    def driver(self) -> str:
        return f"gpu.vcuda.{self.domain}"

    @property
    def shares(self) -> str:
        """The class for parts of GPUs."""
        return f"vcuda.{self.domain}"

    @property
    def whole_gpus(self) -> str:
        """The class for whole GPUs."""
        return f"vcuda-gpu.{self.domain}"

    @property
    def unhealthy(self) -> str:
        return f"vcuda.{self.domain}/unhealthy"

    @property
    def cordoned(self) -> str:
        return f"vcuda.{self.domain}/cordoned"


class ClaimRef(msgspec.Struct, frozen=True):
    """A ResourceClaim; only `uid` identifies it."""

    uid: ClaimUid
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ContainerClaim(msgspec.Struct, frozen=True):
    """What a container names: a ResourceClaim of its namespace, and one of its requests; empty: all of them."""

    claim: str
    request: str = ""


class ClaimedDevice(msgspec.Struct, frozen=True):
    """One result of an allocation. `request`: as the pod's containers name it, so without the alternative after `/`.

    `consumed` has the amount of each capacity: what the driver must enforce, which may be more than was requested.
    """

    request: str
    driver: str
    pool: str
    device: str
    share_id: str = ""
    consumed: Mapping[str, Fraction] = msgspec.field(default_factory=dict)
    is_administrative: bool = False
    """kube-scheduler gives it beside what others hold."""


class DeviceRequest(msgspec.Struct, frozen=True):
    """What is asked of each of `count` devices of a class; None: of all devices that fit on a node.

    `cores` and `blocks` are rounded up as kube-scheduler does it; None: all that the device has.
    """

    device_class: str
    count: int | None = 1
    cores: int | None = None
    blocks: int | None = None


class ClaimRequest(msgspec.Struct, frozen=True):
    """A request of a claim; of a prioritized list, the first of `alternatives` that fits is taken."""

    name: str
    alternatives: tuple[DeviceRequest, ...]


class Claim(msgspec.Struct, frozen=True):
    """`devices` is None while nothing is allocated. `consumers`: UIDs of the pods for which it is reserved.

    `configured`: drivers for which the claim or its class has parameters. `requests` is read for the scheduler's views
    only, if of very many alternatives a part is kept: `left_out` is the number of the others.
    """

    ref: ClaimRef
    devices: tuple[ClaimedDevice, ...] | None = None
    consumers: frozenset[str] = frozenset()
    configured: frozenset[str] = frozenset()
    deleting: bool = False
    requests: tuple[ClaimRequest, ...] = ()
    left_out: int = 0

    @property
    def key(self) -> ClaimKey:
        return self.ref.namespace, self.ref.name


class PodClaim(msgspec.Struct, frozen=True):
    """An entry of a pod's spec.resourceClaims; `claim` is empty until it is made from `template`."""

    name: str
    claim: str = ""
    template: str = ""


class DeviceStatus(msgspec.Struct, frozen=True):
    """What a claim's status says of one of its devices. `since`: RFC 3339, in whole seconds."""

    driver: str
    pool: str
    device: str
    share_id: str
    is_ready: bool
    reason: str
    message: str
    since: str


class Taint(msgspec.Struct, frozen=True):
    """A device with it gets no new pods."""

    key: str
    value: str


class PublishedDevice(msgspec.Struct, frozen=True):
    """A GPU as the node's ResourceSlice has it. Attribute names without a domain belong to the driver."""

    name: str
    attributes: Mapping[str, AttributeValue]
    cores: int
    blocks: int
    taints: tuple[Taint, ...] = ()


class OfferedGpu(msgspec.Struct, frozen=True):
    """A device of a ResourceSlice as the GPU that it is; claims can have `cores` and `blocks` of it."""

    device: str
    gpu: Gpu
    cores: int
    blocks: int
    taints: tuple[Taint, ...] = ()


class NodeOffer(msgspec.Struct, frozen=True):
    """What one ResourceSlice offers on a node. Of two slices of a node that of the higher generation counts."""

    slice: str
    uid: str
    node: str
    generation: int
    driver: Driver
    gpus: tuple[OfferedGpu, ...]


_DEVICE = re.compile(r"gpu-(\d{1,9})", re.ASCII)


def minor_of_device(name: str) -> int | None:
    """The GPU's minor, of which the agent makes the name of a device; None for a name that it does not give."""
    found = _DEVICE.fullmatch(name)
    return None if found is None else int(found[1])


REQUEST = "gpu"
MOST_DEVICES = 32
"""Of a claim: AllocationResultsMaxSize (k8s.io/api/resource/v1, types.go)."""
LONGEST_SELECTOR = 10 << 10
"""In bytes: CELSelectorExpressionMaxLength (there)."""
MOST_TEMPLATES = 64
"""That vcuda makes for one pod; containers of the same size have the same one."""
TEMPLATE_PREFIX = "vcuda-"
_NAME = re.compile(r"vcuda-(\d{1,4})x(\d{1,3})c(\d{1,5})b(?:-[0-9a-f]{10})?")


class ClaimSize(msgspec.Struct, frozen=True):
    """`gpus` equal parts. Of whole GPUs, which have 100 cores, `blocks` is the least that each must have."""

    gpus: int
    cores: int
    blocks: int

    @classmethod
    def of(cls, request: Request) -> "ClaimSize":
        return cls(request.gpus, request.cores_per_gpu, request.blocks_per_gpu)

    @property
    def is_whole(self) -> bool:
        return self.cores == CORES_PER_GPU


def claim_label(domain: str) -> str:
    """Of pods that were turned to claims, and of the templates that are kept for them; its value is `true`."""
    return f"{domain}/vcuda-claims"


def is_template_name(name: str) -> bool:
    """Whether vcuda gives such names."""
    return _NAME.fullmatch(name) is not None


class NamedTemplates:
    """The templates of a pod that accepts these GPUs, by their names.

    What takes long, the digest and the selectors, is made once, not for each size. RequestError for GPUs that take more
    room in a claim than Kubernetes has.
    """

    def __init__(self, wanted: GpuFilter, names: ClaimNames) -> None:
        self._names = names
        self._one_numa = wanted.one_numa
        self._selectors = _selectors(wanted, names.driver)
        self._digest = "" if wanted == ANY_GPU else f"-{_digest(wanted)}"

    def name(self, size: ClaimSize) -> str:
        """`vcuda-1x20c8b`: one part of 20 cores and 8 blocks. A filter adds a digest of itself."""
        return f"vcuda-{size.gpus}x{size.cores}c{size.blocks}b{self._digest}"

    def size(self, name: str) -> ClaimSize:
        """ParseError for a name that `name` does not give."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ParseError(f"{ascii(name)[:80]} is no name of a claim template of vcuda")
        size = ClaimSize(*map(int, found.groups()))
        if self.name(size) != name:
            raise ParseError(f"the claim template {name} is not for the GPUs that the pod's annotations accept")
        return size

    def spec(self, size: ClaimSize) -> dict[str, object]:
        """spec.spec of the template; RequestError for one that nothing can be allocated for."""
        if size.gpus > MOST_DEVICES:
            raise RequestError(
                f"{size.gpus} GPUs were requested and a claim has at most {MOST_DEVICES} devices; request at most "
                f"{MOST_DEVICES} for each container"
            )
        memory = f"{size.blocks * BLOCK_MIB}Mi"
        exactly: dict[str, object] = {
            "deviceClassName": self._names.whole_gpus if size.is_whole else self._names.shares
        }
        selectors = list(self._selectors)
        if size.gpus > 1:
            exactly["count"] = size.gpus
        if not size.is_whole:
            exactly["capacity"] = {"requests": {"cores": str(size.cores), "memory": memory}}
        elif size.blocks:
            driver = self._names.driver
            selectors.append(f'device.capacity["{driver}"].memory.compareTo(quantity("{memory}")) >= 0')
        if selectors:
            exactly["selectors"] = [{"cel": {"expression": each}} for each in selectors]
        devices: dict[str, object] = {"requests": [{"name": REQUEST, "exactly": exactly}]}
        if self._one_numa and size.gpus > 1:
            devices["constraints"] = [{"requests": [REQUEST], "matchAttribute": f"{self._names.driver}/numaNode"}]
        return {"devices": devices}


def _selectors(wanted: GpuFilter, driver: str) -> list[str]:
    """In the words of CEL; the attributes are those of `kubelet.dra.slice_publisher`."""
    uuid, model = (f'device.attributes["{driver}"].{name}' for name in ("uuid", "productName"))
    contains = f"{model}.lowerAscii().contains("
    if max(len(wanted.models), len(wanted.not_models)) * len(contains) > LONGEST_SELECTOR:
        raise _too_long(f"more than {LONGEST_SELECTOR}")  # counted, because thousands of words take long to write
    named, avoided = (
        [f"{contains}{_text(each.lower())})" for each in words] for words in (wanted.models, wanted.not_models)
    )
    found = []
    if named:
        found.append(" || ".join(named))
    if avoided:
        found.append(f"!({' || '.join(avoided)})")
    if wanted.uuids:
        found.append(f"{uuid} in {_text(sorted(wanted.uuids))}")
    if wanted.not_uuids:
        found.append(f"!({uuid} in {_text(sorted(wanted.not_uuids))})")
    if (longest := max((len(each.encode()) for each in found), default=0)) > LONGEST_SELECTOR:
        raise _too_long(str(longest))
    return found


def _too_long(taken: str) -> RequestError:
    return RequestError(
        f"the GPUs that the pod's annotations name take {taken} bytes in a claim and Kubernetes takes "
        f"{LONGEST_SELECTOR}; name fewer GPUs, or models"
    )


def _text(text: str | list[GpuUuid]) -> str:
    """A string of JSON, or a list of them, is one of CEL too, but for JSON's pairs of surrogates, which CEL refuses."""
    return json.dumps(text, ensure_ascii=False)


def _digest(wanted: GpuFilter) -> str:
    said = [sorted(wanted.models), sorted(wanted.not_models), sorted(wanted.uuids), sorted(wanted.not_uuids)]
    return hashlib.sha256(json.dumps([said, wanted.one_numa]).encode()).hexdigest()[:10]
