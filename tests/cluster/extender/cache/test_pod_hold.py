"""A bound pod holds what its Binding carried, and nothing that was written for another pod."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.extender.bind import binding_annotations
from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold, bound_hold
from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.errors import VcudaError
from deviceplugin.model.allocation import ContainerRole, GpuShare, PodUid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import pod_request
from deviceplugin.model.units import ResourceNames
from deviceplugin.placement.node_state import node_state
from deviceplugin.placement.pod import place_pod
from deviceplugin.structs import replace
from tests.cluster.extender.api import MemoryApi
from tests.cluster.extender.makers import NAMES, allocated, ask, bound, inventory, node, on_gpu, pod

RESOURCES = ResourceNames()
GPUS = inventory("a", 4)
SIZES = st.sampled_from([(10, 4), (50, 8), (60, 32), (100, 0), (100, 8), (200, 0)])
ROLES = st.sampled_from([ContainerRole.INIT, ContainerRole.SIDECAR, ContainerRole.APP])


@st.composite
def committed(draw: st.DrawFn) -> tuple[ClusterPod, PodHold]:
    more = [(f"c{at}", draw(ROLES), *draw(SIZES)) for at in range(draw(st.integers(0, 2)))]
    cores, blocks = draw(SIZES)
    parts = {NAMES.gpus: "main=2"} if (cores, blocks) == (50, 8) and draw(st.booleans()) else {}
    one = pod(cores=cores, blocks=blocks, more=more, annotations=parts, priority=draw(st.integers(0, 2)))
    asked = pod_request(one.pod, RESOURCES)
    try:
        placed = place_pod(asked, node_state("a", GPUS, ()))
    except VcudaError:
        one = pod()
        asked = pod_request(one.pod, RESOURCES)
        placed = place_pod(asked, node_state("a", GPUS, ()))
    return one, PodHold(one.pod.api_ref, "a", HoldState.ASSUMED, placed.allocations, request=asked)


def annotations_of(held: PodHold) -> Mapping[str, str]:
    return binding_annotations(held, GPUS, now_ns=1, names=RESOURCES)


@given(committed())
def test_a_bound_pod_holds_what_its_binding_carried(made: tuple[ClusterPod, PodHold]) -> None:
    one, held = made
    found = bound_hold(bound(one, "a", annotations_of(held)), RESOURCES)
    assert (found.allocations, found.unlocated, found.problem) == (held.allocations, (), "")


_OWNERS = sorted({NAMES.gpus, NAMES.use_models, NAMES.avoid_models, NAMES.use_gpus, NAMES.avoid_gpus, NAMES.gpu_policy})
_TEXTS = st.sampled_from(
    ["", "x", "1", "2", "8", "16", "main=1", "main=4,c0=2", "GPU-a-3", "A100", "spread", "-1", "0"]
)


@given(committed(), st.dictionaries(st.sampled_from(_OWNERS), _TEXTS))
def test_what_the_owner_writes_after_the_binding_changes_nothing(
    made: tuple[ClusterPod, PodHold], written: dict[str, str]
) -> None:
    """Security B-2: `vcuda-gpus: 2` on a bound pod of 2 cores closed every GPU of its node for whole-GPU pods."""
    one, held = made
    owned = {name: text for name, text in one.pod.annotations.items() if name not in written}
    changed = replace(one, pod=replace(one.pod, annotations=owned | written))
    found = bound_hold(bound(changed, "a", annotations_of(held)), RESOURCES)
    assert (found.allocations, found.unlocated, found.problem) == (held.allocations, (), "")


@given(committed())
def test_an_allocation_written_for_another_pod_does_not_count(made: tuple[ClusterPod, PodHold]) -> None:
    """As where a pod is made again from its own YAML."""
    one, held = made
    again = replace(one, pod=replace(one.pod, api_uid="uid-again", ref=replace(one.pod.ref, uid=PodUid("uid-again"))))
    assert not bound_hold(bound(again, "a", annotations_of(held)), RESOURCES).allocations


def _all_of(name: str) -> tuple[GpuShare, ...]:
    return (*on_gpu(name, 0, 100, 64), *on_gpu(name, 1, 100, 64))


FORGED: dict[str, Mapping[str, tuple[GpuShare, ...]]] = {
    "containers that the pod does not have": {"absent0": _all_of("a"), "absent1": on_gpu("a", 1, 1, 1)},
    "a container that asks for no GPU": {"side": _all_of("a")},
    "more cores than the container asks for": {"main": on_gpu("a", 0, 100, 1)},
    "more memory than the container asks for": {"main": on_gpu("a", 0, 1, 64)},
    "more GPUs than the container asks for": {"main": _all_of("a")},
}


async def test_an_annotation_gives_a_pod_nothing_that_it_did_not_ask_for() -> None:
    """Security 9a: pods of one core filled the GPUs of the cluster, beside every quota."""
    for how, shares in FORGED.items():
        extender = Extender(MemoryApi())
        for name in ("a", "b"):
            extender.put_node(node(name))
        forged = pod(cores=1, blocks=1, more=[("side", ContainerRole.APP, 0, 0)])
        extender.put_pod(bound(forged, "a", allocated(forged, shares)))
        free = [(gpu.free_cores, gpu.free_blocks) for gpu in extender.cache.nodes["a"].state.snapshot.gpus]
        assert free == [(99, 63)] * 2, f"{how}: it may be on either, until the agent has said which"
        assert extender.filter(ask(pod(cores=90, blocks=60), "a")).names == ("a",), how


async def test_a_pod_whose_request_cannot_be_read_any_more_holds_what_its_limits_say(extender: Extender) -> None:
    """Another version placed it; the wrong container must not free the GPU of the other one, nor claim one."""
    extender.put_node(node("a"))
    odd = pod(cores=30, blocks=8, more=[("wrong", ContainerRole.APP, 150, 1)])
    shares = {"main": on_gpu("a", 0, 30, 8), "wrong": on_gpu("a", 1, 100, 64), "absent": on_gpu("a", 1, 100, 64)}
    extender.put_pod(bound(odd, "a", allocated(odd, shares)))
    assert [view.free_cores for view in extender.cache.nodes["a"].state.snapshot.gpus] == [70, 100]


async def test_a_pod_that_its_agent_has_not_reported_yet_holds_what_it_asked_when_it_was_bound(
    extender: Extender,
) -> None:
    """Its owner's later annotations freed its GPU, or halved what it counted on each, until the agent wrote it."""
    for number, written in enumerate(("x", "2", "1", "99")):
        name = f"n{number}"
        extender.put_node(node(name, 2))
        one = bound(pod(cores=90, blocks=8), name)
        extender.put_pod(one)
        extender.put_pod(replace(one, pod=replace(one.pod, annotations={NAMES.gpus: written}, resource_version="2")))
        free = [view.free_cores for view in extender.cache.nodes[name].state.snapshot.gpus]
        assert free == [10, 10], written
        (held,) = extender.cache.holds(one.uid)
        assert bool(held.problem) == (written in ("x", "99")), "explain says what is wrong"
