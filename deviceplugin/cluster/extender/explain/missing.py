"""What a node lacks for a pod, GPU by GPU.

In: what the pod asks and the node as the pod sees it. Out: what speaks against each GPU, how much is missing where
least is, and a sentence that says what would have to change. Of several containers the first that finds no room alone
is looked at, for its GPUs are the shortest.
"""

from dataclasses import dataclass

from deviceplugin.cluster.extender.refusal import FOREIGN_INVENTORY, GAVE_WAY, NOMINATED, PREFERRED, ROOM, Refusal
from deviceplugin.errors import CapacityError, GivenUpError, RequestError
from deviceplugin.model.gpu import Gpu
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import GpuPolicy
from deviceplugin.model.units import format_blocks
from deviceplugin.placement.candidates import Rules, Survey, survey
from deviceplugin.placement.describe import obstacle_text
from deviceplugin.placement.fit import GpuAmount, demand_of
from deviceplugin.placement.node_state import NodeState
from deviceplugin.placement.pod import place_pod
from deviceplugin.placement.snapshot import GpuView

FAR = 1 << 30


@dataclass(frozen=True, slots=True)
class Missing:
    """`gpus` in minor order with what speaks against each; `change` what would help, empty where nothing would."""

    gpus: tuple[tuple[Gpu, str], ...] = ()
    order: int = FAR
    change: str = ""


@dataclass(frozen=True, slots=True)
class _Shortest:
    """`lacking`: the GPUs on which least would have to become free; None where no end of a pod would do."""

    container: ContainerRequest
    survey: Survey
    is_short: bool
    lacking: tuple[GpuView, ...] | None

    @property
    def order(self) -> int:
        if self.lacking is None:
            return FAR
        return sum(_parts(self.container, view) for view in self.lacking)


def nearness(asked: PodRequest, state: NodeState) -> int:
    """How little is missing, in thousandths of a GPU; cheap, so that several containers are not tried together."""
    return _shortest(asked, state).order


def missing_on(asked: PodRequest, state: NodeState, policy: GpuPolicy) -> Missing:
    found = _shortest(asked, state)
    gpus = _gpus(found.survey)
    if found.is_short:
        return Missing(gpus, found.order, "; ".join(_more(found.container, view) for view in found.lacking or ()))
    try:
        place_pod(asked, state, policy=policy)
    except GivenUpError:
        return Missing(gpus, FAR - 1, "fewer containers in one pod, as not every combination was tried")
    except (CapacityError, RequestError):
        return Missing(gpus, FAR - 1, "room for all containers of the pod together")
    return Missing(gpus, 0, "nothing: the pod fits by now and will be tried again")


def what_to_change(why: Refusal, missing: Missing) -> str:
    if why == ROOM:
        return "nothing on its GPUs"
    if why == PREFERRED:
        return "nothing: the pod fits, and another node was preferred"
    if why == NOMINATED:
        return "the pod for which kube-scheduler makes room there must be bound first"
    if why == GAVE_WAY:
        return "its scheduler must try the gang anew, as it does when the others have waited long enough"
    if why == FOREIGN_INVENTORY:
        return "the node's agent and the scheduler must be of versions that understand each other"
    if missing.change:
        return missing.change
    if missing.gpus:
        return "the pod must ask for less or for other GPUs, or the node must get others"
    return "the node's agent must run and report GPUs"


def _shortest(asked: PodRequest, state: NodeState) -> _Shortest:
    rules = Rules(asked.preferences.gpus, state.cordoned)
    surveys = [(each, survey(each.request, state.snapshot, rules)) for each in asked.containers]
    short = [(each, found) for each, found in surveys if len(found.candidates.views) < each.request.gpus]
    container, found = (short or surveys)[0]
    return _Shortest(container, found, bool(short), _nearest(container, found) if short else ())


def _gpus(found: Survey) -> tuple[tuple[Gpu, str], ...]:
    free = [(view.gpu, "") for view in found.candidates.views]
    closed = [(view.gpu, obstacle_text(obstacle, view)) for view, obstacle in found.obstacles]
    return tuple(sorted((*free, *closed), key=lambda one: (one[0].minor, one[0].uuid)))


def _nearest(container: ContainerRequest, found: Survey) -> tuple[GpuView, ...] | None:
    passing = [view for view, obstacle in found.obstacles if obstacle.resolvable]
    needed = container.request.gpus - len(found.candidates.views)
    if len(passing) < needed:
        return None
    return tuple(sorted(passing, key=lambda view: (_lacks(container, view), view.gpu.minor))[:needed])


def _lacks(container: ContainerRequest, view: GpuView) -> GpuAmount:
    """Cores and blocks that would have to become free on this GPU."""
    return demand_of(container.request).takes(view.gpu.blocks) - GpuAmount(view.free_cores, view.free_blocks)


def _parts(container: ContainerRequest, view: GpuView) -> int:
    """Thousandths of a GPU."""
    cores, blocks = _lacks(container, view)
    return max(cores * 10, blocks * 1000 // max(1, view.gpu.blocks))


def _more(container: ContainerRequest, view: GpuView) -> str:
    cores, blocks = _lacks(container, view)
    lacking = [f"{cores} more cores"] if cores else []
    lacking += [f"{format_blocks(blocks)} more"] if blocks else []
    return f"{' and '.join(lacking)} must become free on GPU {view.gpu.minor}"
