"""The extender protocol of kube-scheduler (k8s.io/kube-scheduler/extender/v1) as values.

In: bodies of requests. Out: values named as in Go, or a ParseError of one sentence; bodies of answers. The Go types
have no JSON names, so keys are in Pascal case. Nodes come by name and victims by UID (`nodeCacheCapable: true`).
"""

from collections.abc import Mapping, Sequence

import msgspec

from deviceplugin.errors import ParseError
from deviceplugin.kube.cluster_objects import cluster_pod
from deviceplugin.kube.structs import PodObject, decode_strict
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import ResourceNames


class ExtenderArgs(msgspec.Struct, frozen=True):
    """A request of filter or prioritize: a pod and the names of candidate nodes."""

    pod: ClusterPod
    names: tuple[str, ...]


class BindingArgs(msgspec.Struct, frozen=True):
    """A pod and the node to bind it to."""

    pod: PodRef
    node: str


class Victims(msgspec.Struct, frozen=True):
    """The pods that would be evicted on one node; `violations` of PodDisruptionBudgets."""

    pods: tuple[PodUid, ...]
    violations: int = 0


class PreemptionArgs(msgspec.Struct, frozen=True):
    """A pod and the victims that kube-scheduler proposes, by node."""

    pod: ClusterPod
    victims: Mapping[str, Victims]


class FilterResult(msgspec.Struct, frozen=True):
    """The answer to filter: nodes that fit, and reasons by node.

    `remark` follows one of the reasons, so that it stands once in kube-scheduler's sentence.
    """

    names: tuple[str, ...] = ()
    failed: Mapping[str, str] = msgspec.field(default_factory=dict)
    unresolvable: Mapping[str, str] = msgspec.field(default_factory=dict)
    remark: str = ""


class _ArgsBody(msgspec.Struct, rename="pascal"):
    pod: PodObject
    node_names: tuple[str, ...] | None = None


class _BindBody(msgspec.Struct, rename="pascal"):
    pod_name: str
    pod_namespace: str
    node: str
    pod_uid: str = msgspec.field(name="PodUID")


class _MetaPod(msgspec.Struct):
    uid: PodUid = msgspec.field(name="UID")


class _MetaVictims(msgspec.Struct, rename="pascal"):
    pods: tuple[_MetaPod, ...] | None = None
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _PreemptBody(msgspec.Struct, rename="pascal"):
    pod: PodObject
    node_name_to_meta_victims: dict[str, _MetaVictims] | None = None


def read_args(body: bytes, names: ResourceNames = ResourceNames()) -> ExtenderArgs:
    found = decode_strict(_ArgsBody, body, what="the request")
    if found.node_names is None:
        raise _by_name_only("NodeNames")
    return ExtenderArgs(cluster_pod(found.pod, names), found.node_names)


def read_bind(body: bytes) -> BindingArgs:
    found = decode_strict(_BindBody, body, what="the bind request")
    if not (found.pod_name and found.pod_namespace and found.pod_uid and found.node):
        raise ParseError("the bind request lacks one of PodName, PodNamespace, PodUID and Node")
    return BindingArgs(PodRef(PodUid(found.pod_uid), found.pod_namespace, found.pod_name), found.node)


def read_preempt(body: bytes, names: ResourceNames = ResourceNames()) -> PreemptionArgs:
    found = decode_strict(_PreemptBody, body, what="the preempt request")
    if found.node_name_to_meta_victims is None:
        raise _by_name_only("NodeNameToMetaVictims")
    victims = {
        node: Victims(tuple(pod.uid for pod in each.pods or ()), each.violations)
        for node, each in found.node_name_to_meta_victims.items()
    }
    return PreemptionArgs(cluster_pod(found.pod, names), victims)


def _by_name_only(missing: str) -> ParseError:
    """kube-scheduler sends whole nodes and pods instead where `nodeCacheCapable` is false."""
    return ParseError(f"the request has no {missing}; set nodeCacheCapable: true for this extender")


def write_filter_result(answer: FilterResult) -> bytes:
    """Reasons are sent only if no node fits: kube-scheduler does not read them otherwise, and they are long."""
    failed, unresolvable = ({}, {}) if answer.names else (dict(answer.failed), dict(answer.unresolvable))
    if remarked := failed or unresolvable:
        remarked[next(iter(remarked))] += answer.remark
    return msgspec.json.encode({
        "Nodes": None,
        "NodeNames": answer.names,
        "FailedNodes": failed,
        "FailedAndUnresolvableNodes": unresolvable,
        "Error": "",
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
