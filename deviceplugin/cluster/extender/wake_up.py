"""Makes kube-scheduler retry pods when GPUs become free.

In: nodes where something was freed. Out: a changed annotation on such a node, at most once a second, and only while a
pod waits for room. kube-scheduler sees the end of a pod earlier than this process and may ask while the pod still
counts here; nothing would make it ask again. Any change of a node does, and one is enough for all pods that wait.
Invariant: a node that the API server refuses to change, said once, is passed over for another one.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from deviceplugin.errors import KubeError, KubeNotFoundError, VcudaError
from deviceplugin.model.annotation_names import AnnotationNames

log = structlog.get_logger("vcuda.cluster")
_MOST_TRIED = 5  # nodes in a row
_ABOUT_ONE_NODE = {403, 409, 413, 422}  # a policy, a conflict, a node that is full of annotations


class NodeApi(Protocol):
    """What `WakeUp` needs of the API server."""

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None: ...


class WakeUp:
    """`freed` is cheap and may be called often; `run` writes until it is cancelled."""

    def __init__(
        self,
        api: NodeApi,
        names: AnnotationNames,
        *,
        has_unplaced_pods: Callable[[], bool],
        wall: Callable[[], float],
        every: float = 1.0,
        delay: float = 0.02,
    ) -> None:
        self._api = api
        self._annotation = names.freed
        self._has_unplaced_pods = has_unplaced_pods
        self._wall = wall
        self._every = every
        self._delay = delay
        self._nodes: dict[str, None] = {}
        self._refusing: set[str] = set()
        self._has_freed = asyncio.Event()

    def freed(self, node: str) -> None:
        if self._has_unplaced_pods():
            self._nodes[node] = None
            self._has_freed.set()

    async def run(self) -> None:
        """Never raises when the API server fails: the next attempt repeats the message."""
        while True:
            await self._has_freed.wait()
            await asyncio.sleep(self._delay)
            if self._has_unplaced_pods():
                await self._annotate_one()
                await asyncio.sleep(self._every)
            else:
                self._nodes.clear()
            if not self._nodes:
                self._has_freed.clear()

    async def _annotate_one(self) -> None:
        """Writes to one node that still exists and may be changed, those that refused before at the end."""
        waiting, self._nodes = self._nodes, {}
        refused: dict[str, None] = {}
        latest_first = list(reversed(waiting))
        for node in sorted(latest_first, key=self._refusing.__contains__)[:_MOST_TRIED]:
            try:
                await self._api.annotate_node(node, {self._annotation: f"{self._wall():.3f}"})
            except KubeNotFoundError:
                continue
            except VcudaError as error:
                if isinstance(error, KubeError) and error.code in _ABOUT_ONE_NODE:
                    refused[node] = None
                    self._say_once(node, error)
                    continue
                self._nodes = {**waiting, **self._nodes}
                log.warning("wake_up_failed", node=node, error=error.message)
            else:
                self._refusing.discard(node)
            return
        self._nodes = {**waiting, **self._nodes} if len(waiting) > _MOST_TRIED else {**refused, **self._nodes}

    def _say_once(self, node: str, error: VcudaError) -> None:
        if node not in self._refusing:
            log.warning("wake_up_failed", node=node, error=error.message)
        self._refusing.add(node)
