"""The API server's verbs that the extender uses, in memory, with every kind of failure.

`pods` is the truth. A failure happens before the write, after it, or leaves the write in flight (`late`): the test
applies it later, like a request that is stuck in the network. `closed_nodes` refuse every change; what `unreadable`
pods are is never answered.
"""

import asyncio
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from deviceplugin.errors import KubeConflictError, KubeError, KubeNotFoundError
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.pod import ClusterPod, Pod
from deviceplugin.structs import replace


class Fate(enum.Enum):
    """The result of one call."""

    WORKS = "works"
    REFUSED = "refused"
    BROKEN_BEFORE = "error before"
    BROKEN_AFTER = "error after it was applied"
    LATE = "timeout, applied later"
    TWICE = "applied, and once more later"


@dataclass
class MemoryApi:
    """`fates` are used up from the front, then everything works; `turns`: how often a bind lets others run first."""

    pods: dict[PodUid, ClusterPod] = field(default_factory=dict)
    fates: list[Fate] = field(default_factory=list)
    read_fates: list[Fate] = field(default_factory=list)
    late: list[tuple[PodRef, str, Mapping[str, str]]] = field(default_factory=list)
    annotated: list[tuple[str, Mapping[str, str | None]]] = field(default_factory=list)
    node_fates: list[Fate] = field(default_factory=list)
    closed_nodes: set[str] = field(default_factory=set)
    tried_nodes: list[str] = field(default_factory=list)
    unreadable: set[PodUid] = field(default_factory=set)
    bindings: int = 0
    reads: int = 0
    turns: int = 1
    read_turns: int = 1
    version: int = 100

    def put(self, pod: ClusterPod) -> ClusterPod:
        self.version += 1
        kept = replace(pod, pod=replace(pod.pod, resource_version=str(self.version)))
        self.pods[pod.uid] = kept
        return kept

    async def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None:
        self.bindings += 1
        fate = self.fates.pop(0) if self.fates else Fate.WORKS
        for _ in range(self.turns):
            await asyncio.sleep(0)
        match fate:
            case Fate.REFUSED:
                raise KubeError("bind refused", code=403)
            case Fate.BROKEN_BEFORE:
                raise KubeError("bind: the server is unwell", code=500)
            case Fate.LATE:
                self.late.append((pod, node, annotations))
                raise KubeError("bind: no answer", code=0)
        self.apply(pod, node, annotations)
        if fate is Fate.BROKEN_AFTER:
            raise KubeError("bind: connection lost", code=0)

    def apply(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None:
        found = self.pods.get(pod.uid)
        if found is None:
            raise KubeNotFoundError("no such pod", code=404)
        if found.pod.node or found.pod.deleting or found.pod.is_terminal:
            raise KubeConflictError("pod is assigned to a node already", code=409)
        self.put(
            replace(found, pod=replace(found.pod, node=node, annotations={**found.pod.annotations, **annotations}))
        )

    async def get_pod(self, pod: PodRef) -> Pod:
        """The state at one moment between request and answer."""
        self.reads += 1
        fate = self.read_fates.pop(0) if self.read_fates else Fate.WORKS
        await asyncio.sleep(0)
        found = self.pods.get(pod.uid)
        for _ in range(self.read_turns - 1):
            await asyncio.sleep(0)
        if fate is not Fate.WORKS or pod.uid in self.unreadable:
            raise KubeError("get: no answer", code=0)
        if found is None:
            raise KubeNotFoundError("no such pod", code=404)
        return found.pod

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        await asyncio.sleep(0)
        self.tried_nodes.append(name)
        if name in self.closed_nodes:
            raise KubeError("annotate: metadata.annotations: Too long", code=422)
        fate = self.node_fates.pop(0) if self.node_fates else Fate.WORKS
        if fate is Fate.REFUSED:
            raise KubeNotFoundError("no such node", code=404)
        if fate is not Fate.WORKS:
            raise KubeError("annotate: no answer", code=0)
        self.annotated.append((name, annotations))
