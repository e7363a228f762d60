"""The steps that the scenarios have in common.

In: a cluster and an agent. Out: pods created, bound at once, looked at from every side. Not here: what must be true.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from deviceplugin.model.units import DEFAULT_DOMAIN
from sandbox.cluster import pods
from sandbox.cluster.client import Client
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.device_nodes import CONTROL_MINOR, GPU_MAJOR, UVM_MAJOR
from sandbox.cluster.kubelet import NODE
from sandbox.cluster.pods import PodState
from sandbox.cluster.waiting import wait_until
from tests.e2e.node.agent import Agent
from tests.e2e.node.limits import BLOCK_BYTES, Limits
from tests.e2e.node.usage import Usage
from tests.e2e.node.view import DRIVER, GRANT, View, parse_view
from tests.e2e.node.workload import CORE, MEMORY, WHOLE, GpuContainer, GpuPod
from tests.offered import blocks_of_each

Views = Mapping[tuple[str, str], View]


@dataclass(frozen=True, slots=True)
class Scene:
    """Running GPU pods, from every side."""

    asked: Mapping[str, GpuPod]
    states: Mapping[str, PodState]
    views: Views
    usage: Usage
    blocks_of_each: list[int]


def read_views(client: Client, asked: Iterable[GpuPod]) -> dict[tuple[str, str], View]:
    """Every container's own words, init containers included; a container that runs has said them or is about to."""
    return {
        (pod.name, each.name): _read_view(client, pod.name, each.name) for pod in asked for each in pod.all_containers
    }


def check_every_container_has_its_own(scene: Scene) -> None:
    for name, pod in scene.asked.items():
        for container in pod.all_containers:
            view = scene.views[name, container.name]
            where = f"{name}/{container.name}"
            _check_limits(where, container, scene.states[name].uid, view)
            _check_devices(where, container, view, scene.usage)
            _check_environment_and_mounts(where, container, view)
    folders = Counter(view.grant_folder for view in scene.views.values())
    shared = [folder for folder, count in folders.items() if count > 1]
    assert not shared, f"grant folders mounted into several containers: {shared}"


def check_no_gpu_is_given_out_twice(scene: Scene) -> None:
    """Counts what the running containers can reach and use, against what each GPU has."""
    cores: Counter[int] = Counter()
    blocks: Counter[int] = Counter()
    for name, pod in scene.asked.items():
        for container in pod.staying:
            for minor in scene.views[name, container.name].reachable_gpus:
                cores[minor] += container.cores // container.gpus
                blocks[minor] += scene.blocks_of_each[minor] if not container.is_share else container.blocks
    over = {minor: count for minor, count in cores.items() if count > WHOLE}
    assert not over, f"more than {WHOLE} cores given out of GPUs (by minor): {over}"
    over = {minor: count for minor, count in blocks.items() if count > scene.blocks_of_each[minor]}
    assert not over, f"more blocks given out than GPUs have (by minor): {over}"


def check_the_ledger_agrees(scene: Scene) -> None:
    """The ledger holds these pods and no others, each container where it can be seen to sit, and its sums add up."""
    uids = {state.uid: name for name, state in scene.states.items()}
    assert scene.usage.pods() == uids.keys(), f"the ledger holds other pods than run: {scene.usage}"
    held = {(each.pod, each.container): each for each in scene.usage.containers}
    assert len(held) == len(scene.usage.containers), f"a container is in the ledger twice: {scene.usage}"
    for name, pod in scene.asked.items():
        for container in pod.staying:
            entry = held[name, container.name]
            assert entry.proved, f"{name}/{container.name} runs and its owner was never proved"
            assert (entry.cores, entry.blocks) == (container.cores, container.blocks), entry
            reachable = scene.views[name, container.name].reachable_gpus
            assert {each.minor for each in entry.gpus} == reachable, f"{entry} but it reaches {set(reachable)}"
    for gpu in scene.usage.gpus:
        assert gpu.cores_allocated <= WHOLE, gpu
        assert gpu.blocks_allocated <= gpu.blocks, gpu


def _read_view(client: Client, pod: str, container: str) -> View:
    return wait_until(
        lambda: parse_view(pods.log(client, pod, container)),
        f"{pod}/{container} says what it sees",
        evidence=lambda: pods.log(client, pod, container)[-2000:],
    )


def _check_limits(where: str, container: GpuContainer, uid: str, view: View) -> None:
    expected = Limits(
        pod_uid=uid,
        container=container.name,
        memory_bytes=container.blocks * BLOCK_BYTES,
        cores=container.cores,
        enforced=container.is_share,
    )
    assert view.limits == expected, f"{where}: its limits file says {view.limits}, it asked for {expected}"


def _check_devices(where: str, container: GpuContainer, view: View, usage: Usage) -> None:
    assert len(view.reachable_gpus) == container.gpus, f"{where} reaches GPUs {set(view.reachable_gpus)}"
    expected = {f"/dev/nvidia{minor}": (GPU_MAJOR, minor) for minor in view.reachable_gpus}
    expected |= {"/dev/nvidiactl": (GPU_MAJOR, CONTROL_MINOR), "/dev/nvidia-uvm": (UVM_MAJOR, 0)}
    assert view.device_nodes == expected, f"{where} has device nodes {view.device_nodes}"
    minors = {gpu.uuid: gpu.minor for gpu in usage.gpus}
    named = {minors[uuid] for uuid in view.visible_gpus}
    assert named == view.reachable_gpus, f"{where} is told GPUs {named} and reaches {set(view.reachable_gpus)}"


def _check_environment_and_mounts(where: str, container: GpuContainer, view: View) -> None:
    path = view.environment["LD_LIBRARY_PATH"].split(":")
    assert path[0] == f"{DRIVER}/lib64", f"{where}: LD_LIBRARY_PATH is {path}"
    flavour = "nvidia" if container.is_share else "origin"
    assert view.driver_flavour == flavour, f"{where} has the driver {view.driver_flavour!r}, not {flavour!r}"
    assert view.mounts.keys() >= {GRANT, DRIVER}, f"{where} lacks a mount: {sorted(view.mounts)}"
    assert view.refused_writes == 2, f"{where} can write to {GRANT} or {DRIVER}"
    own = {f"{GRANT}/state/region", *(f"{GRANT}/state/{uuid}.activity" for uuid in view.visible_gpus)}
    assert view.writable == (own if container.is_share else set()), f"{where} can write to {set(view.writable)}"
    if container.is_share:
        assert view.refused_state_changes == 3, f"{where} can add or remove files of the shared state"


@dataclass(frozen=True, slots=True)
class Offer:
    """What the node offers of the two resources."""

    cores: int
    blocks: int


def offered(client: Client, node: str = NODE) -> Offer:
    allocatable = client.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]
    return Offer(int(allocatable.get(CORE, 0)), int(allocatable.get(MEMORY, 0)))


def everything(blocks_of_each: Sequence[int]) -> Offer:
    return Offer(WHOLE * len(blocks_of_each), sum(blocks_of_each))


def wait_offered(client: Client, offer: Offer, *, node: str = NODE) -> None:
    wait_until(
        lambda: offered(client, node) == offer,
        f"{node} offers {offer}",
        evidence=lambda: _said_of(client, node),
    )


def _said_of(client: Client, node: str) -> str:
    """What it offers, which of its GPUs are closed and why, and what was said about it last."""
    found = client.get(f"/api/v1/nodes/{node}")
    ours = {name: text for name, text in found["metadata"]["annotations"].items() if DEFAULT_DOMAIN in name}
    events = client.get(f"/api/v1/events?fieldSelector=involvedObject.kind=Node,involvedObject.name={node}")["items"]
    said = [f"{each.get('lastTimestamp')} {each.get('reason')}: {each.get('message')}" for each in events]
    offers = [
        f"{kind} {found['status'][kind].get(name)} of {name}"
        for kind in ("allocatable", "capacity")
        for name in (CORE, MEMORY)
    ]
    return "\n".join((*offers, str(ours), *sorted(said)[-10:]))


@contextmanager
def scheduler_paused(cluster: Cluster) -> Iterator[None]:
    """Pods created meanwhile are all bound at once, the moment it goes on."""
    with cluster.control_plane.scheduler.process.paused():
        yield


def create_at_once(cluster: Cluster, asked: Iterable[GpuPod]) -> None:
    with scheduler_paused(cluster):
        for pod in asked:
            pods.create(cluster.admin, pod.manifest())


def wait_all_running(cluster: Cluster, asked: Sequence[GpuPod]) -> None:
    pods.wait_running(cluster.admin, [pod.name for pod in asked])


def wait_some_running(cluster: Cluster, count: int) -> dict[str, PodState]:
    def enough() -> dict[str, PodState] | None:
        running = {name: state for name, state in pods.states(cluster.admin).items() if state.is_running}
        return running if len(running) >= count else None

    return wait_until(enough, f"{count} pods run")


def look(cluster: Cluster, agent: Agent, asked: Sequence[GpuPod]) -> Scene:
    states = pods.states(cluster.admin)
    return Scene(
        asked={pod.name: pod for pod in asked},
        states={pod.name: states[pod.name] for pod in asked},
        views=read_views(cluster.admin, asked),
        usage=agent.usage(),
        blocks_of_each=blocks_of_each(agent.gpus.profile),
    )


def check_everything(cluster: Cluster, agent: Agent, asked: Sequence[GpuPod]) -> Scene:
    scene = look(cluster, agent, asked)
    check_every_container_has_its_own(scene)
    check_no_gpu_is_given_out_twice(scene)
    check_the_ledger_agrees(scene)
    return scene


def wait_ledger_empty(agent: Agent) -> None:
    """Empty means nothing held, nothing counted, and no grant's folder left."""

    def empty() -> bool:
        usage = agent.usage()
        counted = any(gpu.cores_allocated or gpu.blocks_allocated for gpu in usage.gpus)
        return not usage.containers and not counted and not agent.grant_folders()

    wait_until(
        empty,
        "the ledger is empty",
        evidence=lambda: f"{agent.usage()}; folders: {agent.grant_folders()}",
    )
