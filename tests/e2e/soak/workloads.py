"""Pods of every kind, as random data.

In: a kind, a name, a source of random numbers. Out: the objects to create, each with its collection. Not here: creating
them. Invariant: every GPU container has in its environment what it asked for, so that a watcher needs no API server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from sandbox.cluster import pods
from sandbox.cluster.client import JsonObject
from sandbox.cluster.kubelet import NODE
from tests.e2e.node.workload import CORE, MEMORY, WHOLE
from tests.e2e.scheduling.gangs import GROUPS

REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
STATIC = "static pods"
"""No collection of the API server: kubelet reads these from files."""

STAY = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
MOST_CORES, MOST_BLOCKS = 5, 8
"""Of one share. Together the shares leave room on four GPUs, so a pod waits only if a GPU is lost."""
MEMBERS = 3


class Kind(StrEnum):
    """What a workload is made of; the table in `WEIGHTS` says how often each one is chosen."""

    SHARE = "a share"
    SEVERAL = "several containers"
    INIT = "init containers"
    SIDECAR = "a sidecar"
    WHOLE = "a whole GPU"
    LINKED = "two GPUs"
    BY_NAME = "bound by name"
    STATIC = "a static pod"
    REPLICA_SET = "a ReplicaSet"
    JOB = "a Job"
    GANG = "a gang"
    SHORT = "ends by itself"
    CRASHING = "crashes"


WEIGHTS = {
    Kind.SHARE: 4,
    Kind.SEVERAL: 3,
    Kind.INIT: 3,
    Kind.SIDECAR: 3,
    Kind.WHOLE: 1,
    Kind.LINKED: 1,
    Kind.BY_NAME: 3,
    Kind.STATIC: 1,
    Kind.REPLICA_SET: 2,
    Kind.JOB: 2,
    Kind.GANG: 1,
    Kind.SHORT: 3,
    Kind.CRASHING: 2,
}
LARGE = frozenset({Kind.WHOLE, Kind.LINKED})
"""One of these at a time: two would leave no room for the shares."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Objects that are created together, in this order, and deleted together, in the opposite one."""

    name: str
    kind: Kind
    objects: tuple[tuple[str, JsonObject], ...]

    @property
    def pods(self) -> int:
        """How many pods are created at first; a controller may create more."""
        return sum(int(body["spec"].get("replicas", 1)) for place, body in self.objects if place != GROUPS)


def random_kind(rng: Random, *, large: bool) -> Kind:
    """`large`: whether there is room for whole GPUs."""
    kinds = [kind for kind in WEIGHTS if large or kind not in LARGE]
    return rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]


def make_workload(kind: Kind, name: str, rng: Random) -> Workload:
    return Workload(name, kind, _OBJECTS[kind](name, rng))


def _one_pod(name: str, rng: Random) -> tuple[tuple[str, JsonObject], ...]:
    return ((pods.PODS, pods.pod(name, [_share(name, "main", rng)])),)


def _several(name: str, rng: Random) -> tuple[tuple[str, JsonObject], ...]:
    containers = [_share(name, f"c{number}", rng) for number in range(rng.randint(2, 3))]
    return ((pods.PODS, pods.pod(name, containers)),)


def _init(name: str, rng: Random) -> tuple[tuple[str, JsonObject], ...]:
    first = [_share(name, f"i{number}", rng, f"sleep {rng.random():.1f}") for number in range(rng.randint(1, 2))]
    main = [_share(name, f"c{number}", rng) for number in range(rng.randint(1, 2))]
    return ((pods.PODS, pods.pod(name, main, init=first)),)


def _sidecar(name: str, rng: Random) -> tuple[tuple[str, JsonObject], ...]:
    side = _share(name, "side", rng) | {"restartPolicy": "Always"}
    first = [_share(name, "first", rng, "sleep 0.3")] if rng.random() < 0.5 else []
    return ((pods.PODS, pods.pod(name, [_share(name, "main", rng)], init=[side, *first])),)


def _whole(name: str, rng: Random) -> tuple[tuple[str, JsonObject], ...]:
    bound = rng.random() < 0.3
    return ((pods.PODS, pods.pod(name, [_container(name, "main", WHOLE, 0)], **(_bound() if bound else {}))),)


def _linked(name: str, rng: Random) -> tuple[tuple[str, JsonObject], ...]:
    del rng
    return ((pods.PODS, pods.pod(name, [_container(name, "main", 2 * WHOLE, 0)])),)


def _by_name(name: str, rng: Random) -> tuple[tuple[str, JsonObject], ...]:
    containers = [_share(name, f"c{number}", rng) for number in range(rng.randint(1, 2))]
    return ((pods.PODS, pods.pod(name, containers, **_bound())),)


def _static(name: str, rng: Random) -> tuple[tuple[str, JsonObject], ...]:
    body = pods.pod(name, [_share(name, "main", rng)])
    body["metadata"]["namespace"] = pods.NAMESPACE
    return ((STATIC, body),)


def _replica_set(name: str, rng: Random) -> tuple[tuple[str, JsonObject], ...]:
    spec = pods.pod(name, [_share(name, "main", rng)], **(_bound() if rng.random() < 0.5 else {}))["spec"]
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": spec}
    body = {"replicas": rng.randint(1, 2), "selector": {"matchLabels": labels}, "template": template}
    return ((REPLICA_SETS, {"metadata": {"name": name}, "spec": body}),)


def _job(name: str, rng: Random) -> tuple[tuple[str, JsonObject], ...]:
    work = _share(name, "main", rng, f"sleep {rng.randint(1, 20)}; exit {rng.choice((0, 0, 1))}")
    spec = pods.pod(name, [work], restartPolicy="Never")["spec"]
    return ((JOBS, {"metadata": {"name": name}, "spec": {"backoffLimit": 2, "template": {"spec": spec}}}),)


def _gang(name: str, rng: Random) -> tuple[tuple[str, JsonObject], ...]:
    group = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": MEMBERS}}},
    }
    names = [f"{name}-{number}" for number in range(MEMBERS)]
    belongs = {"podGroupName": name}
    members = [pods.pod(each, [_share(each, "main", rng)], schedulingGroup=belongs) for each in names]
    return ((GROUPS, group), *((pods.PODS, each) for each in members))


def _short(name: str, rng: Random) -> tuple[tuple[str, JsonObject], ...]:
    script = f"sleep {rng.randint(0, 15)}; exit {rng.choice((0, 0, 1))}"
    return ((pods.PODS, pods.pod(name, [_share(name, "main", rng, script)], restartPolicy="Never")),)


def _crashing(name: str, rng: Random) -> tuple[tuple[str, JsonObject], ...]:
    containers = [_share(name, "main", rng), _share(name, "crash", rng, f"sleep {rng.randint(1, 10)}; exit 3")]
    return ((pods.PODS, pods.pod(name, containers)),)


_OBJECTS = {
    Kind.SHARE: _one_pod,
    Kind.SEVERAL: _several,
    Kind.INIT: _init,
    Kind.SIDECAR: _sidecar,
    Kind.WHOLE: _whole,
    Kind.LINKED: _linked,
    Kind.BY_NAME: _by_name,
    Kind.STATIC: _static,
    Kind.REPLICA_SET: _replica_set,
    Kind.JOB: _job,
    Kind.GANG: _gang,
    Kind.SHORT: _short,
    Kind.CRASHING: _crashing,
}


def _share(pod: str, name: str, rng: Random, script: str = STAY) -> JsonObject:
    return _container(pod, name, rng.randint(1, MOST_CORES), rng.randint(1, MOST_BLOCKS), script)


def _container(pod: str, name: str, cores: int, blocks: int, script: str = STAY) -> JsonObject:
    limits = {CORE: cores, **({MEMORY: blocks} if blocks else {})}
    asked: Sequence[tuple[str, object]] = (
        ("SOAK_POD", pod),
        ("SOAK_CONTAINER", name),
        ("SOAK_CORES", cores),
        ("SOAK_BLOCKS", blocks),
    )
    env = [{"name": key, "value": str(value)} for key, value in asked]
    return pods.container(name, script, limits, env=env)


def _bound() -> JsonObject:
    """To the node, by name: no scheduler is asked, and kubelet alone decides."""
    return {"nodeName": NODE, "schedulerName": "default-scheduler"}
