"""Who has which GPU by a ResourceClaim, by node: kube-scheduler's decisions, for the view only.

In: what nodes offer, claims and pods, as the watches deliver them, in any order. Out: `NodeClaims` of a node, the same
object until something of it changes; the pods that wait with claims. What is held is what kube-scheduler has allocated,
whatever has started. The extender never reads this: GPUs of claims are in no inventory of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.claim_template import is_template_name
from deviceplugin.model.claims import (
    Claim,
    ClaimedDevice,
    ClaimKey,
    ClaimNames,
    ClaimRef,
    DeviceRequest,
    NodeOffer,
    OfferedGpu,
    PodClaim,
)
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import BLOCK_BYTES

_NOTHING = Fraction(0)


@dataclass(frozen=True, slots=True)
class ClaimUser:
    """A container that uses a request of a claim."""

    pod: PodRef
    container: str


@dataclass(frozen=True, slots=True)
class ClaimPart:
    """What a request of a claim has of one device. `is_bound`: no pod that it is reserved for still has no node."""

    claim: ClaimRef
    request: str
    device: str
    cores: int
    blocks: int
    users: tuple[ClaimUser, ...]
    is_bound: bool


@dataclass(frozen=True, slots=True)
class NodeClaims:
    """`offer` is None while the node has no ResourceSlice. `pods`: those for which the claims are reserved.

    `devices` are the GPUs of the offer by the names of their devices, `by_container` the parts by pod and container.
    """

    offer: NodeOffer | None
    parts: tuple[ClaimPart, ...]
    pods: tuple[ClusterPod, ...]
    devices: Mapping[str, OfferedGpu]
    by_container: Mapping[tuple[PodUid, str], tuple[ClaimPart, ...]]

    @property
    def gpus(self) -> tuple[OfferedGpu, ...]:
        return () if self.offer is None else self.offer.gpus


@dataclass(frozen=True, slots=True)
class AskedPart:
    """What a container of a pod asks for. `claim` is None for `vcuda-gpu`, whose claim kube-scheduler makes."""

    container: str
    claim: ClaimKey | None
    request: str
    alternatives: tuple[DeviceRequest, ...]


class ClaimBooks:
    """Empty where no claims are watched, and then every question costs one look."""

    def __init__(self, names: ClaimNames) -> None:
        self.names = names
        self._classes = (names.shares, names.whole_gpus)
        self._offers: dict[str, dict[str, NodeOffer]] = {}
        self._claims: dict[ClaimKey, Claim] = {}
        self._on: dict[str, dict[ClaimKey, None]] = {}
        self._pods: dict[PodUid, ClusterPod] = {}
        self._unbound: dict[PodUid, None] = {}
        self._known: dict[str, NodeClaims] = {}

    def put_offer(self, offer: NodeOffer) -> None:
        self._offers.setdefault(offer.node, {})[offer.slice] = offer
        self._known.pop(offer.node, None)

    def drop_offer(self, offer: NodeOffer) -> None:
        slices = self._offers.get(offer.node, {})
        slices.pop(offer.slice, None)
        if not slices:
            self._offers.pop(offer.node, None)
        self._known.pop(offer.node, None)

    def put_claim(self, claim: Claim) -> None:
        self.drop_claim(claim)
        self._claims[claim.key] = claim
        for node in self._nodes_of(claim):
            self._on.setdefault(node, {})[claim.key] = None
            self._known.pop(node, None)

    def drop_claim(self, claim: Claim) -> None:
        """Whichever claim has this name."""
        before = self._claims.pop(claim.key, None)
        for node in () if before is None else self._nodes_of(before):
            keys = self._on[node]
            del keys[claim.key]
            if not keys:
                del self._on[node]
            self._known.pop(node, None)

    def put_pod(self, pod: ClusterPod) -> None:
        self._pods[pod.uid] = pod
        if pod.pod.node:
            self._unbound.pop(pod.uid, None)
        else:
            self._unbound[pod.uid] = None
        self._forget_nodes_of(pod)

    def drop_pod(self, pod: ClusterPod) -> None:
        if self._pods.pop(pod.uid, None) is not None:
            self._unbound.pop(pod.uid, None)
            self._forget_nodes_of(pod)

    def node(self, name: str) -> NodeClaims | None:
        """None where nothing is offered and nothing is held."""
        known = self._known.get(name)
        if known is None and (name in self._offers or name in self._on):
            known = self._known[name] = self._calculate(name)
        return known

    def offering(self) -> tuple[str, ...]:
        """The nodes that offer GPUs to claims."""
        return tuple(self._offers)

    def claim(self, key: ClaimKey) -> Claim | None:
        return self._claims.get(key)

    def pod(self, uid: PodUid) -> ClusterPod | None:
        return self._pods.get(uid)

    def find(self, namespace: str, name: str) -> ClusterPod | None:
        """Looks through all pods with claims: people ask rarely."""
        named = (
            each for each in self._pods.values() if (each.pod.ref.namespace, each.pod.ref.name) == (namespace, name)
        )
        return next(named, None)

    def waiting(self) -> Iterator[ClusterPod]:
        """Pods that ask for vcuda's devices and for which none are reserved."""
        for uid in tuple(self._unbound):
            pod = self._pods.get(uid)
            if pod is not None and self.is_ours(pod) and not self.place(pod):
                yield pod

    def place(self, pod: ClusterPod) -> str:
        """The node on which the pod is, or on which devices are reserved for it; empty where it waits."""
        if pod.pod.node:
            return pod.pod.node
        mine = (claim for claim in self.claims_of(pod) if pod.uid in claim.consumers)
        return next((node for claim in mine for node in self._nodes_of(claim)), "")

    def claims_of(self, pod: ClusterPod) -> Iterator[Claim]:
        """Those that exist, each once: a pod may have hundreds of names for one claim."""
        names = dict.fromkeys(each.claim for each in pod.claims if each.claim)
        found = (self._claims.get((pod.pod.ref.namespace, name)) for name in names)
        return (claim for claim in found if claim is not None)

    def is_ours(self, pod: ClusterPod) -> bool:
        """A template of ours says so before the claim is made from it."""
        if pod.whole_gpus or any(map(self.is_for_us, self.claims_of(pod))):
            return True
        return any(not each.claim and is_template_name(each.template) for each in pod.claims)

    def is_for_us(self, claim: Claim) -> bool:
        """By its devices, or by the class that it asks for."""
        if any(each.driver == self.names.driver for each in claim.devices or ()):
            return True
        return any(one.device_class in self._classes for each in claim.requests for one in each.alternatives)

    def missing(self, pod: ClusterPod) -> tuple[str, ...]:
        """A sentence for each claim of the pod that does not exist."""
        namespace = pod.pod.ref.namespace
        gone = (each for each in pod.claims if not each.claim or (namespace, each.claim) not in self._claims)
        return tuple(dict.fromkeys(_missing_text(namespace, each) for each in gone))

    def asked(self, pod: ClusterPod) -> Iterator[AskedPart]:
        """By container, for claims that exist."""
        for container in pod.pod.containers:
            for named in container.claims:
                key = pod.pod.ref.namespace, named.claim
                claim = self._claims.get(key)
                for each in () if claim is None else claim.requests:
                    if named.request in ("", each.name):
                        yield AskedPart(container.ref.name, key, each.name, each.alternatives)
        has_claim = any(not each.name for each in pod.claims)
        for name, count in () if has_claim else pod.whole_gpus:
            yield AskedPart(name, None, "", (DeviceRequest(self.names.whole_gpus, count),))

    def _calculate(self, name: str) -> NodeClaims:
        slices = self._offers.get(name, {}).values()
        claims = [self._claims[key] for key in self._on.get(name, ())]
        uids = dict.fromkeys(PodUid(uid) for claim in claims for uid in sorted(claim.consumers))
        pods = tuple(pod for uid in uids if (pod := self._pods.get(uid)) is not None)
        offer = max(slices, key=lambda each: (each.generation, each.slice), default=None)
        parts = tuple(part for claim in claims for part in self._parts(claim, name))
        devices = {} if offer is None else {each.device: each for each in offer.gpus}
        return NodeClaims(offer, parts, pods, devices, _by_container(parts))

    def _parts(self, claim: Claim, node: str) -> Iterator[ClaimPart]:
        pods = [pod for uid in sorted(claim.consumers) if (pod := self._pods.get(PodUid(uid))) is not None]
        is_bound, named = all(pod.pod.node for pod in pods), tuple(_users(pods, claim.ref.name))
        for each in claim.devices or ():
            # What administrative access has counts for nobody, and the agent refuses it.
            if each.driver == self.names.driver and each.pool == node and not each.is_administrative:
                users = tuple(dict.fromkeys(user for request, user in named if request in ("", each.request)))
                yield ClaimPart(claim.ref, each.request, each.device, *_amounts(each), users, is_bound)

    def _nodes_of(self, claim: Claim) -> Mapping[str, None]:
        """The driver's pools have the names of their nodes."""
        driver = self.names.driver
        return dict.fromkeys(each.pool for each in claim.devices or () if each.driver == driver)

    def _forget_nodes_of(self, pod: ClusterPod) -> None:
        for claim in self.claims_of(pod):
            for node in self._nodes_of(claim):
                self._known.pop(node, None)


def _missing_text(namespace: str, claim: PodClaim) -> str:
    if claim.claim:
        return f"ResourceClaim {namespace}/{claim.claim} does not exist; create it"
    if claim.template:
        return (
            f"the pod's claim {claim.name} is not made yet from ResourceClaimTemplate {namespace}/{claim.template}; "
            "check that the template exists"
        )
    return f"the pod's claim {claim.name} names neither a ResourceClaim nor a template"


def _users(pods: list[ClusterPod], claim: str) -> Iterator[tuple[str, ClaimUser]]:
    """The containers that name a request of the claim, or all of it."""
    for pod in pods:
        for container in pod.pod.containers:
            for each in container.claims:
                if each.claim == claim:
                    yield each.request, ClaimUser(pod.pod.ref, container.ref.name)


def _by_container(parts: tuple[ClaimPart, ...]) -> Mapping[tuple[PodUid, str], tuple[ClaimPart, ...]]:
    found: dict[tuple[PodUid, str], tuple[ClaimPart, ...]] = {}
    for part in parts:
        for user in part.users:
            key = user.pod.uid, user.container
            found[key] = (*found.get(key, ()), part)
    return found


def _amounts(device: ClaimedDevice) -> tuple[int, int]:
    """Cores and blocks; a part of either counts as one."""
    cores, memory = (device.consumed.get(name, _NOTHING) for name in ("cores", "memory"))
    return ceil(cores), ceil(memory / BLOCK_BYTES)
