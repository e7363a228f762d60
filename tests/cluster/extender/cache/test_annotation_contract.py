"""The extender's side of the contract on a pod's annotations; tests/kubelet has the agent's side, by the same table."""

from deviceplugin.cluster.extender.cache.pod_hold import bound_hold
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import ResourceNames
from tests.annotation_cases import NODE, SIZES, cases
from tests.kubelet.makers import pod

CASES = cases("uid-p")


def test_a_trusted_annotation_is_exact_and_other_pods_are_unlocated() -> None:
    asking = [(name, *size) for name, size in SIZES.items()]
    shown = {case.name: pod("p", *asking, node=NODE, api_uid="uid-p", annotations=case.annotations) for case in CASES}
    holds = {name: bound_hold(ClusterPod(each), ResourceNames()) for name, each in shown.items()}
    exact = {name: {each.owner.name for each in held.allocations} & set(SIZES) for name, held in holds.items()}
    assert exact == {case.name: case.exact for case in CASES}
    unlocated = {name: {each.name for each in held.unlocated} for name, held in holds.items()}
    assert unlocated == {case.name: set(SIZES) - case.exact for case in CASES}


def test_a_static_pod_is_trusted_by_its_uid_at_the_api_server_alone() -> None:
    """The other one is in an annotation that everybody can write (Security 9)."""
    asking = [(name, *size) for name, size in SIZES.items()]
    for uid, unlocated in (("uid-of-the-mirror", 0), ("uid-p", len(SIZES))):
        (case,) = (each for each in cases(uid) if each.name == "bound by our extender")
        shown = pod("p", *asking, node=NODE, api_uid="uid-of-the-mirror", annotations=case.annotations)
        assert len(bound_hold(ClusterPod(shown), ResourceNames()).unlocated) == unlocated
