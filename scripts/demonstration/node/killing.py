"""Act 3: the agent is killed while an Allocate is open, and its ledger is the same afterwards."""

from deviceplugin.observe.usage import Usage
from scripts.demonstration.failure import DemoError
from scripts.demonstration.node import promises
from scripts.demonstration.node.cast import NAMESPACE, Role, replica
from scripts.demonstration.node.play import EMPTY_S, RUN_S, Play

REPLICAS = 6
BEFORE_KILL = 2  # so many of them are admitted before
SLOW_PODS_S = 0.4  # kubelet takes so long to list its pods, so that the kill hits the middle of an Allocate


async def kill(play: Play) -> tuple[Usage, Usage]:
    """The ledger before and after; what was refused meanwhile is made again."""
    play.show.act(f"SIGKILL while {REPLICAS} replicas of web are being admitted")
    replicas = [replica(number) for number in range(1, REPLICAS + 1)]
    running = {(pod.uid, item.name) for pod in play.pods.values() for item in pod.containers if not item.init}
    for role in replicas:
        play.submit(role)
    for role in replicas[:BEFORE_KILL]:
        await play.settled(role.name)
    play.stage.kubelet.pods_faults.delay_s = SLOW_PODS_S
    hit = await _open_allocate(play)
    before = await play.stage.agent.usage()
    await play.stage.agent.kill()
    play.stage.kubelet.pods_faults.delay_s = 0.0
    for role in replicas:
        await play.settled(role.name)
    refused = [role for role in replicas if play.look(role.name).phase == "Failed"]
    uids = [play.refuse(role.name).uid for role in refused]
    play.show.say(
        f"killed in the middle of an Allocate for {hit}; without the agent kubelet refused {len(refused)} replicas"
    )
    play.seconds["restart"] = await play.start_agent()
    after = await _without(play, uids)
    play.show.say(f"started again, ready after {play.seconds['restart']:.1f} s; the ledger:\n")
    play.show.comparison(before, after)
    alive = {key for key in running if play.stage.kubelet.runs(*key)}
    play.keep(promises.same_ledger(before, after, refused=uids), promises.still_running(running, alive))
    await _replace(play, refused)
    return before, after


async def _open_allocate(play: Play) -> str:
    """The pod whose Allocate the agent is working on right now."""
    calls = play.stage.kubelet.calls
    try:
        await play.stage.kubelet.changes.until(
            lambda: bool(calls.open("Allocate")), what="an Allocate is open", deadline_s=RUN_S
        )
    except TimeoutError as error:
        raise DemoError(f"{error}, in which the agent could be killed") from error
    waiting = calls.open("Allocate")
    pods = play.stage.server.store.objects("pods", namespace=NAMESPACE)
    return str(next(item["metadata"]["name"] for item in pods if item["metadata"]["uid"] == waiting[0]))


async def _without(play: Play, refused: list[str]) -> Usage:
    """The ledger as soon as it has let go of what the refused pods may have half got."""
    found: list[Usage] = []

    async def clean() -> bool:
        found.append(await play.stage.agent.usage())
        return not any(entry.uid in refused for entry in found[-1].containers)

    await play.stage.agent.until(clean, what="refused pods hold nothing", deadline_s=EMPTY_S)
    return found[-1]


async def _replace(play: Play, refused: list[Role]) -> None:
    """What a ReplicaSet does with replicas that failed; then everything is looked at."""
    for number, _ in enumerate(refused, REPLICAS + 1):
        await play.run(replica(number))
    for name in list(play.pods):
        play.look(name)
    usage = await play.stage.agent.usage()
    play.show.bars(f"\nthe ReplicaSet made the {len(refused)} refused replicas again; all GPUs now", usage)
    play.keep(
        promises.all_run(play.pods.values()),
        promises.answers_are_their_own(play.pods.values(), usage),
        promises.nothing_is_given_twice(usage),
    )
