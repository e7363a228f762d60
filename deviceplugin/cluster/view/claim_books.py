"""Who has which GPU by a ResourceClaim, by node: kube-scheduler's decisions, for the view only.

In: what nodes offer, claims and pods, as the watches deliver them, in any order. Out: `NodeClaims` of a node, the same
object until something of it changes; the pods that wait with claims. What is held is what kube-scheduler has allocated,
whatever has started. The extender never reads this: GPUs of claims are in no inventory of its own.
Invariant: an event costs what its own object names. Many pods may share many claims, and so nothing is found by going
through the pods of each claim of a node: who uses which request is counted when a pod or a claim comes and goes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

from deviceplugin.model.allocation import PodRef, PodUid
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
    is_template_name,
)
from deviceplugin.model.pod import ClusterPod, PodContainer
from deviceplugin.model.units import BLOCK_BYTES

_NOTHING = Fraction(0)
_STEPS_OF_POD = 10


@dataclass(frozen=True, slots=True)
class ClaimUser:
    """A container that uses a request of a claim."""

    pod: PodRef
    container: str


@dataclass(frozen=True, slots=True)
class ClaimPart:
    """What a request of a claim has of one device. `is_bound`: no pod that it is reserved for still has no node.

    `users`: how many containers use it; `user` is the one, where there is one.
    """

    claim: ClaimRef
    request: str
    device: str
    cores: int
    blocks: int
    users: int
    user: ClaimUser | None
    is_bound: bool


@dataclass(frozen=True, slots=True, eq=False)
class NodeClaims:
    """`offer` is None while the node has no ResourceSlice. `pods`: those for which the claims are reserved.

    `devices` are the GPUs of the offer by the names of their devices, `by_claim` has the parts of each claim.
    """

    offer: NodeOffer | None
    parts: tuple[ClaimPart, ...]
    pods: tuple[ClusterPod, ...]
    devices: Mapping[str, OfferedGpu]
    by_claim: Mapping[ClaimKey, tuple[Claim, tuple[ClaimPart, ...]]]

    @property
    def gpus(self) -> tuple[OfferedGpu, ...]:
        return () if self.offer is None else self.offer.gpus

    def held_by(self, pod: ClusterPod) -> Iterator[tuple[str, tuple[ClaimPart, ...]]]:
        """By the pod's containers, in their order; what several share is each one's."""
        for container in pod.pod.containers:
            parts: list[ClaimPart] = []
            for name, requests in _requests_of(container).items():
                claim, held = self.by_claim.get((pod.pod.ref.namespace, name), (None, ()))
                if claim is not None and pod.uid in claim.consumers:
                    parts += held if "" in requests else (each for each in held if each.request in requests)
            yield container.ref.name, tuple(parts)


@dataclass(frozen=True, slots=True)
class AskedPart:
    """What a container of a pod asks for. `claim` is None for `vcuda-gpu`, whose claim kube-scheduler makes."""

    container: str
    claim: ClaimKey | None
    request: str
    alternatives: tuple[DeviceRequest, ...]


_Users = Mapping[str, Mapping[str, tuple[ClaimUser, ...]]]


@dataclass(frozen=True, slots=True)
class _ClaimingPod:
    """A pod. `users`: its containers by claim and request; those that name all of a claim are under the request ''."""

    pod: ClusterPod
    users: _Users

    @property
    def claims(self) -> Iterator[ClaimKey]:
        namespace = self.pod.pod.ref.namespace
        names = dict.fromkeys(each.claim for each in self.pod.claims if each.claim) | dict.fromkeys(self.users)
        return ((namespace, name) for name in names)


@dataclass(slots=True)
class _Held:
    """A claim with devices of ours, and the pods for which it is reserved, as far as they are known.

    `parts`, by node, are those of the last look; empty if something has changed since.
    """

    claim: Claim
    nodes: Mapping[str, None]
    users: dict[str, dict[PodUid, tuple[ClaimUser, ...]]] = field(default_factory=lambda: defaultdict(dict))
    counts: Counter[str] = field(default_factory=Counter)
    unbound: int = 0
    parts: dict[str, tuple[ClaimPart, ...]] = field(default_factory=dict)

    def is_for(self, pod: ClusterPod) -> bool:
        return pod.uid in self.claim.consumers and pod.pod.ref.namespace == self.claim.ref.namespace

    def add(self, seen: _ClaimingPod) -> None:
        for request, users in seen.users.get(self.claim.ref.name, {}).items():
            self.users[request][seen.pod.uid] = users
            self.counts[request] += len(users)
        self.unbound += not seen.pod.pod.node
        self.parts.clear()

    def drop(self, seen: _ClaimingPod) -> None:
        for request, users in seen.users.get(self.claim.ref.name, {}).items():
            del self.users[request][seen.pod.uid]
            self.counts[request] -= len(users)
        self.unbound -= not seen.pod.pod.node
        self.parts.clear()

    def parts_on(self, node: str, driver: str) -> tuple[ClaimPart, ...]:
        if node not in self.parts:
            self.parts[node] = tuple(self._parts(node, driver))
        return self.parts[node]

    def _parts(self, node: str, driver: str) -> Iterator[ClaimPart]:
        ref, is_bound = self.claim.ref, not self.unbound
        for each in self.claim.devices or ():
            # What administrative access has counts for nobody, and the agent refuses it.
            if each.driver == driver and each.pool == node and not each.is_administrative:
                users = self.counts[""] + self.counts[each.request]
                user = self._first(each.request) if users == 1 else None
                yield ClaimPart(ref, each.request, each.device, *_amounts(each), users, user, is_bound)

    def _first(self, request: str) -> ClaimUser | None:
        return next((users[0] for name in ("", request) for users in self.users.get(name, {}).values()), None)


class ClaimBooks:
    """Empty if no claims are watched, and then every question costs one look."""

    def __init__(self, names: ClaimNames) -> None:
        self.names = names
        self._classes = (names.shares, names.whole_gpus)
        self._offers: dict[str, NodeOffer] = {}
        self._claims: dict[ClaimKey, Claim] = {}
        self._ours: set[ClaimKey] = set()
        self._held: dict[ClaimKey, _Held] = {}
        self._on: dict[str, dict[ClaimKey, None]] = {}
        self._reserved: dict[str, Counter[PodUid]] = {}
        self._pods: dict[PodUid, _ClaimingPod] = {}
        self._names: dict[tuple[str, str], PodUid] = {}
        self._unbound: dict[PodUid, None] = {}
        self._known: dict[str, NodeClaims] = {}

    def put_offer(self, offer: NodeOffer) -> None:
        """Of a node one counts: who delivers them knows which."""
        self._offers[offer.node] = offer
        self._known.pop(offer.node, None)

    def drop_offer(self, offer: NodeOffer) -> None:
        self._offers.pop(offer.node, None)
        self._known.pop(offer.node, None)

    def put_claim(self, claim: Claim) -> None:
        self.drop_claim(claim)
        self._claims[claim.key] = claim
        if self._is_for_us(claim):
            self._ours.add(claim.key)
        if nodes := self._nodes_of(claim):
            held = self._held[claim.key] = _Held(claim, nodes)
            for seen in filter(None, map(self._pods.get, _consumers(claim))):
                if held.is_for(seen.pod):
                    held.add(seen)
        for node in nodes:
            self._on.setdefault(node, {})[claim.key] = None
            self._reserved.setdefault(node, Counter()).update(_consumers(claim))
            self._known.pop(node, None)

    def drop_claim(self, claim: Claim) -> None:
        """Whichever claim has this name."""
        self._claims.pop(claim.key, None)
        self._ours.discard(claim.key)
        before = self._held.pop(claim.key, None)
        for node in () if before is None else before.nodes:
            keys, reserved = self._on[node], self._reserved[node]
            del keys[claim.key]
            for uid in () if before is None else before.claim.consumers:
                reserved[PodUid(uid)] -= 1
                if not reserved[PodUid(uid)]:
                    del reserved[PodUid(uid)]
            if not keys:
                del self._on[node], self._reserved[node]
            self._known.pop(node, None)

    def put_pod(self, pod: ClusterPod) -> None:
        before, seen = self._pods.get(pod.uid), _ClaimingPod(pod, _users(pod))
        self._pods[pod.uid] = seen
        self._names[pod.pod.ref.namespace, pod.pod.ref.name] = pod.uid
        if pod.pod.node:
            self._unbound.pop(pod.uid, None)
        else:
            self._unbound[pod.uid] = None
        self._recount(before, seen)

    def drop_pod(self, pod: ClusterPod) -> None:
        before = self._pods.pop(pod.uid, None)
        if before is not None:
            ref = before.pod.pod.ref
            if self._names.get((ref.namespace, ref.name)) == pod.uid:
                del self._names[ref.namespace, ref.name]
            self._unbound.pop(pod.uid, None)
            self._recount(before, None)

    def _recount(self, before: _ClaimingPod | None, now: _ClaimingPod | None) -> None:
        """What its claims have is calculated again only if the pod uses them in another way."""
        is_same = before and now and before.users == now.users and before.pod.pod.node == now.pod.pod.node
        keys = dict.fromkeys(key for each in (before, now) if each for key in each.claims)
        for held in filter(None, map(self._held.get, keys)):
            if before and not is_same and held.is_for(before.pod):
                held.drop(before)
            if now and not is_same and held.is_for(now.pod):
                held.add(now)
            for node in held.nodes:
                self._known.pop(node, None)

    def node(self, name: str) -> NodeClaims | None:
        """None if nothing is offered and nothing is held."""
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
        seen = self._pods.get(uid)
        return None if seen is None else seen.pod

    def find(self, namespace: str, name: str) -> ClusterPod | None:
        uid = self._names.get((namespace, name))
        return None if uid is None else self.pod(uid)

    def unbound(self) -> Iterator[ClusterPod]:
        """Pods without a node, of whichever driver; `waits` tells which of them wait for devices of ours."""
        return (seen.pod for uid in tuple(self._unbound) if (seen := self._pods.get(uid)) is not None)

    def waits(self, pod: ClusterPod) -> bool:
        """It asks for vcuda's devices, and none are reserved for it."""
        return self.is_ours(pod) and not self.place(pod)

    def steps(self, pod: ClusterPod) -> int:
        """How long a look at what the pod asks for takes, in steps of a microsecond or less."""
        return _STEPS_OF_POD + len(pod.claims) + 4 * sum(len(each.claims) for each in pod.pod.containers)

    def place(self, pod: ClusterPod) -> str:
        """The node on which the pod is, or on which devices are reserved for it; empty if it waits."""
        if pod.pod.node:
            return pod.pod.node
        held = (self._held.get(claim.key) for claim in self.claims_of(pod))
        mine = (each for each in held if each is not None and pod.uid in each.claim.consumers)
        return next((node for each in mine for node in each.nodes), "")

    def users_in(self, pod: ClusterPod, part: ClaimPart) -> list[str]:
        """The pod's containers that use the part."""
        held = self._held.get((part.claim.namespace, part.claim.name))
        found = () if held is None else (held.users.get(each, {}).get(pod.uid, ()) for each in ("", part.request))
        return [user.container for users in found for user in users]

    def claims_of(self, pod: ClusterPod) -> Iterator[Claim]:
        """Those that exist, each once: a pod may have hundreds of names for one claim."""
        names = dict.fromkeys(each.claim for each in pod.claims if each.claim)
        found = (self._claims.get((pod.pod.ref.namespace, name)) for name in names)
        return (claim for claim in found if claim is not None)

    def is_ours(self, pod: ClusterPod) -> bool:
        """A template of ours says so before the claim is made from it."""
        namespace = pod.pod.ref.namespace
        if pod.whole_gpus or any((namespace, each.claim) in self._ours for each in pod.claims):
            return True
        return any(not each.claim and is_template_name(each.template) for each in pod.claims)

    def _is_for_us(self, claim: Claim) -> bool:
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
            for name, requests in _requests_of(container).items():
                key = pod.pod.ref.namespace, name
                claim = self._claims.get(key)
                for each in () if claim is None else claim.requests:
                    if "" in requests or each.name in requests:
                        yield AskedPart(container.ref.name, key, each.name, each.alternatives)
        has_claim = any(not each.name for each in pod.claims)
        for name, count in () if has_claim else pod.whole_gpus:
            yield AskedPart(name, None, "", (DeviceRequest(self.names.whole_gpus, count),))

    def _calculate(self, name: str) -> NodeClaims:
        offer = self._offers.get(name)
        devices = {} if offer is None else {each.device: each for each in offer.gpus}
        held = {key: self._held[key] for key in self._on.get(name, ())}
        by_claim = {key: (each.claim, each.parts_on(name, self.names.driver)) for key, each in held.items()}
        pods = tuple(seen.pod for uid in self._reserved.get(name, ()) if (seen := self._pods.get(uid)) is not None)
        parts = tuple(part for _, found in by_claim.values() for part in found)
        return NodeClaims(offer, parts, pods, devices, by_claim)

    def _nodes_of(self, claim: Claim) -> Mapping[str, None]:
        """The driver's pools have the names of their nodes."""
        driver = self.names.driver
        return dict.fromkeys(each.pool for each in claim.devices or () if each.driver == driver)


def _missing_text(namespace: str, claim: PodClaim) -> str:
    if claim.claim:
        return f"ResourceClaim {namespace}/{claim.claim} does not exist; create it"
    if claim.template:
        return (
            f"the pod's claim {claim.name} is not made yet from ResourceClaimTemplate {namespace}/{claim.template}; "
            "check that the template exists"
        )
    return f"the pod's claim {claim.name} names neither a ResourceClaim nor a template"


def _consumers(claim: Claim) -> Iterator[PodUid]:
    return map(PodUid, sorted(claim.consumers))


def _requests_of(container: PodContainer) -> Mapping[str, set[str]]:
    """By claim, each once."""
    found: dict[str, set[str]] = {}
    for each in container.claims:
        found.setdefault(each.claim, set()).add(each.request)
    return found


def _users(pod: ClusterPod) -> _Users:
    """A container that names all of a claim, and requests of it too, uses all of it."""
    found: dict[str, dict[str, list[ClaimUser]]] = {}
    for container in pod.pod.containers:
        user = ClaimUser(pod.pod.ref, container.ref.name)
        for claim, requests in _requests_of(container).items():
            for request in {""} & requests or requests:
                found.setdefault(claim, {}).setdefault(request, []).append(user)
    return {claim: {name: tuple(users) for name, users in each.items()} for claim, each in found.items()}


def _amounts(device: ClaimedDevice) -> tuple[int, int]:
    """Cores and blocks; a part of either counts as one."""
    cores, memory = (device.consumed.get(name, _NOTHING) for name in ("cores", "memory"))
    return ceil(cores), ceil(memory / BLOCK_BYTES)
