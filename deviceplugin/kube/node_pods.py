"""The pods of one node, as its agent follows them.

In: a client and a node's name. Out: `PodReflector`, the reflector of `reflector` over `pods_of_node`. A pod is known by
the UID that kubelet uses; the mirror of a static pod may be replaced by another object of the same UID.
"""

import random
import time
from collections.abc import Callable, Mapping

from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.collection import Collection, reader
from deviceplugin.kube.pods import pod_from
from deviceplugin.kube.reflector import DEFAULT_PACE, Change, Pace, Reflector
from deviceplugin.kube.structs import PodObject
from deviceplugin.model.allocation import PodUid
from deviceplugin.model.pod import Pod
from deviceplugin.model.units import ResourceNames

PodChange = Change[Pod]


def pods_of_node(node: str, names: ResourceNames = ResourceNames()) -> Collection[PodUid, Pod]:
    """Every pod bound to the node, with GPU or without."""
    what = f"pods of {node}"
    return Collection(
        what=what,
        path="/api/v1/pods",
        query={"fieldSelector": f"spec.nodeName={node}"},
        read=reader(PodObject, lambda item: pod_from(item, names), what=what),
        key=lambda pod: pod.ref.uid,
        identity=lambda pod: pod.api_uid,
    )


class PodReflector(Reflector[PodUid, Pod]):
    """The pods of this node, kept equal to the API server's."""

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        pace: Pace = DEFAULT_PACE,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(client, pods_of_node(node, client.names), pace=pace, clock=clock, jitter=jitter)

    @property
    def pods(self) -> Mapping[PodUid, Pod]:
        """A live view of the store."""
        return self.items
