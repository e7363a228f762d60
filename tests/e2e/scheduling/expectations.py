"""What must be true of placed pods on all nodes, however they came there.

In: the world and its pods. Out: AssertionError that names the pod. Invariant: what agents hold is compared with what
pods say, and both are summed against what the GPUs have, so that neither can hide the other's mistake.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import PodAllocation, parse_allocation
from deviceplugin.model.units import CORES_PER_GPU
from sandbox.cluster import pods
from sandbox.cluster.client import JsonObject
from sandbox.cluster.pods import PodState
from sandbox.cluster.waiting import wait_until
from tests.e2e.scheduling.world import World

NAMES = AnnotationNames()
Told = Mapping[tuple[str, str], tuple[str, ...]]
"""By (pod UID, container): the GPUs."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod with what it says of its GPUs."""

    state: PodState
    allocation: PodAllocation


def placed(world: World, names: Iterable[str]) -> dict[str, Placed]:
    """Each of them bound, and its annotation its own."""
    states = pods.states(world.admin)
    found = {name: Placed(states[name], _allocation(states[name])) for name in names}
    for name, each in found.items():
        assert each.state.node, f"{name} is on no node"
        assert each.allocation.pod == each.state.uid, f"{name} says that it is {each.allocation.pod}"
        assert each.allocation.containers, f"{name} names no GPUs"
    return found


def check_agents_did_as_annotated(world: World, found: Mapping[str, Placed]) -> None:
    """On the real nodes the ledger's entries are those that the pods name; hollow nodes name GPUs of theirs."""
    held = {name: _held(world, name) for name in world.agents}
    for name, each in found.items():
        told = {
            (each.allocation.pod, container): tuple(sorted(share.uuid for share in shares))
            for container, shares in each.allocation.containers.items()
        }
        if each.state.node in held:
            mine = {key: gpus for key, gpus in held[each.state.node].items() if key[0] == each.state.uid}
            assert mine == told, f"{name} on {each.state.node}: the agent gave {mine}, the pod says {told}"
        else:
            known = {gpu.uuid for gpu in world.gpus_of_hollow[each.state.node].gpus}
            assert {uuid for gpus in told.values() for uuid in gpus} <= known, f"{name} names GPUs of another node"


def wait_agents_agree(world: World, names: Iterable[str]) -> dict[str, Placed]:
    """For pods that no extender chose GPUs for: their agents tell it after they have started."""
    wanted = list(names)

    def agree() -> dict[str, Placed] | None:
        try:
            found = placed(world, wanted)
            check_agents_did_as_annotated(world, found)
        except AssertionError as error:
            complaints.append(str(error))
            return None
        return found

    complaints: list[str] = [""]
    return wait_until(agree, "pods say what agents hold", evidence=lambda: complaints[-1])


def check_no_gpu_is_given_out_twice(world: World) -> None:
    """Over all pods that are not over, by their annotations, and over each agent's ledger."""
    cores: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    for item in world.admin.get(pods.PODS)["items"]:
        if item["spec"].get("nodeName") and item["status"].get("phase") not in ("Succeeded", "Failed"):
            for uuid, (most_cores, most_blocks) in _most_at_once(item).items():
                cores[uuid] += most_cores
                blocks[uuid] += most_blocks
    over = {uuid: count for uuid, count in cores.items() if count > CORES_PER_GPU}
    assert not over, f"more cores given out than GPUs have: {over}"
    has: dict[str, int] = {
        gpu.uuid: gpu.blocks for inventory in world.gpus_of_hollow.values() for gpu in inventory.gpus
    }
    for agent in world.agents.values():
        for gpu in agent.usage().gpus:
            assert gpu.cores_allocated <= CORES_PER_GPU, gpu
            assert gpu.blocks_allocated <= gpu.blocks, gpu
            has[gpu.uuid] = gpu.blocks
    over = {uuid: count for uuid, count in blocks.items() if count > has[uuid]}
    assert not over, f"more blocks given out than GPUs have: {over}"


def _most_at_once(item: JsonObject) -> dict[str, tuple[int, int]]:
    """Cores and blocks of each GPU: of what stays, or of one init container where that is more."""
    written = parse_allocation(item["metadata"]["annotations"][NAMES.allocation]).containers
    passing = {each["name"] for each in item["spec"].get("initContainers", []) if each.get("restartPolicy") != "Always"}
    phases = [[name for name in written if name not in passing], *([name] for name in written if name in passing)]
    most: dict[str, tuple[int, int]] = {}
    for phase in phases:
        cores: Counter[str] = Counter()
        blocks: Counter[str] = Counter()
        for share in (share for name in phase for share in written[name]):
            cores[share.uuid] += share.cores
            blocks[share.uuid] += share.blocks
        for uuid in cores:
            before = most.get(uuid, (0, 0))
            most[uuid] = (max(before[0], cores[uuid]), max(before[1], blocks[uuid]))
    return most


def _allocation(state: PodState) -> PodAllocation:
    written = state.annotations.get(NAMES.allocation)
    assert written is not None, f"{state.name} on {state.node} says nothing of its GPUs"
    return parse_allocation(written)


def _held(world: World, node: str) -> Told:
    usage = world.agents[node].usage()
    return {(each.uid, each.container): tuple(sorted(gpu.uuid for gpu in each.gpus)) for each in usage.containers}
