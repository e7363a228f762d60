"""The watcher finds each kind of violation: a container without limits, a GPU over-committed, a grant used twice."""

from dataclasses import replace

from tests.e2e.node.limits import BLOCK_BYTES, Limits
from tests.e2e.soak.running import Running
from tests.e2e.soak.violations import TOLD_WITHIN_S, WithoutDevices, violations

GPU, OTHER = "GPU-1", "GPU-2"
BLOCKS = {GPU: 320, OTHER: 320}


def share(pod: str, *, cores: int = 30, blocks: int = 100, gpu: str = GPU) -> Running:
    limits = Limits(f"uid-{pod}", "main", blocks * BLOCK_BYTES, cores, enforced=True)
    return Running(f"uid-{pod}", 7, "1", pod, "main", cores, blocks, (gpu,), ("nvidia0",), f"g-{pod}", limits)


def whole(pod: str, *gpus: str) -> Running:
    cores = 100 * len(gpus)
    limits = Limits(f"uid-{pod}", "main", 0, cores, enforced=False)
    nodes = tuple(f"nvidia{number}" for number in range(len(gpus)))
    return Running(f"uid-{pod}", 7, "1", pod, "main", cores, 0, gpus, nodes, f"g-{pod}", limits)


def test_shares_that_fit_on_their_gpus_are_no_violation() -> None:
    full = [share("a"), share("b"), share("c", cores=40), share("d", gpu=OTHER)]
    assert violations(full, BLOCKS) == []


def test_whole_gpus_that_nobody_shares_are_no_violation() -> None:
    assert violations([whole("a", GPU, OTHER)], BLOCKS) == []
    assert violations([whole("a", GPU), share("b", gpu=OTHER)], BLOCKS) == []


def test_a_container_without_limits_is_found() -> None:
    (said,) = violations([replace(share("a"), limits=None)], BLOCKS)
    assert said == "a/main (uid-a) runs without a limits file (grant g-a, GPUs ('GPU-1',))"


def test_limits_of_another_container_or_another_amount_are_found() -> None:
    right = share("a")
    assert right.limits is not None
    for limits in (
        replace(right.limits, pod_uid="uid-b"),
        replace(right.limits, container="side"),
        replace(right.limits, cores=31),
        replace(right.limits, memory_bytes=BLOCK_BYTES),
        replace(right.limits, enforced=False),
    ):
        (said,) = violations([replace(right, limits=limits)], BLOCKS)
        assert "asked for 30 cores and 100 blocks and its limits file says" in said


def test_too_many_gpus_or_too_few_are_found() -> None:
    for gpus, nodes in (
        ((), ("nvidia0",)),
        ((GPU, OTHER), ("nvidia0",)),
        ((GPU,), ()),
        ((GPU,), ("nvidia0", "nvidia1")),
    ):
        (said,) = violations([replace(share("a"), gpus=gpus, device_nodes=nodes)], BLOCKS)
        assert "asked for 1 GPUs and has" in said


def test_more_cores_than_a_gpu_has_are_found() -> None:
    (said,) = violations([share(each, blocks=1) for each in "abcd"], BLOCKS)
    assert said == "GPU GPU-1 is over-committed: 120 cores, 4 of 320 blocks"


def test_more_memory_than_a_gpu_has_is_found() -> None:
    (said,) = violations([share(each, cores=1) for each in "abcd"], BLOCKS)
    assert said == "GPU GPU-1 is over-committed: 4 cores, 400 of 320 blocks"


def test_a_whole_gpu_that_another_container_uses_is_found() -> None:
    said = violations([whole("a", GPU), share("b", cores=1, blocks=1)], BLOCKS)
    assert said == [
        "GPU GPU-1 is over-committed: 101 cores, 321 of 320 blocks",
        "GPU GPU-1 was asked for as a whole and is used by a/main (uid-a) and b/main (uid-b)",
    ]


def test_a_grant_with_two_users_is_found() -> None:
    (said,) = violations([share("a"), replace(share("b"), grant="g-a")], BLOCKS)
    assert said == "grant g-a is mounted by a/main (uid-a) and b/main (uid-b)"


def test_a_gpu_of_another_node_is_found() -> None:
    (said,) = violations([share("a", gpu="GPU-9")], BLOCKS)
    assert said == "containers use GPU GPU-9, which the node does not have"


# ---- without devices ----


BARE = Running("uid-a", 7, "1", "a", "main", 10, 5, (), (), "", None)
OWNER = ("uid-a", "main")


def test_it_is_a_violation_if_kubelet_has_devices_for_it() -> None:
    (said,) = WithoutDevices().look([BARE], {OWNER}, lambda _: True, 0)
    assert said == "a/main (uid-a) runs without its GPU, for which kubelet has devices"


def test_it_is_none_while_the_agent_has_time_to_tell_it() -> None:
    seen = WithoutDevices()
    assert seen.look([BARE], (), lambda _: False, 0) == []
    assert seen.look([BARE], (), lambda _: False, TOLD_WITHIN_S) == []


def test_it_is_a_violation_if_the_agent_never_tells_it() -> None:
    seen = WithoutDevices()
    seen.look([BARE], (), lambda _: False, 0)
    (said,) = seen.look([BARE], (), lambda _: False, TOLD_WITHIN_S + 1)
    assert said == "a/main (uid-a) runs without its GPU, and the agent does not tell it"


def test_it_is_none_once_the_agent_has_told_it() -> None:
    seen = WithoutDevices()
    seen.look([BARE], (), lambda _: True, 0)
    assert seen.look([BARE], (), lambda _: False, 10 * TOLD_WITHIN_S) == []
