"""What the views show: one consistent picture of the node at one moment.

In: nothing; the agent fills these values from its own state whenever a view asks. Out: what `metrics`, `graph`,
`usage`, `http` and `display` render. Not here: rendering, and any call that could block. `NodeView` is the only thing
the views know of the agent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from deviceplugin.ledger.grant import Grant
from deviceplugin.model.gpu import Gpu, GpuSample, GpuUuid, Inventory
from deviceplugin.model.units import ResourceNames


@dataclass(frozen=True, slots=True)
class Taken:
    """What is held of one GPU: cores of 100 and blocks, with the arithmetic of init containers applied."""

    cores: int = 0
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class AgentState:
    """How the agent itself is; `blocked` says in one phrase what keeps it from being ready, empty when it is."""

    registered: bool
    synced: bool
    loop_turns: bool = True
    grpc_answers: bool = True
    blocked: str = ""


@dataclass(frozen=True, slots=True)
class NodePicture:
    """Everything that a view needs, taken at one moment.

    `inventory` is None until the driver answered for the first time. `taken` has an entry for each GPU of which
    something is held. `grants` in the order in which they were made.
    """

    node: str
    inventory: Inventory | None
    grants: tuple[Grant, ...] = ()
    taken: Mapping[GpuUuid, Taken] = field(default_factory=dict)
    samples: Mapping[GpuUuid, GpuSample] = field(default_factory=dict)
    names: ResourceNames = ResourceNames()

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.inventory.gpus if self.inventory else ()

    def taken_of(self, uuid: GpuUuid) -> Taken:
        return self.taken.get(uuid, Taken())


class NodeView(Protocol):
    """What the agent offers to the views; both calls answer at once from memory."""

    def picture(self) -> NodePicture:
        """The node as it is now."""
        ...

    def state(self) -> AgentState:
        """The agent as it is now."""
        ...
