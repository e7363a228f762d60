"""ResourceClaims of resource.k8s.io: what was allocated, for which pods, and what a driver says of it in the status.

In: JSON of the API server. Out: `Claim`, or ParseError; the change by which a driver shows its devices. For the
scheduler's views `cluster_claims`, all of them with what they ask. Of these a bounded part is kept, whatever users
write: few alternatives of their requests, the devices of the driver with what they consume, and of other drivers one
device of each pool. What many claims have in common is stored once.

ResourceClaimTemplates that vcuda keeps, and the pods that name them.

In: the label of both. Out: the kinds and collections. Of a pod only so many names are kept as it may have templates,
and only those annotations that say its GPUs. Not here: what a template says.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import ceil

import msgspec

from deviceplugin.errors import ParseError
from deviceplugin.kube.collection import Collection, ObjectKind, ObjectName, ObjectRef
from deviceplugin.kube.pods import kept_annotations
from deviceplugin.kube.resource_slices import GROUP
from deviceplugin.kube.structs import Json, Object, PodObject, PodSpec, exact_quantity, without
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.annotation_names import annotation_names
from deviceplugin.model.claims import (
    MOST_TEMPLATES,
    TEMPLATE_PREFIX,
    Claim,
    ClaimedDevice,
    ClaimKey,
    ClaimNames,
    ClaimRef,
    ClaimRequest,
    ClaimUid,
    DeviceRequest,
    DeviceStatus,
    claim_label,
)
from deviceplugin.model.preferences import FOREIGN
from deviceplugin.model.units import BLOCK_BYTES
from deviceplugin.structs import replace

_ALL = "All"
_MOST_ALTERNATIVES = 16  # of a claim, in all of its requests, for the views
_CONSUMED = ("cores", "memory")
_UNREADABLE = 1 << 31  # fits nowhere


class _Result(Json):
    """status.allocation.devices.results."""

    request: str
    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str | int] | None = None
    admin_access: bool | None = None


class _Opaque(Json):
    """The parameters of one driver, in an entry of status.allocation.devices.config."""

    driver: str = ""


class _Config(Json):
    """An entry of status.allocation.devices.config, from the claim or from its class."""

    opaque: _Opaque | None = None


class _Results(Json):
    """status.allocation.devices."""

    results: list[_Result] | None = None
    config: list[_Config] | None = None


class _Allocation(Json):
    """status.allocation."""

    devices: _Results | None = None


class _Consumer(Json):
    """An entry of status.reservedFor."""

    resource: str = ""
    uid: str = ""


class _Status(Json):
    """status. `devices`: what drivers said, as they said it."""

    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None
    devices: list[dict[str, object]] | None = None


class StatedClaim(Object):
    """A ResourceClaim, of which the status is read."""

    status: _Status | None = None


class _Capacities(Json):
    """capacity of a request."""

    requests: dict[str, str | int] | None = None


class _Asked(Json):
    """What is asked of devices: `exactly`, or one of `firstAvailable`."""

    device_class_name: str = ""
    allocation_mode: str | None = None
    count: int | None = None
    capacity: _Capacities | None = None


class _ClaimRequest(Json):
    """spec.devices.requests."""

    name: str = ""
    exactly: _Asked | None = None
    first_available: list[_Asked] | None = None


class _Requests(Json):
    """spec.devices."""

    requests: list[_ClaimRequest] | None = None


class _ClaimSpec(Json):
    """spec."""

    devices: _Requests | None = None


class _ClusterClaim(StatedClaim):
    """A ResourceClaim with what it asks for."""

    spec: _ClaimSpec | None = None


def cluster_claims(names: ClaimNames) -> Collection[ClaimKey, Claim]:
    """Those of other drivers too: a pod may name one, and a claim that is missing here does not exist."""

    kind = ObjectKind(*_RESOURCE, _ClusterClaim, lambda found: _cluster_claim(found, names), lambda each: each.ref.uid)
    return kind.collection("the ResourceClaims of the cluster", key=lambda each: each.key)


def with_devices(found: StatedClaim, driver: str, shown: Sequence[DeviceStatus]) -> dict[str, object] | None:
    """The change after which `shown` is all that the driver says in `status.devices`; None if it is so already."""
    before = (found.status.devices if found.status else None) or []
    now = [*(each for each in before if each.get("driver") != driver), *map(_status, shown)]
    if without(now, "lastTransitionTime") == without(before, "lastTransitionTime"):
        return None  # the time of the change stays that of the change
    meta = {"uid": found.metadata.uid, "resourceVersion": found.metadata.resource_version}
    return {"metadata": meta, "status": {"devices": now}}


def _claim(found: StatedClaim) -> Claim:
    meta, status = found.metadata, found.status or _Status()
    allocation = status.allocation
    allocated = _Results() if allocation is None else allocation.devices or _Results()
    results = None if allocation is None else allocated.results or []
    return Claim(
        ref=ClaimRef(ClaimUid(meta.uid), meta.namespace, meta.name),
        devices=None if results is None else tuple(map(_device, results)),
        consumers=frozenset(each.uid for each in status.reserved_for or () if each.resource == "pods"),
        configured=frozenset(each.opaque.driver for each in allocated.config or () if each.opaque is not None),
        deleting=meta.deletion_timestamp is not None,
    )


def _device(result: _Result) -> ClaimedDevice:
    """Of a prioritized list the result names `request/alternative`; containers and drivers use the first part."""
    return ClaimedDevice(
        request=result.request.partition("/")[0],
        driver=result.driver,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id or "",
        consumed={name: exact_quantity(amount) for name, amount in (result.consumed_capacity or {}).items()},
        is_administrative=bool(result.admin_access),
    )


_RESOURCE = (GROUP, "resourceclaims", "ResourceClaim", "claim")
CLAIMS = ObjectKind(*_RESOURCE, StatedClaim, _claim, lambda each: each.ref.uid)
STATED_CLAIMS = ObjectKind(*_RESOURCE, StatedClaim, lambda found: found, lambda found: found.metadata.uid)
"""As they were read, with what drivers say of them."""


def _status(device: DeviceStatus) -> dict[str, object]:
    """Without a share's id the API server takes two shares of one device for one."""
    condition = {
        "type": "Ready",
        "status": "True" if device.is_ready else "False",
        "reason": device.reason,
        "message": device.message,
        "lastTransitionTime": device.since,
    }
    found: dict[str, object] = {"driver": device.driver, "pool": device.pool, "device": device.device}
    if device.share_id:
        found["shareID"] = device.share_id
    return found | {"conditions": [condition]}


def _cluster_claim(found: _ClusterClaim, names: ClaimNames) -> Claim:
    """A claim with amounts that cannot be read holds nothing: it must not hide the others."""
    meta, asked = found.metadata, ((found.spec or _ClaimSpec()).devices or _Requests()).requests or []
    requests = tuple(_requests(asked, {names.shares, names.whole_gpus}))
    left_out = sum(len(_alternatives(each)) for each in asked) - sum(len(each.alternatives) for each in requests)
    try:
        claim = _claim(found)
    except ParseError:
        claim = Claim(ClaimRef(ClaimUid(meta.uid), meta.namespace, meta.name), devices=())
    return Claim(
        ref=replace(claim.ref, namespace=sys.intern(meta.namespace)),
        devices=None if claim.devices is None else tuple(_kept(claim.devices, names.driver)),
        consumers=frozenset(map(sys.intern, claim.consumers)),
        deleting=claim.deleting,
        requests=requests,
        left_out=left_out,
    )


def _kept(devices: Sequence[ClaimedDevice], driver: str) -> Iterator[ClaimedDevice]:
    pools = set[tuple[str, str]]()
    for each in devices:
        place = sys.intern(each.driver), sys.intern(each.pool)
        if each.driver == driver:
            consumed = {name: each.consumed[name] for name in _CONSUMED if name in each.consumed}
            request, device = sys.intern(each.request), sys.intern(each.device)
            yield ClaimedDevice(request, *place, device, "", consumed, each.is_administrative)
        elif place not in pools:
            pools.add(place)
            yield ClaimedDevice("", *place, "")


def _alternatives(request: _ClaimRequest) -> list[_Asked]:
    return [request.exactly] if request.exactly is not None else request.first_available or []


def _requests(asked: Sequence[_ClaimRequest], ours: set[str]) -> Iterator[ClaimRequest]:
    """Those for vcuda's classes first: they are compared, and of others the class is shown."""
    left = _MOST_ALTERNATIVES
    for each in sorted(asked, key=lambda one: not any(each.device_class_name in ours for each in _alternatives(one))):
        alternatives = tuple(_asked(one, ours) for one in _alternatives(each)[:left])
        left -= len(alternatives)
        if alternatives:
            yield ClaimRequest(sys.intern(each.name), alternatives)


def _asked(asked: _Asked, ours: set[str]) -> DeviceRequest:
    name = sys.intern(asked.device_class_name)
    if name not in ours:
        return _device_request(name, 1, None, None)
    amounts = (asked.capacity or _Capacities()).requests or {}
    return _device_request(
        name,
        None if asked.allocation_mode == _ALL else asked.count or 1,
        _rounded_up(amounts.get("cores"), 1),
        _rounded_up(amounts.get("memory"), BLOCK_BYTES),
    )


@lru_cache(maxsize=1024)
def _device_request(device_class: str, count: int | None, cores: int | None, blocks: int | None) -> DeviceRequest:
    """One object for all claims that ask for the same."""
    return DeviceRequest(device_class, count, cores, blocks)


def _rounded_up(amount: str | int | None, unit: int) -> int | None:
    """At least one unit, as the published policy has it."""
    try:
        return None if amount is None else max(1, ceil(exact_quantity(amount) / Fraction(unit)))
    except ParseError:
        return _UNREADABLE


class ClaimingPod(msgspec.Struct, frozen=True):
    """A pod that the webhook referred to templates, by their names.

    It has `named` different names. They are in `templates` if there are not more than `most`: one for each container.
    """

    ref: PodRef
    named: int
    most: int
    templates: tuple[str, ...]
    annotations: Mapping[str, str]
    unread_bytes: int = 0

    @property
    def namespace(self) -> str:
        return self.ref.namespace

    @property
    def uid(self) -> str:
        return self.ref.uid


def claiming_pods(domain: str) -> Collection[str, ClaimingPod]:
    """By UID."""
    kind = ObjectKind("v1", "pods", "Pod", "pod", PodObject, lambda found: _pod(found, domain), lambda each: each.uid)
    query = {"labelSelector": claim_label(domain)}
    return kind.collection("the pods that were turned to claims", key=lambda each: each.uid, query=query)


def kept_templates(domain: str) -> Collection[ObjectName, ObjectRef]:
    query = {"labelSelector": claim_label(domain)}
    return TEMPLATES.collection("vcuda's ResourceClaimTemplates", key=lambda each: each.key, query=query)


def _pod(found: PodObject, domain: str) -> ClaimingPod:
    meta, spec = found.metadata, found.spec or PodSpec()
    claims = (each.resource_claim_template_name or "" for each in spec.resource_claims or ())
    names = {each: None for each in claims if each.startswith(TEMPLATE_PREFIX)}
    said = annotation_names(domain).preferences
    annotations, unread = kept_annotations(meta.annotations or {}, domain)
    most = min(MOST_TEMPLATES, len(spec.containers or ()) + len(spec.init_containers or ()))
    return ClaimingPod(
        ref=PodRef(PodUid(meta.uid), meta.namespace, meta.name),
        named=len(names),
        most=most,
        templates=tuple(map(sys.intern, names)) if len(names) <= most else (),
        annotations={name: text for name, text in annotations.items() if name in said or name in FOREIGN},
        unread_bytes=unread,
    )


TEMPLATES = ObjectKind(
    GROUP,
    "resourceclaimtemplates",
    "ResourceClaimTemplate",
    "claim template",
    Object,
    lambda found: ObjectRef(found.metadata.namespace, found.metadata.name, found.metadata.uid),
    lambda each: each.uid,
)
