"""The steps that scenes of scheduling have in common: pods made, waited for, looked at.

In: a world and what pods ask for. Out: the pods in the API server, or a failure that shows them. Not here: what must be
true of placed pods (`expectations`).
"""

from collections.abc import Iterable, Mapping, Sequence

from sandbox.cluster import pods
from sandbox.cluster.client import Client, JsonObject
from sandbox.cluster.waiting import wait_until
from tests.e2e.node.workload import GpuPod
from tests.e2e.scheduling.expectations import (
    Placed,
    check_agents_did_as_annotated,
    check_no_gpu_is_given_out_twice,
    placed,
)
from tests.e2e.scheduling.world import World

NOTHING: Mapping[str, str] = {}
NOT_BY_TIME = "--reservation-time=1h"
"""Of `vcuda scheduler`: a reservation that ends while a test waits was ended by an event."""


def create(
    world: World,
    asked: Iterable[GpuPod],
    *,
    labels: Mapping[str, str] = NOTHING,
    annotations: Mapping[str, str] = NOTHING,
    **spec: object,
) -> None:
    for pod in asked:
        manifest = pod.manifest(labels=dict(labels), annotations=dict(annotations))
        manifest["spec"].update(spec)
        pods.create(world.admin, manifest)


def wait_all(world: World, names: Sequence[str]) -> None:
    pods.wait_running(world.admin, names)


def check(world: World, names: Sequence[str], *, waiting: Iterable[str] = ()) -> dict[str, Placed]:
    found = placed(world, names)
    check_agents_did_as_annotated(world, found)
    check_no_gpu_is_given_out_twice(world)
    states = pods.states(world.admin)
    assert not [name for name in waiting if states[name].node]
    return found


def bound(world: World) -> int:
    return sum(bool(state.node) for state in pods.states(world.admin).values())


def is_refused(world: World, name: str) -> bool:
    """kube-scheduler has tried and says that it found no node."""
    return bool(said(world, name)) and scheduled(world, name).get("reason") == "Unschedulable"


def said(world: World, name: str) -> str:
    """What kube-scheduler says of the pod, in its condition."""
    return str(scheduled(world, name).get("message", ""))


def scheduled(world: World, name: str) -> JsonObject:
    conditions = world.admin.get(f"{pods.PODS}/{name}")["status"].get("conditions", [])
    return next((each for each in conditions if each["type"] == "PodScheduled"), {})


def reservations(world: World) -> int:
    """Pods that hold GPUs by filter's choice and are not bound, as the extender counts them."""
    return int(metric(world, "vcuda_scheduler_reservations"))


def metric(world: World, name: str) -> float:
    """One without labels."""
    lines = world.ours.client().text("GET", "/metrics").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def delete_gangs(admin: Client, groups: str) -> None:
    """All pods and all pod groups; `groups` is the path of their collection."""
    pods.delete_all(admin)
    admin.delete(groups)
    wait_until(lambda: not admin.get(groups)["items"], "the pod groups are gone")


def wait_nothing_reserved(world: World) -> None:
    wait_until(
        lambda: not reservations(world),
        "nothing is reserved",
        evidence=lambda: f"{reservations(world)} reservations",
    )
