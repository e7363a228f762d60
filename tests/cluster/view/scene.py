"""A cluster's cache with a view of it, as one replica has them."""

from dataclasses import dataclass

from deviceplugin.cluster.extender.cache.claim_holds import ClaimHolds
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.cluster.view.views import ClusterViews, Installation, Replica
from deviceplugin.model.pod import ClusterPod
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import allocated, bound, on_gpu, pod


@dataclass
class Scene:
    extender: Extender
    views: ClusterViews
    claims: ClaimHolds

    def runs(self, node: str, at: int, cores: int, blocks: int, *, name: str = "") -> ClusterPod:
        """A pod with a part of that GPU."""
        one = pod(name or f"on-{node}-{at}", cores=cores, blocks=blocks)
        self.extender.put_pod(bound(one, node, allocated(one, {"main": on_gpu(node, at, cores, blocks)})))
        return one


def _replica() -> Replica:
    return Replica("here", "there", Installation("1.2.3"))


def scene() -> Scene:
    extender = Extender(MemoryApi())
    views = ClusterViews(extender.cache, extender.verdicts, extender.recent_events, _replica, wall=lambda: 5.0)
    return Scene(extender, views, extender.cache.claims)
