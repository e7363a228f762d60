"""The data of the views: one consistent picture of the node at one moment.

In: nothing; the agent fills these values from its own state whenever a view asks. Out: what `metrics`,
`graph`, `usage`, `http` and `gpu_manager` render. Not here: what is rendered.
`NodeView` is all that the views know of the agent.

`Rendering` makes what the views show: in one thread, one at a time, and once for all who ask at about the same time.

In: a `NodeView`, and functions that make something of its picture. Out: what they made, at most once in `period_s` and
when grants, GPUs or counters have changed; None if the function failed, which is in the log. The loop that answers
kubelet only takes the picture, so clients of the views, however many, cannot hold it.
"""

import asyncio
import hashlib
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import structlog

from deviceplugin.latest import Latest
from deviceplugin.ledger.grant import Grant, GrantId
from deviceplugin.model.allocation import ContainerRef, PodRef, PodUid
from deviceplugin.model.gpu import ContainerUse, Gpu, GpuSample, GpuUuid, Inventory
from deviceplugin.model.pod import Pod
from deviceplugin.placement.fit import NOTHING, GpuAmount
from deviceplugin.placement.snapshot import occupied
from deviceplugin.structs import replace

log = structlog.get_logger("vcuda.observe")
T = TypeVar("T")
_SALT = secrets.token_bytes(16)
_HIDDEN = "hidden"


class NodePicture(msgspec.Struct, frozen=True, dict=True):
    """Everything that a view needs, taken at one moment.

    `inventory` is None until the driver answered for the first time. `grants` stand in the order they were made; `uses`
    has an entry for each grant whose container is measured. `cordoned` GPUs take no new work. `xids` counts by GPU and
    number, `critical_errors` by GPU what makes it unhealthy. `nvml_open` is False while the agent keeps NVML
    closed on request.
    `repairs_pending`: GPUs that repair their memory at the next reset. `pods`: those of the node that are known.
    """

    node: str
    inventory: Inventory | None
    grants: tuple[Grant, ...] = ()
    samples: Mapping[GpuUuid, GpuSample] = msgspec.field(default_factory=dict)
    uses: Mapping[GrantId, ContainerUse] = msgspec.field(default_factory=dict)
    cordoned: frozenset[GpuUuid] = frozenset()
    xids: Mapping[tuple[GpuUuid, str], int] = msgspec.field(default_factory=dict)
    critical_errors: Mapping[GpuUuid, int] = msgspec.field(default_factory=dict)
    nvml_open: bool = True
    repairs_pending: frozenset[GpuUuid] = frozenset()
    pods: Mapping[PodUid, Pod] = msgspec.field(default_factory=dict)

    @cached_property
    def taken(self) -> Mapping[GpuUuid, GpuAmount]:
        """What is held of each GPU, by the arithmetic that placement goes by."""
        return occupied(grant.allocation for grant in self.grants)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.inventory.gpus if self.inventory else ()

    def is_available(self, gpu: Gpu) -> bool:
        """Whether a new container could be placed on the GPU: healthy, open to sharing, and not cordoned."""
        return self.inventory is not None and self.inventory.is_available(gpu) and gpu.uuid not in self.cordoned

    def taken_of(self, uuid: GpuUuid) -> GpuAmount:
        return self.taken.get(uuid, NOTHING)

    def grants_on(self, uuid: GpuUuid) -> tuple[Grant, ...]:
        return tuple(grant for grant in self.grants if uuid in grant.allocation.uuids)

    @property
    def orphans(self) -> tuple[Grant, ...]:
        """Grants on a GPU that is not in the inventory: it was taken out while the agent was away."""
        known = {gpu.uuid for gpu in self.gpus}
        return tuple(grant for grant in self.grants if not grant.allocation.uuids <= known)

    def without_names(self) -> "NodePicture":
        """The same node for readers who may not know its pods; names differ from agent to agent."""
        uses = {
            grant_id: replace(use, overruns=tuple(replace(each, sentence=each.breach.value) for each in use.overruns))
            for grant_id, use in self.uses.items()
        }
        return replace(self, grants=tuple(map(_unnamed, self.grants)), uses=uses, pods={})


class AgentState(msgspec.Struct, frozen=True):
    """The state of the agent itself.

    `waiting` names what it waits for before it can register (the driver), empty otherwise. `sockets` are those of its
    device plugin servers that should answer now. `unreadable` counts pods of the node.
    """

    registered: bool
    synced: bool
    waiting: str = ""
    sockets: tuple[Path, ...] = ()
    unreadable: int = 0

    @property
    def not_ready(self) -> tuple[str, ...]:
        """What keeps pods from being served, as phrases; empty when ready."""
        return tuple(
            phrase
            for phrase in (
                self.waiting,
                "" if self.registered else "not registered with kubelet",
                "" if self.synced else "the pods of this node were not listed yet",
            )
            if phrase
        )


class NodeView(Protocol):
    """What the agent offers to the views; both calls answer at once from memory."""

    def picture(self) -> NodePicture:
        """The node as it is now."""
        ...

    def state(self) -> AgentState:
        """The agent as it is now."""
        ...


def _unnamed(grant: Grant) -> Grant:
    """Containers of one pod stay together, because init containers and app containers hold the same slots."""
    pod = hashlib.blake2b(grant.allocation.owner.pod.uid.encode(), key=_SALT, digest_size=6).hexdigest()
    owner = ContainerRef(PodRef(PodUid(pod), _HIDDEN, pod), grant.id)
    return replace(grant, allocation=replace(grant.allocation, owner=owner))


class Rendering:
    """`name` says what is rendered: requests for one name get one result."""

    def __init__(self, view: NodeView, *, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.view = view
        self._latest: defaultdict[str, Latest[Any]] = defaultdict(lambda: Latest(period_s, clock))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="views")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def get(self, name: str, render: Callable[[NodePicture, AgentState], T], *, changes: int = 0) -> T | None:
        picture, state = self.view.picture(), self.view.state()

        async def make() -> T | None:
            try:
                return await asyncio.get_running_loop().run_in_executor(self._thread, render, picture, state)
            except Exception:
                log.exception("view_failed", view=name)
                return None

        basis = (changes, state, picture.inventory, picture.grants, picture.cordoned)
        found: T | None = await self._latest[name].get(make, basis)
        return found
