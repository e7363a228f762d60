"""What the two flows (`allocate`, `start`) share: the node's state and the few things they may ask of the outside.

In: filled once by the agent. Out: read by the flows. The protocols are the seams towards `container` (files that
containers see) and towards events and metrics; kubelet knows neither.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from deviceplugin.errors import VcudaError
from deviceplugin.kubelet.answer import Answer, HostLayout
from deviceplugin.kubelet.claims import Claim
from deviceplugin.kubelet.devices import DeviceFeed
from deviceplugin.kubelet.identity import Identity
from deviceplugin.ledger.evidence import Checkpoint
from deviceplugin.ledger.grant import Grant
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import ContainerRef, PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import Pod, PodContainer
from deviceplugin.placement.place import Choice


class GrantFiles(Protocol):
    """What a container sees of its grant. Every call may be repeated; the first and the last raise ContainerError."""

    def prepare(self, grant: Grant, answer: Answer) -> None:
        """Before Allocate answers: everything that the answer names exists."""
        ...

    def answered(self, grant: Grant) -> None:
        """Kubelet has asked for both resources: what can wait until then is made now."""
        ...

    def fill(self, grant: Grant) -> bool:
        """At PreStartContainer: the limits of the proved owner; False when they were there already."""
        ...


class Report(Protocol):
    """Tells people what happened: one log line, one event, one count. Never blocks, never raises."""

    def granted(self, claim: Claim, grant: Grant, choice: Choice) -> None: ...

    def refused(self, claim: Claim | None, resource_name: str, count: int, error: VcudaError) -> None: ...

    def started(self, grant: Grant, *, written: bool) -> None: ...

    def start_failed(self, owner: ContainerRef | None, error: VcudaError) -> None: ...

    def repaired(self, before: ContainerRef, grant: Grant) -> None: ...


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of one node agent that decide.

    `watched_pods`: this node's as the API server's watch shows them, which may be late. `cordoned`: GPUs that the
    operator keeps new work from. `processes`: how many NVML sees
    on each GPU, for ties in placement. `make_room` gives back what ended meanwhile. `complete` makes good what the
    ledger may lack where its journal and kubelet's checkpoint were both lost, and waits a moment for the cordon of a
    fresh agent; nothing is granted before. `placed` hears
    of every grant that is made or moved, so that schedulers can be told of what they did not choose.
    """

    feed: DeviceFeed
    ledger: Ledger
    identity: Identity
    layout: HostLayout
    files: GrantFiles
    report: Report
    checkpoint: Callable[[], Checkpoint]
    find_pod: Callable[[PodUid], Awaitable[Pod | None]]
    watched_pods: Callable[[], Sequence[Pod]]
    hinted: Callable[[Pod, PodContainer], frozenset[GpuUuid]]
    cordoned: Callable[[], frozenset[GpuUuid]]
    soft_cores: Callable[[Pod], int]
    processes: Callable[[], Mapping[GpuUuid, int]]
    exists: Callable[[str], bool]
    clock: Callable[[], float]
    make_room: Callable[[], Awaitable[object]]
    complete: Callable[[], Awaitable[object]]
    placed: Callable[[Grant], None]
    share_mode: bool = False
