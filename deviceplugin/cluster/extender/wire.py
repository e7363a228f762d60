"""The extender protocol of kube-scheduler (k8s.io/kube-scheduler/extender/v1) as values.

In: bodies of requests. Out: values, or a ParseError of one sentence; bodies of answers. Its Go types carry no JSON
names, so keys are in Title case; requests made by hand in lower case are read too, as Go itself would, only not as
quickly. Nodes come by name (`nodeCacheCapable: true`).
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
class Question:
    """A request of filter or prioritize: a pod and the names of candidate nodes."""

    pod: ClusterPod
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BindOrder:
    """Bind this pod to this node."""

    pod: PodRef
    node: str


@dataclass(frozen=True, slots=True)
class Victims:
    """Who would be evicted on one node."""

    pods: tuple[PodUid, ...]
    violations: int = 0


@dataclass(frozen=True, slots=True)
class PreemptQuestion:
    """Which of these evictions make room for the pod?"""

    pod: ClusterPod
    victims: Mapping[str, Victims]


@dataclass(frozen=True, slots=True)
class Filtered:
    """The answer to filter. `error` is for what is nobody's fault but ours."""

    names: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


class _QuestionAsWritten(msgspec.Struct, rename="pascal"):
    pod: ClusterPodObject
    node_names: tuple[str, ...]


class _BindAsWritten(msgspec.Struct, rename="pascal"):
    pod_name: str
    pod_namespace: str
    node: str
    pod_uid: str = msgspec.field(name="PodUID")


def read_question(body: bytes, names: ResourceNames = ResourceNames()) -> Question:
    """Raise a ParseError for whole nodes without names: kube-scheduler sends them where `nodeCacheCapable` is false."""
    if (written := _as_written(_QuestionAsWritten, body)) is not None:
        return Question(cluster_pod(written.pod, names), written.node_names)
    keys = _keys(body, "the filter request")
    pod = cluster_pod(_decode(ClusterPodObject, _needed(keys, "Pod"), "Pod"), names)
    if "nodenames" in keys:
        return Question(pod, tuple(_decode(list[str], keys["nodenames"], "NodeNames")))
    if "nodes" in keys:
        raise ParseError("the request has Nodes and no NodeNames; set nodeCacheCapable: true for this extender")
    return Question(pod, ())


def read_bind(body: bytes) -> BindOrder:
    if (written := _as_written(_BindAsWritten, body)) is not None:
        name, namespace, uid, node = written.pod_name, written.pod_namespace, written.pod_uid, written.node
    else:
        keys = _keys(body, "the bind request")
        name, namespace, uid, node = (
            _decode(str, _needed(keys, key), key) for key in ("PodName", "PodNamespace", "PodUID", "Node")
        )
    if not (name and namespace and uid and node):
        raise ParseError("the bind request lacks one of PodName, PodNamespace, PodUID and Node")
    return BindOrder(PodRef(PodUid(uid), namespace, name), node)


def read_preempt(body: bytes, names: ResourceNames = ResourceNames()) -> PreemptQuestion:
    """Victims come as UIDs, or as whole pods where the extender keeps no nodes."""
    keys = _keys(body, "the preempt request")
    pod = cluster_pod(_decode(ClusterPodObject, _needed(keys, "Pod"), "Pod"), names)
    for key in ("NodeNameToMetaVictims", "NodeNameToVictims"):
        if key.lower() in keys:
            found = _decode(dict[str, msgspec.Raw], keys[key.lower()], key)
            return PreemptQuestion(pod, {node: _victims(bytes(raw)) for node, raw in found.items()})
    return PreemptQuestion(pod, {})


def write_filtered(answer: Filtered) -> bytes:
    """kube-scheduler reads reasons only where no node is left: beside a node they would be most of the answer."""
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


def write_bound(error: str) -> bytes:
    return msgspec.json.encode({"Error": error})


def write_victims(victims: Mapping[str, Victims]) -> bytes:
    return msgspec.json.encode({
        "NodeNameToMetaVictims": {
            node: {"Pods": [{"UID": uid} for uid in each.pods], "NumPDBViolations": each.violations}
            for node, each in victims.items()
        }
    })  # fmt: skip


_NULL = b"null"


def _as_written(type_: type[Decoded], body: bytes) -> Decoded | None:
    """Read at once, where it is as kube-scheduler writes it; else None, and key by key it is found what it is."""
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
