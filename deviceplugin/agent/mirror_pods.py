"""Which pod of the API server is the mirror of which static pod.

Kubelet runs static pods under UIDs of its own. It shows each at the API server as a mirror pod, which has another UID
there and kubelet's in an annotation. Everybody who may create pods can write that annotation, with the UID of any pod.

In: pods of this node as the watch shows them, kubelet's lists, the owners in the ledger. Out: the same pods by the UID
that kubelet uses. Invariant: a pod counts as a mirror only if a node owns it, and if kubelet has listed a static pod
with this name and UID, or the ledger knows one. Other pods with the annotation are left out: kubelet runs none of them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from deviceplugin.model.allocation import PodRef, PodUid
from deviceplugin.model.pod import Pod


class MirrorPods:
    """`owners`: of the grants in the ledger. A static pod that kubelet does not list any more may still be stopping."""

    def __init__(self, owners: Callable[[], Iterable[PodRef]]) -> None:
        self._owners = owners
        self._listed: dict[PodUid, PodRef] = {}

    def kubelet_lists(self, pods: Iterable[Pod]) -> None:
        """What kubelet answers each time. Only a changed file makes another static pod, so nothing is forgotten."""
        self._listed |= {pod.ref.uid: pod.ref for pod in pods if pod.is_static}

    def resolved(self, watched: Iterable[Pod]) -> Iterator[Pod]:
        """These pods, each by kubelet's UID."""
        for pod in watched:
            if not pod.mirror_of:
                yield pod
            elif self._is_confirmed(pod):
                yield as_static(pod)

    def _is_confirmed(self, pod: Pod) -> bool:
        claim = replace(pod.ref, uid=pod.mirror_of)
        return pod.owner_kind == "Node" and (self._listed.get(claim.uid) == claim or claim in self._owners())


def as_static(mirror: Pod) -> Pod:
    """The static pod, with what the API server says about it."""
    ref = replace(mirror.ref, uid=mirror.mirror_of)
    containers = tuple(replace(each, ref=replace(each.ref, pod=ref)) for each in mirror.containers)
    return replace(mirror, ref=ref, containers=containers, is_static=True)
