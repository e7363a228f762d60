"""The cluster half against the real API server, kube-scheduler and kubelets: what issue 4 promises of it.

Two real nodes with agents, two hollow ones, `vcuda scheduler` as the manifests ship it, and the cluster's own
kube-scheduler beside it, which knows nothing of us.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.cluster import pods
from sandbox.cluster.client import ApiError, JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.kubelet import NODE
from sandbox.cluster.waiting import wait_until
from tests.e2e.node.scene import wait_ledger_empty
from tests.e2e.node.view import SHOW_AND_STAY
from tests.e2e.node.workload import CORE, MEMORY, WHOLE, GpuPod, burst, share
from tests.e2e.scheduling.expectations import (
    NAMES,
    check_no_gpu_is_given_out_twice,
    placed,
    wait_agents_agree,
)
from tests.e2e.scheduling.installation import NAME
from tests.e2e.scheduling.steps import bound, check, create, is_refused, wait_all
from tests.e2e.scheduling.world import GPUS, HOLLOW, SECOND, World, everybody

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SPREAD = {NAMES.node_policy: "spread"}
IGNORED = {"tencent.com/vcuda-webhook": "ignore"}


@pytest.fixture(scope="module")
def everyone(cluster: Cluster, programs: Path) -> Iterator[World]:
    with everybody(cluster, programs) as world:
        yield world


@pytest.fixture
def world(everyone: World) -> Iterator[World]:
    """With no pods, in the beginning and in the end."""
    yield everyone
    pods.delete_all(everyone.admin)
    for agent in everyone.agents.values():
        wait_ledger_empty(agent)


def test_a_user_writes_the_two_resources_and_nothing_else(world: World) -> None:
    created = world.admin.post(pods.PODS, share("plain", 20, 8).manifest())

    assert created["spec"]["schedulerName"] == NAME
    wait_all(world, ["plain"])
    check(world, ["plain"])


def test_what_can_never_run_is_refused_with_what_to_write_instead(world: World) -> None:
    with pytest.raises(ApiError, match="write 100 or 200"):
        pods.create(world.admin, share("never", 150, 4).manifest())


def test_pods_without_gpus_need_no_vcuda_program(world: World) -> None:
    world.ours.kill()
    try:
        created = world.admin.post(pods.PODS, pods.pod("cpu", [pods.container("main", "sleep 1000")]))
        assert created["spec"]["schedulerName"] == "default-scheduler"
        with pytest.raises(ApiError, match="webhook"):
            pods.create(world.admin, share("gpu", 20, 8).manifest())
    finally:
        world.ours.start()


def test_a_burst_of_pods_is_carried_out_by_the_agents_as_annotated(world: World) -> None:
    asked = [*burst("burst"), *(share(f"more-{number:02}", 6 + number % 5, 4 + number % 7) for number in range(16))]
    with _scheduler_away(world):
        create(world, asked, annotations=SPREAD)

    wait_all(world, [each.name for each in asked])

    found = check(world, [each.name for each in asked])
    assert {each.state.node for each in found.values()} == {NODE, SECOND, *HOLLOW}
    for pod in asked:
        for container in pod.all_containers:
            shares = found[pod.name].allocation.containers[container.name]
            assert sum(each.cores for each in shares) == container.cores, f"{pod.name}/{container.name}"


def test_the_extender_dies_between_filter_and_bind(world: World) -> None:
    """Played by hand: its answer to filter lives in its memory only, and bind comes to the next one."""
    with _scheduler_away(world):
        pods.create(world.admin, share("between", 60, 8).manifest())
        item = world.admin.get(f"{pods.PODS}/between")
        (node,) = _filter(world, item, [NODE, SECOND])
        world.ours.kill()
        world.ours.start()
        assert not _bind(world, item, node)
        assert not _bind(world, item, node), "asked again, as after a lost answer"

        wait_all(world, ["between"])
        check(world, ["between"])


def test_the_extender_dies_in_the_middle_of_a_burst(world: World) -> None:
    asked = [share(f"middle-{number:02}", 40, 16) for number in range(36)]  # two of them on a GPU, and room for 48
    with _scheduler_away(world):
        create(world, asked, annotations=SPREAD)
    wait_until(lambda: bound(world) >= 10, "ten pods are bound")

    world.ours.kill()
    world.ours.start()

    wait_all(world, [each.name for each in asked])
    check(world, [each.name for each in asked])


def _forget_the_dead(world: World) -> None:
    """Kubelet 1.36 takes ended pods out of its checkpoint at its next Allocate; killed before, it never does."""
    create(world, [share("sweep", 1, 1)], nodeSelector={"kubernetes.io/hostname": SECOND})
    wait_all(world, ["sweep"])
    pods.delete(world.admin, ["sweep"])
    wait_until(lambda: bound(world) == 0, "the pods of the scenes before are gone")


def test_the_extender_dies_between_bind_and_allocate(world: World) -> None:
    """Kubelet is away meanwhile; the next extender must know from the pods alone what is taken."""
    node = world.nodes[SECOND]
    first = [share(f"first-{number}", 60, 16) for number in range(GPUS)]
    _forget_the_dead(world)
    node.kubelet.kill()
    create(world, first, nodeSelector={"kubernetes.io/hostname": SECOND})
    wait_until(lambda: bound(world) == len(first), "all are bound to a node without kubelet")
    chosen = {name: each.allocation for name, each in placed(world, [each.name for each in first]).items()}

    world.ours.kill()
    world.ours.start()
    late = share("late", 60, 16)
    create(world, [late], nodeSelector={"kubernetes.io/hostname": SECOND})
    wait_until(lambda: is_refused(world, "late"), "there is no GPU left for one more")
    node.kubelet.start()

    wait_all(world, [each.name for each in first])
    found = check(world, [each.name for each in first], waiting=["late"])
    assert {name: each.allocation for name, each in found.items()} == chosen
    pods.delete(world.admin, ["first-0"])
    wait_all(world, ["late"])
    check(world, ["late"])


def test_pods_that_another_scheduler_binds_are_adopted(world: World) -> None:
    """Half of the pods are the other scheduler's, which counts cores and blocks of nodes and knows nothing of GPUs."""
    theirs = [share(f"theirs-{number:02}", 30, 16) for number in range(6)]
    mine = [share(f"mine-{number:02}", 30, 16) for number in range(6)]
    real = _on([NODE, SECOND])
    for other, own in zip(theirs, mine, strict=True):
        create(world, [other], labels=IGNORED, affinity=real)
        create(world, [own], affinity=real)
    direct = share("direct", 50, 16)  # and one that no scheduler binds at all
    create(world, [direct], labels=IGNORED, nodeName=NODE)
    names = [each.name for each in (*theirs, *mine, direct)]

    wait_all(world, names)

    wait_agents_agree(world, names)
    check_no_gpu_is_given_out_twice(world)
    states = pods.states(world.admin)
    schedulers = {name: world.admin.get(f"{pods.PODS}/{name}")["spec"]["schedulerName"] for name in states}
    assert {schedulers[each.name] for each in theirs} == {"default-scheduler"}
    assert {schedulers[each.name] for each in mine} == {NAME}


def test_what_was_adopted_is_counted(world: World) -> None:
    """A whole node is taken by pods that only the agent placed; then one more cannot go there."""
    taken = [GpuPod(f"taken-{number}", share("x", WHOLE, 0).containers) for number in range(GPUS - 1)]
    create(world, taken, labels=IGNORED, nodeName=SECOND)
    wait_all(world, [each.name for each in taken])
    wait_agents_agree(world, [each.name for each in taken])

    create(world, [share("fits", 70, 16)], nodeSelector={"kubernetes.io/hostname": SECOND})
    wait_all(world, ["fits"])
    create(world, [share("does-not", 40, 16)], nodeSelector={"kubernetes.io/hostname": SECOND})
    wait_until(lambda: is_refused(world, "does-not"), "there is no room for one more")

    check(world, ["fits"], waiting=["does-not"])


def test_a_pod_made_again_from_its_own_yaml_does_not_bring_its_old_gpus(world: World) -> None:
    create(world, [share("again", 60, 16)])
    wait_all(world, ["again"])
    old = world.admin.get(f"{pods.PODS}/again")
    assert NAMES.allocation in old["metadata"]["annotations"]
    pods.delete(world.admin, ["again"])
    pods.wait_gone(world.admin, ["again"])
    create(world, [share("meanwhile", 60, 16)])

    created = world.admin.post(pods.PODS, _as_dumped(old))
    kept = created["metadata"].get("annotations", {})
    assert not {NAMES.allocation, NAMES.gpu_assigned, NAMES.predicate_node} & kept.keys()
    wait_all(world, ["again", "meanwhile"])
    check(world, ["again", "meanwhile"])


def test_a_pod_written_for_hami_runs_unchanged(world: World) -> None:
    limits = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 4096, "nvidia.com/gpucores": 30}
    manifest = pods.pod("hami", [pods.container("main", SHOW_AND_STAY, limits)], affinity=_on([NODE, SECOND]))
    created = world.admin.post(pods.PODS, manifest)
    asked = created["spec"]["containers"][0]["resources"]["limits"]
    assert {name: asked.get(name) for name in (CORE, MEMORY, "nvidia.com/gpu")} == {
        CORE: "60",
        MEMORY: "32",
        "nvidia.com/gpu": None,
    }

    wait_all(world, ["hami"])
    shares = check(world, ["hami"])["hami"].allocation.containers["main"]
    assert [(each.cores, each.blocks) for each in shares] == [(30, 16), (30, 16)]
    assert len({each.uuid for each in shares}) == 2


@contextmanager
def _scheduler_away(world: World) -> Iterator[None]:
    with world.kube_scheduler.process.paused():
        yield


def _filter(world: World, item: JsonObject, names: Sequence[str]) -> list[str]:
    answer = world.ours.client().post("/filter", {"Pod": item, "Nodes": None, "NodeNames": list(names)})
    assert not answer.get("Error"), answer
    return list(answer["NodeNames"])


def _bind(world: World, item: JsonObject, node: str) -> str:
    meta = item["metadata"]
    body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
    return str(world.ours.client().post("/bind", body)["Error"])


def _on(nodes: Sequence[str]) -> JsonObject:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def _as_dumped(item: JsonObject) -> JsonObject:
    """`kubectl get -o yaml`, with what must not be in a new object taken away as people do."""
    metadata = {key: item["metadata"][key] for key in ("name", "annotations")}
    spec = {key: value for key, value in item["spec"].items() if key not in ("nodeName",)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
