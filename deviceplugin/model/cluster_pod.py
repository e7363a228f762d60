"""A pod as the cluster's side needs it: what it asks for, and how far its scheduling has come.

In: `kube.cluster_pods` decodes it. Not here: what its containers do at the moment, which only their node's agent needs;
`pod` has none of that.
"""

from dataclasses import dataclass, field

from deviceplugin.model.allocation import PodUid
from deviceplugin.model.compute import Compute
from deviceplugin.model.gang import Gang
from deviceplugin.model.pod import Pod


@dataclass(frozen=True, slots=True)
class ScheduledCondition:
    """The pod's condition PodScheduled; `reason` such as Unschedulable or SchedulerError where it is not true.

    `text` is a hash of its message: another message is another refusal. `message` is its beginning, for people.
    """

    is_true: bool
    reason: str = ""
    text: int = 0
    message: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ClusterPod:
    """`nominated_node`: kube-scheduler keeps room for the pod there until its victims have gone.

    `needs` is None where nobody has told us.
    """

    pod: Pod
    scheduler: str = ""
    priority: int = 0
    nominated_node: str = ""
    gang: Gang | None = None
    condition: ScheduledCondition | None = None
    needs: Compute | None = None

    @property
    def uid(self) -> PodUid:
        """The API server's, which kube-scheduler uses too; that of a static pod is another one than kubelet's."""
        return PodUid(self.pod.api_uid)

    @property
    def is_refused(self) -> bool:
        """The scheduler has given up on it for now: whatever was reserved for it may go to others."""
        return self.condition is not None and not self.condition.is_true
