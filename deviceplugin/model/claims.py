"""ResourceClaims of Dynamic Resource Allocation, as values: what a driver published, and what a claim was given of it.

In: nothing. Out: values for `kube`, which reads and writes them, and for `dra`, which decides. A claim is identified by
its UID: a later claim may have its name. Amounts are exact fractions until `dra.claim_grants` has checked them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NewType

from deviceplugin.model.gpu import Driver, Gpu

ClaimUid = NewType("ClaimUid", str)
ClaimKey = tuple[str, str]
"""Namespace and name: what pods name a claim by."""
MOST_CLAIMS, MOST_MENTIONS = 256, 1024
"""That are read of a pod: its claims, and how often its containers name them; the API server has no bound."""
AttributeValue = str | int | bool | tuple[int, int, int]
"""A tuple is a version. Its type must never change: an expression that reads it would fail."""


@dataclass(frozen=True, slots=True)
class ClaimNames:
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


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A ResourceClaim; only `uid` identifies it."""

    uid: ClaimUid
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """What a container names: a ResourceClaim of its namespace, and one of its requests; empty: all of them."""

    claim: str
    request: str = ""


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """One result of an allocation. `request`: as the pod's containers name it, so without the alternative after `/`.

    `consumed` has the amount of each capacity: what the driver must enforce, which may be more than was requested.
    """

    request: str
    driver: str
    pool: str
    device: str
    share_id: str = ""
    consumed: Mapping[str, Fraction] = field(default_factory=dict)
    is_administrative: bool = False
    """kube-scheduler gives it beside what others hold."""


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What is asked of each of `count` devices of a class; None: of all devices that fit on a node.

    `cores` and `blocks` are rounded up as kube-scheduler does it; None: all that the device has.
    """

    device_class: str
    count: int | None = 1
    cores: int | None = None
    blocks: int | None = None


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A request of a claim; of a prioritized list, the first of `alternatives` that fits is taken."""

    name: str
    alternatives: tuple[DeviceRequest, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """`devices` is None while nothing is allocated. `consumers`: UIDs of the pods for which it is reserved.

    `configured`: drivers for which the claim or its class has parameters. `requests` is read for the scheduler's views
    only, where of very many alternatives a part is kept: `left_out` is the number of the others.
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


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of a pod's spec.resourceClaims; `claim` is empty until it is made from `template`."""

    name: str
    claim: str = ""
    template: str = ""


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """What a claim's status says of one of its devices. `since`: RFC 3339, in whole seconds."""

    driver: str
    pool: str
    device: str
    share_id: str
    is_ready: bool
    reason: str
    message: str
    since: str


@dataclass(frozen=True, slots=True)
class Taint:
    """A device with it gets no new pods."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A GPU as the node's ResourceSlice has it. Attribute names without a domain belong to the driver."""

    name: str
    attributes: Mapping[str, AttributeValue]
    cores: int
    blocks: int
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class OfferedGpu:
    """A device of a ResourceSlice as the GPU that it is; claims can have `cores` and `blocks` of it."""

    device: str
    gpu: Gpu
    cores: int
    blocks: int
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeOffer:
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
