"""What ResourceClaims hold of each node: kube-scheduler's decisions, which are shown and never placed on.

In: what nodes offer to claims, claims and pods, as the watches deliver them, in any order. Out: the `NodeClaims` of
each node, and the pods that name claims. What is held is what kube-scheduler has allocated, whatever has started.
Invariants: no state of a node for placement has anything of this, and no `PodHold` is made of it. An event costs what
its own object names: many pods may share many claims, so nothing is found by going through the pods of each claim of a
node; who uses which request is noted when a pod or a claim comes and goes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from math import ceil

import msgspec

from deviceplugin.model.allocation import ContainerRef, PodRef, PodUid
from deviceplugin.model.claims import (
    Claim,
    ClaimedDevice,
    ClaimKey,
    ClaimNames,
    ClaimRef,
    NodeOffer,
    OfferedGpu,
    PodClaim,
    Taint,
    is_template_name,
)
from deviceplugin.model.gpu import Driver, Gpu
from deviceplugin.model.pod import ClusterPod, PodContainer
from deviceplugin.model.units import BLOCK_BYTES
from deviceplugin.placement.fit import GpuAmount

Users = Mapping[str, Mapping[str, list[ContainerRef]]]


class ClaimGpu(msgspec.Struct, frozen=True):
    """A GPU that only claims get. `capacity`: what they can have of it; `closed`: why it gets no new pods."""

    gpu: Gpu
    device: str
    capacity: GpuAmount
    closed: str
    healthy: bool


class ClaimHold(msgspec.Struct, frozen=True):
    """What a request of a claim has of one device. `is_bound`: no pod that it is reserved for still has no node.

    `users`: how many containers use it; `user` is the one, where there is one.
    """

    claim: ClaimRef
    request: str
    device: str
    amount: GpuAmount
    users: int
    user: ContainerRef | None
    is_bound: bool

    @property
    def holder(self) -> ContainerRef:
        """Under which names it is shown, and is found in what the agent says of use: the one user, or the claim."""
        return self.user or ContainerRef(
            PodRef(PodUid(self.claim.uid), self.claim.namespace, self.claim.name), self.request
        )


class KnownClaim(msgspec.Struct):
    """A claim, and the containers that use it in the pods for which it is reserved, as far as these are known.

    `devices`: those of ours, by node; the driver's pools have the names of their nodes. `users`: by request; those that
    use all of the claim are under ''.
    """

    claim: Claim
    is_ours: bool
    devices: Mapping[str, list[ClaimedDevice]]
    users: dict[str, dict[ContainerRef, None]] = msgspec.field(default_factory=dict)
    _unbound: int = 0
    _holds: dict[str, tuple[ClaimHold, ...]] = msgspec.field(default_factory=dict)

    def is_for(self, pod: ClusterPod) -> bool:
        return pod.uid in self.claim.consumers and pod.pod.ref.namespace == self.claim.ref.namespace

    def add(self, pod: ClusterPod, users: Users) -> None:
        for request, containers in users.get(self.claim.ref.name, {}).items():
            self.users.setdefault(request, {}).update(dict.fromkeys(containers))
        self._unbound += not pod.pod.node
        self._holds.clear()

    def drop(self, pod: ClusterPod, users: Users) -> None:
        for request, containers in users.get(self.claim.ref.name, {}).items():
            for container in containers:
                del self.users[request][container]
        self._unbound -= not pod.pod.node
        self._holds.clear()

    def holds_on(self, node: str) -> tuple[ClaimHold, ...]:
        """What administrative access has counts for nobody, and the agent refuses it."""
        if node not in self._holds:
            devices = self.devices.get(node, ())
            self._holds[node] = tuple(self._hold(each) for each in devices if not each.is_administrative)
        return self._holds[node]

    def _hold(self, device: ClaimedDevice) -> ClaimHold:
        every, some = self.users.get("", {}), self.users.get(device.request, {})
        users = len(every) + len(some)
        user = next(chain(every, some)) if users == 1 else None
        amount, is_bound = _amount(device), not self._unbound
        return ClaimHold(self.claim.ref, device.request, device.device, amount, users, user, is_bound)


class NodeClaims:
    """Of one node: the GPUs that only claims get, by device in the order of the slice, and what claims hold.

    `driver` is None while nothing is offered. `allocated`: the claims with devices here. `reserved`: for how many of
    them each pod is reserved. `version` is another number after each change.
    """

    __slots__ = ("_holds", "allocated", "driver", "gpus", "name", "reserved", "version")

    def __init__(self, name: str) -> None:
        self.name = name
        self.gpus: Mapping[str, ClaimGpu] = {}
        self.driver: Driver | None = None
        self.allocated: dict[ClaimKey, KnownClaim] = {}
        self.reserved: dict[PodUid, int] = {}
        self.version = 0
        self._holds: tuple[ClaimHold, ...] | None = None

    @property
    def is_empty(self) -> bool:
        return self.driver is None and not self.allocated

    @property
    def holds(self) -> tuple[ClaimHold, ...]:
        if self._holds is None:
            self._holds = tuple(hold for each in self.allocated.values() for hold in each.holds_on(self.name))
        return self._holds

    def held_by(self, pod: ClusterPod) -> Iterator[tuple[str, list[ClaimHold]]]:
        """By the pod's containers, in their order; what several share is each one's."""
        for container in pod.pod.containers:
            found: list[ClaimHold] = []
            for name, requests in requests_of(container).items():
                known = self.allocated.get((pod.pod.ref.namespace, name))
                if known is not None and pod.uid in known.claim.consumers:
                    held = known.holds_on(self.name)
                    found += held if "" in requests else (each for each in held if each.request in requests)
            yield container.ref.name, found

    def changed(self) -> None:
        self.version += 1
        self._holds = None

    def put(self, known: KnownClaim) -> None:
        self.allocated[known.claim.key] = known
        for uid in map(PodUid, known.claim.consumers):
            self.reserved[uid] = self.reserved.get(uid, 0) + 1
        self.changed()

    def drop(self, known: KnownClaim) -> None:
        del self.allocated[known.claim.key]
        for uid in map(PodUid, known.claim.consumers):
            self.reserved[uid] -= 1
            if not self.reserved[uid]:
                del self.reserved[uid]
        self.changed()


NO_CLAIMS = NodeClaims("")
"""Of each node without any, so that such a node takes no more memory; never changed."""


class ClaimHolds:
    """Of all nodes; empty if no claims are watched. `pods`: those that name claims; `waiting`: of these without a node.

    `on` has the `NodeClaims` of a node, and makes them; `left` is called with a node that has less than before.
    """

    def __init__(self, names: ClaimNames, on: Callable[[str], NodeClaims], left: Callable[[str], None]) -> None:
        self.names = names
        self._on = on
        self._left = left
        self._known: dict[ClaimKey, KnownClaim] = {}
        self.pods: dict[PodUid, ClusterPod] = {}
        self.waiting: dict[PodUid, ClusterPod] = {}

    def put_offer(self, offer: NodeOffer) -> None:
        """Of a node one counts: who delivers them knows which."""
        there = self._on(offer.node)
        there.gpus = {each.device: _gpu(each, self.names) for each in offer.gpus}
        there.driver = offer.driver
        there.changed()

    def drop_offer(self, node: str) -> None:
        there = self._on(node)
        there.gpus, there.driver = {}, None
        there.changed()
        self._left(node)

    def put_claim(self, claim: Claim) -> None:
        self.drop_claim(claim.key)
        devices: dict[str, list[ClaimedDevice]] = {}
        for each in claim.devices or ():
            if each.driver == self.names.driver:
                devices.setdefault(each.pool, []).append(each)
        known = self._known[claim.key] = KnownClaim(claim, bool(devices) or self._asks_us(claim), devices)
        for pod in filter(None, map(self.pods.get, map(PodUid, sorted(claim.consumers)))):
            if devices and known.is_for(pod):
                known.add(pod, users_of(pod))
        for node in devices:
            self._on(node).put(known)

    def drop_claim(self, key: ClaimKey) -> None:
        before = self._known.pop(key, None)
        if before is not None:
            for node in before.devices:
                self._on(node).drop(before)
                self._left(node)

    def put_pod(self, pod: ClusterPod) -> None:
        before, self.pods[pod.uid] = self.pods.get(pod.uid), pod
        if pod.pod.node:
            self.waiting.pop(pod.uid, None)
        else:
            self.waiting[pod.uid] = pod
        self._recount(before, pod)

    def drop_pod(self, uid: PodUid) -> None:
        before = self.pods.pop(uid, None)
        self.waiting.pop(uid, None)
        self._recount(before, None)

    def _recount(self, before: ClusterPod | None, now: ClusterPod | None) -> None:
        """What its claims have is calculated again only if the pod uses them in another way."""
        was, uses = users_of(before), users_of(now)
        is_same = before and now and was == uses and before.pod.node == now.pod.node
        keys = dict.fromkeys(key for each in (before, now) if each for key in _names(each))
        for known in filter(None, map(self._known.get, keys)):
            if known.devices and before and not is_same and known.is_for(before):
                known.drop(before, was)
            if known.devices and now and not is_same and known.is_for(now):
                known.add(now, uses)
            for node in known.devices:
                self._on(node).changed()

    def claim(self, key: ClaimKey) -> Claim | None:
        known = self._known.get(key)
        return None if known is None else known.claim

    def claims_of(self, pod: ClusterPod) -> Iterator[Claim]:
        """Those that exist, each once: a pod may have hundreds of names for one claim."""
        names = dict.fromkeys(each.claim for each in pod.claims if each.claim)
        return filter(None, (self.claim((pod.pod.ref.namespace, name)) for name in names))

    def find(self, namespace: str, name: str) -> ClusterPod | None:
        """The latest pod of that name. Looks through all pods with claims: people ask rarely."""
        named = (pod for pod in reversed(self.pods.values()) if pod.pod.ref.name == name)
        return next((pod for pod in named if pod.pod.ref.namespace == namespace), None)

    def pods_on(self, there: NodeClaims) -> tuple[ClusterPod, ...]:
        """Those for which claims with devices of the node are reserved, as far as they are known."""
        return tuple(filter(None, map(self.pods.get, there.reserved)))

    def place(self, pod: ClusterPod) -> str:
        """The node on which the pod is, or on which devices are reserved for it; empty if it waits."""
        if pod.pod.node:
            return pod.pod.node
        mine = (self._known[each.key] for each in self.claims_of(pod) if pod.uid in each.consumers)
        return next((node for each in mine for node in each.devices), "")

    def is_ours(self, pod: ClusterPod) -> bool:
        """Whether it asks for devices of ours; a template of ours says so before the claim is made from it."""
        known = (self._known.get((pod.pod.ref.namespace, each.claim)) for each in pod.claims)
        if pod.whole_gpus or any(each is not None and each.is_ours for each in known):
            return True
        return any(not each.claim and is_template_name(each.template) for each in pod.claims)

    def waits(self, pod: ClusterPod) -> bool:
        """It asks for devices of ours, and none are reserved for it."""
        return self.is_ours(pod) and not self.place(pod)

    def missing(self, pod: ClusterPod) -> tuple[str, ...]:
        """A sentence for each claim of the pod that does not exist."""
        namespace = pod.pod.ref.namespace
        gone = (each for each in pod.claims if not each.claim or (namespace, each.claim) not in self._known)
        return tuple(dict.fromkeys(_missing_text(namespace, each) for each in gone))

    def _asks_us(self, claim: Claim) -> bool:
        classes = self.names.shares, self.names.whole_gpus
        return any(one.device_class in classes for each in claim.requests for one in each.alternatives)


def _gpu(offered: OfferedGpu, names: ClaimNames) -> ClaimGpu:
    healthy = all(taint.key != names.unhealthy for taint in offered.taints)
    capacity = GpuAmount(offered.cores, offered.blocks)
    return ClaimGpu(offered.gpu, offered.device, capacity, _closed_text(offered.taints, names), healthy)


def _closed_text(taints: Iterable[Taint], names: ClaimNames) -> str:
    words = {names.unhealthy: "unhealthy", names.cordoned: "cordoned"}
    texts = (
        (each.value or words[each.key])
        if each.key in words
        else f"taint {each.key}{f'={each.value}' if each.value else ''}"
        for each in taints
    )
    return ", ".join(texts)


def _missing_text(namespace: str, claim: PodClaim) -> str:
    if claim.claim:
        return f"ResourceClaim {namespace}/{claim.claim} does not exist; create it"
    if claim.template:
        return (
            f"the pod's claim {claim.name} is not made yet from ResourceClaimTemplate {namespace}/{claim.template}; "
            "check that the template exists"
        )
    return f"the pod's claim {claim.name} names neither a ResourceClaim nor a template"


def _names(pod: ClusterPod) -> Iterator[ClaimKey]:
    """Of all claims that the pod or one of its containers names."""
    used = (each.claim for container in pod.pod.containers for each in container.claims)
    names = dict.fromkeys(chain((each.claim for each in pod.claims if each.claim), used))
    return ((pod.pod.ref.namespace, name) for name in names)


def whole_gpus_of(pod: ClusterPod) -> tuple[tuple[str, int], ...]:
    """What containers ask of `vcuda-gpu`, while kube-scheduler has not made the claim for it."""
    return () if any(not each.name for each in pod.claims) else pod.whole_gpus


def requests_of(container: PodContainer) -> Mapping[str, set[str]]:
    """By claim, each once; '' is all of the claim."""
    found: dict[str, set[str]] = {}
    for each in container.claims:
        found.setdefault(each.claim, set()).add(each.request)
    return found


def users_of(pod: ClusterPod | None) -> Users:
    """By claim and request. A container that names all of a claim, and requests of it too, uses all of it."""
    found: dict[str, dict[str, list[ContainerRef]]] = {}
    for container in () if pod is None else pod.pod.containers:
        for claim, requests in requests_of(container).items():
            for request in {""} & requests or requests:
                found.setdefault(claim, {}).setdefault(request, []).append(container.ref)
    return found


def _amount(device: ClaimedDevice) -> GpuAmount:
    """A part of a core or of a block counts as one."""
    cores, memory = (device.consumed.get(name, 0) for name in ("cores", "memory"))
    return GpuAmount(ceil(cores), ceil(memory / BLOCK_BYTES))
