"""Variations of a known workload or cluster for which nothing was tuned.

In: a scene and a seed. Out: another scene with as many tasks or nodes; equal for equal seeds.
"""

import random
from collections.abc import Callable, Mapping

from deviceplugin.model.pod_request import PodRequest
from deviceplugin.model.request import Request
from deviceplugin.placement.node_state import NodeState, Spare
from deviceplugin.simulate.trace import Scene, Task, task
from deviceplugin.structs import replace

Mix = Callable[[Scene, random.Random], Scene]


def needs_exchanged(scene: Scene, drawn: random.Random) -> Scene:
    """Every task keeps its GPUs and gets CPU and memory of another one, which removes their correlation."""
    needs = [each.needs for each in scene.tasks]
    drawn.shuffle(needs)
    return replace(scene, tasks=tuple(task(each.pod, own) for each, own in zip(scene.tasks, needs, strict=True)))


def shares_redrawn(scene: Scene, drawn: random.Random) -> Scene:
    """Each share of one GPU becomes one of 5, 10, ... 95 cores."""
    return replace(scene, tasks=tuple(_redrawn(each, drawn) for each in scene.tasks))


def kinds_weighed_anew(scene: Scene, drawn: random.Random) -> Scene:
    """Each kind of task becomes up to eight times as frequent or as rare."""
    weights: dict[object, float] = {}
    for each in scene.tasks:
        weights.setdefault((each.pod.shape, each.needs), 2 ** drawn.uniform(-3, 3))
    by_task = [weights[each.pod.shape, each.needs] for each in scene.tasks]
    return replace(scene, tasks=tuple(drawn.choices(scene.tasks, by_task, k=len(scene.tasks))))


def nodes_redrawn(scene: Scene, drawn: random.Random) -> Scene:
    """As many nodes, drawn from the kinds of nodes with equal probability; tasks stay the same."""
    kinds: dict[object, NodeState] = {}
    for node in scene.nodes:
        kinds.setdefault((node.spare, tuple(view.gpu.model for view in node.snapshot.gpus)), node)
    nodes = drawn.choices(list(kinds.values()), k=len(scene.nodes))
    return replace(scene, nodes=tuple(_named(node, f"n{at:04}") for at, node in enumerate(nodes)))


def cpu_ample(scene: Scene, _drawn: random.Random) -> Scene:
    """Twice the CPU and memory with the same GPUs, so that only GPUs are scarce."""
    return replace(scene, nodes=tuple(replace(node, spare=_twice(node.spare)) for node in scene.nodes))


def inference(scene: Scene, drawn: random.Random) -> Scene:
    """Each task with GPUs becomes a small share with one to four CPUs; so do the CPU and memory of the other tasks."""
    return replace(scene, tasks=tuple(_served(each, drawn) for each in scene.tasks))


MIXES: Mapping[str, Mix] = {
    "needs-exchanged": needs_exchanged,
    "shares-redrawn": shares_redrawn,
    "kinds-weighed-anew": kinds_weighed_anew,
    "nodes-redrawn": nodes_redrawn,
    "cpu-ample": cpu_ample,
    "inference": inference,
}


def mixed(scene: Scene, name: str, *, seed: int) -> Scene:
    return MIXES[name](scene, random.Random(f"{name} {seed}"))


def _redrawn(old: Task, drawn: random.Random) -> Task:
    if not any(each.request.is_share and each.request.gpus == 1 for each in old.pod.containers):
        return old
    request = Request(drawn.randrange(5, 100, 5), 0)
    containers = tuple(replace(each, request=request) for each in old.pod.containers)
    return task(PodRequest(old.pod.pod, containers, old.pod.preferences), old.needs)


def _served(old: Task, drawn: random.Random) -> Task:
    needs = Spare(1000 * drawn.randint(1, 4), 1024 * drawn.choice((2, 4, 8, 16)))
    request = Request(drawn.choice((5, 10, 15, 20, 25, 30, 40, 50)), 0)
    containers = tuple(replace(each, request=request) for each in old.pod.containers)
    return task(PodRequest(old.pod.pod, containers, old.pod.preferences), needs)


def _twice(spare: Spare | None) -> Spare | None:
    return None if spare is None else Spare(2 * spare.cpu_milli, 2 * spare.memory_mib)


def _named(node: NodeState, name: str) -> NodeState:
    """A copy with another name and other GPU UUIDs."""
    gpus = tuple(
        replace(view, gpu=replace(view.gpu, uuid=type(view.gpu.uuid)(f"{name}/{view.gpu.minor}")))
        for view in node.snapshot.gpus
    )
    return replace(node, name=name, snapshot=replace(node.snapshot, gpus=gpus))
