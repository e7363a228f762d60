"""The verbs that the cluster's side needs beyond the agent's: bind, and wake those who wait for room.

In: references, annotations. Out: `KubeError` and its leaves. Every write waits for a token: a scheduler that works
through a backlog must not be the one that the API server throttles. Not here: what to do about a refusal.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec

from deviceplugin.kube.client import KubeClient, pod_path
from deviceplugin.kube.credentials import Credentials
from deviceplugin.kube.tokens import TokenBucket
from deviceplugin.kube.transport import CONNECTIONS, DEFAULT_TIMEOUTS, Timeouts, Transport
from deviceplugin.model.allocation import PodRef
from deviceplugin.model.units import ResourceNames


class ClusterClient(KubeClient):
    """`writes` None does not limit them."""

    def __init__(
        self, transport: Transport, *, names: ResourceNames = ResourceNames(), writes: TokenBucket | None = None
    ) -> None:
        super().__init__(transport, names=names)
        self._writes = writes

    @classmethod
    async def connect(
        cls,
        kubeconfig: Path | None,
        *,
        names: ResourceNames = ResourceNames(),
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        credentials: Credentials | None = None,
        connections: int = CONNECTIONS,
        writes: TokenBucket | None = None,
    ) -> Self:
        """Loads the credentials (ConfigError where that fails); sends nothing yet."""
        credentials = credentials or Credentials(kubeconfig)
        await credentials.access()
        return cls(Transport(credentials, timeouts=timeouts, connections=connections), names=names, writes=writes)

    async def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None:
        """Node and annotations become visible in one write.

        KubeNotFoundError: there is no such pod. KubeConflictError: it has another UID, a node already, is being
        deleted or gated. Any other error leaves open whether it is bound: read it.
        """
        meta: dict[str, object] = {"name": pod.name, "namespace": pod.namespace, "annotations": dict(annotations)}
        if pod.uid:
            meta["uid"] = pod.uid
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        await self._write("POST", pod_path(pod) + "/binding", binding, what=f"bind pod {pod} to {node}")

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """kube-scheduler tries waiting pods again when a node's annotation has changed."""
        await self._turn()
        await self.patch_node(name, labels={}, annotations=annotations)

    async def _write(self, method: str, path: str, body: object, *, what: str) -> bytes:
        await self._turn()
        return await self._transport.request(method, path, what=what, body=msgspec.json.encode(body))

    async def _turn(self) -> None:
        if self._writes is not None:
            await self._writes.take()
