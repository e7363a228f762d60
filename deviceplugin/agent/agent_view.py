"""What the agent knows at this moment, without waiting: for its views and for placement.

In: the live parts. Out: `observe.node_view.NodeView` for the HTTP endpoints and `kubelet.allocate_context.Gpus` for
placement. It works before the GPUs are known; `link`, `claims` and `watch` are set when the node agent is built.
"""

from collections.abc import Mapping

from deviceplugin.agent.claims import ClaimAgent
from deviceplugin.agent.cluster import Cluster
from deviceplugin.agent.container_watch import ContainerWatch
from deviceplugin.agent.gpu_offers import GrantHolders
from deviceplugin.hardware.node import Hardware
from deviceplugin.kubelet.registration import KubeletLink
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.gpu import Gpu, GpuSample, GpuUuid, Inventory
from deviceplugin.observe.node_view import AgentState, NodePicture


class AgentView:
    """Every call reads the parts again."""

    def __init__(self, node: str, hardware: Hardware, ledger: Ledger, cluster: Cluster) -> None:
        self._node = node
        self._hardware = hardware
        self._ledger = ledger
        self._cluster = cluster
        self.link: KubeletLink | None = None
        self.claims: ClaimAgent | None = None
        self.watch: ContainerWatch | None = None

    def picture(self) -> NodePicture:
        uses = self.watch.uses() if self.watch is not None else {}
        return NodePicture(
            self._node,
            self._hardware.inventory,
            tuple(map(GrantHolders(self._cluster.pods).shown, self._ledger.grants())),
            samples=self.samples(),
            uses=uses,
            cordoned=self.cordoned(),
            xids=self._hardware.xids,
            critical_errors=self._hardware.critical_errors,
            repairs_pending=self._hardware.repairs_pending,
            nvml_open=not self._hardware.nvml_closed,
            pods={pod.ref.uid: pod for pod in self._cluster.pods()},
        )

    def state(self) -> AgentState:
        waiting = "" if self._hardware.inventory is not None else "waiting for the NVIDIA driver"
        links = [each for each in (self.link, self.claims) if each is not None]
        is_registered = self.link is not None and all(each.is_registered for each in links)
        sockets = tuple(path for each in links for path in each.sockets)
        return AgentState(is_registered, self._cluster.is_synced, waiting, sockets, self._cluster.reflector.unreadable)

    def knows_claims(self) -> bool:
        """Whether every grant that a container may hold by a claim was in the ledger once."""
        return self.claims is None or self.claims.is_complete()

    def inventory(self) -> Inventory:
        """Only for what is built after the GPUs are known."""
        assert self._hardware.inventory is not None, "the node agent is built after the hardware has started"
        return self._hardware.inventory

    def samples(self) -> Mapping[GpuUuid, GpuSample]:
        return self._hardware.samples

    def located(self, gpu: Gpu) -> Gpu:
        """With the number under which /dev has it now."""
        return self._hardware.located(gpu)

    async def settled(self) -> None:
        await self._hardware.settled()

    def cordoned(self) -> frozenset[GpuUuid]:
        """All while NVML is closed, also by an agent that was restarted and has not reached the API server yet."""
        inventory = self._hardware.inventory
        if inventory is not None and self._hardware.nvml_closed:
            return frozenset(gpu.uuid for gpu in inventory.gpus)
        return self._cluster.cordon.gpus()

    def processes(self) -> Mapping[GpuUuid, int]:
        return {uuid: len(sample.processes) for uuid, sample in self._hardware.samples.items()}
