"""A gang that is too large leaves nothing behind; one that fits runs whole."""

from scripts.demonstration.cluster import promises, seen
from scripts.demonstration.cluster.cast import member
from scripts.demonstration.cluster.findings import Gang
from scripts.demonstration.cluster.play import Play
from scripts.demonstration.cluster.stage import GPUS, NODES

ROOM = GPUS * len(NODES)


async def gather(play: Play) -> None:
    play.show.act(f"A gang of {ROOM + 1} where {ROOM} fit leaves nothing behind")
    await play.clear()
    large = await _gang(play, "five", ROOM + 1)
    await play.clear()
    fitting = await _gang(play, "four", ROOM)
    await play.running(*fitting.bound)
    await play.look(fitting.bound)
    play.note(gangs=(large, fitting))
    play.show.gangs((large, fitting))
    play.show.say(f"each member asks for 60 cores, so that no two share a GPU; the gang of {ROOM + 1} heard:")
    play.show.say(f"[yellow]{large.why}[/]")
    play.keep(
        promises.leaves_nothing_behind(large),
        promises.is_bound_whole(fitting),
    )


async def _gang(play: Play, name: str, size: int) -> Gang:
    stage = play.stage
    pods = [await play.submit(member(name, number)) for number in range(1, size + 1)]
    found = await stage.kube_scheduler.find_all(pods)
    reserved = round((await stage.scheduler.figures())["reservations"])
    await stage.kube_scheduler.end_cycle(pods, found)
    left = await stage.scheduler.settled_figure("reservations", 0)
    names = [pod["metadata"]["name"] for pod in pods]
    bound = tuple(each for each in names if seen.node_of(stage, each))
    return Gang(size, sum(bool(each.node) for each in found), reserved, left, bound, found[-1].why)
