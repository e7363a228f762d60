"""The same arrivals by each node policy: which nodes stay whole for the pod that wants eight GPUs."""

from collections import Counter

from sandbox.inventories import made_up_inventory
from scripts.demonstration.cluster import promises, seen
from scripts.demonstration.cluster.cast import ARRIVALS, LARGE, NAMESPACE, RACKS, arrival
from scripts.demonstration.cluster.findings import PolicyRun
from scripts.demonstration.cluster.play import Play
from scripts.demonstration.cluster.stage import racks

POLICIES = ("binpack", "spread", "fragmentation")
WHOLE_NODE = 800


async def compare(play: Play) -> None:
    play.show.act("Three node policies, the same pods in the same order")
    wanted = ", ".join(_size(cores) for cores in ARRIVALS)
    play.show.say(
        f"four nodes join that exist as objects only. Pods come for {wanted} GPUs, and then one for 8; they are "
        "chosen so that the policies differ\n"
    )
    standing = len(seen.names(play.stage))
    runs: list[PolicyRun] = []
    with racks(play.stage.server):
        gpus = sum(RACKS.values()) + sum(len(each) for each in play.found.nodes.values())
        await play.stage.scheduler.wait_figure("gpus", gpus, what="the scheduler knows the four nodes")
        for policy in POLICIES:
            runs.append(await _run(play, policy))
            await play.stage.scheduler.wait_figure("pods", standing, what="the scheduler has forgotten the arrivals")
    play.note(policies=tuple(runs))
    play.show.policies(runs, RACKS)
    play.keep(promises.every_arrival_runs(runs), promises.fragmentation_keeps_a_node_whole(runs))


async def _run(play: Play, policy: str) -> PolicyRun:
    pods = [arrival(policy, number, cores) for number, cores in enumerate(ARRIVALS, 1)]
    waiting = [pod["metadata"]["name"] for pod in pods if not (await _scheduled(play, pod))[0]]
    taken = _taken(play)
    large, why = await _scheduled(play, arrival(policy, 0, WHOLE_NODE))
    for name in (*(pod["metadata"]["name"] for pod in pods), LARGE):
        play.stage.server.store.delete("pods", name, namespace=NAMESPACE, grace=0)
    return PolicyRun(policy, taken, tuple(waiting), large, why)


async def _scheduled(play: Play, pod: dict[str, object]) -> tuple[str, str]:
    """Its node, or why it has none."""
    found = await play.stage.kube_scheduler.schedule(await play.submit(pod))
    return found.node, found.why


def _taken(play: Play) -> dict[str, tuple[int, ...]]:
    """Cores of each GPU by minor, by what pods say."""
    cores: Counter[str] = Counter()
    for pod in play.stage.server.store.objects("pods", namespace=NAMESPACE):
        if pod["spec"].get("nodeName") in RACKS:
            for share in (each for shares in seen.chosen(pod).values() for each in shares):
                cores[share.uuid] += share.cores
    return {
        name: tuple(cores[str(gpu.uuid)] for gpu in made_up_inventory(name, gpus=count).gpus)
        for name, count in RACKS.items()
    }


def _size(cores: int) -> str:
    return {50: "½"}.get(cores, f"{cores // 100}")
