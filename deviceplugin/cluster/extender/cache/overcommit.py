"""GPUs of which bound pods hold more than there is.

In: nodes that changed or got a pod, the books. Out: which GPUs, said in the log when it begins and when it is over, and
counted. We never bind so; another scheduler may, and a Binding of a former process that was carried out when this one
had listed the pods already. The node's agent gives the pod that comes last other GPUs, or refuses it. Looked at now and
then, a few nodes at a time, so that a start with thousands of pods does not wait for it.
"""

import structlog

from deviceplugin.cluster.extender.cache.pod_hold import Holding
from deviceplugin.cluster.extender.cache.scheduler_cache import Books
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.placement.fit import model_of
from deviceplugin.placement.occupancy import occupied

log = structlog.get_logger("vcuda.cluster")
_AT_ONCE = 200


class Overbooked:
    """`suspect` may be called as often as anything is bound; `look` does the work."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._suspects: dict[str, None] = {}
        self._found: dict[str, frozenset[GpuUuid]] = {}

    @property
    def gpus(self) -> int:
        return sum(len(each) for each in self._found.values())

    def suspect(self, node: str) -> None:
        self._suspects[node] = None

    def look(self) -> None:
        for node in tuple(self._suspects)[:_AT_ONCE]:
            del self._suspects[node]
            self._judge(node)
        for node in tuple(self._found):
            self._judge(node)

    def _judge(self, node: str) -> None:
        before, now = self._found.pop(node, frozenset()), self._on(node)
        if now:
            self._found[node] = now
        for uuid in sorted(now - before):
            pods = sorted(str(held.pod) for held in self._holders(node, uuid))
            log.warning("more was bound to a GPU than it has", node=node, gpu=uuid, pods=pods)
        for uuid in sorted(before - now):
            log.info("a GPU is no longer overbooked", node=node, gpu=uuid)

    def _on(self, node: str) -> frozenset[GpuUuid]:
        book = self._books.nodes.get(node)
        if book is None or book.inventory is None or not book.is_suspect:
            return frozenset()
        has = {gpu.uuid: model_of(gpu).whole for gpu in book.inventory.gpus}
        held = occupied(one for each in book.holdings.values() if each.is_bound for one in each.allocations)
        return frozenset(uuid for uuid, use in held.items() if uuid in has and not has[uuid].covers(use))

    def _holders(self, node: str, uuid: GpuUuid) -> list[Holding]:
        holdings = self._books.nodes[node].holdings.values()
        return [held for held in holdings if held.is_bound and any(uuid in one.uuids for one in held.allocations)]
