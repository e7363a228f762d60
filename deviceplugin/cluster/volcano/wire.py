"""The protocol of Volcano's plugin `extender` (volcano.sh/volcano/pkg/scheduler/plugins/extender, 1.14) as values.

In: bodies of requests, which hold whole pods, nodes and all tasks of a node. Out: values with what is needed of that,
or a ParseError of one sentence; bodies of answers. A task has no JSON names of its own, so keys are Go's field names,
and its UID is the pod's. A pod is read only if somebody asks for it: most are known from the watch.
"""

import enum
from collections.abc import Mapping, Sequence

import msgspec

from deviceplugin.errors import ParseError
from deviceplugin.kube.cluster_objects import cluster_pod
from deviceplugin.kube.structs import PodObject, decode
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import ResourceNames

_PIPELINED = 4  # api.Pipelined, a bit of api.TaskStatus


class Code(enum.IntEnum):
    """Of a predicate's answer: whether evicting other pods of the node may help."""

    FITS = 0
    UNSCHEDULABLE = 2
    UNRESOLVABLE = 3


class Vote(enum.IntEnum):
    """Of `preemptable` and `reclaimable`: util.Permit and util.Reject."""

    PERMIT = 1
    REJECT = -1


class VolcanoTask(msgspec.Struct, frozen=True):
    """`node` is empty before it has one. `is_pipelined`: it waits there for what other tasks still hold.

    `raw` is the whole task as it came, to name a victim in an answer; empty of others.
    """

    uid: PodUid
    node: str
    is_pipelined: bool
    raw: bytes
    _pod: bytes

    def pod(self, names: ResourceNames) -> ClusterPod:
        return cluster_pod(decode(PodObject, self._pod, what="the task's pod"), names)


class _Task(msgspec.Struct):
    """api.TaskInfo, without what is not needed."""

    uid: str = msgspec.field(name="UID")
    pod: msgspec.Raw = msgspec.field(name="Pod")
    node_name: str = msgspec.field(name="NodeName", default="")
    status: int = msgspec.field(name="Status", default=0)


class _Node(msgspec.Struct):
    """api.NodeInfo, of which the name is enough: the scheduler knows the rest."""

    name: str = msgspec.field(name="Name")


class _Predicate(msgspec.Struct):
    task: _Task
    node: _Node


class _Prioritize(msgspec.Struct):
    task: _Task
    nodes: list[_Node] | None  # null if Volcano looks for nodes to evict from and found none


class _Event(msgspec.Struct):
    task: _Task


class _Evict(msgspec.Struct):
    evictor: _Task
    evictees: list[msgspec.Raw] | None = None


def read_predicate(body: bytes) -> tuple[VolcanoTask, str]:
    """The task and the node's name."""
    found = decode(_Predicate, body, what="the predicate request")
    return _task(found.task), found.node.name


def read_prioritize(body: bytes) -> tuple[VolcanoTask, tuple[str, ...]]:
    found = decode(_Prioritize, body, what="the prioritize request")
    return _task(found.task), tuple(each.name for each in found.nodes or ())


def read_event(body: bytes) -> VolcanoTask:
    """Of allocate and deallocate: the task has a node."""
    task = _task(decode(_Event, body, what="the request").task)
    if not task.node:
        raise ParseError("the task has no NodeName")
    return task


def read_eviction(body: bytes) -> tuple[VolcanoTask, tuple[VolcanoTask, ...]]:
    """The task that needs room, and those that Volcano may evict for it."""
    found = decode(_Evict, body, what="the request")
    evictees = (_task(decode(_Task, raw, what="the task"), bytes(raw)) for raw in found.evictees or ())
    return _task(found.evictor), tuple(evictees)


def _task(found: _Task, raw: bytes = b"") -> VolcanoTask:
    is_pipelined = found.status == _PIPELINED
    return VolcanoTask(PodUid(found.uid), found.node_name, is_pipelined, raw, bytes(found.pod))


def write_predicate(reason: str, code: Code) -> bytes:
    """`reason` is empty if the task fits."""
    return msgspec.json.encode({"status": reason, "code": int(code)})


def write_scores(scores: Mapping[str, float]) -> bytes:
    return msgspec.json.encode({"nodeScore": scores, "errorMessage": ""})


def write_event(error: str) -> bytes:
    """An error takes the placement back."""
    return msgspec.json.encode({"errorMessage": error})


def write_victims(victims: Sequence[VolcanoTask]) -> bytes:
    """As they came: Volcano reads whole tasks."""
    vote = Vote.PERMIT if victims else Vote.REJECT
    return msgspec.json.encode({"status": int(vote), "victims": [msgspec.Raw(each.raw) for each in victims]})
