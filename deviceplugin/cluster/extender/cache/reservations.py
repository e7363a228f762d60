"""When what is not bound yet ends by itself.

In: which pod waits on which node, until when. Out: those whose time is over. Times are those of a monotonic clock. A
time that was put off leaves its old entry behind: whoever asks compares with what is held now.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ClusterPod


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. `gang`: for a gang that waits at Permit, its longest wait and a margin.

    `cycle`: for pods that kube-scheduler places in one cycle, from the last question about any of them to the first
    Binding; nothing lies between but kube-scheduler's own work.

    `doubt`: longer than the API server works on one request (60 s).
    """

    reservation: float = 60.0
    gang: float = 600.0
    cycle: float = 5.0
    doubt: float = 75.0

    def of(self, pod: ClusterPod) -> float:
        return self.gang if pod.gang is not None and pod.gang.waits else self.reservation


DEFAULT_PATIENCE = Patience()


class Reservations:
    """An order by time; nothing is ever taken out but from its front."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, PodUid, str]] = []

    def expect(self, uid: PodUid, node: str, expires: float) -> None:
        heapq.heappush(self._queue, (expires, uid, node))

    def due(self, now: float) -> Iterator[tuple[PodUid, str]]:
        while self._queue and self._queue[0][0] <= now:
            _, uid, node = heapq.heappop(self._queue)
            yield uid, node
