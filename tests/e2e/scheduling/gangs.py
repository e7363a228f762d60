"""kube-scheduler's own gangs (1.36, API scheduling.k8s.io/v1alpha2): a pod group, and the pods that name it.

In: a world and how many members the gang needs. Out: the group and its pods in the API server. Not here: what
becomes of them.
"""

from collections.abc import Sequence

from sandbox.cluster.client import Client, JsonObject
from sandbox.cluster.waiting import wait_until
from tests.e2e.node.workload import share
from tests.e2e.scheduling.steps import create
from tests.e2e.scheduling.world import World

GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
BLOCKS = 16


def make_gang(world: World, name: str, count: int, *, cores: int, scheduler: str = "") -> list[str]:
    """With as many members as it needs, each a share of so many cores; without a `scheduler` the webhook says which."""
    make_group(world, name, count)
    return add_members(
        world, name, [f"{name}-{number:02}" for number in range(count)], cores=cores, scheduler=scheduler
    )


def make_group(world: World, name: str, count: int) -> None:
    world.admin.post(GROUPS, group(name, count))


def group(name: str, count: int) -> JsonObject:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}},
    }


def add_members(world: World, group: str, names: Sequence[str], *, cores: int, scheduler: str = "") -> list[str]:
    members = [share(name, cores, BLOCKS) for name in names]
    create(world, members, schedulerName=scheduler, schedulingGroup={"podGroupName": group})
    return list(names)


def wait_unschedulable(world: World, gang: str) -> None:
    wait_until(lambda: gang_is_unschedulable(world.admin, gang), f"gang {gang} does not fit")


def gang_is_unschedulable(admin: Client, gang: str) -> bool:
    conditions = admin.get(f"{GROUPS}/{gang}").get("status", {}).get("conditions", [])
    return any(each["type"] == "PodGroupScheduled" and each["status"] == "False" for each in conditions)
