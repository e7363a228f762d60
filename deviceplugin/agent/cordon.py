"""Which GPUs of this node its operator has taken out: the annotation `vcuda-cordon`, followed.

In: the node as the API server shows it. Out: the cordoned GPUs of the moment. An API server that is away, or that does
not let the agent watch its node, cordons nothing new and frees nothing: what was last seen counts. Only a fresh agent
knows nothing yet, and the first Allocate waits for that a moment.
"""

import asyncio
from collections.abc import Callable

import structlog

from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.cluster_nodes import one_node
from deviceplugin.kube.reflector import Reflector, StoreChange
from deviceplugin.model.cluster_node import ClusterNode
from deviceplugin.model.gpu import GpuUuid, Inventory

log = structlog.get_logger("vcuda.agent")
_NONE: frozenset[GpuUuid] = frozenset()


class Cordon:
    """`run` until it is cancelled; the rest may be asked at any time."""

    def __init__(
        self, client: KubeClient, *, node: str, inventory: Callable[[], Inventory | None], patience_s: float = 0.5
    ) -> None:
        self._reflector = Reflector(client, one_node(node, client.names))
        self._reflector.subscribe(self._changed)
        self._inventory = inventory
        self._patience_s = patience_s
        self._words: frozenset[str] = frozenset()

    async def run(self) -> None:
        await self._reflector.run()

    async def known(self) -> None:
        """Waits for the first word of the API server, once and not for long: kubelet stands still meanwhile."""
        if self._reflector.synced.is_set() or not self._patience_s:
            return
        try:
            async with asyncio.timeout(self._patience_s):
                await self._reflector.synced.wait()
        except TimeoutError:
            log.warning("the node's cordon is not known yet; GPUs are given as if there were none")
            self._patience_s = 0.0

    def gpus(self) -> frozenset[GpuUuid]:
        inventory = self._inventory()
        node = next(iter(self._reflector.items.values()), None)
        return node.cordoned(inventory) if node is not None and inventory is not None else _NONE

    def _changed(self, change: StoreChange[ClusterNode]) -> None:
        if change.item.cordon != self._words:
            self._words = change.item.cordon
            log.info("cordon changed", names=sorted(self._words))
