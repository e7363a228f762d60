"""The agent as its views see it: `observe.view.NodeView` over the live parts.

In: the parts. Out: a picture at one moment, without waiting for anything.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from deviceplugin.ledger.grant import GrantId
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.gpu import GpuSample, GpuUuid, Inventory
from deviceplugin.model.usage import ContainerUse
from deviceplugin.observe.view import AgentState, NodePicture


class AgentView:
    """Everything is asked anew at each call."""

    def __init__(
        self,
        node: str,
        *,
        inventory: Callable[[], Inventory | None],
        samples: Callable[[], Mapping[GpuUuid, GpuSample]],
        ledger: Ledger,
        uses: Callable[[], Mapping[GrantId, ContainerUse]],
        cordoned: Callable[[], frozenset[GpuUuid]],
        is_registered: Callable[[], bool],
        is_synced: Callable[[], bool],
        sockets: Callable[[], tuple[Path, ...]],
    ) -> None:
        self._node = node
        self._inventory = inventory
        self._samples = samples
        self._ledger = ledger
        self._uses = uses
        self._cordoned = cordoned
        self._is_registered = is_registered
        self._is_synced = is_synced
        self._sockets = sockets

    def picture(self) -> NodePicture:
        grants = self._ledger.grants()
        return NodePicture(self._node, self._inventory(), grants, self._samples(), self._uses(), self._cordoned())

    def state(self) -> AgentState:
        waiting = "" if self._inventory() is not None else "waiting for the NVIDIA driver"
        return AgentState(self._is_registered(), self._is_synced(), waiting, self._sockets())
