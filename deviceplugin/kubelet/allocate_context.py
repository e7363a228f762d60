"""What `allocator` and `pre_start` share: the state of the node and the few things that they ask of the agent.

In: filled once by `agent.wiring`. Out: read by both flows. The protocols are the interfaces to the agent: what the
cluster shows, what annotations say, what the reconciler does, the files that containers see, and events and metrics.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from deviceplugin.errors import VcudaError
from deviceplugin.kubelet.allocate_answer import Answer, HostLayout
from deviceplugin.kubelet.answers import AnswerReader
from deviceplugin.kubelet.checkpoint import CheckpointReader
from deviceplugin.kubelet.devices import DeviceFeed
from deviceplugin.kubelet.identity import IdentifiedContainer, Identity
from deviceplugin.ledger.grant import Grant
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import ContainerRef, PodUid
from deviceplugin.model.gpu import Gpu, GpuUuid
from deviceplugin.model.pod import Pod, PodContainer, PodLimits
from deviceplugin.placement.pod import Choice


class Pods(Protocol):
    """The pods of this node (`agent.cluster.NodePods`).

    `watched` shows the API server's watch, which may be late. `find` asks kubelet too; None if neither shows the pod in
    time. `with_promised_gpus` waits a moment for annotations that are written after the Binding.
    """

    def watched(self) -> Sequence[Pod]: ...

    async def find(self, uid: PodUid) -> Pod | None: ...

    async def with_promised_gpus(self, pod: Pod) -> Pod: ...


class Hints(Protocol):
    """What a pod's annotations ask of the node (`agent.cluster.PodHints`).

    The GPUs that a scheduler chose for a container, and its limits.
    """

    def scheduled_gpus(self, pod: Pod, container: PodContainer) -> frozenset[GpuUuid]: ...

    def limits(self, pod: Pod, container: str) -> PodLimits: ...


class Gpus(Protocol):
    """What changes about the GPUs while the inventory stays (`agent.agent_view.AgentView`).

    The GPUs that the operator keeps new pods from, how many processes NVML sees on each (placement decides ties by it),
    and a GPU with the number under which /dev has it now. `settled` waits until that is known, or raises HardwareError.
    """

    def located(self, gpu: Gpu) -> Gpu: ...

    async def settled(self) -> None: ...

    def cordoned(self) -> frozenset[GpuUuid]: ...

    def processes(self) -> Mapping[GpuUuid, int]: ...


class Reclaim(Protocol):
    """The part of the reconciler that the flows call (`agent.reconciler.Reconciler`).

    `ensure_complete` completes the ledger after journal and checkpoint were lost, and waits a moment for a fresh
    agent's cordon; nothing is granted before. `placed`: a grant was made or moved, so annotations follow soon.
    `unstartable`: only a new pod can start this container, for the reason given.
    """

    async def reclaim(self) -> object: ...

    async def ensure_complete(self) -> None: ...

    def placed(self, grant: Grant) -> None: ...

    def unstartable(self, container: ContainerRef, why: str) -> None: ...


class Files(Protocol):
    """What a container sees of its grant (`agent.grant_files.AgentFiles`).

    Calls may be repeated and raise ContainerError. `prepare` comes before Allocate answers, `answered` when kubelet has
    asked for both resources, `fill` at PreStartContainer for the proved owner; it is False if the limits were there
    already.
    """

    def prepare(self, grant: Grant, answer: Answer) -> None: ...

    def answered(self, grant: Grant) -> None: ...

    def fill(self, grant: Grant) -> bool: ...


class Report(Protocol):
    """One log line, one event and one count for each decision (`agent.reporter.AgentReport`).

    Never blocks or raises. `seconds`: since kubelet asked. `started` counts once for each start of a container.
    """

    def granted(self, asking: IdentifiedContainer, grant: Grant, choice: Choice, *, seconds: float) -> None: ...

    def refused(
        self,
        asking: IdentifiedContainer | None,
        resource_name: str,
        count: int,
        error: VcudaError,
        *,
        seconds: float,
    ) -> None: ...

    def started(self) -> None: ...

    def limits_written(self, grant: Grant) -> None: ...

    def start_failed(self, owner: ContainerRef | None, error: VcudaError) -> None: ...

    def repaired(self, before: ContainerRef, grant: Grant) -> None: ...


class AllocateContext(msgspec.Struct, frozen=True):
    """One node. Without `share_mode` it gives whole GPUs only."""

    feed: DeviceFeed
    ledger: Ledger
    identity: Identity
    layout: HostLayout
    checkpoint: CheckpointReader
    answers: AnswerReader
    pods: Pods
    hints: Hints
    gpus: Gpus
    reclaim: Reclaim
    files: Files
    report: Report
    share_mode: bool = False
