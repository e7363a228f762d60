"""A bound pod holds what its Binding carried, and nothing that was written for another pod."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cluster.extender.bind.bind import binding_annotations
from deviceplugin.cluster.extender.cache.pod_hold import HoldState, PodHold, bound_hold
from deviceplugin.errors import VcudaError
from deviceplugin.model.allocation import ContainerRole, PodUid
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.pod_request import pod_request
from deviceplugin.model.units import ResourceNames
from deviceplugin.placement.node_state import node_state
from deviceplugin.placement.pod import place_pod
from tests.cluster.extender.makers import NAMES, bound, inventory, pod

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


@given(committed())
def test_an_allocation_written_for_another_pod_does_not_count(made: tuple[ClusterPod, PodHold]) -> None:
    """As where a pod is made again from its own YAML."""
    one, held = made
    again = replace(one, pod=replace(one.pod, api_uid="uid-again", ref=replace(one.pod.ref, uid=PodUid("uid-again"))))
    assert not bound_hold(bound(again, "a", annotations_of(held)), RESOURCES).allocations
