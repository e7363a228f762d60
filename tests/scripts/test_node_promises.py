"""The demo notices when what it promises of a node is not so."""

from collections.abc import Callable

import msgspec
import pytest

from deviceplugin.observe.usage import ContainerUsage, GpuUsage, ShareUsage, Usage
from scripts.demonstration.document import (
    Device,
    GreedyContainer,
    GreedyReport,
    Mounted,
    Promise,
    SeenContainer,
    SeenPod,
)
from scripts.demonstration.node import promises, slice_promises

UUIDS = ("GPU-0", "GPU-1")
Change = Callable[[SeenContainer], SeenContainer]


def gpu(minor: int, cores: int, blocks: int) -> GpuUsage:
    return GpuUsage(
        uuid=UUIDS[minor],
        index=minor,
        minor=minor,
        model="A100",
        healthy=True,
        reason="",
        cores_allocated=cores,
        blocks_allocated=blocks,
        blocks=320,
        memory_bytes=320 << 28,
        memory_allocated_bytes=blocks << 28,
        memory_used_bytes=None,
        utilization_percent=None,
        processes=None,
    )


def entry(
    pod: str, *, cores: int, blocks: int, minor: int = 0, role: str = "app", container: str = "main"
) -> ContainerUsage:
    return ContainerUsage(
        namespace="demo",
        pod=pod,
        uid=f"uid-{pod}",
        container=container,
        role=role,
        grant=f"grant-{pod}-{container}",
        cores=cores,
        blocks=blocks,
        evaluator="share",
        gpus=(ShareUsage(UUIDS[minor], minor, cores, blocks),),
        proved=True,
        source="pods",
        created="2026-01-01T00:00:00.000Z",
    )


def usage(*entries: ContainerUsage, taken: tuple[int, int] | None = None) -> Usage:
    cores, blocks = taken or (sum(one.cores for one in entries), sum(one.blocks for one in entries))
    return Usage(version=1, node="n", gpus=(gpu(0, cores, blocks), gpu(1, 0, 0)), containers=entries)


def container(pod: str, *, cores: int, blocks: int) -> SeenContainer:
    return SeenContainer(
        name="main",
        init=False,
        cores=cores,
        blocks=blocks,
        gpus=(0,),
        core_ids=cores,
        memory_ids=blocks,
        env={"NVIDIA_VISIBLE_DEVICES": UUIDS[0]},
        mounts=(Mounted("/etc/vcuda", f"/vm/grant-{pod}-main", read_only=False),),
        devices=(Device("/dev/nvidia0", "/dev/nvidia0", "rw"),),
        annotations={},
        limits_file=8240,
    )


def seen(name: str, *containers: SeenContainer, phase: str = "Running", message: str = "") -> SeenPod:
    return SeenPod("demo", name, f"uid-{name}", phase, message, (0,), 30, 4, containers)


def test_an_answer_that_agrees_everywhere_is_its_own() -> None:
    pods = [seen("a", container("a", cores=30, blocks=4)), seen("b", container("b", cores=20, blocks=2))]
    ledger = usage(entry("a", cores=30, blocks=4), entry("b", cores=20, blocks=2))
    assert promises.answers_are_their_own(pods, ledger) == Promise(
        "every container's answer is its own", held=True, found="2 containers"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: msgspec.structs.replace(one, env={"NVIDIA_VISIBLE_DEVICES": UUIDS[1]}), "is told 'GPU-1'"),
        (lambda one: msgspec.structs.replace(one, env={}), "is told None"),
        (lambda one: msgspec.structs.replace(one, gpus=(1,)), "has the device nodes of GPUs (1,)"),
        (lambda one: msgspec.structs.replace(one, mounts=()), "mounts 'nothing'"),
        (lambda one: msgspec.structs.replace(one, cores=31), "asked for 31/4, the ledger has 30/4"),
        (lambda one: msgspec.structs.replace(one, core_ids=29), "holds 29 core and 4 memory IDs"),
        (lambda one: msgspec.structs.replace(one, limits_file=0), "has a limits file of 0 bytes"),
    ],
)
def test_an_answer_that_differs_anywhere_is_noticed(change: Change, said: str) -> None:
    promise = promises.answers_are_their_own(
        [seen("a", change(container("a", cores=30, blocks=4)))], usage(entry("a", cores=30, blocks=4))
    )
    assert not promise.held
    assert said in promise.found


def test_a_container_that_is_not_in_the_ledger_is_noticed() -> None:
    promise = promises.answers_are_their_own([seen("a", container("a", cores=30, blocks=4))], usage())
    assert promise.found == "a/main runs and is not in the ledger"


def test_two_containers_with_one_grant_are_noticed() -> None:
    pods = [seen(name, container("a", cores=30, blocks=4)) for name in ("a", "b")]
    ledger = usage(entry("a", cores=30, blocks=4), entry("b", cores=30, blocks=4))
    assert "2 containers mount /vm/grant-a-main" in promises.answers_are_their_own(pods, ledger).found


@pytest.mark.parametrize(
    ("ledger", "held", "said"),
    [
        (usage(entry("a", cores=60, blocks=9), entry("b", cores=40, blocks=9)), True, "100 of 200 cores in use"),
        (usage(entry("a", cores=60, blocks=9), entry("b", cores=41, blocks=9)), False, "has given 101 cores"),
        (usage(entry("a", cores=1, blocks=321)), False, "321 blocks of 320"),
        (usage(entry("a", cores=60, blocks=9), taken=(50, 9)), False, "reports 50 cores, its holders have 60"),
        (
            usage(
                entry("a", cores=40, blocks=2, role="init", container="i"),
                entry("a", cores=10, blocks=4),
                taken=(40, 4),
            ),
            True,
            "40 of 200",
        ),
    ],
)
def test_giving_a_gpu_twice_is_noticed(ledger: Usage, held: bool, said: str) -> None:
    promise = promises.nothing_is_given_twice(ledger)
    assert promise.held is held
    assert said in promise.found


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (usage(), "demo/a/main was lost"),
        (usage(entry("a", cores=30, blocks=4), entry("b", cores=1, blocks=1)), "demo/b/main appeared"),
        (usage(entry("a", cores=31, blocks=4)), "demo/a/main changed"),
        (usage(entry("a", cores=30, blocks=4, minor=1)), "demo/a/main changed"),
        (usage(entry("a", cores=30, blocks=4)), ""),
    ],
)
def test_every_difference_between_two_ledgers_is_noticed(after: Usage, said: str) -> None:
    promise = promises.same_ledger(usage(entry("a", cores=30, blocks=4)), after)
    assert promise.held == (not said)
    assert said in promise.found


def test_only_the_grant_of_a_refused_pod_may_go() -> None:
    before = usage(entry("a", cores=30, blocks=4), entry("b", cores=1, blocks=1))
    after = usage(entry("a", cores=30, blocks=4))
    assert not promises.same_ledger(before, after).held
    assert promises.same_ledger(before, after, refused=["uid-b"]).held
    assert not promises.same_ledger(before, before, refused=["uid-b"]).held


def test_a_pod_that_does_not_run_is_noticed() -> None:
    assert promises.all_run([seen("a")]).held
    promise = promises.all_run([seen("a"), seen("b", phase="Failed", message="because")])
    assert (promise.held, promise.found) == (False, "b is Failed because")


@pytest.mark.parametrize(
    ("pod", "held"),
    [
        (seen("a", phase="Failed", message="150 is no multiple of 100"), True),
        (seen("a", phase="Running", message="150"), False),
        (seen("a", phase="Failed", message="something else"), False),
        (seen("a", phase="Failed", message="150 Traceback (most recent call last)"), False),
    ],
)
def test_a_refusal_needs_its_sentence(pod: SeenPod, held: bool) -> None:
    assert promises.refused_in_words(pod, words="150").held is held


def test_what_is_left_in_the_ledger_is_noticed() -> None:
    assert promises.ledger_is_empty(usage()).held
    promise = promises.ledger_is_empty(usage(entry("a", cores=30, blocks=4)))
    assert "demo/a/main still holds its part; GPU 0 has 30 cores taken" in promise.found


def test_a_container_that_stopped_is_noticed() -> None:
    assert promises.still_running([("u", "a")], [("u", "a")]).held
    assert promises.still_running([("u", "a"), ("u", "b")], [("u", "a")]).found == "u/b stopped"


def greedy(**changes: object) -> GreedyContainer:
    """Asked for 2 GiB and a fifth, and got that."""
    report = GreedyReport(
        total_bytes=2 << 30,
        free_bytes=1536 << 20,
        got_bytes=1536 << 20,
        refusal="CUDA_ERROR_OUT_OF_MEMORY",
        launches=500,
        unit_ns=2_000_000,
        seconds=5.0,
        share_percent=20.0,
        nvml=None,
    )
    told = {name: changes.pop(name) for name in GreedyReport.__struct_fields__ if name in changes}
    container = GreedyContainer(
        "ann", "slice", 20, 8, 20, 2 << 30, 20.0, 2 << 30, msgspec.structs.replace(report, **told)
    )
    return msgspec.structs.replace(container, **changes)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (greedy(), ""),
        (greedy(limit_bytes=4 << 30), "has a limit of 4294967296"),
        (greedy(total_bytes=80 << 30), "hears of 85899345920 bytes"),
        (greedy(refusal="CUDA_SUCCESS"), "was stopped with CUDA_SUCCESS"),
        (greedy(refusal="CUDA_ERROR_INVALID_VALUE"), "was stopped with CUDA_ERROR_INVALID_VALUE"),
        (greedy(held_bytes=(2 << 30) + 1), "ann got 2147483649 bytes of 2147483648"),
        (greedy(got_bytes=1 << 30), "was told of 1610612736 free bytes and got 1073741824 only"),
    ],
)
def test_memory_beyond_or_short_of_the_limit_is_noticed(one: GreedyContainer, said: str) -> None:
    promise = slice_promises.memory_ends_at_the_limit([greedy(), one])
    assert promise.held == (not said)
    assert said in promise.found


@pytest.mark.parametrize(
    ("one", "held"),
    [
        (greedy(got_cores=17.1), True),
        (greedy(got_cores=22.9), True),
        (greedy(got_cores=23.1), False),
        (greedy(got_cores=16.9), False),
        (greedy(limit_cores=30, got_cores=20.0), False),
        (greedy(got_cores=16.1, cpu_wait_s=0.25), True),
        (greedy(got_cores=15.9, cpu_wait_s=0.25), False),
        (greedy(got_cores=23.1, cpu_wait_s=5.0), False),
    ],
)
def test_a_share_that_is_off_by_more_than_three_points_is_noticed(one: GreedyContainer, held: bool) -> None:
    promise = slice_promises.time_is_shared_as_asked([one])
    assert promise.held is held
    assert held or "ann asked for 20 % of the GPU's time" in promise.found


def test_pods_on_different_gpus_are_noticed() -> None:
    one, other = seen("a"), msgspec.structs.replace(seen("b"), gpus=(1,))
    assert promises.share_one_gpu([one, seen("b")]).held
    assert promises.share_one_gpu([one, other]).found == "a is on GPU (0,); b is on GPU (1,)"
