"""Pods: from JSON to the values that placement and identity need.

In: a pod of the API server (`api_pod`) or of kubelet's `GET /pods` (`kubelet_pod`); both have the same form. Out:
`model.pod.Pod`, or ParseError; `PodListReader` for kubelet's lists, which are read again and again; `pods_of_node`, the
collection that the agent watches. Invariant: `ref.uid` is the UID that the source gives the pod, never one from an
annotation; kubelet alone says which pod is static, because it writes that annotation itself into what it lists.
Containers are in the order in which kubelet starts them. Of environment variables, annotations and volumes only
what vcuda reads is kept: others may be secret. Of each text that a user writes a bounded part is kept: pods stay in
memory, and how large they are there must not be a user's choice.

CPU and memory that a pod takes of its node, by kube-scheduler's arithmetic, and those that a node has.

In: structs of pods and nodes. Out: `Compute`, or None if a quantity cannot be read. Containers add up. An init
container runs before them, beside the sidecars that were started until then; the larger sum counts. Resources of the
whole pod replace both, and overhead is added. During a resize the maximum of requested, allocated and actual resources
counts, unless kubelet reported that the resize is infeasible.
"""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from deviceplugin.errors import ParseError
from deviceplugin.kube.collection import Collection, ObjectKind
from deviceplugin.kube.structs import (
    Amounts,
    ContainerSpec,
    ContainerStatus,
    EnvVar,
    Identified,
    Meta,
    Page,
    PodObject,
    PodSpec,
    PodStatus,
    decode,
    exact_quantity,
    parse_quantity,
)
from deviceplugin.model.allocation import MOST_LIBRARY_PATH, ContainerRef, ContainerRole, PodRef, PodUid, covers_compat
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.claims import MOST_CLAIMS, MOST_MENTIONS, ContainerClaim
from deviceplugin.model.pod import ContainerState, Pod, PodContainer
from deviceplugin.model.pod_request import MOST_WRITTEN, size_of
from deviceplugin.model.preferences import FOREIGN
from deviceplugin.model.units import Compute, ResourceNames
from deviceplugin.structs import replace

KEPT_ENV = frozenset({"LD_LIBRARY_PATH", "compat32", "SUBMITTER"})
# A user can create a pod with an absurd limit and a node name. Kubelet rejects it; other pods must stay readable.
UNREADABLE_COUNT = 1 << 62
_KEPT_TEXT = MOST_LIBRARY_PATH + 1  # of a variable: so much is refused, and more need not be kept
_CLUSTER_NAME = "clusterName"
_LONGEST_NAME = 253
_LONGEST_MESSAGE = 4096
_NO_POD = PodUid("")
_LIST = "the list of pods"
_MIRROR = "kubernetes.io/config.mirror"
_SOURCE = "kubernetes.io/config.source"
_SEEN = "kubernetes.io/config.seen"
_STATES = tuple(
    (each.value, each) for each in (ContainerState.RUNNING, ContainerState.TERMINATED, ContainerState.WAITING)
)


def pod_kind(names: ResourceNames = ResourceNames()) -> ObjectKind[PodObject, Pod]:
    return ObjectKind("v1", "pods", "Pod", "pod", PodObject, lambda item: api_pod(item, names), lambda pod: pod.api_uid)


def api_pod(item: PodObject, names: ResourceNames) -> Pod:
    claim = (item.metadata.annotations or {}).get(_MIRROR, "")[:_LONGEST_NAME]
    return _pod(item, names, api_uid=item.metadata.uid, mirror_of=PodUid(claim))


def kubelet_pod(item: PodObject, names: ResourceNames) -> Pod:
    """Kubelet lists static pods, and not their mirrors."""
    is_static = (item.metadata.annotations or {}).get(_SOURCE, "api") != "api"
    return _pod(item, names, api_uid="" if is_static else item.metadata.uid, is_static=is_static)


def _pod(
    item: PodObject, names: ResourceNames, *, api_uid: str, mirror_of: PodUid = _NO_POD, is_static: bool = False
) -> Pod:
    meta, spec, status = item.metadata, item.spec or PodSpec(), item.status or PodStatus()
    annotations = meta.annotations or {}
    kept, unread = kept_annotations(annotations, names.domain)
    ref = PodRef(uid=PodUid(meta.uid), namespace=meta.namespace, name=meta.name)
    claims, has_unread_claims = _claims(spec, status)
    return Pod(
        ref=ref,
        containers=tuple(_with_claims(_containers(ref, spec, status, names), claims)),
        phase=status.phase or "Pending",
        reason=(status.reason or "")[:_LONGEST_NAME],
        message=(status.message or "")[:_LONGEST_MESSAGE],
        node=spec.node_name or "",
        annotations=kept,
        annotation_bytes=size_of(annotations),
        unread_bytes=unread,
        created=_unix(meta.creation_timestamp),
        seen_by_kubelet=_unix(annotations.get(_SEEN)),
        deleting=bool(meta.deletion_timestamp),
        owner_kind=_owner_kind(item),
        resource_version=meta.resource_version,
        api_uid=api_uid,
        mirror_of=mirror_of,
        is_static=is_static,
        scheduler=spec.scheduler_name or "",
        has_unread_claims=has_unread_claims,
    )


def _with_claims(
    containers: Iterator[PodContainer], claims: Mapping[str, Sequence[ContainerClaim]]
) -> Iterator[PodContainer]:
    for container in containers:
        found = claims.get(container.ref.name)
        yield replace(container, claims=tuple(found)) if found else container


def _claims(spec: PodSpec, status: PodStatus) -> tuple[dict[str, list[ContainerClaim]], bool]:
    """What containers name, and whether that is not all of it. Most pods have none.

    A claim that is to be made from a template has no name before it exists.
    """
    if not spec.resource_claims and status.extended_resource_claim_status is None:
        return {}, False
    entries = spec.resource_claims or []
    made = {each.name: each.resource_claim_name for each in status.resource_claim_statuses or ()}
    called = {each.name: each.resource_claim_name or made.get(each.name) for each in entries[:MOST_CLAIMS]}
    found: dict[str, list[ContainerClaim]] = {}
    left = MOST_MENTIONS
    for each in [*(spec.init_containers or ()), *(spec.containers or ())]:
        named = (each.resources.claims if each.resources else None) or []
        known = ((name, one.request or "") for one in named[: max(0, left)] if (name := called.get(one.name)))
        found[each.name] = [_claim(*one) for one in known]
        left -= len(named)
    if (extended := status.extended_resource_claim_status) is not None:
        for mapping in (extended.request_mappings or ())[:MOST_MENTIONS]:
            one = _claim(extended.resource_claim_name, mapping.request_name)
            found.setdefault(mapping.container_name, []).append(one)
    return found, left < 0 or len(entries) > MOST_CLAIMS


_claim = lru_cache(1024)(ContainerClaim)
"""All containers of a pod may name all of its claims: equal values are stored once."""


def _containers(ref: PodRef, spec: PodSpec, status: PodStatus, names: ResourceNames) -> Iterator[PodContainer]:
    statuses = statuses_by_name(status.init_container_statuses)
    for index, container in enumerate(spec.init_containers or ()):
        role = ContainerRole.SIDECAR if container.restart_policy == "Always" else ContainerRole.INIT
        yield _container(ref, container, role, index, statuses, names)
    statuses = statuses_by_name(status.container_statuses)
    for index, container in enumerate(spec.containers or ()):
        yield _container(ref, container, ContainerRole.APP, index, statuses, names)


def statuses_by_name(statuses: Sequence[ContainerStatus] | None) -> Mapping[str, ContainerStatus]:
    """The first one of each name."""
    return {each.name: each for each in reversed(statuses)} if statuses else {}


def _container(
    ref: PodRef,
    container: ContainerSpec,
    role: ContainerRole,
    index: int,
    statuses: Mapping[str, ContainerStatus],
    names: ResourceNames,
) -> PodContainer:
    limits = (container.resources.limits if container.resources else None) or {}
    cores, blocks = _count(limits, names.core), _count(limits, names.memory)
    has_gpu = cores or blocks or (container.resources is not None and container.resources.claims)
    status = statuses.get(container.name) or ContainerStatus(container.name)  # kubelet may not have reported it
    return PodContainer(
        ref=ContainerRef(pod=ref, name=container.name),
        role=role,
        index=index,
        cores=cores,
        blocks=blocks,
        env=_kept_env(container.env or ()) if has_gpu else {},
        state=_state(status.state or {}),
        runtime_id=(status.container_id or "").partition("://")[2],
        has_volume_over_compat=any(covers_compat(each.mount_path or "/") for each in container.volume_mounts or ()),
    )


def _kept_env(variables: Sequence[EnvVar]) -> dict[str, str]:
    return {var.name: (var.value or "")[:_KEPT_TEXT] for var in variables if var.name in KEPT_ENV}


def _count(limits: Mapping[str, str | int], name: str) -> int:
    if name not in limits:
        return 0
    try:
        count = parse_quantity(limits[name])
    except ParseError:
        return UNREADABLE_COUNT
    return count if 0 <= count < UNREADABLE_COUNT else UNREADABLE_COUNT


def _state(states: Mapping[str, object]) -> ContainerState:
    return next((state for name, state in _STATES if states.get(name) is not None), ContainerState.UNKNOWN)


def kept_annotations(annotations: Mapping[str, str], domain: str) -> tuple[dict[str, str], int]:
    """Those that vcuda reads. Where a user wrote more than it keeps, those of the user are left out; their size."""
    known = annotation_names(domain)
    kept, written = {}, {}
    for name, text in annotations.items():
        if known.is_machine_written(name):
            kept[name] = text
        elif name in known.user_written or name in FOREIGN:
            written[name] = text
        elif name == _CLUSTER_NAME and text:
            kept[name] = text[:_LONGEST_NAME]
    if not written:
        return kept, 0
    size = size_of(written)
    return (kept, size) if size > MOST_WRITTEN else (kept | written, 0)


def _owner_kind(item: PodObject) -> str:
    owners = item.metadata.owner_references or ()
    return next((owner.kind for owner in owners if owner.controller), owners[0].kind if owners else "")


def _unix(text: str | None) -> float:
    """RFC 3339 as Unix seconds; 0.0 if it is missing or cannot be read: times only order pods."""
    if not text:
        return 0.0
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return moment.timestamp() if moment.tzinfo else moment.replace(tzinfo=dt.UTC).timestamp()


class PodListReader:
    """Reads kubelet's lists, and keeps parsed pods by their bytes: parsing takes 60 us a pod, and hardly any changes.

    200 pods take 1 ms instead of 12. Only the pods of the last body are kept. Use one reader for each source of bodies.
    Of a pod that cannot be read the last readable state counts, otherwise that it exists: a pod that is missing in
    kubelet's list has ended, and its GPUs are given to others.
    """

    def __init__(self, names: ResourceNames = ResourceNames()) -> None:
        self._names = names
        self._known: dict[bytes, Pod] = {}

    def read(self, body: bytes) -> tuple[Pod, ...]:
        """Every pod of the list; raises ParseError. What is unusual is read too, slowly."""
        items = [bytes(raw) for raw in decode(Page, body, what=_LIST).items or ()]
        known = {item: self._known.get(item) or self._pod(item) for item in items}
        self._known = known
        return tuple(known[item] for item in items)

    def _pod(self, item: bytes) -> Pod:
        try:
            return kubelet_pod(decode(PodObject, item, what=_LIST), self._names)
        except ParseError:
            meta = decode(Identified, item, what=_LIST).metadata
        known = next((pod for pod in self._known.values() if pod.ref.uid == meta.uid), None)
        return known or kubelet_pod(PodObject(Meta(meta.name, meta.namespace, meta.uid)), self._names)


PODS = ObjectKind("v1", "pods", "Pod", "pod", PodObject, lambda item: item)
"""As they are written, for who looks at one of them."""


def pods_of_node(node: str, names: ResourceNames = ResourceNames()) -> Collection[PodUid, Pod]:
    """All pods bound to the node, with or without GPUs, by the API server's UID."""
    query = {"fieldSelector": f"spec.nodeName={node}"}
    return pod_kind(names).collection(f"pods of {node}", key=lambda pod: pod.ref.uid, query=query)


_MOST_CACHED = 10_000
_RESIZE_PENDING = "PodResizePending"
_INFEASIBLE = "Infeasible"
_Pair = tuple[int, int]
"""CPU and memory as in `Compute`; a tuple, because this runs for every change of every pod of the cluster."""
_NONE: _Pair = (0, 0)


def pod_needs(spec: PodSpec, status: PodStatus) -> Compute | None:
    try:
        cpu, memory = _by_containers(spec, status)
        if spec.resources is not None and (whole := spec.resources.requests) is not None:
            cpu = cpu if whole.cpu is None else _milli(whole.cpu)
            memory = memory if whole.memory is None else _bytes(whole.memory)
        more = _pair(spec.overhead)
    except ParseError:
        return None
    return _compute(cpu + more[0], memory + more[1])


_compute = lru_cache(_MOST_CACHED)(Compute)
"""The pods of a deployment need the same: equal values are stored once."""


def node_offers(allocatable: Mapping[str, str | int]) -> Compute | None:
    try:
        return Compute(_milli(allocatable["cpu"]), _bytes(allocatable["memory"]))
    except (KeyError, ParseError):
        return None


def _by_containers(spec: PodSpec, status: PodStatus) -> _Pair:
    apps, statuses = _NONE, statuses_by_name(status.container_statuses)
    for each in spec.containers or ():
        apps = _sum(apps, _takes(each, statuses, status))
    if not spec.init_containers:
        return apps
    sidecars = most = _NONE
    statuses = statuses_by_name(status.init_container_statuses)
    for each in spec.init_containers:
        if each.restart_policy == "Always":
            sidecars = _sum(sidecars, _takes(each, statuses, status))
            most = _most(most, sidecars)
        else:
            most = _most(most, _sum(sidecars, _requests(each)))
    return _most(most, _sum(sidecars, apps))


def _takes(container: ContainerSpec, statuses: Mapping[str, ContainerStatus], status: PodStatus) -> _Pair:
    wanted = _requests(container)
    found = statuses.get(container.name)
    if found is None or found.resources is None:
        return wanted
    real = _most(_pair(found.resources.requests), _pair(found.allocated_resources))
    return real if real == wanted or _is_refused(status) else _most(wanted, real)


def _is_refused(status: PodStatus) -> bool:
    """Kubelet reported that it cannot resize the pod."""
    return any(each.type == _RESIZE_PENDING and each.reason == _INFEASIBLE for each in status.conditions or ())


def _requests(container: ContainerSpec) -> _Pair:
    return _NONE if container.resources is None else _pair(container.resources.requests)


def _pair(amounts: Amounts | None) -> _Pair:
    return _NONE if amounts is None else (_milli(amounts.cpu or 0), _bytes(amounts.memory or 0))


def _sum(one: _Pair, other: _Pair) -> _Pair:
    return (one[0] + other[0], one[1] + other[1])


def _most(one: _Pair, other: _Pair) -> _Pair:
    return (max(one[0], other[0]), max(one[1], other[1]))


@lru_cache(_MOST_CACHED)
def _milli(text: str | int) -> int:
    """Rounded up."""
    return -int(-exact_quantity(text) * 1000 // 1)


@lru_cache(_MOST_CACHED)
def _bytes(text: str | int) -> int:
    return -int(-exact_quantity(text) // 1)
