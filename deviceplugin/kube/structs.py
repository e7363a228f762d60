"""The fields of the API server's JSON that vcuda reads, as msgspec structs.

Other fields are skipped without allocation.

In: bytes from the API server or kubelet. Out: structs for the modules of `kube`, or ParseError. Nothing outside `kube`
uses them. Any field may be missing or null: kubelet writes null for an empty list. Agents and the scheduler read the
same pods, and the schema is one: the fields for schedulers cost an agent 2 us a pod.

An object may hold JSON that only its writer understands: the API server and kubelet hand out what nests ten times as
deep as msgspec reads, and halves of UTF-16 pairs. `readable` makes of any such body one that says the same where vcuda
reads.

Kubernetes quantities as numbers: `50`, `1k`, `2e3`, `1Ki`, `3000m`.

In: the text (or number) of a resource in JSON. Out: a number, or ParseError. Extended resources are whole numbers; the
API server refuses anything else. As in Kubernetes there may be any number of digits, and what is above 2^63-1 counts as
that.
"""

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import msgspec

from deviceplugin.errors import ParseError

Decoded = TypeVar("Decoded")


class Json(msgspec.Struct, rename="camel"):
    """Kubernetes writes its keys in camel case."""


class OwnerReference(Json):
    """An owner of an object; one owner may be the controller."""

    kind: str = ""
    controller: bool | None = None


class Meta(Json):
    """metadata of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class Object(Json):
    """Any object: the fields for lists and watches. Schemas of kinds extend it."""

    metadata: Meta


class EnvVar(Json):
    """One environment variable; `value` is null if it comes from another object."""

    name: str
    value: str | None = None


class Amounts(Json):
    """CPU and memory of a list of resources, as written."""

    cpu: str | int | None = None
    memory: str | int | None = None


class ContainerClaimSpec(Json):
    """A container's reference to one of its pod's claims."""

    name: str
    request: str | None = None


class Resources(Json):
    """Limits and requests as written: quantities. The API server sets requests where only limits were given."""

    limits: dict[str, str | int] | None = None
    requests: Amounts | None = None
    claims: list[ContainerClaimSpec] | None = None


class VolumeMount(Json):
    """Where a container has a volume."""

    mount_path: str | None = None


class ContainerSpec(Json):
    """A container of a pod's spec."""

    name: str
    env: list[EnvVar] | None = None
    volume_mounts: list[VolumeMount] | None = None
    resources: Resources | None = None
    restart_policy: str | None = None


class Empty(Json):
    """An object that is present or not."""


class ContainerStatus(Json):
    """The last status of a container from kubelet: one of its possible states, and during a resize other resources.

    `state` has the key `waiting`, `running` or `terminated`.
    """

    name: str
    state: dict[str, Empty | None] | None = None
    container_id: str | None = msgspec.field(default=None, name="containerID")
    resources: Resources | None = None
    allocated_resources: Amounts | None = None


class PodResourceClaim(Json):
    """A claim of a pod, in its spec or its status; made from a template it has its name in the status alone."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class RequestMapping(Json):
    """Which request of the claim for extended resources is for which container."""

    container_name: str
    request_name: str


class ExtendedResourceClaim(Json):
    """The claim that kube-scheduler made for a pod's extended resources (1.36)."""

    resource_claim_name: str
    request_mappings: list[RequestMapping] | None = None


class SchedulingGroup(Json):
    """spec.schedulingGroup of 1.36."""

    pod_group_name: str | None = None


class WorkloadRef(Json):
    """spec.workloadRef of 1.35."""

    name: str | None = None
    pod_group: str | None = None
    pod_group_replica_key: str | None = None


class SchedulingGate(Json):
    """One of spec.schedulingGates."""

    name: str = ""


class Preferring(Json):
    """spec.affinity.nodeAffinity, podAffinity or podAntiAffinity; of its soft terms only whether there are any."""

    preferred_during_scheduling_ignored_during_execution: list[msgspec.Raw] | None = None


class Affinity(Json):
    """spec.affinity, as far as it is soft."""

    node_affinity: Preferring | None = None
    pod_affinity: Preferring | None = None
    pod_anti_affinity: Preferring | None = None


class SpreadConstraint(Json):
    """One of spec.topologySpreadConstraints."""

    when_unsatisfiable: str | None = None


class Condition(Json):
    """A condition of a pod or a node."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class PodSpec(Json):
    """spec of a pod."""

    containers: list[ContainerSpec] | None = None
    init_containers: list[ContainerSpec] | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    resource_claims: list[PodResourceClaim] | None = None
    affinity: Affinity | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None
    resources: Resources | None = None
    overhead: Amounts | None = None
    priority: int | None = None
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadRef | None = None
    scheduling_gates: list[SchedulingGate] | None = None


class PodStatus(Json):
    """status of a pod."""

    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodResourceClaim] | None = None
    extended_resource_claim_status: ExtendedResourceClaim | None = None
    nominated_node_name: str | None = None
    conditions: list[Condition] | None = None


class PodObject(Object):
    """A pod."""

    spec: PodSpec | None = None
    status: PodStatus | None = None


class ListMeta(Json):
    """metadata of a list: its version, and the token of its next page."""

    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class Page(Json):
    """A page of any list; each item is parsed separately."""

    items: list[msgspec.Raw] | None = None
    metadata: ListMeta | None = None


class StatusObject(Json):
    """The error of the API server."""

    message: str | None = None
    reason: str | None = None
    code: int | None = None


class WatchLine(Json):
    """One line of a watch; the schema of `object` depends on `type`."""

    type: str
    object: msgspec.Raw


class ObjectIdentity(Json):
    """metadata of an object of which no more could be read."""

    uid: str
    name: str = ""
    namespace: str = ""
    resource_version: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Identified(Json):
    """Any object, with what says which one it is."""

    metadata: ObjectIdentity


def without(document: object, *names: str) -> object:
    """JSON without the fields of these names, wherever they stand."""
    if isinstance(document, Mapping):
        return {key: without(value, *names) for key, value in document.items() if key not in names}
    return [without(each, *names) for each in document] if isinstance(document, list) else document


def decode(type_: type[Decoded], body: bytes | msgspec.Raw, *, what: str) -> Decoded:
    """JSON to a struct, or one ParseError that names `what` and the place; unusual JSON is made readable first."""
    try:
        return decode_strict(type_, body, what=what)
    except ParseError:
        mended = readable(bytes(body))
        if mended == body:
            raise
        return decode_strict(type_, mended, what=what)


def decode_strict(type_: type[Decoded], body: bytes | msgspec.Raw, *, what: str) -> Decoded:
    """For bodies that a stranger may send: what is unusual is refused at once, because `readable` is slow."""
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ParseError(f"{what} cannot be read: {str(error)[:200]}") from None


_DEEPEST = 200  # vcuda reads 20 levels; msgspec 1,000, less those of Python's own calls
_BRACKETS = re.compile(  # the next ones outside of texts, opening or closing, or the end
    rb'[^"\[\]{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)[^"\[\]{}]*+)*+(?:([\[{]++)|([\]}]++)|\Z)', re.DOTALL
)
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|(\\u[dD][89a-fA-F][\da-fA-F]{2})|\\.", re.DOTALL
)


def readable(body: bytes) -> bytes:
    """The same JSON with null for what nests too deep, and U+FFFD, as Go has it, for half a UTF-16 pair.

    No recursion, and linear: 30 ms for 1 MiB of an ordinary list, 0.2 s where all is brackets. So a large body is for
    a thread.
    """
    return _ESCAPES.sub(_with_whole_pairs, b"".join(_shallow(body)))


def _shallow(body: bytes) -> Iterator[bytes]:
    depth = kept = 0
    for found in _BRACKETS.finditer(body):
        if (opened := found[1]) is not None:
            if depth < _DEEPEST <= depth + len(opened):
                yield body[kept : found.start(1) + _DEEPEST - depth - 1]
            depth += len(opened)
        elif (closed := found[2]) is not None:
            if depth - len(closed) < _DEEPEST <= depth:
                yield b"null"
                kept = found.start(2) + depth - _DEEPEST + 1
            depth -= len(closed)
    if depth < _DEEPEST:
        yield body[kept:]


def _with_whole_pairs(found: re.Match[bytes]) -> bytes:
    return found[0] if found[1] is None else rb"\ufffd"


class NodeTaint(Json):
    """One of a node's taints."""

    effect: str | None = None


class NodeSpec(Json):
    """spec of a node."""

    taints: list[NodeTaint] | None = None
    unschedulable: bool | None = None


class NodeStatus(Json):
    """status of a node."""

    allocatable: dict[str, str | int] | None = None
    conditions: list[Condition] | None = None


class ClusterNodeObject(Object):
    """A node of the cluster."""

    spec: NodeSpec | None = None
    status: NodeStatus | None = None


_FORM = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:[eE]([+-]?0*\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
_LONGEST = 256  # of text: what is longer was written to cost time
_MOST = (1 << 63) - 1
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


@lru_cache(10_000)  # pods and nodes have few different quantities, and they are read again and again
def parse_quantity(text: str | int) -> int:
    """The whole number of a quantity; ParseError for anything else."""
    value = exact_quantity(text)
    if value.denominator != 1:
        raise ParseError(f"{text!r} is not a whole number; request extended resources in whole units")
    return int(value)


def exact_quantity(text: str | int) -> Fraction:
    """The number, with fractions as for CPU; ParseError for anything else."""
    found = _FORM.fullmatch(str(text)) if len(str(text)) <= _LONGEST else None
    if found is None:
        raise ParseError(f"{ascii(text)[:60]} is not a Kubernetes quantity")
    sign, digits, exponent, suffix = found.groups()
    value = min(Fraction(digits) * _scale(exponent, suffix or ""), Fraction(_MOST))
    return -value if sign == "-" else value


def _scale(exponent: str | None, suffix: str) -> Fraction:
    if suffix in _BINARY:
        return Fraction(1 << _BINARY[suffix])
    return Fraction(10) ** (int(exponent) if exponent else _DECIMAL[suffix])
