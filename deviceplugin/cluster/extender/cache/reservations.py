"""Deadlines of reservations.

In: pod, node and deadline on a monotonic clock. Out: the entries that are due. A prolonged reservation leaves its old
entry behind, so callers compare with the current hold.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ClusterPod


@dataclass(frozen=True, slots=True)
class ReservationTimeouts:
    """In seconds. `gang`: for a gang that waits at Permit: its longest wait and a margin.

    `cycle`: for pods that kube-scheduler places in one cycle: from the last request for any of them to the first
    Binding; only kube-scheduler's own work lies between. `unconfirmed`: longer than the API server works on one request
    (60 s).
    """

    reservation: float = 60.0
    gang: float = 600.0
    cycle: float = 5.0
    unconfirmed: float = 75.0

    def of(self, pod: ClusterPod) -> float:
        return self.gang if pod.gang is not None and pod.gang.waits else self.reservation


DEFAULT_TIMEOUTS = ReservationTimeouts()


class ExpiryQueue:
    """A heap by deadline; entries leave only when they are due."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, PodUid, str]] = []

    def add(self, uid: PodUid, node: str, expires: float) -> None:
        heapq.heappush(self._queue, (expires, uid, node))

    def due(self, now: float) -> Iterator[tuple[PodUid, str]]:
        while self._queue and self._queue[0][0] <= now:
            _, uid, node = heapq.heappop(self._queue)
            yield uid, node
