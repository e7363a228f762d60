"""Releases the reservations of gangs that kube-scheduler has abandoned without a message.

In: every filter request for a member, whether it found a node, and which pods kube-scheduler will ask about no more.
Out: the gang's reservations released.
kube-scheduler writes PodScheduled=False only if the condition changes, so a gang's second failure is invisible; and
a gang that is too large may have reserved every GPU. Invariants:

- a group that kube-scheduler places in one cycle is bound right after it. Its reservations expire a moment after the
  last request for any member, unless kube-scheduler has nominated the node, as it does before it prepares volumes. A
  second request for a member shows that the group was not bound: from then on it yields its reservations to a pod that
  fits nowhere else, because 1.36 retries such a group many times a second;
- a gang that waits at Permit yields once a member was refused: at once to pods that were refused in the same round, for
  nothing else would have kube-scheduler ask about them again, and later to the next pod that asks. It then gets nothing
  until kube-scheduler retries it, which shows when a member that yielded is requested again: otherwise a late member
  would start the gang without the members that yielded. A refusal for that reason prolongs nothing. What a gang that is
  retried had in earlier rounds goes to the next pod that asks: all of it was sent back;
- a group is known by its name, and names are used again: all that is known of it is known of members that may still be
  requested, and ends with them;
- a gang's own expired reservations must not re-queue that gang, or kube-scheduler would retry it forever.
"""

import math
from collections.abc import Callable, Iterable

import msgspec

from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.cluster.extender.explain.verdicts import Verdicts
from deviceplugin.config.scheduler import PlacementSettings
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import ClusterPod, Gang

_CYCLE_S = 5.0  # from the last request for a member to the first Binding; only kube-scheduler's own work lies between


class _GangAttempt(msgspec.Struct):
    """`began`: how many verdicts there were before it, `round_began`: before this round. `ends`: when it expires, if no
    member is requested before.

    `placed` and `refused` are the members of this round of requests; `members` those of all rounds. `yielded` are those
    that gave their reservations away and were not requested since.
    """

    began: int
    round_began: int
    members: set[PodUid] = msgspec.field(default_factory=set)
    placed: set[PodUid] = msgspec.field(default_factory=set)
    refused: set[PodUid] = msgspec.field(default_factory=set)
    yielded: set[PodUid] = msgspec.field(default_factory=set)
    ends: float = 0.0
    is_retry: bool = False

    def restart(self, verdicts: int) -> None:
        for each in (self.placed, self.refused, self.yielded):
            each.clear()
        self.round_began, self.is_retry = verdicts, True

    def forget(self, uid: PodUid) -> None:
        for each in (self.members, self.placed, self.refused, self.yielded):
            each.discard(uid)


class GangTracker:
    """One attempt for each gang, dropped when it expires or when none of its members is left."""

    def __init__(
        self, cache: SchedulerCache, verdicts: Verdicts, *, settings: PlacementSettings, clock: Callable[[], float]
    ) -> None:
        self._cache = cache
        self._verdicts = verdicts
        self._settings = settings
        self._clock = clock
        self._attempts: dict[Gang, _GangAttempt] = {}
        self._gangs: dict[PodUid, Gang] = {}
        self._next = math.inf

    def may_place(self, pod: ClusterPod) -> bool:
        """Called before a member is placed."""
        self._follow(pod)
        found = self._attempts.get(pod.gang) if pod.gang else None
        if found is not None and (pod.uid in found.placed or pod.uid in found.yielded):
            found.restart(self._verdicts.count)
        return found is None or not found.yielded

    def record(self, pod: ClusterPod, *, fits: bool) -> None:
        """Called before the verdict is recorded."""
        self._follow(pod)
        if pod.gang is None:
            return
        self._gangs[pod.uid] = pod.gang
        found = self._attempts.setdefault(pod.gang, _GangAttempt(self._verdicts.count, self._verdicts.count))
        found.members.add(pod.uid)
        (found.placed if fits else found.refused).add(pod.uid)
        if fits:
            found.refused.discard(pod.uid)
        if not found.yielded:
            found.ends = self._clock() + (self._settings.gang_reservation_time if pod.gang.waits else _CYCLE_S)
            self._next = min(self._next, found.ends)
            if not fits and pod.gang.waits and self._verdicts.refused_since(found.round_began, but=found.members):
                self._yield(pod.gang, found, notify=True)

    def left(self, uid: PodUid) -> None:
        """kube-scheduler will not ask about this pod again: it is bound, has ended, is being deleted or is gone."""
        gang = self._gangs.pop(uid, None)
        found = self._attempts.get(gang) if gang else None
        if gang is None or found is None:
            return
        found.forget(uid)
        if not found.members:
            del self._attempts[gang]

    def yield_reservations(self, pod: ClusterPod) -> bool:
        """Releases reservations of abandoned gangs; true if there is more room for this pod than before."""
        given = False
        for gang, found in self._attempts.items():
            if gang != pod.gang:
                given = bool(self._yield(gang, found, notify=False)) or given
        return given

    def _yield(self, gang: Gang, found: _GangAttempt, *, notify: bool) -> set[PodUid]:
        """Who gave reservations away. Who waits at Permit is not requested again: in a retry all were sent back."""
        if gang.waits and found.refused:
            released = self._release(found.members, notify=notify)
            found.yielded |= released
            return released
        stale = found.members - found.placed if gang.waits else found.members
        return self._release(stale, notify=notify) if found.is_retry else set()

    def expire(self) -> None:
        now = self._clock()
        if now < self._next:
            return
        for gang, found in tuple(self._attempts.items()):
            if found.ends <= now:
                del self._attempts[gang]
                for uid in found.members:
                    del self._gangs[uid]
                notify = self._verdicts.refused_since(found.began, but=found.members)
                self._release(found.members, notify=notify)
        self._next = min((each.ends for each in self._attempts.values()), default=math.inf)

    def _follow(self, pod: ClusterPod) -> None:
        """A pod is of one gang, though its labels change."""
        if self._gangs.get(pod.uid, pod.gang) != pod.gang:
            self.left(pod.uid)

    def _release(self, members: Iterable[PodUid], *, notify: bool) -> set[PodUid]:
        """Those that had any."""
        held = [each for uid in members for each in self._cache.holds(uid)]
        released = [each for each in held if each.state is HoldState.RESERVED and not self._is_nominated(each)]
        for each in released:
            self._cache.release(each.pod.uid, each.node, notify=notify)
        return {each.pod.uid for each in released}

    def _is_nominated(self, held: PodHold) -> bool:
        pod = self._cache.waiting.get(held.pod.uid)
        return pod is not None and pod.nominated_node == held.node
