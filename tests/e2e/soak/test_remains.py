"""What is left over is found, each kind of it, and so is what disagrees."""

from dataclasses import replace

import msgspec

from tests.e2e.node.usage import ContainerUsage, GpuUsage, ShareUsage, Usage
from tests.e2e.soak.remains import Remains, disagreements, left_over
from tests.e2e.soak.test_violations import GPU, OTHER, share

NOTHING = Remains(
    holders=(), counted=(), grant_folders=(), recorded={("last", "main"): frozenset()}, mounts=(), cgroups=()
)


def test_nothing_is_left_but_what_kubelet_keeps_of_the_last_pod() -> None:
    assert left_over(NOTHING, last="last") == []


def test_everything_that_is_left_is_told() -> None:
    for remains, said in (
        (replace(NOTHING, holders=("a/main g-1",)), "the ledger has: a/main g-1"),
        (replace(NOTHING, counted=(GPU,)), "the ledger counts something on: GPU-1"),
        (replace(NOTHING, grant_folders=("g-1",)), "grant folders are left: g-1"),
        (replace(NOTHING, recorded={("a", "b"): frozenset()}), "kubelet's checkpoint has entries of pods: a"),
        (replace(NOTHING, mounts=("x",)), "mounts are left: x"),
        (replace(NOTHING, cgroups=("uid",)), "cgroups are left of pods: uid"),
    ):
        assert left_over(remains, last="last") == [f"all pods are gone and {said}"]


def entry(pod: str, *, gpu: str = GPU) -> ContainerUsage:
    shares = (ShareUsage(gpu, 0, 30, 100, None, None, None, None, None),)
    return ContainerUsage(pod, f"uid-{pod}", "main", "app", f"g-{pod}", 30, 100, shares, True, "pods", None, ())


def usage(*entries: ContainerUsage) -> Usage:
    return Usage(1, (GpuUsage(GPU, 0, True, 30, 100, 320),), entries)


def test_a_ledger_that_has_what_runs_agrees() -> None:
    assert disagreements([share("a")], usage(entry("a")), ["g-a"]) == []


def test_every_disagreement_is_told() -> None:
    a, right = share("a"), entry("a")
    change = msgspec.structs.replace
    full = Usage(1, (GpuUsage(GPU, 0, True, 101, 100, 320),), ())
    for found, held, folders, said in (
        ([a], usage(), [], "a/main (uid-a) runs and is not in the ledger"),
        ([replace(a, grant="g-x")], usage(right), ["g-a"], "a/main (uid-a) mounts g-x and the ledger has g-a"),
        ([a], usage(entry("a", gpu=OTHER)), ["g-a"], "a/main (uid-a) sees ('GPU-1',) and the ledger has ['GPU-2']"),
        ([a], usage(change(right, proved=False)), ["g-a"], "a/main (uid-a) runs and its grant is not proved"),
        ([a], usage(right), [], "grants without a folder: g-a"),
        ([], usage(), ["g-a"], "folders without a grant: g-a"),
        ([a], usage(right, right), ["g-a"], "a container stands twice in the ledger"),
        ([], full, [], f"the ledger gives out more of a GPU than it has: {full.gpus[0]}"),
    ):
        assert disagreements(found, held, folders) == [said]
