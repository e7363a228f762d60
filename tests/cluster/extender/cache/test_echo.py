"""The watch shows the extender's own Binding: reuse of the sent allocation never changes what a pod holds."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.extender.bind.binding_writer import binding_annotations, written_allocation
from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold, bound_hold
from deviceplugin.errors import VcudaError
from deviceplugin.model.allocation import ContainerRole, GpuShare, PodUid
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import pod_request
from deviceplugin.model.units import ResourceNames
from deviceplugin.placement.node_state import node_state
from deviceplugin.placement.pod import place_pod
from tests.cluster.extender.makers import NAMES, allocated, bound, inventory, pod

RESOURCES = ResourceNames()
GPUS = inventory("a", 4)
SIZES = st.sampled_from([(10, 4), (50, 8), (60, 32), (100, 0), (100, 8), (200, 0)])
ROLES = st.sampled_from([ContainerRole.INIT, ContainerRole.SIDECAR, ContainerRole.APP])
ELSEWHERE = (GpuShare(GpuUuid("GPU-a-3"), 1, 1),)
CHANGES = ("none", "none", "text", "uid", "node", "request", "parts", "nonsense", "name", "container", "unasked")


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
    held = PodHold(one.pod.api_ref, "a", HoldState.ASSUMED, placed.allocations, request=asked)
    return one, replace(held, written=written_allocation(held))


def annotations_of(held: PodHold) -> Mapping[str, str]:
    return binding_annotations(held, GPUS, now_ns=1, names=RESOURCES)


def changed(one: ClusterPod, how: str) -> ClusterPod:
    """Another allocation was written, or it is another pod."""
    main = one.pod.containers[0]
    match how:
        case "text":
            return bound(one, "a", allocated(one, {"main": ELSEWHERE}))
        case "uid":
            return bound(one, "a", allocated(one, {"main": ELSEWHERE}, uid="another"))
        case "node":
            return bound(one, "a", {NAMES.predicate_node: "b"})
        case "parts":
            return bound(one, "a", {NAMES.gpus: "3"})
        case "nonsense":
            return bound(one, "a", {NAMES.gpus: "many"})
        case "unasked":
            return replace(one, pod=replace(one.pod, containers=one.pod.containers[1:]))
        case "name":
            return replace(one, pod=replace(one.pod, ref=replace(one.pod.ref, name="renamed")))
        case "request":
            other = replace(main, cores=20, blocks=60)
        case "container":
            other = replace(main, ref=replace(main.ref, name="other"))
        case _:
            return one
    return replace(one, pod=replace(one.pod, containers=(other, *one.pod.containers[1:])))


@given(committed(), st.sampled_from(CHANGES), st.booleans())
def test_the_sent_allocation_never_changes_what_a_bound_pod_holds(
    made: tuple[ClusterPod, PodHold], how: str, deleting: bool
) -> None:
    one, held = made
    told = changed(bound(one, "a", annotations_of(held)), how)
    told = replace(told, pod=replace(told.pod, deleting=deleting))
    assert bound_hold(told, RESOURCES, sent=held) == bound_hold(told, RESOURCES)


@given(committed())
def test_the_sent_allocation_is_reused(made: tuple[ClusterPod, PodHold]) -> None:
    one, held = made
    found = bound_hold(bound(one, "a", annotations_of(held)), RESOURCES, sent=held)
    assert found.allocations is held.allocations
    assert (found.unlocated, found.problem, found.written) == ((), "", None)


@given(committed())
def test_an_allocation_written_for_another_pod_does_not_count(made: tuple[ClusterPod, PodHold]) -> None:
    """As where a pod is made again from its own YAML."""
    one, held = made
    again = replace(one, pod=replace(one.pod, api_uid="uid-again", ref=replace(one.pod.ref, uid=PodUid("uid-again"))))
    told = bound(again, "a", annotations_of(held))
    found = bound_hold(told, RESOURCES, sent=held)
    assert found == bound_hold(told, RESOURCES)
    assert not found.allocations
