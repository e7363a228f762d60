"""What a bound pod may carry, and what the extender and the agent make of it: one table for both.

The pod has two containers, `main` (20 cores, 4 blocks) and `side` (30 cores, 8 blocks), and is bound to node-1, which
has four GPUs of 64 blocks, all of them free. Who chooses for himself takes GPU 0 for both; the annotations say 2 and 3.
"""

from dataclasses import dataclass

from deviceplugin.model.allocation import GpuShare, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import PodAllocation, format_allocation
from deviceplugin.model.gpu import GpuUuid

NAMES = AnnotationNames()
NODE = "node-1"
SIZES = {"main": (20, 4), "side": (30, 8)}
CHOSEN = {"main": 2, "side": 3}
OWN = {"main": 0, "side": 0}


@dataclass(frozen=True, slots=True)
class Case:
    """`exact`: containers of which the extender knows the GPUs. `placed`: on which GPU the agent puts each."""

    name: str
    annotations: dict[str, str]
    exact: frozenset[str]
    placed: dict[str, int]


def cases(uid: str) -> list[Case]:
    """For a pod of that UID."""
    good, foreign = _said(uid), _said("of-the-pod-it-was-copied-from")
    here, there = {NAMES.predicate_node: NODE}, {NAMES.predicate_node: "node-2"}
    minors = {NAMES.gpu_indices(0): "2", NAMES.gpu_indices(1): "3"}
    assigned, open_ = {NAMES.gpu_assigned: "true"}, {NAMES.gpu_assigned: "false"}
    both, none = frozenset(SIZES), frozenset[str]()
    return [
        Case("bound by our extender", good | here | minors | open_ | {NAMES.predicate_time: "5"}, both, CHOSEN),
        Case("without a node", good, both, CHOSEN),
        Case("written by the agent before", good | here | minors | assigned, both, CHOSEN),
        Case("bound by somebody else", {}, none, OWN),
        Case("for another pod", foreign | here | minors | assigned, none, OWN),
        Case("for another pod, without a node", foreign | minors, none, OWN),
        Case("for another node", good | there | minors | assigned, none, OWN),
        Case("for another pod and node", foreign | there | minors | assigned, none, OWN),
        Case("unreadable", {NAMES.allocation: "{broken"} | here | minors, none, OWN),
        Case("unreadable and for another node", {NAMES.allocation: "{broken"} | there, none, OWN),
        Case("bound by a scheduler of gpu-manager", minors | here | open_ | {NAMES.predicate_time: "5"}, none, CHOSEN),
        Case("minors alone", minors, none, CHOSEN),
        Case("minors against the pod's own filter", minors | here | {NAMES.avoid_gpus: "GPU-2,GPU-3"}, none, OWN),
        Case("minors for another node", minors | there | open_, none, OWN),
        Case("minors of a pod that was assigned", minors | here | assigned, none, OWN),
        Case("minors that cannot be read", {NAMES.gpu_indices(0): "a,b"} | here, none, OWN),
        Case("assigned to what nobody can read", minors | {NAMES.gpu_assigned: "perhaps"}, none, OWN),
        Case("one container of two", _said(uid, "side") | here, frozenset({"side"}), {"main": 3, "side": 3}),
        Case("a container that is none", good | _said(uid, "main", "side", "gone"), both, CHOSEN),
        Case("indices of containers that are none", good | here | {NAMES.gpu_indices(7): "1"}, both, CHOSEN),
        Case("a GPU that is none", _said(uid, gpu="GPU-gone"), both, OWN),
    ]


def _said(uid: str, *containers: str, gpu: str = "") -> dict[str, str]:
    shares = {
        name: (GpuShare(GpuUuid(gpu or f"GPU-{CHOSEN.get(name, 1)}"), *SIZES.get(name, (1, 1))),)
        for name in containers or SIZES
    }
    return {NAMES.allocation: format_allocation(PodAllocation(PodUid(uid), shares))}


IDS = [case.name for case in cases("")]
