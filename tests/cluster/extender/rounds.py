"""Gangs for the tests, as kube-scheduler filters them: one member after the other, round by round."""

from deviceplugin.cluster.extender.extender import Extender
from deviceplugin.model.pod import ClusterPod, Gang
from tests.cluster.extender.conftest import Clock
from tests.cluster.extender.makers import ask, pod

ONE_CYCLE = Gang("d", "g", waits=False)
AT_PERMIT = Gang("d", "g", waits=True)


def members(gang: Gang, count: int) -> list[ClusterPod]:
    """Each wants a whole GPU."""
    return [pod(cores=100, blocks=0, gang=gang) for _ in range(count)]


def cycle(extender: Extender, pods: list[ClusterPod]) -> list[bool]:
    """Which of them found a place on node a."""
    for each in pods:
        extender.put_pod(each)
    return [bool(extender.filter(ask(each, "a")).names) for each in pods]


def free(extender: Extender) -> int:
    """Cores of node a."""
    return sum(view.free_cores for view in extender.cache.nodes["a"].state.snapshot.gpus)


def free_after(extender: Extender, clock: Clock, seconds: float) -> int:
    clock.now += seconds
    extender.expire()
    return free(extender)
