"""The demo notices every promise about a node that does not hold."""

import dataclasses
from typing import Any

import msgspec

from deviceplugin.observe.usage import ContainerUsage, GpuUsage, ShareUsage, Usage
from sandbox.consistency import LIMITS, LIMITS_BYTES, SeenContainer, SeenPod
from sandbox.kubelet import ContainerView
from sandbox.kubelet.runtime import DeviceNode, Mount
from scripts.demonstration import node_checks
from scripts.demonstration.greedy import Nvml, Report, Slice
from scripts.demonstration.output import Check
from tests.scripts.judged import misjudged

UUIDS = ("GPU-0", "GPU-1")


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


def container(pod: str, *, cores: int, blocks: int, **view: Any) -> SeenContainer:
    """As it must be, but for what `view` changes in what the container sees."""
    seen = ContainerView(
        uid=f"uid-{pod}",
        container="main",
        env={"NVIDIA_VISIBLE_DEVICES": UUIDS[0]},
        mounts=(Mount("/etc/vcuda", f"/vm/grant-{pod}-main", read_only=False),),
        devices=(DeviceNode("/dev/nvidia0", "/dev/nvidia0", "rw"),),
        annotations={},
        cdi=(),
        files={LIMITS: f"uid-{pod} main".encode().ljust(LIMITS_BYTES)},
        start=1,
    )
    return SeenContainer("main", False, cores, blocks, cores, blocks, dataclasses.replace(seen, **view))


def seen(name: str, *containers: SeenContainer, phase: str = "Running", message: str = "", gpu: int = 0) -> SeenPod:
    there = containers or (container(name, cores=30, blocks=4, devices=(DeviceNode(f"/dev/nvidia{gpu}", "", "rw"),)),)
    return SeenPod(name, f"uid-{name}", phase, message, there)


def test_an_answer_that_agrees_everywhere_is_its_own() -> None:
    pods = [seen("a", container("a", cores=30, blocks=4)), seen("b", container("b", cores=20, blocks=2))]
    ledger = usage(entry("a", cores=30, blocks=4), entry("b", cores=20, blocks=2))
    assert node_checks.answers_are_their_own(pods, ledger) == Check(
        "every container gets its own share", passed=True, found="2 containers"
    )


def test_a_view_or_a_count_that_differs_anywhere_is_noticed() -> None:
    good = container("a", cores=30, blocks=4)
    views: list[tuple[dict[str, Any], str]] = [
        ({"env": {"NVIDIA_VISIBLE_DEVICES": UUIDS[1]}}, "sees 'GPU-1'"),
        ({"env": {}}, "sees None"),
        ({"devices": (DeviceNode("/dev/nvidia1", "/dev/nvidia1", "rw"),)}, "has the device nodes of GPUs (1,)"),
        ({"mounts": ()}, "mounts 'nothing'"),
        ({"files": {}}, "has a limits file of 0 bytes"),
        ({"files": {LIMITS: b"uid-b main"}}, "has a limits file of 0 bytes"),
        ({"files": {LIMITS: b"uid-a main"}}, "has a limits file of 10 bytes"),
    ]
    cases = [(container("a", cores=30, blocks=4, **view), said) for view, said in views]
    cases.append((dataclasses.replace(good, cores=31), "asked for 31/4, the ledger has 30/4"))
    cases.append((dataclasses.replace(good, core_ids=29), "holds 29 core and 4 memory IDs"))
    ledger = usage(entry("a", cores=30, blocks=4))
    assert misjudged((node_checks.answers_are_their_own([seen("a", one)], ledger), said) for one, said in cases) == []


def test_a_container_that_is_not_in_the_ledger_is_noticed() -> None:
    check = node_checks.answers_are_their_own([seen("a", container("a", cores=30, blocks=4))], usage())
    assert check.found == "a/main runs and is not in the ledger"


def test_two_containers_with_one_grant_are_noticed() -> None:
    pods = [seen(name, container("a", cores=30, blocks=4)) for name in ("a", "b")]
    ledger = usage(entry("a", cores=30, blocks=4), entry("b", cores=30, blocks=4))
    assert "2 containers mount /vm/grant-a-main" in node_checks.answers_are_their_own(pods, ledger).found


def test_giving_a_gpu_twice_is_noticed() -> None:
    sixty, initial = entry("a", cores=60, blocks=9), entry("a", cores=40, blocks=2, role="init", container="i")
    cases: list[tuple[Usage, str | bool]] = [
        (usage(sixty, entry("b", cores=40, blocks=9)), True),
        (usage(sixty, entry("b", cores=41, blocks=9)), "has given 101 cores"),
        (usage(entry("a", cores=1, blocks=321)), "321 blocks of 320"),
        (usage(sixty, taken=(50, 9)), "reports 50 cores, its holders have 60"),
        (usage(initial, entry("a", cores=10, blocks=4), taken=(40, 4)), True),
    ]
    checks = [(node_checks.nothing_is_allocated_twice(ledger), must) for ledger, must in cases]
    assert misjudged(checks) == []
    assert [check.found for check, must in checks if must is True] == [
        "100 of 200 cores in use",
        "40 of 200 cores in use",
    ]


def test_every_difference_between_two_ledgers_is_noticed() -> None:
    before = entry("a", cores=30, blocks=4)
    cases = [
        (usage(), "demo/a/main was lost"),
        (usage(before, entry("b", cores=1, blocks=1)), "demo/b/main appeared"),
        (usage(entry("a", cores=31, blocks=4)), "demo/a/main changed"),
        (usage(entry("a", cores=30, blocks=4, minor=1)), "demo/a/main changed"),
        (usage(before), ""),
    ]
    assert misjudged((node_checks.same_ledger(usage(before), after), said) for after, said in cases) == []


def test_only_the_grant_of_a_refused_pod_may_go() -> None:
    before = usage(entry("a", cores=30, blocks=4), entry("b", cores=1, blocks=1))
    after = usage(entry("a", cores=30, blocks=4))
    assert not node_checks.same_ledger(before, after).passed
    assert node_checks.same_ledger(before, after, refused=["uid-b"]).passed
    assert not node_checks.same_ledger(before, before, refused=["uid-b"]).passed
    assert not node_checks.same_ledger(after, before).passed
    assert node_checks.same_ledger(after, before, admitted=["uid-b"]).passed
    assert not node_checks.same_ledger(before, after, admitted=["uid-b"]).passed


def test_a_pod_that_does_not_run_is_noticed() -> None:
    assert node_checks.all_run([seen("a")]).passed
    check = node_checks.all_run([seen("a"), seen("b", phase="Failed", message="because")])
    assert (check.passed, check.found) == (False, "b is Failed because")


def test_a_refusal_needs_its_sentence() -> None:
    cases = [
        (seen("a", phase="Failed", message="150 is no multiple of 100"), True),
        (seen("a", phase="Running", message="150"), False),
        (seen("a", phase="Failed", message="something else"), False),
        (seen("a", phase="Failed", message="150 Traceback (most recent call last)"), False),
    ]
    assert misjudged((node_checks.refused_in_words(pod, words="150"), held) for pod, held in cases) == []


def test_what_is_left_in_the_ledger_is_noticed() -> None:
    assert node_checks.ledger_is_empty(usage()).passed
    check = node_checks.ledger_is_empty(usage(entry("a", cores=30, blocks=4)))
    assert "demo/a/main still has its part; GPU 0 has 30 cores taken" in check.found


def test_a_container_that_stopped_is_noticed() -> None:
    assert node_checks.still_running([("u", "a")], [("u", "a")]).passed
    assert node_checks.still_running([("u", "a"), ("u", "b")], [("u", "a")]).found == "u/b stopped"


def greedy(**changes: object) -> Slice:
    """Asked for 2 GiB and a fifth, and got that."""
    report = Report(
        total_bytes=2 << 30,
        free_bytes=1536 << 20,
        got_bytes=1536 << 20,
        refusal="CUDA_ERROR_OUT_OF_MEMORY",
        seconds=5.0,
        share_percent=20.0,
        nvml=Nvml(2 << 30),
    )
    told = {name: changes.pop(name) for name in Report.__struct_fields__ if name in changes}
    made = Slice("ann", 20, 8, 20, 2 << 30, 2 << 30, msgspec.structs.replace(report, **told))
    return msgspec.structs.replace(made, **changes)


def test_memory_beyond_or_short_of_the_limit_is_noticed() -> None:
    cases = [
        (greedy(), ""),
        (greedy(limit_bytes=4 << 30), "has a limit of 4294967296"),
        (greedy(total_bytes=80 << 30), "sees 85899345920 bytes"),
        (greedy(nvml=None), "sees no bytes in NVML"),
        (greedy(nvml=Nvml(80 << 30)), "sees 85899345920 bytes in NVML"),
        (greedy(refusal="CUDA_SUCCESS"), "was stopped with CUDA_SUCCESS"),
        (greedy(refusal="CUDA_ERROR_INVALID_VALUE"), "was stopped with CUDA_ERROR_INVALID_VALUE"),
        (greedy(held_bytes=(2 << 30) + 1), "ann got 2147483649 bytes of 2147483648"),
        (greedy(got_bytes=1 << 30), "had 1610612736 free bytes and got only 1073741824"),
    ]
    assert misjudged((node_checks.memory_ends_at_the_limit([greedy(), one]), said) for one, said in cases) == []


def test_a_share_that_is_off_by_more_than_three_points_is_noticed() -> None:
    off = "ann asked for 20 % of the GPU's time"
    cases: list[tuple[Slice, str | bool]] = [
        (greedy(share_percent=17.1), True),
        (greedy(share_percent=22.9), True),
        (greedy(share_percent=23.1), off),
        (greedy(share_percent=16.9), off),
        (greedy(limit_cores=30, share_percent=20.0), off),
        (greedy(share_percent=16.1, cpu_wait_s=0.25), True),
        (greedy(share_percent=15.9, cpu_wait_s=0.25), off),
        (greedy(share_percent=23.1, cpu_wait_s=5.0), off),
    ]
    assert misjudged((node_checks.time_is_shared_as_asked([one]), must) for one, must in cases) == []


def test_pods_on_different_gpus_are_noticed() -> None:
    one, other = seen("a"), seen("b", gpu=1)
    assert node_checks.share_one_gpu([one, seen("b")]).passed
    assert node_checks.share_one_gpu([one, other]).found == "a is on GPU (0,); b is on GPU (1,)"
