"""The extender protocol of kube-scheduler (k8s.io/kube-scheduler/extender/v1) as values.

In: bodies of requests. Out: values named as in Go, or a ParseError of one sentence; bodies of answers. The Go types
have no JSON names, so keys are in Pascal case; requests written by hand in lower case are read too, as Go does, only
slower. Nodes come by name (`nodeCacheCapable: true`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from deviceplugin.errors import ParseError
from deviceplugin.kube.cluster_pods import cluster_pod
from deviceplugin.kube.structs import ClusterPodObject
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import ResourceNames

Decoded = TypeVar("Decoded")


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """A request of filter or prioritize: a pod and the names of candidate nodes."""

    pod: ClusterPod
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BindingArgs:
    """A pod and the node to bind it to."""

    pod: PodRef
    node: str


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods that would be evicted on one node; `violations` of PodDisruptionBudgets."""

    pods: tuple[PodUid, ...]
    violations: int = 0


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """A pod and the victims that kube-scheduler proposes, by node."""

    pod: ClusterPod
    victims: Mapping[str, Victims]


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The answer to filter: nodes that fit, and reasons by node. `error` fails the whole request."""

    names: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


class _FilterBody(msgspec.Struct, rename="pascal"):
    pod: ClusterPodObject
    node_names: tuple[str, ...]


class _BindBody(msgspec.Struct, rename="pascal"):
    pod_name: str
    pod_namespace: str
    node: str
    pod_uid: str = msgspec.field(name="PodUID")


def read_args(body: bytes, names: ResourceNames = ResourceNames()) -> ExtenderArgs:
    """Raise a ParseError for whole nodes without names: kube-scheduler sends them where `nodeCacheCapable` is false."""
    if (written := _decode_fast(_FilterBody, body)) is not None:
        return ExtenderArgs(cluster_pod(written.pod, names), written.node_names)
    keys = _keys(body, "the filter request")
    pod = cluster_pod(_decode(ClusterPodObject, _needed(keys, "Pod"), "Pod"), names)
    if "nodenames" in keys:
        return ExtenderArgs(pod, tuple(_decode(list[str], keys["nodenames"], "NodeNames")))
    if "nodes" in keys:
        raise ParseError("the request has Nodes and no NodeNames; set nodeCacheCapable: true for this extender")
    return ExtenderArgs(pod, ())


def read_bind(body: bytes) -> BindingArgs:
    if (written := _decode_fast(_BindBody, body)) is not None:
        name, namespace, uid, node = written.pod_name, written.pod_namespace, written.pod_uid, written.node
    else:
        keys = _keys(body, "the bind request")
        name, namespace, uid, node = (
            _decode(str, _needed(keys, key), key) for key in ("PodName", "PodNamespace", "PodUID", "Node")
        )
    if not (name and namespace and uid and node):
        raise ParseError("the bind request lacks one of PodName, PodNamespace, PodUID and Node")
    return BindingArgs(PodRef(PodUid(uid), namespace, name), node)


def read_preempt(body: bytes, names: ResourceNames = ResourceNames()) -> PreemptionArgs:
    """Victims come as UIDs, or as whole pods from a kube-scheduler without `nodeCacheCapable`."""
    keys = _keys(body, "the preempt request")
    pod = cluster_pod(_decode(ClusterPodObject, _needed(keys, "Pod"), "Pod"), names)
    for key in ("NodeNameToMetaVictims", "NodeNameToVictims"):
        if key.lower() in keys:
            found = _decode(dict[str, msgspec.Raw], keys[key.lower()], key)
            return PreemptionArgs(pod, {node: _victims(bytes(raw)) for node, raw in found.items()})
    return PreemptionArgs(pod, {})


def write_filter_result(answer: FilterResult) -> bytes:
    """Reasons are sent only where no node fits: kube-scheduler does not read them otherwise, and they are long."""
    failed, unresolvable = ({}, {}) if answer.names else (answer.failed, answer.unresolvable)
    return msgspec.json.encode({
        "Nodes": None,
        "NodeNames": answer.names,
        "FailedNodes": failed,
        "FailedAndUnresolvableNodes": unresolvable,
        "Error": answer.error,
    })  # fmt: skip


def write_scores(scores: Sequence[tuple[str, int]]) -> bytes:
    return msgspec.json.encode([{"Host": name, "Score": score} for name, score in scores])


def write_binding_result(error: str) -> bytes:
    return msgspec.json.encode({"Error": error})


def write_victims(victims: Mapping[str, Victims]) -> bytes:
    return msgspec.json.encode({
        "NodeNameToMetaVictims": {
            node: {"Pods": [{"UID": uid} for uid in each.pods], "NumPDBViolations": each.violations}
            for node, each in victims.items()
        }
    })  # fmt: skip


_NULL = b"null"


def _decode_fast(type_: type[Decoded], body: bytes) -> Decoded | None:
    """The body as kube-scheduler writes it; None for any other form, which is then read key by key."""
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _keys(body: bytes, what: str) -> dict[str, bytes]:
    found = _decode(dict[str, msgspec.Raw], body, what)
    return {key.lower(): bytes(raw) for key, raw in found.items() if bytes(raw) != _NULL}


def _needed(keys: Mapping[str, bytes], key: str) -> bytes:
    raw = keys.get(key.lower())
    if raw is None:
        raise ParseError(f"the request has no {key}")
    return raw


def _victims(raw: bytes) -> Victims:
    keys = _keys(raw, "the victims of a node")
    pods = _decode(list[msgspec.Raw], keys.get("pods", b"[]"), "Pods")
    violations = _decode(int, keys.get("numpdbviolations", b"0"), "NumPDBViolations")
    return Victims(tuple(_uid(bytes(pod)) for pod in pods), violations)


def _uid(raw: bytes) -> PodUid:
    keys = _keys(raw, "a victim")
    if "metadata" in keys:
        keys = _keys(keys["metadata"], "the metadata of a victim")
    return PodUid(_decode(str, _needed(keys, "UID"), "UID"))


def _decode(type_: type[Decoded], body: bytes, what: str) -> Decoded:
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ParseError(f"{what} cannot be read: {str(error)[:200]}") from None
