"""The pods that this kubelet knows, and how far each has come.

In: updates from the sources, verdicts of admission, workers. Out: the active pods, whose devices stay taken; the known
ones, which the two listings show. Invariant: a pod enters the table before its admission starts, so that both listings
show it while the plugin answers Allocate.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sandbox.kubelet.admission import RefusalError
from sandbox.kubelet.options import Json
from sandbox.kubelet.podspec import Pod
from sandbox.kubelet.source import PodConfigSource
from sandbox.kubelet.worker import PodWorker


@dataclass(eq=False, slots=True)
class KnownPod:
    """One pod. Neither `worker` nor `refusal`: it is being admitted or had ended before."""

    pod: Pod
    source: PodConfigSource
    seen: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z"))
    worker: PodWorker | None = None
    refusal: RefusalError | None = None
    task: "asyncio.Task[None] | None" = None
    terminating: bool = False

    @property
    def active(self) -> bool:
        """Whether what it holds must stay taken."""
        if self.worker is not None:
            return not self.worker.terminated
        return self.refusal is None and not self.pod.terminal

    def listed(self) -> Json:
        """The object in GET /pods."""
        metadata = self.pod.raw["metadata"]
        annotations = {
            **metadata.get("annotations", {}),
            "kubernetes.io/config.seen": self.seen,
            "kubernetes.io/config.source": self.source.name,
        }
        return {**self.pod.raw, "metadata": {**metadata, "annotations": annotations}}


class PodTable(dict[str, KnownPod]):
    """Known pods by UID, in the order in which kubelet heard of them."""

    def pods(self) -> list[Pod]:
        return [known.pod for known in self.values()]

    def active(self) -> list[Pod]:
        return [known.pod for known in self.values() if known.active]

    def active_uids(self) -> frozenset[str]:
        return frozenset(pod.uid for pod in self.active())
