"""The agent's side of the API server: connects when it can, and serves the rest of the agent from memory meanwhile.

In: a kubeconfig or the pod's service account. Out: the pods of this node, one pod by name, events, the node's labels
and inventory. Nothing here is waited for by registration: importing the client and reading credentials takes half a
second, and the API server may be away for hours. Only credentials that can never work end the agent, with their
sentence.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import structlog

from deviceplugin.errors import KubeNotFoundError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.credentials import Access, Credentials
from deviceplugin.kube.events import EventRecorder
from deviceplugin.kube.node import NodeKeeper
from deviceplugin.kube.reflector import PodReflector
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import ResourceNames

log = structlog.get_logger("vcuda.agent")


class Cluster:
    """`run` until it is cancelled; everything else may be called from the start."""

    def __init__(
        self, kubeconfig: Path | None, *, node: str, names: ResourceNames, labels: Mapping[str, str], share_mode: bool
    ) -> None:
        self._credentials = Credentials(kubeconfig)
        self._kubeconfig = kubeconfig
        self._node = node
        self._names = names
        self._connected = asyncio.Event()
        self.events = EventRecorder(node=node)
        self.keeper = NodeKeeper(node=node, names=names, labels=labels, share_mode=share_mode)
        self.client: KubeClient | None = None
        self.reflector: PodReflector | None = None

    @property
    def is_synced(self) -> bool:
        return self.reflector is not None and self.reflector.synced.is_set()

    async def access(self) -> Access:
        """The credentials, which kubelet accepts too."""
        return await self._credentials.access()

    async def connected(self) -> tuple[KubeClient, PodReflector]:
        """Waits for the credentials, not for the server."""
        await self._connected.wait()
        assert self.client is not None
        assert self.reflector is not None
        return self.client, self.reflector

    async def run(self) -> None:
        self.client = await KubeClient.connect(self._kubeconfig, names=self._names, credentials=self._credentials)
        self.reflector = PodReflector(self.client, node=self._node)
        self._connected.set()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.reflector.run(), name="pods")
                group.create_task(self.events.run(self.client), name="events")
                group.create_task(self.keeper.run(self.client), name="node")
        finally:
            await self.client.close()

    def pods(self) -> tuple[Pod, ...]:
        """This node's pods as far as the watch has come; empty before."""
        return tuple(self.reflector.pods.values()) if self.reflector is not None else ()

    def pod(self, uid: PodUid) -> Pod | None:
        return self.reflector.pods.get(uid) if self.reflector is not None else None

    async def fetch(self, namespace: str, name: str) -> Pod | None:
        """One pod by name, None where there is none; raises KubeError."""
        if self.client is None:
            return None
        try:
            return await self.client.get_pod(PodRef(PodUid(""), namespace, name))
        except KubeNotFoundError:
            return None
