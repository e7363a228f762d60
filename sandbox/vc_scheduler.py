"""A stand-in for Volcano's scheduler: sessions that ask the plugin `extender` as the real one was recorded to.

In: where the extender is, the cluster's nodes, gangs of pods. Out: which gangs it would bind, and their Bindings, which
the caller sends. A session takes the gangs in their order and the members one after the other: predicates on nodes
whose sums have room, 16 at once, until enough nodes are found; scores where several are left; then `allocate`. A gang
with a member that finds no node is taken back, last first. Not here: queues' shares, evictions, pipelining;
`tests/e2e/test_volcano.py` runs the real one. Requests have the size of real ones: a whole pod, a whole node, and every
task on it.

A Binding has all annotations that the pod had when the session began, and a member whose Binding is refused is tried
again in the next session, without `deallocate`. So it is in Volcano 1.14.1: pkg/scheduler/cache/cache.go, `Bind` of
DefaultBinder (`Annotations: p.Annotations`, line 224) and of SchedulerCache (`resyncTask`, line 962); the pod is the
snapshot's, because `TaskInfo.Clone` (pkg/scheduler/api/job_info.go, line 282) keeps its pointer. The API server
writes each of these annotations over the pod's own: Kubernetes 1.36.2, pkg/registry/core/pod/storage/storage.go,
`setPodNodeAndMetadata`.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sandbox.http_connection import Connection, HttpError

Json = dict[str, Any]
WORKERS = 16
_ANSWER_S = 30.0
_FEWEST = 100
PENDING, ALLOCATED, RUNNING = 1, 2, 32
_CORE, _MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"


class VolcanoStandInError(Exception):
    """The extender did not answer as its protocol says."""


class BindingRefusedError(Exception):
    """The API server does not bind this pod, or did not answer."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """All members run, or none."""

    name: str
    pods: tuple[Json, ...]


@dataclass(slots=True)
class _Node:
    """What Volcano sums up: the node's offer, less what its tasks ask for."""

    document: Json
    idle: dict[str, int]
    tasks: dict[str, Json] = field(default_factory=dict)
    _sent: bytes | None = None

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    def has_room(self, wanted: Mapping[str, int]) -> bool:
        return all(self.idle.get(name, 0) >= count for name, count in wanted.items())

    def take(self, task: Json, wanted: Mapping[str, int], *, sign: int = 1) -> None:
        self._sent = None
        for name, count in wanted.items():
            self.idle[name] = self.idle.get(name, 0) - sign * count
        if sign > 0:
            self.tasks[f"{task['Namespace']}/{task['Name']}"] = task
        else:
            del self.tasks[f"{task['Namespace']}/{task['Name']}"]

    def as_sent(self) -> bytes:
        """Encoded once for each state of it: the stand-in must not be what is measured."""
        if self._sent is None:
            self._sent = json.dumps(self._as_document()).encode()
        return self._sent

    def _as_document(self) -> Json:
        amounts = {"MilliCPU": 64000, "Memory": 1 << 38, "ScalarResources": {k: 1000 * v for k, v in self.idle.items()}}
        return {
            "Name": self.name,
            "Node": self.document,
            "State": {"Phase": 1, "Reason": ""},
            **dict.fromkeys(("Idle", "Used", "Releasing", "Pipelined", "Allocatable", "Capacity"), amounts),
            "Tasks": self.tasks,
            "NumaInfo": None,
        }


@dataclass(slots=True)
class Times:
    """Seconds of each call, as Volcano waited for them."""

    predicate: list[float] = field(default_factory=list)
    allocate: list[float] = field(default_factory=list)


class VcScheduler:
    """`url` is the plugin's urlPrefix. `bind` sends a Binding or raises BindingRefusedError; `watch` shows a pod as it
    is now."""

    def __init__(
        self,
        url: str,
        nodes: Sequence[Json],
        bind: Callable[[Json], Awaitable[None]],
        *,
        watch: Callable[[Json], Json] = lambda pod: pod,
    ) -> None:
        self._url = url.rstrip("/")
        self._bind = bind
        self._watch = watch
        self._nodes = {each["metadata"]["name"]: _Node(each, _offered(each)) for each in nodes}
        self._free: list[Connection] = []
        self.times = Times()
        self.sent_bytes = 0

    async def __aenter__(self) -> "VcScheduler":
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._free:
            await each.close()

    async def session(self, gangs: Sequence[PodGroup], *, dies: bool = False) -> dict[str, dict[str, str]]:
        """The nodes of the members, by gang; of gangs that fit, without members whose Binding was refused.

        `dies`: after its choices, before any Binding.
        """
        placed: dict[str, dict[str, str]] = {}
        snapshot = {gang.name: [self._watch(pod) for pod in gang.pods] for gang in gangs}
        for name, pods in snapshot.items():
            waiting = [pod for pod in pods if not pod["spec"].get("nodeName")]
            done = await self._place(waiting)
            if len(done) < len(waiting):
                for pod, node in reversed(done):
                    await self._take_back(pod, node)
                continue
            if not dies:
                bound = await asyncio.gather(*(self._is_bound(pod, node) for pod, node in done))
                done = [each for each, is_bound in zip(done, bound, strict=True) if is_bound]
            placed[name] = {pod["metadata"]["name"]: node for pod, node in done}
        return placed

    async def _is_bound(self, pod: Json, node: str) -> bool:
        try:
            await self._bind(binding_of(pod, node))
        except BindingRefusedError:
            self._nodes[node].take(_task(pod, node, ALLOCATED), _wanted(pod), sign=-1)
            return False
        return True

    async def give_back(self, gang: PodGroup, placed: Mapping[str, str]) -> None:
        """What a session that bound nothing was promised."""
        for pod in reversed(gang.pods):
            await self._take_back(pod, placed[pod["metadata"]["name"]])

    def ended(self, pod: Json, node: str) -> None:
        """Its watch says that a bound pod is over."""
        self._nodes[node].take(_task(pod, node, RUNNING), _wanted(pod), sign=-1)

    async def _place(self, pods: Sequence[Json]) -> list[tuple[Json, str]]:
        done: list[tuple[Json, str]] = []
        for pod in pods:
            node = await self._node_for(pod)
            if node is None or await self._event("allocate", pod, node):
                break
            self._nodes[node].take(_task(pod, node, ALLOCATED), _wanted(pod))
            done.append((pod, node))
        return done

    async def _node_for(self, pod: Json) -> str | None:
        task, wanted = json.dumps(_task(pod, "", PENDING)).encode(), _wanted(pod)
        fitting = await self._fitting(task, [each for each in self._nodes.values() if each.has_room(wanted)])
        if len(fitting) < 2:
            return fitting[0].name if fitting else None
        nodes = b",".join(each.as_sent() for each in fitting)
        answer = await self._ask("prioritize", b'{"task":%b,"nodes":[%b]}' % (task, nodes))
        scores = answer["nodeScore"]
        return max(fitting, key=lambda each: scores.get(each.name, 0.0)).name

    async def _fitting(self, task: bytes, candidates: Sequence[_Node]) -> list[_Node]:
        """As many as Volcano looks for; it begins where it ended the last time."""
        most, found, at = feasible_nodes(len(self._nodes)), list[_Node](), 0
        while at < len(candidates) and len(found) < most:
            asked = candidates[at : at + WORKERS]
            verdicts = await asyncio.gather(*(self._fits(task, each) for each in asked))
            found += [each for each, fits in zip(asked, verdicts, strict=True) if fits]
            at += len(asked)
        return found[:most]

    async def _fits(self, task: bytes, node: _Node) -> bool:
        body = b'{"task":%b,"node":%b}' % (task, node.as_sent())
        self.sent_bytes += len(body)
        began = time.perf_counter()
        answer = await self._ask("predicate", body)
        self.times.predicate.append(time.perf_counter() - began)
        return not answer["status"]

    async def _take_back(self, pod: Json, node: str) -> None:
        self._nodes[node].take(_task(pod, node, ALLOCATED), _wanted(pod), sign=-1)
        await self._event("deallocate", pod, node)

    async def _event(self, verb: str, pod: Json, node: str) -> str:
        began = time.perf_counter()
        answer = await self._ask(verb, json.dumps({"task": _task(pod, node, ALLOCATED)}).encode())
        if verb == "allocate":
            self.times.allocate.append(time.perf_counter() - began)
        return str(answer["errorMessage"])

    async def _ask(self, verb: str, body: bytes) -> Json:
        """On a connection of its own while it waits: they stay open, whereas Go's client keeps two of them."""
        path = f"{urlsplit(self._url).path}/{verb}"
        try:
            async with asyncio.timeout(_ANSWER_S):
                if self._free:
                    with contextlib.suppress(
                        ConnectionError, EOFError
                    ):  # ended while it was idle; Go's client too retries
                        return await self._sent(self._free.pop(), path, body)
                connection = await Connection.open(urlsplit(self._url).port or 80, None)
                return await self._sent(connection, path, body)
        except (HttpError, OSError, EOFError) as error:  # Volcano looks at the status alone
            raise VolcanoStandInError(f"{verb}: {error}") from None

    async def _sent(self, connection: Connection, path: str, body: bytes) -> Json:
        try:
            found, _ = await connection.post_json(path, body)
        except BaseException:
            await connection.close()
            raise
        self._free.append(connection)
        return dict(found)


def feasible_nodes(count: int) -> int:
    """Of so many nodes: Volcano's defaults (--percentage-nodes-to-find=0, --minimum-feasible-nodes=100)."""
    percent = max(5, 50 - count // 125)
    return count if count <= _FEWEST else max(_FEWEST, count * percent // 100)


def binding_of(pod: Json, node: str) -> Json:
    """What Volcano sends for a pod as it knows it."""
    kept = {name: text for name, text in pod["metadata"].items() if name in ("namespace", "name", "uid", "annotations")}
    target = {"kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": kept, "target": target}


def _offered(node: Json) -> dict[str, int]:
    offered = node["status"]["allocatable"]
    return {name: int(offered.get(name, 0)) for name in (_CORE, _MEMORY)}


def _wanted(pod: Json) -> dict[str, int]:
    """Of all containers together: Volcano sums up."""
    found: dict[str, int] = {}
    for container in pod["spec"]["containers"]:
        for name, count in container.get("resources", {}).get("limits", {}).items():
            if name in (_CORE, _MEMORY):
                found[name] = found.get(name, 0) + int(count)
    return found


def _task(pod: Json, node: str, status: int) -> Json:
    """api.TaskInfo, whose keys are the names of Go's fields."""
    meta = pod["metadata"]
    amounts = {"MilliCPU": 0, "Memory": 0, "ScalarResources": {name: 1000 * n for name, n in _wanted(pod).items()}}
    return {
        "UID": meta["uid"],
        "Job": f"{meta['namespace']}/{meta['name']}",
        "Name": meta["name"],
        "Namespace": meta["namespace"],
        "TaskRole": "w",
        "Resreq": amounts,
        "InitResreq": amounts,
        "NodeName": node,
        "Status": status,
        "LastTransaction": None,
        "Priority": 0,
        "Preemptable": True,
        "NumaInfo": {"Policy": "", "ResMap": {}},
        "Pod": pod,
        "PodAnnotations": meta.get("annotations") or {},
    }
