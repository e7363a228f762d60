"""The kinds of task that were seen: enough, decayed, bounded, in an order of their own."""

import pickle

from deviceplugin.model.allocation import ContainerRole, PodRef, PodUid
from deviceplugin.model.pod_request import ContainerRequest, PodRequest
from deviceplugin.model.preferences import ANY_GPU, GpuFilter, Preferences
from deviceplugin.model.request import Request
from deviceplugin.placement.fragmentation import ObservedWorkload
from deviceplugin.structs import replace


def pod(*cores: int) -> PodRequest:
    asked = (ContainerRequest(f"c{at}", ContainerRole.APP, at, Request(each, 8)) for at, each in enumerate(cores))
    return PodRequest(PodRef(PodUid("u"), "default", "p"), tuple(asked))


def counts(observed: ObservedWorkload) -> dict[int, int]:
    found = observed.workload()
    assert found is not None
    return {kind.request.cores: count for kind, count in found.kinds}


def test_a_few_pods_say_nothing_yet() -> None:
    observed = ObservedWorkload(enough=3)
    observed.see(pod(10, 20))
    assert observed.workload() is None
    observed.see(pod(10))
    assert counts(observed) == {10: 2, 20: 1}


def test_what_is_long_ago_counts_less_and_once_is_forgotten() -> None:
    observed = ObservedWorkload(enough=1, halve_at=8)
    for cores in (10, 20, 20, 20, 20, 30, 30, 30):
        observed.see(pod(cores))
    assert counts(observed) == {20: 2, 30: 1}
    observed.see(pod(10))
    assert counts(observed) == {20: 2, 30: 1, 10: 1}


def test_rare_kinds_are_left_out() -> None:
    observed = ObservedWorkload(enough=1, most_kinds=2)
    for cores in (10, 20, 20, 30, 30, 30):
        observed.see(pod(cores))
    assert counts(observed) == {30: 3, 20: 2}


def test_pods_that_are_all_different_take_bounded_memory() -> None:
    observed = ObservedWorkload(enough=1)
    for cores in range(1, 100):
        for blocks in range(1, 100):
            request = ContainerRequest("c", ContainerRole.APP, 0, Request(cores, blocks))
            observed.see(PodRequest(PodRef(PodUid("u"), "default", "p"), (request,)))
    found = observed.workload()
    assert found is None or len(found.kinds) <= 64


def test_a_kind_is_not_kept_for_a_list_of_models_as_long_as_its_user_likes() -> None:
    observed = ObservedWorkload(enough=1)
    for number in range(200):
        wanted = GpuFilter(models=(f"{number}-{'x' * 20}",), not_models=("x" * 16_000,) if number % 2 else ())
        observed.see(replace(pod(10), preferences=Preferences(gpus=wanted)))
    found = observed.workload()
    assert found is not None
    assert sum(count for kind, count in found.kinds if kind.wanted == ANY_GPU) == 100
    assert len(pickle.dumps(found)) < 100 * 200
