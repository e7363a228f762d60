"""Where kubelet's pods come from, as kubelet sees any source.

A source pushes `Update`s in its own order and takes back statuses and finished deletions. Here: its protocol,
`DirectSource` for users that feed pods without an API server, and `StaticSource` for pods from files. `apisource` is
the third. Invariant: a source's first update is a Set of everything it has; until then kubelet's sources are not ready.
"""

import asyncio
import enum
import hashlib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

from sandbox.kubelet.options import Json, KubeletOptions
from sandbox.kubelet.waiting import Clock


class UpdateKind(enum.Enum):
    """SET: all pods of the source. ADD, CHANGE, GONE: one pod."""

    SET = "set"
    ADD = "add"
    CHANGE = "change"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Update:
    """News from one source."""

    source: str
    kind: UpdateKind
    pods: tuple[Json, ...]


Sink = asyncio.Queue[Update]


class PodConfigSource(Protocol):
    """What kubelet needs of a source of pods; the real one calls them the sources of its PodConfig."""

    name: str

    async def run(self, sink: Sink) -> None:
        """Pushes updates until cancelled; called again at each start of kubelet."""

    async def report(self, pod: Json, status: Json) -> None:
        """Kubelet wrote a status."""

    async def finish(self, pod: Json) -> None:
        """A deleted pod's containers are gone."""

    async def mirror(self, pod: Json) -> None:
        """Kubelet runs a static pod."""

    async def report_node(self, devices: Mapping[str, tuple[int, int]], *, kubelet_port: int) -> None:
        """Kubelet counts its devices: capacity and allocatable by resource."""


class DirectSource:
    """Pods in memory instead of an API server; outlives kubelet."""

    name = "api"

    def __init__(self, options: KubeletOptions, clock: Clock) -> None:
        self._lag_s = options.status_lag_s
        self._clock = clock
        self._pods: dict[str, Json] = {}
        self._sink: Sink | None = None

    def add(self, pod: Json) -> None:
        self._pods[pod["metadata"]["uid"]] = pod
        self._push(UpdateKind.ADD, pod)

    def delete(self, uid: str, *, when: str) -> None:
        """A graceful deletion, or nothing if the pod is not there."""
        pod = self._pods.get(uid)
        if pod is not None:
            pod["metadata"]["deletionTimestamp"] = when
            self._push(UpdateKind.CHANGE, pod)

    async def run(self, sink: Sink) -> None:
        self._sink = sink
        sink.put_nowait(Update(self.name, UpdateKind.SET, tuple(deepcopy(pod) for pod in self._pods.values())))
        try:
            await asyncio.Event().wait()
        finally:
            self._sink = None

    async def report(self, pod: Json, status: Json) -> None:
        await self._clock.sleep(self._lag_s)
        mine = self._pods.get(pod["metadata"]["uid"])
        if mine is not None:
            mine["status"] = merged(mine.get("status", {}), deepcopy(status))
            self._push(UpdateKind.CHANGE, mine)

    async def finish(self, pod: Json) -> None:
        gone = self._pods.pop(pod["metadata"]["uid"], None)
        if gone is not None:
            self._push(UpdateKind.GONE, gone)

    async def mirror(self, pod: Json) -> None:
        """There is no API server to show it at."""

    async def report_node(self, devices: Mapping[str, tuple[int, int]], *, kubelet_port: int) -> None:
        """There is no node object."""

    def _push(self, kind: UpdateKind, pod: Json) -> None:
        if self._sink is not None:
            self._sink.put_nowait(Update(self.name, kind, (deepcopy(pod),)))


class StaticSource:
    """Pods from manifests on the node; kubelet names them after the node and derives their UIDs."""

    name = "file"

    def __init__(self, manifests: Iterable[Mapping[str, Any]], node_name: str) -> None:
        self._pods = tuple(_static(dict(deepcopy(manifest)), node_name) for manifest in manifests)

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(pod["metadata"]["uid"] for pod in self._pods)

    async def run(self, sink: Sink) -> None:
        sink.put_nowait(Update(self.name, UpdateKind.SET, self._pods))
        await asyncio.Event().wait()

    async def report(self, pod: Json, status: Json) -> None:
        """Kubelet itself fills the status of static pods into GET /pods."""
        pod["status"] = merged(pod.get("status", {}), status)

    async def finish(self, pod: Json) -> None:
        """A static pod ends with its file only."""

    async def mirror(self, pod: Json) -> None:
        """Files show nothing."""

    async def report_node(self, devices: Mapping[str, tuple[int, int]], *, kubelet_port: int) -> None:
        """Files show nothing."""


def merged(before: Json, change: Json) -> Json:
    """As a merge patch: None removes."""
    return {name: value for name, value in {**before, **change}.items() if value is not None}


def _static(manifest: Json, node_name: str) -> Json:
    metadata = dict(manifest["metadata"])
    name, namespace = metadata["name"], metadata.get("namespace", "default")
    uid = hashlib.md5(f"{namespace}/{name}@{node_name}".encode(), usedforsecurity=False).hexdigest()
    annotations = {**metadata.get("annotations", {}), "kubernetes.io/config.hash": uid}
    manifest["metadata"] = {
        **metadata,
        "name": f"{name}-{node_name}",
        "namespace": namespace,
        "uid": uid,
        "annotations": annotations,
    }
    return manifest
