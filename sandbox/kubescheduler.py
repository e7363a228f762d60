"""A stand-in kube-scheduler: it asks an extender as the real one does, and writes what the real one writes.

In: the API server's store, an extender over TLS. Out: bound pods, PodScheduled=False with kube-scheduler's sentence on
the others. It has only those in-tree filters that decide which nodes an extender is asked about: node selector, and the
sums of the two resources. Facts kept: one pod at a time, oldest first; a pod without a node is tried again when a node
changes or a pod goes, and not before; a gang is one cycle, bound as a whole or not at all. Not here: scoring,
preemption, back-off.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from sandbox.apiserver import ApiError, ApiServer
from sandbox.scheduler import NoAnswerError

RESOURCES = ("tencent.com/vcuda-core", "tencent.com/vcuda-memory")

Json = dict[str, Any]


class Extender(Protocol):
    """What answers the verbs: status, and JSON or text; NoAnswerError where nobody does."""

    async def ask(self, path: str, document: object = None) -> tuple[int, Any]: ...


@dataclass(frozen=True, slots=True)
class Found:
    """What a cycle came to: the node, or why there is none. `failed`: the extender could not answer at all."""

    node: str = ""
    why: str = ""
    failed: bool = False


class KubeScheduler:
    """`at_work` schedules what comes; `filter`, `bind`, `find_all` and `end_cycle` are steps to play it by hand."""

    def __init__(self, server: ApiServer, extender: Extender, *, name: str = "vcuda-scheduler") -> None:
        self._server = server
        self._extender = extender
        self._name = name
        self._assumed: dict[str, tuple[str, Json]] = {}
        self._unschedulable: set[str] = set()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run(), name="stand-in kube-scheduler")
        try:
            yield
        finally:
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(ended, Exception):
                raise ended

    async def filter(self, pod: Json) -> Found:
        """One scheduling cycle up to the choice of a node."""
        own, names = self._in_tree(pod)
        reasons = Counter(own)
        if names:
            status, answer = await self._ask("/filter", {"Pod": pod, "Nodes": None, "NodeNames": names})
            if status != 200 or answer["Error"]:
                return Found(why=str(answer if status != 200 else answer["Error"]).strip(), failed=True)
            if answer["NodeNames"]:
                return Found(node=answer["NodeNames"][0])
            reasons.update([*answer["FailedNodes"].values(), *answer["FailedAndUnresolvableNodes"].values()])
        said = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
        return Found(why=f"0/{reasons.total()} nodes are available: {said}.")

    async def bind(self, pod: Json, node: str) -> str:
        """Empty, or the extender's sentence."""
        meta = pod["metadata"]
        order = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        status, answer = await self._ask("/bind", order)
        return str(answer["Error"]) if status == 200 else str(answer).strip()

    async def schedule(self, pod: Json) -> Found:
        """filter and bind; where there is no node, the pod's condition says why."""
        found = await self.filter(pod)
        if found.node and (error := await self.bind(pod, found.node)):
            found = Found(why=error, failed=True)
        if not found.node and not found.failed:
            self._say(pod, found.why)
        return found

    async def find_all(self, gang: Sequence[Json]) -> list[Found]:
        """The one cycle of a gang, as in kube-scheduler 1.36; it ends with the first member that finds no node."""
        found: list[Found] = []
        for pod in gang:
            found.append(await self.filter(pod))
            if not found[-1].node:
                break
            self._assumed[pod["metadata"]["uid"]] = (found[-1].node, pod)
        return found

    async def end_cycle(self, gang: Sequence[Json], found: Sequence[Found]) -> bool:
        """Binds every member, or tells every member why none is."""
        whole = len(found) == len(gang) and all(each.node for each in found)
        for pod in gang:
            self._assumed.pop(pod["metadata"]["uid"], None)
        for place, pod in enumerate(gang):
            if not whole:
                self._say(pod, f"the gang does not fit: {found[-1].why}")
            elif error := await self.bind(pod, found[place].node):
                raise NoAnswerError(error)
        return whole

    async def _run(self) -> None:
        """Every change is looked at; those that may have made room let refused pods try again."""
        store, changed = self._server.store, asyncio.Event()
        seen = store.version
        forget = store.on_change(changed.set)
        try:
            while True:
                changed.clear()
                if any(change.resource == "nodes" or change.deleted for change in self._changes(seen)):
                    self._unschedulable.clear()
                seen = store.version
                failed = [await self._try(pod) for pod in self._waiting()]
                if any(failed):
                    await asyncio.sleep(0.2)  # the extender is away: kube-scheduler backs off
                else:
                    await changed.wait()
        finally:
            forget()

    async def _try(self, pod: Json) -> bool:
        found = await self.schedule(pod)
        if not found.node and not found.failed:
            self._unschedulable.add(pod["metadata"]["uid"])
        return found.failed

    def _changes(self, since: int) -> list[Any]:
        return [*self._server.store.changes("nodes", since), *self._server.store.changes("pods", since)]

    def _waiting(self) -> list[Json]:
        pods = self._server.store.objects("pods")
        return [pod for pod in pods if self._is_mine(pod) and pod["metadata"]["uid"] not in self._unschedulable]

    def _is_mine(self, pod: Json) -> bool:
        spec, meta = pod["spec"], pod["metadata"]
        waits = not spec.get("nodeName") and not meta.get("deletionTimestamp") and not spec.get("schedulingGroup")
        return waits and spec.get("schedulerName") == self._name

    def _in_tree(self, pod: Json) -> tuple[list[str], list[str]]:
        bound = [(each["spec"].get("nodeName", ""), each) for each in self._server.store.objects("pods")]
        return in_tree(pod, self._server.store.objects("nodes"), [*bound, *self._assumed.values()])

    def _say(self, pod: Json, why: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
        meta = pod["metadata"]
        with contextlib.suppress(ApiError):  # it is gone meanwhile
            self._server.store.set_status(meta["name"], {"conditions": [condition]}, namespace=meta["namespace"])

    async def _ask(self, path: str, body: Json) -> tuple[int, Any]:
        try:
            return await self._extender.ask(path, body)
        except NoAnswerError as error:
            return 0, f"the extender does not answer: {error}"


def in_tree(pod: Json, nodes: Iterable[Json], placed: Iterable[tuple[str, Json]]) -> tuple[list[str], list[str]]:
    held = _held(placed)
    reasons: list[str] = []
    names: list[str] = []
    for node in nodes:
        name = node["metadata"]["name"]
        if why := _against(pod, node, held.get(name, Counter())):
            reasons.append(why)
        else:
            names.append(name)
    return reasons, names


def _held(placed: Iterable[tuple[str, Json]]) -> dict[str, Counter[str]]:
    held: dict[str, Counter[str]] = {}
    for node, pod in placed:
        if node and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            held.setdefault(node, Counter()).update(_asked(pod))
    return held


def _asked(pod: Json) -> Counter[str]:
    limits = [container.get("resources", {}).get("limits") or {} for container in pod["spec"]["containers"]]
    return Counter({name: sum(int(each.get(name, 0)) for each in limits) for name in RESOURCES})


def _against(pod: Json, node: Json, held: Counter[str]) -> str:
    labels = node["metadata"].get("labels") or {}
    if not (pod["spec"].get("nodeSelector") or {}).items() <= labels.items():
        return "node(s) didn't match Pod's node affinity/selector"
    offered = node.get("status", {}).get("allocatable") or {}
    for name, count in _asked(pod).items():
        if count + held[name] > int(offered.get(name, 0)):
            return f"Insufficient {name}"
    return ""
