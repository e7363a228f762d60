"""The waiting members of each gang that hold nothing, the largest first.

In: pods that wait and pods that do not, as the cache hears of them. Out: the few largest of a gang, at a cost that does
not depend on how many there are. Nothing of a pod is parsed: its size here is the most that it may take of one GPU,
from the numbers of its containers. Invariant: what is kept of a pod goes with it, and of a gang with its last member.
"""

from bisect import bisect_left, insort
from itertools import islice

from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ClusterPod, Gang
from deviceplugin.model.units import CORES_PER_GPU

Size = tuple[int, int]
"""Cores and blocks."""
_Place = tuple[Size, PodUid]


class WaitingGangs:
    """Pods without a gang are not kept."""

    def __init__(self) -> None:
        self._members: dict[Gang, list[_Place]] = {}
        self._places: dict[PodUid, tuple[Gang, _Place]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def put(self, pod: ClusterPod) -> None:
        """Takes the place of an earlier version."""
        self.drop(pod.uid)
        if pod.gang is None or pod.pod.deleting:
            return
        place = (_most_of_a_gpu(pod), pod.uid)
        self._places[pod.uid] = (pod.gang, place)
        insort(self._members.setdefault(pod.gang, []), place)

    def drop(self, uid: PodUid) -> None:
        """It waits no more, or holds something."""
        known = self._places.pop(uid, None)
        if known is None:
            return
        gang, place = known
        members = self._members[gang]
        del members[bisect_left(members, place)]
        if not members:
            del self._members[gang]

    def largest(self, gang: Gang, *, above: Size, most: int) -> list[PodUid]:
        """At most so many of those that may be larger than `above`, the largest first."""
        return [uid for size, uid in islice(reversed(self._members.get(gang, ())), most) if size > above]


def _most_of_a_gpu(pod: ClusterPod) -> Size:
    """Exact for a share of one GPU; what is spread over several takes less of each."""
    return max((min(each.cores, CORES_PER_GPU), each.blocks) for each in pod.pod.containers)
