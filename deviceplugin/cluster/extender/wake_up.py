"""Tells kube-scheduler that there is room again.

In: nodes where something was freed. Out: an annotation of such a node changed, at most once in a while, and only while
a pod waits for room. kube-scheduler sees the end of a pod before we do and may ask while we still count it; nothing
would make it ask again. Any change of a node does. One is enough for all pods that wait.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from deviceplugin.errors import KubeNotFoundError, VcudaError
from deviceplugin.model.annotation_names import AnnotationNames

log = structlog.get_logger("vcuda.cluster")


class NodeApi(Protocol):
    """What waking needs of the API server."""

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None: ...


class WakeUp:
    """`freed` may be called as often as anything is freed; `run` does the writing until it is cancelled."""

    def __init__(
        self,
        api: NodeApi,
        names: AnnotationNames,
        *,
        anybody_waits: Callable[[], bool],
        wall: Callable[[], float],
        every: float = 1.0,
        settle: float = 0.02,
    ) -> None:
        self._api = api
        self._annotation = names.freed
        self._anybody_waits = anybody_waits
        self._wall = wall
        self._every = every
        self._settle = settle
        self._nodes: dict[str, None] = {}
        self._some = asyncio.Event()
        self.writes = 0
        self.failures = 0

    @property
    def pending(self) -> bool:
        """Something was freed that is still to be told."""
        return bool(self._nodes)

    def freed(self, node: str) -> None:
        if self._anybody_waits():
            self._nodes[node] = None
            self._some.set()

    async def run(self) -> None:
        """Never raises for a server that fails: what was freed is told with the next attempt."""
        while True:
            await self._some.wait()
            await asyncio.sleep(self._settle)
            if self._anybody_waits():
                await self._tell()
                await asyncio.sleep(self._every)
            else:
                self._nodes.clear()
            if not self._nodes:
                self._some.clear()

    async def _tell(self) -> None:
        """One of the nodes that are there still."""
        waiting, self._nodes = self._nodes, {}
        for node in reversed(waiting):
            try:
                await self._api.annotate_node(node, {self._annotation: f"{self._wall():.3f}"})
            except KubeNotFoundError:
                continue
            except VcudaError as error:
                self.failures += 1
                self._nodes = {**waiting, **self._nodes}
                log.warning("kube-scheduler was not told of free GPUs", node=node, cause=error.message)
                return
            self.writes += 1
            return
