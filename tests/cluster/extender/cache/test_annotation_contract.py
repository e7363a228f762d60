"""The extender's side of the contract on a pod's annotations; tests/kubelet has the agent's side, by the same table."""

import pytest

from deviceplugin.cluster.extender.cache.pod_hold import bound_hold
from deviceplugin.model.pod import ClusterPod
from deviceplugin.model.units import ResourceNames
from tests.annotation_cases import IDS, NODE, SIZES, Case, cases
from tests.kubelet.makers import pod

CASES = cases("uid-p")


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_trusted_annotation_is_exact_and_other_pods_are_unlocated(case: Case) -> None:
    asking = [(name, *size) for name, size in SIZES.items()]
    found = bound_hold(
        ClusterPod(pod("p", *asking, node=NODE, api_uid="uid-p", annotations=case.annotations)), ResourceNames()
    )
    known = {each.owner.name for each in found.allocations} & set(SIZES)
    assert known == case.exact
    assert {each.name for each in found.unlocated} == set(SIZES) - case.exact


def test_a_static_pod_is_trusted_by_its_uid_at_the_api_server_alone() -> None:
    """The other one is in an annotation that everybody can write (Security 9)."""
    asking = [(name, *size) for name, size in SIZES.items()]
    for uid, unlocated in (("uid-of-the-mirror", 0), ("uid-p", len(SIZES))):
        (case,) = (each for each in cases(uid) if each.name == "bound by our extender")
        shown = pod("p", *asking, node=NODE, api_uid="uid-of-the-mirror", annotations=case.annotations)
        assert len(bound_hold(ClusterPod(shown), ResourceNames()).unlocated) == unlocated
