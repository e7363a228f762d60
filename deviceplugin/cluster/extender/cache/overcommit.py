"""Finds GPUs of which bound pods hold more than the GPU has.

In: nodes that changed or got a pod, and the cache. Out: these GPUs, counted, and logged when the state begins and ends.
This scheduler never binds so. Another scheduler may, and so may a Binding of an earlier process that arrived after this
one had listed the pods. The node's agent gives the last pod other GPUs, or refuses it. A few nodes are checked at a
time, so a start with thousands of pods does not wait.
"""

import structlog

from deviceplugin.cluster.extender.cache.pod_hold import PodHold
from deviceplugin.cluster.extender.cache.scheduler_cache import SchedulerCache
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.placement.fit import model_of
from deviceplugin.placement.occupancy import occupied

log = structlog.get_logger("vcuda.cluster")
_AT_ONCE = 200


class OvercommitMonitor:
    """`check` looks at the nodes that the cache suspects, and at those that were over-committed."""

    def __init__(self, cache: SchedulerCache) -> None:
        self._cache = cache
        self._found: dict[str, frozenset[GpuUuid]] = {}

    @property
    def gpus(self) -> int:
        return sum(len(each) for each in self._found.values())

    def check(self) -> None:
        for node in tuple(self._cache.suspects)[:_AT_ONCE]:
            del self._cache.suspects[node]
            self._check_node(node)
        for node in tuple(self._found):
            self._check_node(node)

    def _check_node(self, node: str) -> None:
        before, now = self._found.pop(node, frozenset()), self._overcommitted(node)
        if now:
            self._found[node] = now
        for uuid in sorted(now - before):
            pods = sorted(str(held.pod) for held in self._holders(node, uuid))
            log.warning("gpu_overcommitted", node=node, gpu=uuid, pods=pods)
        for uuid in sorted(before - now):
            log.info("gpu_overcommit_ended", node=node, gpu=uuid)

    def _overcommitted(self, node: str) -> frozenset[GpuUuid]:
        node_info = self._cache.nodes.get(node)
        if node_info is None or node_info.inventory is None or not node_info.may_be_overcommitted:
            return frozenset()
        has = {gpu.uuid: model_of(gpu).whole for gpu in node_info.inventory.gpus}
        held = occupied(one for each in node_info.holds.values() if each.is_bound for one in each.allocations)
        return frozenset(uuid for uuid, use in held.items() if uuid in has and not has[uuid].covers(use))

    def _holders(self, node: str, uuid: GpuUuid) -> list[PodHold]:
        holds = self._cache.nodes[node].holds.values()
        return [held for held in holds if held.is_bound and any(uuid in one.uuids for one in held.allocations)]
