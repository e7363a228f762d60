"""The agent's side of the API server: follows it when it can, and serves the rest of the agent from memory meanwhile.

In: a kubeconfig or the pod's service account. Out: the pods of this node, one pod by name, the cordon, events, the
node's labels and inventory. Nothing here is waited for by registration: importing the client and reading credentials
takes half a second, and the API server may be away for hours. Only credentials that can never work end the agent, with
their sentence.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from deviceplugin.agent.cordon import Cordon
from deviceplugin.errors import KubeNotFoundError
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.credentials import Access, Credentials
from deviceplugin.kube.events import EventRecorder
from deviceplugin.kube.node_publisher import NodePublisher
from deviceplugin.kube.pods import pods_of_node
from deviceplugin.kube.reflector import Reflector
from deviceplugin.kube.transport import Transport
from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.gpu import Inventory
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import ResourceNames


class Cluster:
    """`run` until it is cancelled, then `close`; everything else may be called from the start."""

    def __init__(
        self,
        kubeconfig: Path | None,
        *,
        node: str,
        names: ResourceNames,
        labels: Mapping[str, str],
        share_mode: bool,
        inventory: Callable[[], Inventory | None],
    ) -> None:
        self._credentials = Credentials(kubeconfig)
        self.client = KubeClient(Transport(self._credentials), names=names)
        self.reflector = Reflector(self.client, pods_of_node(node, names))
        self.cordon = Cordon(self.client, node=node, inventory=inventory)
        self.events = EventRecorder(self.client, node=node)
        self.publisher = NodePublisher(self.client, node=node, names=names, labels=labels, share_mode=share_mode)

    @property
    def is_synced(self) -> bool:
        return self.reflector.synced.is_set()

    async def access(self) -> Access:
        """The credentials, which kubelet accepts too."""
        return await self._credentials.access()

    async def run(self) -> None:
        await self._credentials.access()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.reflector.run(), name="pods")
            group.create_task(self.cordon.run(), name="cordon")
            group.create_task(self.events.run(), name="events")
            group.create_task(self.publisher.run(), name="node")

    async def close(self) -> None:
        """When nobody asks any more."""
        await self.client.close()

    def pods(self) -> tuple[Pod, ...]:
        """This node's pods as far as the watch has come; empty before."""
        return tuple(self.reflector.items.values())

    def pod(self, uid: PodUid) -> Pod | None:
        return self.reflector.items.get(uid)

    async def fetch(self, namespace: str, name: str) -> Pod | None:
        """One pod by name, None where there is none; raises KubeError."""
        try:
            return await self.client.get_pod(PodRef(PodUid(""), namespace, name))
        except KubeNotFoundError:
            return None
